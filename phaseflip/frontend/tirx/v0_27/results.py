"""Entries of the table whose destination is one register: what the simulator computes for it.

Each function gives destination operand -> value: an expression of the device IR, or an instruction that returns it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded
from .table import TableCall, shared_address

Values = dict[str, Any]
Results = Callable[[TableCall], Values]


def _shuffle(c: TableCall) -> Values:
    """The clamp operand holds 32 - width above its low five bits."""
    clamp = c.operands["c"]
    if c.modifiers["mode"] != "idx" or not isinstance(clamp, ir.Const):
        raise UnsupportedInstruction(f"the simulator does not know the instruction {c.ptx}")
    width = ir.Const(32 - (int(clamp.value) >> 8 & 31), "int32")
    named = {"mask": c.operands["membermask"], "value": c.operands["a"], "source": c.operands["b"]}
    return {"d": Decoded("shfl.sync.idx", named | {"width": width})}


def _elect(c: TableCall) -> Values:
    """d is the elected lane: the lowest one, and all lanes of the mask are here."""
    mask = c.operands["membermask"]
    if not isinstance(mask, ir.Const) or mask.value & 0xFFFFFFFF != 0xFFFFFFFF:
        raise UnsupportedInstruction(f"{c.ptx} of a part of the warp is not simulated")
    return {"p": Decoded("elect.sync"), "d": ir.Const(0, "uint32")}


def _mapa(c: TableCall) -> Values:
    return {"d": Decoded("mapa", {"addr": shared_address(c.operands["a"]), "cta": c.operands["b"]})}


def _cvta(c: TableCall) -> Values:
    if c.modifiers["space"].partition("::")[0] != "shared":
        raise UnsupportedInstruction(f"{c.ptx} is not simulated: of the spaces, .shared alone is")
    return {"d": Decoded("cvta.to.shared", {"addr": c.operands["ptr"]})}


def _binary(op: str) -> Results:
    """Integers, and bits, of the type that the instruction names."""

    def results(c: TableCall) -> Values:
        dtype = _INTEGERS.get(c.modifiers["type"])
        if dtype is None or any(c.modifiers.get(slot) for slot in ("sat", "cc")):
            raise UnsupportedInstruction(f"the simulator does not know the instruction {c.ptx}")
        a, b = (as_type(c.operands[name], dtype) for name in ("a", "b"))
        return {"d": ir.Binary(op, a, b, dtype)}

    return results


def _low_product(c: TableCall) -> Values:
    if c.modifiers["mode"] != "lo":
        raise UnsupportedInstruction(f"the simulator does not know the instruction {c.ptx}")
    return _binary("mul")(c)


def _move(c: TableCall) -> Values:
    return {"d": c.operands["a"]}


def _pack(c: TableCall) -> Values:
    """mov.b64 d, {lo, hi}"""
    low, high = (as_type(as_type(e, "uint32"), "uint64", bits=False) for e in c.operands["a"])
    shifted = ir.Binary("shl", high, ir.Const(32, "uint64"), "uint64")
    return {"d": ir.Binary("bitor", low, shifted, "uint64")}


def _unpack(c: TableCall) -> Values:
    """mov.b64 {lo, hi}, a"""
    a = as_type(c.operands["a"], "uint64")
    high = ir.Binary("shr", a, ir.Const(32, "uint64"), "uint64")
    return {"d": [as_type(e, "uint32", bits=False) for e in (a, high)]}


_INTEGERS = {
    "u32": "uint32", "s32": "int32", "u64": "uint64", "s64": "int64", "b32": "uint32", "b64": "uint64",
}  # fmt: skip
"""Type of an instruction -> dtype of its operands."""


def as_type(e: Any, dtype: str, bits: bool = True) -> Any:
    """The expression as another dtype: its bits, or (`bits=False`) its value."""
    return e if getattr(e, "dtype", "") == dtype else ir.Cast(e, dtype, bits=bits)


RESULTS: dict[str, Results] = {
    "shfl_sync": _shuffle,
    "elect_sync": _elect,
    "mapa": _mapa,
    "mapa_u64_raw": _mapa,
    "mapa_u64_shared": _mapa,
    "mapa_u32": _mapa,
    "cvta": _cvta,
    "add_int": _binary("add"),
    "sub_int": _binary("sub"),
    "mul_int": _low_product,
    "and": _binary("bitand"),
    "or": _binary("bitor"),
    "xor": _binary("bitxor"),
    "mov": _move,
    "mov_pack_b32x2": _pack,
    "mov_unpack_b32x2": _unpack,
}
"""Entry of the table -> the values of its destinations."""
