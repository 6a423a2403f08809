"""oracle.py: what each test accepts and refuses, at the edges of half precision above all."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from phaseflip.errors import BadInput
from phaseflip.gemm import oracle, poison
from phaseflip.gemm.inputs import kinds, make_inputs
from phaseflip.gemm.kernel import Tolerance
from phaseflip.gemm.oracle import OracleResult

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = ["float16", "bfloat16"]


def half(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float16)


def tolerance_test(D: np.ndarray, A: np.ndarray, B: np.ndarray) -> OracleResult:
    return oracle.seed_tolerance_test(D, A, B, Tolerance())


def next_up(D: np.ndarray, row: int, column: int, steps: int = 1) -> np.ndarray:
    """A copy of D with one element moved by `steps` representable values away from zero."""
    moved = D.copy()
    moved.view(np.int16)[row, column] += steps
    return moved


def summed_in_order(A: np.ndarray, B: np.ndarray, order: np.ndarray) -> np.ndarray:
    """A B^T with one float32 rounding per addition, K in the given order."""
    total = np.zeros((A.shape[0], B.shape[0]), np.float32)
    with np.errstate(all="ignore"):
        for k in order:
            total += np.outer(A[:, k].astype(np.float32), B[:, k].astype(np.float32))
        return total.astype(A.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", kinds())
def test_reference_passes_every_oracle(kind: str, dtype: str) -> None:
    A, B = make_inputs(kind, 48, 64, 96, seed=5, dtype=dtype)
    D = oracle.reference(A, B)
    assert D.dtype == A.dtype and D.shape == (48, 64)
    assert tolerance_test(D, A, B).passed
    assert oracle.bound_test(D, A, B).passed
    exact = oracle.exact_test(D, A, B).passed
    assert exact is (True if kind in ("integers", "one-hot", "permutation") else None)
    assert poison.unwritten_test(D).passed


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", kinds())
def test_bound_accepts_any_accumulation_order(kind: str, dtype: str) -> None:
    A, B = make_inputs(kind, 24, 32, 256, seed=6, dtype=dtype)
    generator = np.random.default_rng(0)
    orders = [np.arange(256), np.arange(256)[::-1], generator.permutation(256)]
    for order in orders:
        result = oracle.bound_test(summed_in_order(A, B, order), A, B)
        assert result.passed, result.message


def test_bound_refuses_two_units_in_the_last_place_where_the_seeds_test_accepts() -> None:
    A, B = make_inputs("normal", 32, 32, 64, seed=1)
    D = next_up(oracle.reference(A, B), 3, 4, steps=2)
    result = oracle.bound_test(D, A, B)
    assert result.passed is False and result.worst == (3, 4)
    assert "D[3, 4] =" in result.message and "1 of 1024" in result.message
    assert tolerance_test(D, A, B).passed


def test_bound_is_tight_when_nothing_cancels() -> None:
    """With |A||B|^T = |A B^T| the interval of allowed results holds at most two halves."""
    A, B = (np.abs(x) for x in make_inputs("normal", 32, 32, 64, seed=2))
    D = oracle.reference(A, B)
    for steps in (-2, 2):
        for position in [(0, 0), (7, 9), (31, 31)]:
            assert not oracle.bound_test(next_up(D, *position, steps), A, B).passed


def test_bound_allows_both_neighbours_near_a_midpoint() -> None:
    """1 + 2^-11 lies half way between two halves; float32 noise in a large sum decides."""
    A = half([1, 2.0**-11, 1024, 1024])
    B = half([1, 1, 1, -1])
    for value in (1.0, 1 + 2.0**-10):
        assert oracle.bound_test(half([value]), A, B).passed
    assert not oracle.bound_test(half([1 + 2 * 2.0**-10]), A, B).passed
    assert not oracle.bound_test(half([1 - 2.0**-10]), A, B).passed


@pytest.mark.parametrize(
    ("a", "b", "accepted", "refused"),
    [
        # 65504 + 15 = 65519 rounds to the largest half, 65520 (the midpoint) to infinity; float32
        # holds both exactly, but the bound must allow for rounding, so near 65520 both may appear.
        ([65504, 0], [1, 1], [65504], [np.inf, -np.inf, np.nan, 65472]),
        ([65504, 8], [1, 1], [65504], [np.inf, np.nan]),
        ([65504, 16], [1, 1], [65504, np.inf], [-np.inf, np.nan, 65472]),
        ([65504, 32], [1, 1], [np.inf], [65504, -np.inf, np.nan]),
        ([-65504, 32], [1, -1], [-np.inf], [-65504, np.inf, np.nan]),
        ([65504, 65504], [65504, -65504], [0, 256, -256], [65504, np.inf, np.nan]),
    ],
)
def test_bound_at_the_overflow_threshold(
    a: list[float], b: list[float], accepted: list[float], refused: list[float]
) -> None:
    for value in accepted:
        assert oracle.bound_test(half([value]), half(a), half(b)).passed, value
    for value in refused:
        assert oracle.bound_test(half([value]), half(a), half(b)).passed is False, value


@pytest.mark.parametrize("value", [0.0, 2.0**-24])
def test_bound_at_half_the_smallest_subnormal(value: float) -> None:
    """The exact value 2^-25 is half way between 0 and the smallest half."""
    A, B = half([2.0**-13]), half([2.0**-12])
    assert oracle.bound_test(half([value]), A, B).passed
    assert not oracle.bound_test(half([2.0**-23]), A, B).passed
    assert not oracle.bound_test(half([-(2.0**-24)]), A, B).passed


@pytest.mark.parametrize(
    ("a", "b", "only"),
    [
        ([np.nan, 1], [1, 1], np.nan),
        ([np.inf, 1], [1, 1], np.inf),
        ([np.inf, 1], [-1, 1], -np.inf),
        ([np.inf, 1], [0, 1], np.nan),
        ([np.inf, np.inf], [1, -1], np.nan),
        ([np.inf, -np.inf], [1, -1], np.inf),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_and_infinity_must_agree(
    a: list[float], b: list[float], only: float, dtype: str
) -> None:
    A, B = (half(x).astype(dtype) for x in (a, b))
    for value in (np.nan, np.inf, -np.inf, 0.0, 1.0):
        same = value == only or (np.isnan(value) and np.isnan(only))
        D = half([value]).astype(dtype)
        assert oracle.bound_test(D, A, B).passed is bool(same), value
        assert tolerance_test(D, A, B).passed is bool(same), value


def test_nan_in_place_of_a_number_fails_everywhere() -> None:
    A, B = make_inputs("integers", 16, 16, 64, seed=3)
    D = oracle.reference(A, B)
    D[2, 5] = np.nan
    for test in (tolerance_test, oracle.bound_test, oracle.exact_test):
        result = test(D, A, B)
        assert result.passed is False and result.worst == (2, 5)
        assert result.max_abs_error == np.inf
        assert result.to_json()["max_abs_error"] is None


def test_bfloat16_partial_sums_that_may_overflow_are_left_open() -> None:
    A = half([2, 2, 2]).astype(BFLOAT16) * np.array(2.0**63, BFLOAT16)
    B = half([1, 1, -1]).astype(BFLOAT16) * np.array(2.0**63, BFLOAT16)
    for value, accepted in ((np.inf, True), (np.nan, True), (2.0**127, True), (1.0, False)):
        assert oracle.bound_test(np.array([[value]], BFLOAT16), A, B).passed is accepted, value


def test_exact_compares_bits() -> None:
    A, B = make_inputs("integers", 32, 48, 1024, seed=4)
    D = oracle.reference(A, B)
    assert np.array_equal(D, (A.astype(int) @ B.astype(int).T).astype(np.float16))
    assert oracle.exact_test(D, A, B).passed
    wrong = next_up(D, 30, 1)
    result = oracle.exact_test(wrong, A, B)
    assert result.passed is False and result.worst == (30, 1)
    assert "expected" in result.message


def test_exact_rounds_large_integers_to_nearest_even() -> None:
    A, B = half([2048, 1]), half([1, 1])
    assert oracle.exact_test(half([2048]), A, B).passed
    assert oracle.exact_test(half([2050]), A, B).passed is False
    A = half([2048, 3])
    assert oracle.exact_test(half([2052]), A, B).passed
    assert oracle.exact_test(half([np.inf]), half([2048]), half([32])).passed


def test_exact_ignores_the_sign_of_zero() -> None:
    A, B = half([0, 1]), half([1, 0])
    assert oracle.exact_test(half([-0.0]), A, B).passed
    assert oracle.exact_test(half([2.0**-24]), A, B).passed is False


@pytest.mark.parametrize(
    ("a", "b", "applies"),
    [
        ([2047, 1], [2047, 1], True),
        ([2047] * 4, [2047] * 4, True),  # 4 x 2047^2 is just below 2^24
        ([2047] * 5, [2047] * 5, False),
        ([2048, 1], [2048, 0.5], True),  # halves of integers: 2^22 + 1/2, in steps of 1/2
        ([2048, 1], [2048, 2.0**-10], False),
        ([1.0009765625, 0], [0.333251953125, 5], True),  # one product other than zero
        ([np.inf, 1], [1, 1], False),
        ([0, 0], [1, 1], True),
    ],
)
def test_exact_applies_where_every_partial_sum_is_exact(
    a: list[float], b: list[float], applies: bool
) -> None:
    A, B = half(a), half(b)
    result = oracle.exact_test(oracle.reference(A, B), A, B)
    assert result.passed is (True if applies else None), result.message
    assert applies or result.message.startswith("not applicable: ")
    json.dumps(result.to_json(), allow_nan=False)


@pytest.mark.parametrize(("dtype", "bits"), [(np.float16, 0x7DAB), (BFLOAT16, 0x7FAB)])
def test_poison_is_a_nan_that_results_do_not_hold(dtype: np.dtype, bits: int) -> None:
    D = np.zeros((4, 6), dtype)
    poison.fill_poison(D)
    assert (D.view(np.uint16) == bits).all() and poison.unwritten(D).all()
    with np.errstate(invalid="ignore"):
        assert np.isnan(D.astype(np.float32)).all()
    results = oracle.reference(*make_inputs("special", 32, 32, 64, dtype=D.dtype.name))
    assert np.isnan(results).any() and not poison.unwritten(results).any()
    D[...] = np.nan
    assert not poison.unwritten(D).any()
    D.view(np.uint16)[1, 5] = bits
    result = poison.unwritten_test(D)
    assert result.passed is False and result.worst == (1, 5)
    assert "1 of 24" in result.message and "D[1, 5]" in result.message


def test_poison_fails_the_other_oracles_without_a_warning() -> None:
    A, B = make_inputs("integers", 8, 8, 64, seed=0)
    D = oracle.reference(A, B)
    poison.fill_poison(D[:1])
    for test in (tolerance_test, oracle.bound_test, oracle.exact_test):
        assert test(D, A, B).passed is False


@pytest.mark.parametrize(
    ("D", "A", "B", "words"),
    [
        (half([1]), half([1, 2]), half([1]), "must share K"),
        (half([1]), half([1]).astype(np.float32), half([1]), "float16 or bfloat16, got float32"),
        (half([1]), half([1]), half([1]).astype(BFLOAT16), "one dtype"),
        (half([1, 2]), half([1]), half([1]), r"D must be a matrix \[1, 1\]"),
        (half([1]).astype(np.float64), half([1]), half([1]), "of float16, bfloat16, float32, got"),
        (half([1]), half([1])[0], half([1]), "A must be a NumPy matrix"),
        (half([1]), [[1]], half([1]), "got list"),
        ("D", half([1]), half([1]), "got str"),
        (half([1]), np.zeros((0, 4), np.float16), np.zeros((1, 4), np.float16), "with elements"),
    ],
)
def test_malformed_arrays_are_bad_input(D, A, B, words: str) -> None:  # type: ignore[no-untyped-def]
    for test in (tolerance_test, oracle.bound_test, oracle.exact_test):
        with pytest.raises(BadInput, match=words):
            test(D, A, B)


def test_bound_refuses_a_k_it_cannot_judge() -> None:
    A = np.zeros((1, oracle.LARGEST_K + 1), np.float16)
    with pytest.raises(BadInput, match="meaningful up to K"):
        oracle.bound_test(half([0]), A, A)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.filterwarnings("error")
def test_no_bits_of_a_matrix_give_a_warning(dtype: type) -> None:
    """Signalling NaNs, the poison among them, infinities and all: in A, in B and in D."""
    every = np.arange(2**16, dtype=np.uint16).reshape(256, 256).view(dtype)
    ones = np.ones((256, 256), dtype)
    for D, A, B in ((every, ones, ones), (ones, every, ones), (ones, ones, every), (every,) * 3):
        for test in (oracle.bound_test, oracle.exact_test):
            test(D, A, B)
        oracle.seed_tolerance_test(D, A, B, Tolerance())
        poison.unwritten_test(D)
