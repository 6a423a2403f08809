"""What the spellings of 0.26 are made of: operands, instructions, registers that hold a result."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T
from tvm.tirx import BufferLoad, IntImm


def word(value: Any, dtype: str = "uint32") -> Any:
    """An operand of that type."""
    if isinstance(value, int):
        return IntImm(dtype, value)
    return value if str(value.ty.dtype) == dtype else T.Cast(dtype, value)


def ptx(*tokens: str) -> Any:
    """The instruction of these parts; empty ones are left out."""
    return T.ptx[".".join(filter(None, tokens))]


def result(dtype: str, instruction: Any, *operands: Any) -> Any:
    """A new register, after a statement that writes the instruction's result to it."""
    register = T.alloc_local([1], dtype)
    T.evaluate(instruction(register[0], *operands))
    return register[0]


def elements(pointer: Any, count: int) -> list[Any]:
    """The registers from the one that a pointer is of."""
    load = pointer.args[0]
    *rows, last = load.indices
    return [BufferLoad(load.source, [*rows, last + i if i else last]) for i in range(count)]


def lanes(vec: str) -> int:
    return int(vec.removeprefix("v") or 1)


def shared(pointer: Any) -> Any:
    """An address of shared memory; one of 64 bits, as mapa gives it, in 32."""
    wide = str(getattr(pointer.ty, "dtype", "")) == "uint64"
    return T.cuda.smem_addr_from_uint64(pointer) if wide else pointer
