"""What the generated code calls for the operators of the IR.

Values are Python scalars where all lanes agree and NumPy arrays over the lanes elsewhere. Signed and 32-bit integers
are carried in 64 bits: overflow of a signed integer is undefined in TVM's IR, unsigned ones are wrapped here.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import UnsupportedInstruction

_PLAIN = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
)  # fmt: skip
_OF_ML_DTYPES = (
    "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
)  # fmt: skip
_DTYPES = {name: np.dtype(name) for name in _PLAIN}
_DTYPES |= {name: np.dtype(getattr(ml_dtypes, name)) for name in _OF_ML_DTYPES}
_DTYPES["handle"] = np.dtype(np.int64)

SATURATING = {
    _DTYPES[name]: (float(ml_dtypes.finfo(name).max), name.startswith("float8"))
    for name in ("float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn")
}
"""Types that PTX converts to with .satfinite only: the largest value, and whether there is a NaN."""


def numpy_dtype(dtype: str) -> np.dtype:
    """The NumPy dtype of one element of the IR's `dtype`."""
    found = _DTYPES.get(dtype)
    if dtype == "float4_e2m1fn":
        raise UnsupportedInstruction(
            "single elements of float4_e2m1fn are not simulated: two share a byte, so move whole bytes"
        )
    if found is None:
        raise UnsupportedInstruction(f"values of type {dtype} are not simulated")
    return found


def is_float(dtype: str) -> bool:
    """Whether the IR's dtype is a floating-point one."""
    return dtype.startswith(("float", "bfloat"))


def truncdiv(a: Any, b: Any) -> Any:
    """C division of integers: the quotient rounded towards zero (0 where PTX leaves it open, for a divisor of 0)."""
    if a.__class__ is int and b.__class__ is int:
        q = abs(a) // abs(b) if b else 0
        return q if (a < 0) == (b < 0) else -q
    q = abs(a) // abs(b)
    return np.where((np.asarray(a) < 0) == (np.asarray(b) < 0), q, -q)


def truncmod(a: Any, b: Any) -> Any:
    """C remainder of integers: the sign of the dividend (0 for a divisor of 0, where PTX leaves it open)."""
    if a.__class__ is int and b.__class__ is int:
        m = abs(a) % abs(b) if b else 0
        return m if a >= 0 else -m
    m = abs(a) % abs(b)
    return np.where(np.asarray(a) >= 0, m, -m)


def floordiv(a: Any, b: Any) -> Any:
    """The quotient of integers rounded down (0 for a divisor of 0)."""
    if a.__class__ is int and b.__class__ is int:
        return a // b if b else 0
    return a // b


def floormod(a: Any, b: Any) -> Any:
    """The remainder of integers with the sign of the divisor (0 for a divisor of 0)."""
    if a.__class__ is int and b.__class__ is int:
        return a % b if b else 0
    return a % b


def shift_left(a: Any, n: Any) -> Any:
    """a << n for a shift that may be out of range: PTX shl clamps it to the width, so nothing is left."""
    amount = np.asarray(n)
    legal = (amount >= 0) & (amount < 64)
    shifted = np.where(legal, np.asarray(a) << np.where(legal, amount, 0).astype(_of(a)), 0)
    return shifted if shifted.ndim else shifted.item()


def shift_right(a: Any, n: Any) -> Any:
    """a >> n for a shift that may be out of range: PTX shr clamps it to the width, so the sign is left."""
    clamped = np.where((np.asarray(n) >= 0) & (np.asarray(n) < 64), n, 63)
    shifted = np.asarray(a) >> clamped.astype(_of(a))
    return shifted if shifted.ndim else shifted.item()


def _of(a: Any) -> np.dtype:
    return np.asarray(a).dtype


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two values; of a NaN and a number the number, as CUDA's fminf and PTX min have it."""
    if a.__class__ is int and b.__class__ is int:
        return a if a < b else b
    return np.fmin(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two values; of a NaN and a number the number, as CUDA's fmaxf and PTX max have it."""
    if a.__class__ is int and b.__class__ is int:
        return a if a > b else b
    return np.fmax(a, b)


def select(condition: Any, a: Any, b: Any) -> Any:
    """condition ? a : b, both sides evaluated."""
    if condition.__class__ is np.ndarray:
        return np.where(condition, a, b)
    return a if condition else b


def cast(value: Any, dtype: np.dtype, bits: int, kind: str) -> Any:
    """Convert to a dtype: `kind` is "f" float, "i" signed, "u" unsigned or "b" bool, of `bits` bits.

    Floats round to nearest even; a float becomes an integer by truncation, clamped to the type's range (NaN becomes 0),
    as PTX cvt.rzi has it; integers wrap.
    """
    if kind == "f":
        return rounded(value, dtype)[()]
    if kind == "b":
        return value != 0
    if value.__class__ is np.ndarray or isinstance(value, np.generic):
        if value.dtype.kind not in "iub":
            value = _truncated(value, dtype)
        if value.__class__ is not np.ndarray:
            value = value.item()
        elif bits == 64:
            return value.astype(dtype)
        else:
            value = value.astype(np.int64)
    wrapped = value & ((1 << bits) - 1)
    if kind == "i":
        top = 1 << (bits - 1)
        wrapped = (wrapped ^ top) - top
    return wrapped


def rounded(value: Any, dtype: np.dtype) -> np.ndarray:
    """Convert to a floating-point dtype: to nearest even; narrow ones saturate, and where they have no NaN it is the largest.

    So cvt.rn.satfinite has it, and so CUDA's casts do (PTX ISA 9.1, cvt; cuda_fp8.hpp, cuda_fp6.hpp).
    """
    value = np.asarray(value)
    if dtype not in SATURATING or value.dtype == dtype:
        return value.astype(dtype)
    largest, has_nan = SATURATING[dtype]
    exact = value.astype(np.float64)
    if not has_nan:
        exact = np.where(np.isnan(exact), largest, exact)
    return np.clip(exact, -largest, largest).astype(dtype)


def _truncated(value: Any, dtype: np.dtype) -> Any:
    limits = np.iinfo(dtype)
    whole = np.trunc(value.astype(np.float64))
    # Only the upper limit of a 64-bit type is no float64: what reaches it is set apart.
    result = np.where(
        np.isnan(whole) | (whole >= limits.max) | (whole <= limits.min), 0, whole
    ).astype(dtype)
    result = np.where(whole >= limits.max, dtype.type(limits.max), result)
    return np.where(whole <= limits.min, dtype.type(limits.min), result)[()]


def unsigned64(value: Any) -> Any:
    """A 64-bit unsigned value that may have been carried as a signed array, when the lanes' scalars were put together."""
    if value.__class__ is np.ndarray and value.dtype.kind == "i":
        return value.astype(np.uint64)
    return value


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
