"""Numbers that a kernel takes by value: int and float, among the arrays, in their order."""

import numpy as np
import pytest
from tvm.script import tirx as T

import phaseflip
from phaseflip import BadInput, lower, simulate


@T.prim_func
def scaled(
    A: T.Buffer((64,), "float32"),
    n: T.int32,
    s: T.float32,
    B: T.Buffer((64,), "float32"),
    u: T.uint32,
):
    T.device_entry()
    T.cta_id([1])
    tid = T.thread_id([64])
    if tid < n:
        B[tid] = A[tid] * s
    if tid == 63:
        B[tid] = T.cast(u, "float32")


A = np.linspace(-3, 7, 64, dtype=np.float32)


def arguments(**changes):
    given = {"A": A, "n": 40, "s": 0.1, "B": np.zeros(64, "f4"), "u": 2**32 - 1} | changes
    return list(given.values())


@pytest.mark.parametrize("schedule", ["in-order", "random:2"])
@pytest.mark.parametrize("n", [0, 1, 40, np.int64(33), -5])
def test_numbers_reach_the_kernel(n, schedule):
    run = simulate(scaled, arguments(n=n), schedule)
    expected = np.where(np.arange(64) < n, A * np.float32(0.1), np.float32(0))
    expected[63] = 2**32
    assert run.findings == [] and list(run.outputs) == ["A", "B"]
    np.testing.assert_array_equal(run.outputs["B"], expected)


@pytest.mark.parametrize(
    "s", [3, 1e300, float("inf"), float("nan"), np.float64(0.3), np.float32(0.3)]
)
def test_a_number_is_rounded_to_its_type_as_it_is_passed(s):
    with np.errstate(over="ignore"):
        expected = A * np.float32(s)
    np.testing.assert_array_equal(simulate(scaled, arguments(s=s)).outputs["B"][:40], expected[:40])


def test_launch_takes_numbers_among_the_arrays():
    B = np.zeros(64, np.float32)
    phaseflip.launch(scaled, A, 64, -1, B, 7)
    np.testing.assert_array_equal(B[:63], -A[:63])
    assert B[63] == 7
    B.flags.writeable = False
    with pytest.raises(BadInput, match="writes to B, which is read-only"):
        phaseflip.launch(scaled, A, 64, -1, B, 7)


def test_numbers_of_64_bits():
    @T.prim_func
    def kernel(B: T.Buffer((2,), "int64"), i: T.int64, C: T.Buffer((1,), "float64"), d: T.float64):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([2])
        B[tid] = i - T.cast(tid, "int64")
        if tid == 0:
            C[0] = d

    run = simulate(kernel, [np.zeros(2, "i8"), -(2**63) + 1, np.zeros(1), 0.1])
    assert run.outputs["B"].tolist() == [-(2**63) + 1, -(2**63)]
    assert run.outputs["C"][0] == 0.1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n": 2**31}, "n is a number passed by value: a whole one from -2147483648 to 2147483647 (int32), not 2147483648"),
        ({"n": 1.0}, "n is a number passed by value: a whole one"),
        ({"n": True}, "n is a number passed by value: a whole one"),
        ({"n": np.ones(1, "i4")}, "n is a number passed by value: a whole one"),
        ({"u": -1}, "u is a number passed by value: a whole one from 0 to 4294967295 (uint32), not -1"),
        ({"s": "1"}, "s is a number passed by value (float32), not '1'"),
        ({"s": None}, "s is a number passed by value (float32), not None"),
        ({"A": 3}, "A must be a contiguous float32 array of shape 64 (NumPy or torch), not a int"),
    ],
)  # fmt: skip
def test_values_that_a_parameter_cannot_hold(change, reason):
    with pytest.raises(BadInput) as error:
        simulate(scaled, arguments(**change))
    assert str(error.value).startswith(reason)


def test_arguments_of_another_number():
    with pytest.raises(BadInput, match=r"takes 5 arguments \(A, n, s, B, u\), but 4 were given"):
        simulate(scaled, arguments()[:4])


@pytest.mark.parametrize("dtype", ["bool", "float16", "uint64", "int8"])
def test_types_that_tvms_runtime_does_not_pass(dtype):
    """Its PackFunc: "Cannot handle float16 as device function argument"."""

    @T.prim_func
    def kernel(A: T.Buffer((1,), dtype), x: getattr(T, dtype)):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([1])
        A[tid] = x

    with pytest.raises(
        BadInput,
        match=f"parameter x of the kernel is a {dtype} by value; TVM's runtime passes int32",
    ):
        lower(kernel)
