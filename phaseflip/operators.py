"""What the generated code calls for the operators of the IR.

Values are Python scalars where all lanes agree and NumPy arrays over the lanes elsewhere. Signed and 32-bit integers
are carried in 64 bits: overflow of a signed integer is undefined in TVM's IR, unsigned ones are wrapped here.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_SPECIAL = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "handle": np.dtype(np.int64),
}


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of one element of the IR's `dtype`."""
    return _SPECIAL.get(dtype) or np.dtype(dtype)


def is_float(dtype: str) -> bool:
    """Whether the IR's dtype is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def truncdiv(a: Any, b: Any) -> Any:
    """C division of integers: the quotient rounded towards zero."""
    q = abs(a) // abs(b)
    if q.__class__ is int:
        return q if (a < 0) == (b < 0) else -q
    return np.where((np.asarray(a) < 0) == (np.asarray(b) < 0), q, -q)


def truncmod(a: Any, b: Any) -> Any:
    """C remainder of integers: the sign of the dividend."""
    m = abs(a) % abs(b)
    if m.__class__ is int:
        return m if a >= 0 else -m
    return np.where(np.asarray(a) >= 0, m, -m)


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two values."""
    if a.__class__ is int and b.__class__ is int:
        return a if a < b else b
    return np.minimum(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two values."""
    if a.__class__ is int and b.__class__ is int:
        return a if a > b else b
    return np.maximum(a, b)


def select(condition: Any, a: Any, b: Any) -> Any:
    """condition ? a : b, both sides evaluated."""
    if condition.__class__ is np.ndarray:
        return np.where(condition, a, b)
    return a if condition else b


def cast(value: Any, dtype: np.dtype, bits: int, kind: str) -> Any:
    """Convert to a dtype: `kind` is "f" float, "i" signed, "u" unsigned or "b" bool, of `bits` bits.

    Floats round to nearest even; a float becomes an integer by truncation; integers wrap.
    """
    if kind == "f":
        return np.asarray(value).astype(dtype)[()]
    if kind == "b":
        return value != 0
    if value.__class__ is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind not in "iub":
            value = np.trunc(value.astype(np.float64)).astype(np.int64)
        if bits == 64:
            return value.astype(dtype)
        value = value.astype(np.int64)
    elif value.__class__ is float:
        value = int(value)
    wrapped = value & ((1 << bits) - 1)
    if kind == "i":
        top = 1 << (bits - 1)
        wrapped = (wrapped ^ top) - top
    return wrapped


def reinterpret(value: Any, source: np.dtype, target: np.dtype) -> Any:
    """Keep the bits, change the type; both types have the same width."""
    out = np.asarray(value).astype(source).view(target)
    if target.kind in "iu" and target.itemsize < 8:
        out = out.astype(np.int64)
    return out[()] if out.ndim or target.kind not in "iu" else out.item()


def to_memory(value: Any, dtype: np.dtype) -> Any:
    """The value as an element (or array of elements) of a memory of `dtype`; integers wrap."""
    if dtype.kind in "iu" and value.__class__ is int:
        return (
            value & ((1 << 8 * dtype.itemsize) - 1)
            if dtype.kind == "u"
            else _signed(value, 8 * dtype.itemsize)
        )
    return np.asarray(value).astype(dtype)


def from_memory(value: Any) -> Any:
    """An element (or array of elements) of a memory as a value: integers of up to 32 bits become 64-bit ones."""
    kind = value.dtype.kind
    if value.__class__ is not np.ndarray:
        return value.item() if kind in "iub" else value
    if kind in "iu" and value.dtype.itemsize < 8:
        return value.astype(np.int64)
    return value


def _signed(value: int, bits: int) -> int:
    top = 1 << (bits - 1)
    return ((value & ((1 << bits) - 1)) ^ top) - top
