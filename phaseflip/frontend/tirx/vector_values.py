"""Short vectors among TVM's expressions: taken apart into their lanes, and put together to one scalar of the same bits.

TVM 0.27 adds to the lower half of a descriptor so: it reinterprets 64 bits as uint32x2, shuffles, and reinterprets back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir import nodes as ir

Read = Callable[[Any], ir.Expr]
_BITS = {"uint32": 32, "int32": 32, "uint64": 64, "int64": 64}


def lanes(e: Any, read: Read) -> list[ir.Expr] | None:
    """The lanes of a shuffle, or of a scalar that is reinterpreted as a vector of integers; None for another one."""
    kind = type(e).__name__
    if kind == "Shuffle":
        parts: list[ir.Expr] = []
        for vector in e.vectors:
            found = lanes(vector, read) if _lanes(vector) > 1 else [read(vector)]
            if found is None:
                return None
            parts += found
        return [parts[int(i)] for i in e.indices]
    if kind == "Call" and e.op.name == "tirx.reinterpret" and _lanes(e) > 1:
        element, count = str(e.ty.dtype).split("x")[0], _lanes(e)
        bits = _BITS.get(element)
        source = read(e.args[0])
        whole = getattr(source, "dtype", "")
        if bits is None or _BITS.get(whole) != bits * count:
            return None
        wide = source if whole == "uint64" else ir.Cast(source, "uint64", bits=True)
        return [
            ir.Cast(_shifted("shr", wide, i * bits), element) if i else ir.Cast(wide, element)
            for i in range(count)
        ]
    return None


def scalar(e: Any, read: Read) -> ir.Expr | None:
    """The value of a reinterpretation of a short vector as a 64-bit scalar; None for another reinterpretation."""
    source = e.args[0]
    if _lanes(e) > 1 or _lanes(source) == 1:
        return None
    found = lanes(source, read)
    target = str(e.ty.dtype)
    if found is None or _BITS.get(target, 0) != 64:
        return None
    result: ir.Expr | None = None
    for i, lane in enumerate(found):
        bits = 64 // len(found)
        wide = _shifted("shl", ir.Cast(lane, "uint64"), i * bits)
        result = wide if result is None else ir.Binary("bitor", result, wide, "uint64")
    return result if target == "uint64" or result is None else ir.Cast(result, target, bits=True)


def _lanes(e: Any) -> int:
    dtype = str(getattr(e.ty, "dtype", ""))
    return int(dtype.split("x")[1]) if "x" in dtype else 1


def _shifted(op: str, e: ir.Expr, bits: int) -> ir.Expr:
    return ir.Binary(op, e, ir.Const(bits, "uint64"), "uint64") if bits else e
