"""Is D the product A B^T? Three tests of one result.

A[M, K] and B[N, K] are NumPy arrays of one dtype, float16 or bfloat16 (ml_dtypes), D[M, N] is of one
of these or float32. A kernel multiplies exactly, accumulates in float32 in an order PTX does not
specify, and rounds once to the dtype of D. Each test returns an `OracleResult`; only malformed arrays raise (`BadInput`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np

from phaseflip.errors import BadInput

UNIT_FLOAT32 = 2.0**-24
UNIT_FLOAT64 = 2.0**-53
SMALLEST_NORMAL_FLOAT32 = 2.0**-126
FLOAT32_OVERFLOW = 2.0**128
EXACT_FLOAT32_INTEGER = 2.0**24
LARGEST_K = 2**22
"""At this K the bound is a third of |A||B|^T; beyond it says next to nothing."""

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_SIGNIFICANT_BITS = {np.dtype(np.float16): 11, _BFLOAT16: 8}
OUTPUT_DTYPES = (np.dtype(np.float16), _BFLOAT16, np.dtype(np.float32))
"""What D may be of."""


class _Tolerances(Protocol):
    @property
    def rtol(self) -> float: ...
    @property
    def atol(self) -> float: ...


@dataclass(frozen=True)
class OracleResult:
    """What one test said. `passed` is None where the test does not apply to these inputs.

    `max_abs_error` is the largest |D - expected| (inf where only one of the two is finite or their
    signs of infinity differ; equal infinities and two NaNs count as 0), `worst` its (row, column).
    """

    name: str
    passed: bool | None
    max_abs_error: float
    message: str
    worst: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """A dict for strict JSON: an error that is not finite becomes None."""
        values = asdict(self)
        if not np.isfinite(self.max_abs_error):
            values["max_abs_error"] = None
        values["worst"] = None if self.worst is None else list(self.worst)
        return values


# --- references ----------------------------------------------------------------------------------


def reference(A: np.ndarray, B: np.ndarray, output: Any = None) -> np.ndarray:
    """Return A B^T, summed in float32 by torch, rounded to the dtype of A (the chapter's), or to `output`."""
    import torch

    dtype = _check_operands(A, B) if output is None else np.dtype(output)
    with np.errstate(invalid="ignore"):
        a, b = (torch.from_numpy(x.astype(np.float32)) for x in (A, B))
    product = a @ b.T
    if dtype == _BFLOAT16:
        return product.bfloat16().view(torch.int16).numpy().view(_BFLOAT16)
    return product.numpy() if dtype == np.float32 else product.half().numpy()


def reference64(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return A B^T in float64, each element within gamma_K(2^-53) |A||B|^T of the exact one."""
    _check_operands(A, B)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.matmul(_double(A), _double(B).T)


# --- the three tests -----------------------------------------------------------------------------


def seed_tolerance_test(
    D: np.ndarray,
    A: np.ndarray,
    B: np.ndarray,
    tolerance: _Tolerances,
    reference: Callable[[np.ndarray, np.ndarray], np.ndarray] = reference,
) -> OracleResult:
    """(a) The chapter's torch.testing.assert_close against `reference`; two NaNs are equal."""
    import torch

    _check_result(D, A, B)
    expected = reference(A, B)

    def tensor(x: np.ndarray) -> torch.Tensor:
        if x.dtype == np.float32:
            return torch.from_numpy(np.array(x))
        bits = torch.from_numpy(np.array(x).view(np.int16))
        return bits.view(torch.bfloat16 if x.dtype == _BFLOAT16 else torch.float16)

    close = torch.isclose(
        tensor(D), tensor(expected), rtol=tolerance.rtol, atol=tolerance.atol, equal_nan=True
    ).numpy()
    limits = f"rtol {tolerance.rtol:g} and atol {tolerance.atol:g} of the float32 reference"
    return _judge("tolerance", D, _widen(expected), close, limits)


def bound_test(D: np.ndarray, A: np.ndarray, B: np.ndarray) -> OracleResult:
    """(b) Every element lies where float32 accumulation in any order and one rounding can put it.

    Derivation, for one element with exact value x = sum_k a_k b_k and magnitude m = sum_k |a_k
    b_k|:

    1. A product of two halves has at most 22 significant bits and one of two bfloat16 16, so each
       product is exact in float32.
    2. Adding K such terms in any order, with one rounding (u = 2^-24) per addition, gives s with |s
       - x| <= gamma_K m, gamma_K = K u / (1 - K u). (Higham, Accuracy and Stability, 4.2: the sum
       of n terms needs gamma_(n-1); one more allows for a rounded first addition to the
       accumulator.)
    3. x is computed here in float64 as x64, |x64 - x| <= gamma'_K m with u' = 2^-53, and m with the
       same relative error, which the factor 1 + 2^-29 covers for every K allowed here.
       So |s - x64| <= e with e = (gamma_K + gamma'_K) m (1 + 2^-29).
    4. D = rn(s), to nearest even in the dtype of D (float32 keeps s as it is), and rn is monotonic:
       rn(x64 - e) <= D <= rn(x64 + e). This
       contains the final rounding in full. In the usual form it reads, with u16 = 2^-11 and the
       half spacing 2^-25 of subnormal halves, |D - x64| <= e + max(u16 (|x64| + e), 2^-25) below
       the overflow threshold; the interval is never wider. rn sends 65520 and above to infinity
       (the midpoint between 65504 and 65536 goes to even), so overflow needs no case of its own:
       both ends infinite demand infinity, one end infinite leaves both open. The ends are first
       moved outwards to the next float32, so that computing them cannot cut off s.
    5. Halves multiply to multiples of 2^-48: float32 sums of them never underflow. bfloat16
       products may, and hardware may flush them and their sums to zero: 2 K 2^-126 is added to e.
       If m (1 + gamma_K) reaches 2^128 a bfloat16 partial sum may overflow: infinities and NaN are
       then accepted in that element, a finite value must still lie in the interval.
    6. NaN or infinity in x comes from the inputs (float64 cannot overflow here) whatever the order:
       D must then be NaN, or the same infinity.
    """
    dtype, operand = _check_result(D, A, B), A.dtype
    K = A.shape[1]
    if K > LARGEST_K:
        raise BadInput(f"the error bound is meaningful up to K = {LARGEST_K}, got {K}")
    exact = reference64(A, B)
    magnitude = _magnitude(A, B)
    gamma = _gamma(K, UNIT_FLOAT32)
    error = ((gamma + _gamma(K, UNIT_FLOAT64)) * (1 + 2.0**-29)) * magnitude
    if operand == _BFLOAT16:
        error += 2 * K * SMALLEST_NORMAL_FLOAT32
    with np.errstate(all="ignore"):
        low = _widen(_outwards(exact - error, -np.inf).astype(dtype))
        high = _widen(_outwards(exact + error, np.inf).astype(dtype))
        value = _widen(D)
        allowed = (low <= value) & (value <= high)
        special = ~np.isfinite(exact)
        if special.any():
            allowed[special] = (value == exact)[special]
            allowed |= np.isnan(exact) & np.isnan(value)
        if operand == _BFLOAT16:
            may_overflow = magnitude * (1 + gamma) >= FLOAT32_OVERFLOW
            allowed |= may_overflow & ~np.isfinite(value)
    return _judge("bound", D, exact, allowed, (low, high))


def exact_test(D: np.ndarray, A: np.ndarray, B: np.ndarray) -> OracleResult:
    """(c) Bit equality, for inputs whose every partial sum is exact in float32 in any order.

    That holds if A and B are finite and either all products are multiples of one power of two q
    with sum_k |a_k b_k| <= 2^24 q in each element (small integers: q = 1), or no element has more
    than one product other than zero (one-hot rows, permutations); for bfloat16 also only within the
    normal range of float32. The expected bits are then the exact sum rounded to nearest even. The
    sign of a zero is not compared: PTX leaves open whether a sum of -0 products starts from +0.
    """
    dtype = _check_result(D, A, B)
    reason = _inexact_reason(A, B, A.dtype)
    if reason:
        return OracleResult("exact", None, float("nan"), f"not applicable: {reason}")
    exact = reference64(A, B)
    with np.errstate(all="ignore"):
        expected = exact.astype(np.float32).astype(dtype)
    whole = np.dtype(f"u{dtype.itemsize}")
    bits, expected_bits = D.view(whole), expected.view(whole)
    equal = (bits == expected_bits) | ((bits | expected_bits) << 1 == 0)  # the sign bit aside
    return _judge("exact", D, _widen(expected), equal, "the exact value")


# --- parts ---------------------------------------------------------------------------------------


def _gamma(n: int, unit: float) -> float:
    return n * unit / (1 - n * unit)


def _outwards(x: np.ndarray, direction: float) -> np.ndarray:
    return np.nextafter(x.astype(np.float32), np.float32(direction))


def _widen(x: np.ndarray) -> np.ndarray:
    """As float32; a signalling NaN (the poison) becomes quiet without a warning."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float32)


def _double(x: np.ndarray) -> np.ndarray:
    """As float64, in the same way."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def _magnitude(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """|A||B|^T in float64 over the finite entries."""
    a, b = (np.abs(_double(x)) for x in (A, B))
    for x in (a, b):
        x[~np.isfinite(x)] = 0
    return np.matmul(a, b.T)


def _inexact_reason(A: np.ndarray, B: np.ndarray, dtype: np.dtype[Any]) -> str:
    """Why a partial sum of A B^T may be inexact in float32; empty if none can."""
    a, b = (np.abs(_double(x)) for x in (A, B))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return "the inputs hold NaN or infinity"
    if not (a.any() and b.any()):
        return ""
    in_range = True
    if dtype == _BFLOAT16:
        smallest = a[a > 0].min() * b[b > 0].min()
        largest = a.max() * b.max() * A.shape[1]
        in_range = smallest >= SMALLEST_NORMAL_FLOAT32 and largest < FLOAT32_OVERFLOW
    single_term = any((np.count_nonzero(x, axis=1) <= 1).all() for x in (a, b))
    if in_range and single_term:
        return ""
    limit = EXACT_FLOAT32_INTEGER * _step(a, dtype) * _step(b, dtype)
    # The mean over all elements costs no product of matrices and rules out most inputs.
    mean = float(a.sum(axis=0) @ b.sum(axis=0)) / (a.shape[0] * b.shape[0])
    if in_range and mean <= limit and np.matmul(a, b.T).max() <= limit:
        return ""
    return "some sum of these products may need rounding in float32"


def _step(x: np.ndarray, dtype: np.dtype[Any]) -> float:
    """The largest power of two of which every entry of x (float64 >= 0, some > 0) is a multiple."""
    fraction, exponent = np.frexp(x[x > 0])
    bits = _SIGNIFICANT_BITS[dtype]
    integer = np.ldexp(fraction, bits).astype(np.int64)
    lowest_bit = np.ldexp((integer & -integer).astype(np.float64), exponent - bits)
    return float(lowest_bit.min())


def _judge(
    name: str,
    D: np.ndarray,
    expected: np.ndarray,
    allowed: np.ndarray,
    limits: str | tuple[np.ndarray, np.ndarray],
) -> OracleResult:
    """Make the result: `allowed` decides, `expected` measures, `limits` explains."""
    value = _double(D)
    with np.errstate(invalid="ignore"):
        error = np.abs(value - expected)
    unclear = ~np.isfinite(error)
    if unclear.any():
        same = (value == expected) | (np.isnan(value) & np.isnan(expected))
        error[unclear] = np.where(same | allowed, 0.0, np.inf)[unclear]
    largest = float(error.max())
    wrong = D.size - int(np.count_nonzero(allowed))
    ranked = error if not wrong else np.where(allowed, -1.0, error)
    worst = _position(ranked.argmax(), D.shape)
    what = f"D{list(worst)} = {value[worst]:.9g}, expected {expected[worst]:.9g}"
    if isinstance(limits, str):
        permitted = limits
    else:
        permitted = f"the interval [{limits[0][worst]:.9g}, {limits[1][worst]:.9g}]"
    if wrong:
        message = f"{wrong} of {D.size} elements are outside {permitted}; the worst is {what}"
        if not isinstance(limits, str):
            message = (
                f"{wrong} of {D.size} elements are outside the error bound; the worst is {what}, "
                f"outside {permitted}"
            )
    else:
        message = (
            f"all {D.size} elements pass; the largest error is {largest:.3g} at D{list(worst)}"
        )
    return OracleResult(name, not wrong, largest, message, worst)


def _position(flat: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    row, column = divmod(int(flat), shape[1])
    return row, column


# --- arrays --------------------------------------------------------------------------------------


def _half_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype not in _SIGNIFICANT_BITS:
        raise BadInput(f"matrices must be float16 or bfloat16, got {dtype}")
    return dtype


def _check_operands(A: np.ndarray, B: np.ndarray) -> np.dtype[Any]:
    """Return the common dtype of A[M, K] and B[N, K]; BadInput if they do not fit."""
    for name, x in (("A", A), ("B", B)):
        if not isinstance(x, np.ndarray) or x.ndim != 2 or not x.size:
            found = f"shape {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
            raise BadInput(f"{name} must be a NumPy matrix with elements, got {found}")
        _half_dtype(x.dtype)
    if A.dtype != B.dtype:
        raise BadInput(f"A and B must have one dtype, got {A.dtype} and {B.dtype}")
    if A.shape[1] != B.shape[1]:
        raise BadInput(
            f"A[M, K] and B[N, K] must share K, got shapes {list(A.shape)} and {list(B.shape)}"
        )
    return A.dtype


def _check_result(D: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.dtype[Any]:
    """Return the dtype of D[M, N]; BadInput if A, B and D do not fit."""
    _check_operands(A, B)
    shape = (A.shape[0], B.shape[0])
    if not isinstance(D, np.ndarray) or D.shape != shape or D.dtype not in OUTPUT_DTYPES:
        found = f"{list(D.shape)} {D.dtype}" if isinstance(D, np.ndarray) else type(D).__name__
        legal = ", ".join(map(str, OUTPUT_DTYPES))
        raise BadInput(f"D must be a matrix {list(shape)} of {legal}, got {found}")
    return D.dtype
