"""The oracles where D is of another dtype than A and B, and the poison of any dtype."""

import ml_dtypes
import numpy as np
import pytest

from phaseflip.gemm import oracle, poison
from phaseflip.gemm.inputs import make_inputs
from phaseflip.gemm.kernel import Tolerance

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
OUTPUTS = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]


def product(A, B, dtype, order=1):
    """A B^T summed in float32 one term after the other, from either end, rounded once to a dtype."""
    a, b = A.astype(np.float32), B.astype(np.float32)
    total = np.zeros((len(A), len(B)), np.float32)
    for k in range(A.shape[1])[::order]:
        total += a[:, k, None] * b[None, :, k]
    return total.astype(dtype)


@pytest.mark.parametrize("operand", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize("kind", ["normal", "integers", "one-hot"])
def test_sums_in_any_order_pass(operand, dtype, kind):
    A, B = make_inputs(kind, 24, 16, 96, 1, operand)
    for order in (1, -1):
        D = product(A, B, dtype, order)
        assert oracle.bound_test(D, A, B).passed
        assert oracle.exact_test(D, A, B).passed in (True, None)
        expected = lambda A, B: oracle.reference(A, B, output=dtype)  # noqa: E731
        assert oracle.seed_tolerance_test(D, A, B, Tolerance(), expected).passed
    assert oracle.exact_test(D, A, B).passed is (None if kind == "normal" else True)


@pytest.mark.parametrize("operand", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", OUTPUTS, ids=str)
def test_a_step_more_than_rounding_explains_fails(operand, dtype):
    """Integers sum exactly: one step of the dtype of D beside the result, in one element, is wrong for `exact`."""
    A, B = make_inputs("integers", 24, 16, 96, 1, operand)
    D = product(A, B, dtype)
    bits = D.view(f"u{dtype.itemsize}")
    bits[5, 7] += 1
    result = oracle.exact_test(D, A, B)
    assert not result.passed and result.worst == (5, 7)
    bits[5, 7] += 1 << (8 * dtype.itemsize - 12)
    result = oracle.bound_test(D, A, B)
    assert not result.passed and result.worst == (5, 7)


def test_a_float32_result_that_was_rounded_to_half_on_the_way_fails():
    """The bound for float32 has no rounding to half in it: a kernel that stores a half too early is found."""
    A, B = make_inputs("normal", 64, 64, 64, 0, "float16")
    D = product(A, B, np.float16).astype(np.float32)
    assert not oracle.bound_test(D, A, B).passed
    assert oracle.bound_test(product(A, B, np.float32), A, B).passed


@pytest.mark.parametrize("dtype", [*OUTPUTS, np.dtype(np.float64)], ids=str)
def test_the_poison_of_floats_is_a_signalling_nan(dtype):
    D = np.zeros((4, 3), dtype)
    poison.fill_poison(D)
    with np.errstate(invalid="ignore"):
        assert poison.certain(dtype) and np.isnan(D).all()
    quiet = {2: 1 << (6 if dtype == BFLOAT16 else 9), 4: 1 << 22, 8: 1 << 51}[dtype.itemsize]
    assert not poison.poison_bits(dtype) & quiet
    D[1, 2] = np.nan
    result = poison.unwritten_test(D, "E")
    assert not result.passed and result.message.startswith("11 of 12 elements of E")


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int16", "int32", "uint64", "float8_e4m3fn", "float4_e2m1fn"]
)
def test_a_number_that_happens_to_be_the_poison_was_written_if_a_second_run_gives_it_too(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    first, second = np.zeros((3, 5), dtype), np.zeros((3, 5), dtype)
    poison.fill_poison(first)
    poison.fill_poison(second, second=True)
    assert not poison.certain(dtype)
    second[:2] = first[:2]  # both runs wrote the value that the poison has
    result = poison.unwritten_test(first, "E", second)
    assert not result.passed and result.worst == (2, 0)
    assert result.message == "5 of 15 elements of E were never written, the first is E[2, 0]"
    second[2] = first[2]
    assert poison.unwritten_test(first, "E", second).passed
