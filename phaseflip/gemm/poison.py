"""The poison that outputs are filled with before a run, and which of their elements still hold it afterwards.

Of floats it is a signalling NaN: arithmetic and the conversions of hardware give quiet ones, and so do the inputs (NumPy's NaN
of half is 0x7E00), so only a bit copy of the poison itself looks unwritten. Of other types it is some number, which a kernel
might give as well: there a second run tells, on outputs filled with the complement.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from phaseflip.gemm.oracle import OracleResult

POISON = 0x7DAB
"""Bits of a float16 that nobody wrote."""

BFLOAT16_POISON = 0x7FAB
"""The same for bfloat16."""

_NAN = {
    np.dtype(np.float16): POISON,
    np.dtype(ml_dtypes.bfloat16): BFLOAT16_POISON,
    np.dtype(np.float32): 0x7FAB12CD,
    np.dtype(np.float64): 0x7FF4AB12CD345678,
}
_NUMBER = 0x5BAD_C0DE_DBAB_CD97
_BITS_USED = {np.dtype(bool): 1, np.dtype(ml_dtypes.float4_e2m1fn): 15}
"""Of types that leave some bits of their bytes as 0."""


def certain(dtype: Any) -> bool:
    """Whether no kernel gives the poison by chance."""
    return np.dtype(dtype) in _NAN


def poison_bits(dtype: Any, second: bool = False) -> int:
    """The bits of the poison for a dtype, as an unsigned integer of its size; `second`: all of them turned round."""
    dtype = np.dtype(dtype)
    used = _BITS_USED.get(dtype, (1 << 8 * dtype.itemsize) - 1)
    return (_NAN.get(dtype, _NUMBER) ^ (used if second else 0)) & used


def fill_poison(D: np.ndarray, second: bool = False) -> None:
    """Set every element of D to the poison, in place."""
    D.view(f"u{D.dtype.itemsize}")[...] = poison_bits(D.dtype, second)


def unwritten(D: np.ndarray, second: bool = False) -> np.ndarray:
    """Return a bool mask, shaped as D, of the elements that still hold the poison bit for bit."""
    return np.asarray(D.view(f"u{D.dtype.itemsize}") == poison_bits(D.dtype, second))


def unwritten_test(D: np.ndarray, name: str = "D", again: np.ndarray | None = None) -> OracleResult:
    """Fail if an element of D was never written (`fill_poison` must have run before the kernel).

    `again`: what a second run gave, on the second poison.
    """
    mask = unwritten(D)
    if again is not None:
        mask &= unwritten(again, second=True)
    count = int(np.count_nonzero(mask))
    if not count:
        return OracleResult("unwritten-output", True, 0.0, f"every element of {name} was written")
    worst = tuple(int(i) for i in np.unravel_index(int(mask.argmax()), mask.shape))
    message = f"{count} of {mask.size} elements of {name} were never written, the first is {name}{list(worst)}"
    return OracleResult("unwritten-output", False, float("inf"), message, worst)
