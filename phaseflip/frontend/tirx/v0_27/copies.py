"""Bulk copies and tensor copies of TVM 0.27's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded, Operands
from ..arguments import number_of
from .table import TableCall


def _plain(c: TableCall) -> None:
    """Cache hints change no result; these modifiers do."""
    for slot in ("sem", "scope", "type", "ignore_oob", "cp_mask"):
        if c.modifiers.get(slot):
            raise UnsupportedInstruction(f"{c.ptx} is not simulated with .{c.modifiers[slot]}")
    if c.modifiers.get("load_mode", "") not in ("", "tile"):
        raise UnsupportedInstruction(f"{c.ptx} is not simulated: of the load modes, .tile alone is")


def _tensor_load(c: TableCall) -> Decoded:
    _plain(c)
    named: Operands = {
        "dst": c.operands["dst_mem"],
        "mbar": c.operands["mbar"],
        "tensor_map": c.operands["tmap"],
        "coordinates": list(c.operands["coords"]),
        "cta_mask": c.one("cta_mask") if "cta_mask" in c.operands else None,
        "cta_group": int((c.modifiers["cta_group"] or "cta_group::1")[-1]),
    }
    return Decoded("cp.async.bulk.tensor.g2s", named)


def _tensor_store(c: TableCall) -> Decoded:
    _plain(c)
    named: Operands = {"src": c.operands["src_mem"], "tensor_map": c.operands["tmap"]}
    return Decoded("cp.async.bulk.tensor.s2g", named | {"coordinates": list(c.operands["coords"])})


def _load(own: bool) -> Callable[[TableCall], Decoded]:
    def meaning(c: TableCall) -> Decoded:
        _plain(c)
        named = _moved(c) | {"mbar": c.operands["mbar"], "own": own}
        return Decoded(
            "cp.async.bulk.g2s",
            named | {"cta_mask": c.one("cta_mask") if "cta_mask" in c.operands else None},
        )

    return meaning


def _to_peer(c: TableCall) -> Decoded:
    _plain(c)
    return Decoded("cp.async.bulk.s2s", _moved(c) | {"mbar": c.operands["mbar"]})


def _store(c: TableCall) -> Decoded:
    _plain(c)
    return Decoded("cp.async.bulk.s2g", _moved(c))


def _moved(c: TableCall) -> Operands:
    o = c.operands
    return {"dst": o["dst_mem"], "src": o["src_mem"], "nbytes": o["size"]}


def _wait_group(c: TableCall) -> Decoded:
    named: Operands = {"newest": number_of(c.operands["group"])}
    return Decoded("cp.async.bulk.wait_group", named | {"reads_only": bool(c.modifiers["read"])})


# -- ld and st ---------------------------------------------------------------------------------------------------------

_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}
_VOLATILE = ("acquire", "release", "relaxed", "volatile", "mmio")


def vector_bytes(c: TableCall) -> int:
    """Bytes that one lane moves."""
    lanes = int(c.modifiers.get("vec", "").removeprefix("v") or 1)
    return lanes * _BYTES[c.modifiers["type"][1:]]


def _space(c: TableCall) -> str:
    """ "global" or "shared"; accesses that order others, and those of another space, are refused."""
    space = c.modifiers["space"].partition("::")[0]
    if space not in ("global", "shared"):
        raise UnsupportedInstruction(f"{c.ptx} is not simulated: name .global or .shared")
    for token in _VOLATILE:
        if c.has(token):
            raise UnsupportedInstruction(f"{c.ptx} is not simulated with .{token}")
    if vector_bytes(c) > 16:
        raise UnsupportedInstruction(f"{c.ptx} is not simulated: it moves more than 16 bytes")
    return space


def _ld(c: TableCall) -> Decoded:
    """The destination has been made one address (`reading.py`)."""
    named: Operands = {"dst": c.operands["d"], "addr": c.operands["addr"]}
    return Decoded(f"ld.{_space(c)}", named | {"nbytes": vector_bytes(c)})


def _st(c: TableCall) -> Decoded:
    """The source has been made one address (`reading.py`)."""
    named: Operands = {"addr": c.operands["addr"], "src": c.operands["value"]}
    return Decoded(f"st.{_space(c)}", named | {"nbytes": vector_bytes(c)})


GROUPS = {"ld": "d", "ld_vec": "d", "ld_vec256": "d", "st": "value", "st_vec": "value", "st_vec256": "value"}  # fmt: skip
"""Entry -> its operand that becomes the address of neighbouring registers."""

COPIES: dict[str, Callable[[TableCall], Decoded]] = {
    "ld": _ld,
    "ld_vec": _ld,
    "ld_vec256": _ld,
    "st": _st,
    "st_vec": _st,
    "st_vec256": _st,
    "cp_async_bulk_tensor_g2s_cluster": _tensor_load,
    "cp_async_bulk_tensor_g2s_cta": _tensor_load,
    "cp_async_bulk_tensor_s2g": _tensor_store,
    "cp_async_bulk_tensor_prefetch": lambda c: Decoded("cp.async.bulk.prefetch.tensor"),
    "cp_async_bulk_g2s_cta": _load(True),
    "cp_async_bulk_g2s_cluster": _load(False),
    "cp_async_bulk_s2c": _to_peer,
    "cp_async_bulk_s2g": _store,
    "cp_async_bulk_commit_group": lambda c: Decoded("cp.async.bulk.commit_group"),
    "cp_async_bulk_wait_group": _wait_group,
}
"""Entry of the table -> its meaning."""


def is_register(e: Any) -> bool:
    """Whether an operand is an element of a register array."""
    return isinstance(e, ir.Load) and e.buffer.root.scope == "local"
