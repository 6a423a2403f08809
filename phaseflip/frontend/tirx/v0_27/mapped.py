"""Barriers of another CTA: which local barrier and which CTA an address that mapa has computed stands for.

0.27 maps the address of a barrier into a register, or into a pointer that a view of it is declared at, and arrives there.
Where nothing else is stored to the register, the arrival is read as PTX documents it: on the barrier of CTA `cta` that
corresponds to a local one. So a report can name the barrier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....ir import nodes as ir
from ....ir.instruction import Decoded
from .table import expressions, narrowed

ARRIVALS = ("mbarrier.arrive", "mbarrier.arrive.expect_tx", "mbarrier.complete_tx")


@dataclass
class _Mapped:
    """A local address, and the CTA that it is mapped into."""

    address: ir.Address
    cta: Any


class MappedBarriers:
    """What mapa has stored where, in one function, in program order."""

    def __init__(self) -> None:
        self._registers: dict[tuple[ir.Buffer, int], _Mapped] = {}
        self._pointers: dict[ir.Var, _Mapped] = {}
        self._read: dict[tuple[ir.Buffer, int], list[tuple[ir.Call, dict[str, Any]]]] = {}
        self._spoiled: set[tuple[ir.Buffer, int]] = set()

    def mapped(self, target: Any, meaning: Decoded, site: ir.Site) -> list[ir.Stmt]:
        """mapa is about to store to a register; the statements that keep the operands until an arrival needs them."""
        key, address = _key(target), meaning.operands["addr"]
        if key is None or not isinstance(address, ir.Address) or not address.buffer.root.own_shared:
            return []
        if key in self._registers or key in self._spoiled:
            self.stored(*key)
            return []
        cta = ir.Var("cta", "int32")
        index = ir.Var("index", "int32")
        self._registers[key] = _Mapped(ir.Address(address.buffer, address.index), cta)
        kept: list[ir.Stmt] = [ir.Let(cta, meaning.operands["cta"], site)]
        if not isinstance(address.index, ir.Const):
            self._registers[key].address.index = index
            kept.append(ir.Let(index, address.index, site))
        return kept

    def stored(self, buffer: ir.Buffer, index: Any) -> None:
        """Something else is stored to a register: what was read from it stays as it is written."""
        if not isinstance(index, (ir.Const, int)):
            keys = [key for key in self._registers if key[0] is buffer]
        else:
            keys = [(buffer, index if isinstance(index, int) else int(index.value))]
        for key in keys:
            self._spoiled.add(key)
            self._registers.pop(key, None)
            for call, operands in self._read.pop(key, ()):
                call.decoded.operands.update(operands)
                call.args[:] = expressions(call.decoded)

    def bound(self, var: ir.Var, value: Any) -> None:
        """A pointer is bound to a value."""
        while isinstance(value, ir.Cast):
            value = value.a
        key = _key(value)
        if key is not None and key in self._registers:
            self._pointers[var] = self._registers[key]

    def resolve(self, call: ir.Call) -> None:
        """Give an arrival its local barrier and `cta`, if its address comes from mapa."""
        meaning = call.decoded
        if meaning.mnemonic not in ARRIVALS:
            return
        given = meaning.operands["mbar"]
        found, offset, key = self._source(given)
        if found is None:
            return
        local = found.address
        index = _sum(offset, local.index)
        if key is not None:
            old = {"mbar": given, "cta": meaning.operands["cta"]}
            self._read.setdefault(key, []).append((call, old))
        meaning.operands.update(mbar=ir.Address(local.buffer, index), cta=found.cta)
        call.args[:] = expressions(meaning)

    def _source(self, address: Any) -> tuple[_Mapped | None, Any, Any]:
        """(what an address comes from, elements further, register that it is read from)."""
        if isinstance(address, ir.Address) and address.buffer.root.parameter is not None:
            found = self._pointers.get(address.buffer.root.parameter)
            if found is not None and found.address.buffer.dtype == address.buffer.dtype:
                return found, address.index, None
            return None, None, None
        key = _key(narrowed(address))
        return (self._registers.get(key) if key is not None else None), None, key


def _key(e: Any) -> tuple[ir.Buffer, int] | None:
    """A register element at a constant index."""
    if isinstance(e, ir.Load) and e.buffer.root.scope == "local" and isinstance(e.index, ir.Const):
        return e.buffer, int(e.index.value)
    return None


def _sum(a: Any, b: Any) -> Any:
    """The sum of two indices, a constant last, as TVM writes it; None counts for 0."""
    if isinstance(a, ir.Const) and isinstance(b, ir.Const):
        return ir.Const(a.value + b.value, b.dtype)
    if a is None or isinstance(a, ir.Const) and a.value == 0:
        return b
    return (
        ir.Binary("add", b, a, "int32")
        if isinstance(a, ir.Const)
        else ir.Binary("add", a, b, "int32")
    )
