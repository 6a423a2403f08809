"""The operators that generated code calls, held to C and PTX semantics value by value."""

import math

import ml_dtypes
import numpy as np
import pytest

from phaseflip.errors import UnsupportedInstruction
from phaseflip.ir import arithmetic as operators

INTEGERS = [-(2**31), -17, -8, -7, -1, 0, 1, 2, 7, 8, 100, 2**31 - 1]
DIVISORS = [d for d in INTEGERS if d]
PAIRS = [(a, b) for a in INTEGERS for b in DIVISORS]
DTYPES = {
    "int8": (8, "i"),
    "int16": (16, "i"),
    "int32": (32, "i"),
    "int64": (64, "i"),
    "uint8": (8, "u"),
    "uint16": (16, "u"),
    "uint32": (32, "u"),
    "uint64": (64, "u"),
}


def convert(value, dtype):
    bits, kind = DTYPES[dtype]
    return operators.cast(value, np.dtype(dtype), bits, kind)


def as_array(values):
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (operators.truncdiv, lambda a, b: math.trunc(a / b)),
        (operators.truncmod, lambda a, b: int(math.fmod(a, b))),
        (operators.floordiv, lambda a, b: a // b),
        (operators.floormod, lambda a, b: a % b),
    ],
)
def test_division_of_scalars_arrays_and_mixtures_agrees(function, expected):
    wanted = [expected(a, b) for a, b in PAIRS]
    assert [function(a, b) for a, b in PAIRS] == wanted
    both = function(as_array([a for a, _ in PAIRS]), as_array([b for _, b in PAIRS]))
    assert both.tolist() == wanted
    for b in DIVISORS:
        assert function(as_array(INTEGERS), b).tolist() == [expected(a, b) for a in INTEGERS]
    for a in INTEGERS:
        assert function(a, as_array(DIVISORS)).tolist() == [expected(a, b) for b in DIVISORS]


@pytest.mark.parametrize("name", ["truncdiv", "truncmod", "floordiv", "floormod"])
def test_division_by_zero_gives_the_same_for_scalars_and_lanes(name):
    function = getattr(operators, name)
    with np.errstate(all="ignore"):
        lanes = function(as_array([5, -5, 0]), as_array([0, 0, 0])).tolist()
    assert [function(a, 0) for a in (5, -5, 0)] == lanes == [0, 0, 0]


def test_unsigned_64_bit_division():
    big = 2**63 + 9
    assert operators.truncdiv(np.array([big], np.uint64), 4).tolist() == [big // 4]
    assert operators.truncmod(np.array([big], np.uint64), 10).tolist() == [big % 10]
    assert operators.truncdiv(big, 4) == big // 4


@pytest.mark.parametrize("n", [-1, 0, 3, 31, 63, 64, 1000])
@pytest.mark.parametrize("a", [5, -5, 1 << 31])
def test_shifts_clamp_amounts_that_python_refuses(a, n):
    left = np.int64(a << n if 0 <= n < 64 else 0) if n < 40 else None
    right = a >> (n if 0 <= n < 64 else 63)
    assert operators.shift_right(a, n) == right
    assert operators.shift_right(as_array([a, a]), as_array([n, n])).tolist() == [right, right]
    if left is not None:
        assert operators.shift_left(a, n) == left
        assert operators.shift_left(as_array([a, a]), as_array([n, n])).tolist() == [left, left]


def test_shifts_of_unsigned_64_bit_lanes():
    values = np.array([1, 2**63], np.uint64)
    assert operators.shift_left(values, 3).tolist() == [8, 0]
    assert operators.shift_right(values, as_array([0, 62])).tolist() == [1, 2]


@pytest.mark.parametrize("a", [-3, 4])
@pytest.mark.parametrize("b", [-2, 4, 9])
def test_minimum_and_maximum_of_integers(a, b):
    assert operators.minimum(a, b) == min(a, b)
    assert operators.maximum(a, b) == max(a, b)
    assert operators.minimum(as_array([a]), b).tolist() == [min(a, b)]
    assert operators.maximum(a, as_array([b])).tolist() == [max(a, b)]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_minimum_and_maximum_prefer_a_number_to_a_nan(dtype):
    a = np.array([1, np.nan, -2, np.nan], dtype)
    b = np.array([np.nan, 3, 5, np.nan], dtype)
    with np.errstate(all="ignore"):
        low, high = operators.minimum(a, b), operators.maximum(a, b)
    assert low.dtype == high.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(low.astype(float), [1, 3, -2, np.nan])
    np.testing.assert_array_equal(high.astype(float), [1, 3, 5, np.nan])


def test_select_takes_scalars_and_lanes():
    condition = np.array([True, False])
    assert operators.select(True, 1, 2) == 1
    assert operators.select(False, 1, 2) == 2
    assert operators.select(condition, 1, 2).tolist() == [1, 2]
    assert operators.select(condition, as_array([1, 2]), 9).tolist() == [1, 9]
    assert operators.select(condition, np.float16(1), np.float16(2)).dtype == np.float16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0, 1, -1, 127, 128, 255, 256, -129, 2**31, 2**32 + 5, -(2**31)])
def test_integers_wrap_when_cast(value, dtype):
    expected = np.array([value]).astype(dtype)[0]
    assert convert(value, dtype) == expected
    assert convert(as_array([value, value]), dtype).tolist() == [expected, expected]


@pytest.mark.parametrize("dtype", DTYPES)
def test_floats_are_truncated_and_clamped(dtype):
    limits = np.iinfo(dtype)
    values = [0.99, -0.99, 2.5, 100.7, 1e30, -1e30, np.inf, -np.inf, np.nan]
    expected = [
        0 if math.isnan(v) else min(max(v, limits.min), limits.max) if math.isinf(v) else
        min(max(math.trunc(v), limits.min), limits.max)
        for v in values
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        assert convert(np.array(values), dtype).tolist() == expected
        assert [convert(np.float64(v), dtype) for v in values] == expected


def test_a_cast_scalar_is_a_python_int():
    """An index computed from a uniform float value must be usable as an address."""
    assert convert(np.float32(3.7), "int32").__class__ is int
    assert convert(np.float32(3.7), "uint64").__class__ is int


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_casts_to_float_round_to_nearest_even(dtype):
    target = operators.numpy_dtype(dtype)
    values = np.array(
        [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-9, 65520.0, 2.0**-25, -0.0], np.float32
    )
    with np.errstate(over="ignore"):
        got = operators.cast(values, target, 8 * target.itemsize, "f")
        np.testing.assert_array_equal(got, values.astype(target))
    assert got.dtype == target
    one = operators.cast(values[0], target, 8 * target.itemsize, "f")
    assert one == got[0]
    assert operators.cast(3, target, 8 * target.itemsize, "f") == 3


def test_cast_to_bool():
    assert operators.cast(as_array([0, 2, -1]), np.dtype(bool), 8, "b").tolist() == [
        False,
        True,
        True,
    ]
    assert operators.cast(2, np.dtype(bool), 8, "b") is True


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (0x3F800000, "uint32", "float32", np.float32(1)),
        (np.float32(-0.0), "float32", "uint32", 0x80000000),
        (np.float32(-0.0), "float32", "int32", -(2**31)),
        (0x3C00, "uint16", "float16", np.float16(1)),
        (2**63, "uint64", "int64", -(2**63)),
        (-1, "int64", "uint64", 2**64 - 1),
    ],
)
def test_reinterpret_keeps_the_bits(value, source, target, expected):
    a, b = operators.numpy_dtype(source), operators.numpy_dtype(target)
    scalar = operators.reinterpret(value, a, b)
    assert scalar == expected
    lanes = operators.reinterpret(np.array([value, value]), a, b)
    assert lanes.tolist() == [expected, expected]
    assert scalar.__class__ is int or not target.startswith(("int", "uint"))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "uint64"])
def test_memory_wraps_integers_and_gives_back_python_ints(dtype):
    kind = np.dtype(dtype)
    stored = np.empty(2, kind)
    stored[0] = operators.to_memory(-3, kind)
    stored[1:] = operators.to_memory(as_array([2**33 + 7]), kind)
    assert stored.tolist() == np.array([-3, 2**33 + 7]).astype(kind).tolist()
    assert operators.from_memory(stored[0]).__class__ is int
    lanes = operators.from_memory(stored)
    assert lanes.dtype == (np.uint64 if dtype == "uint64" else np.int64)


def test_unsigned64_restores_the_carrier():
    assert operators.unsigned64(as_array([-1])).tolist() == [2**64 - 1]
    assert operators.unsigned64(7) == 7


@pytest.mark.parametrize(
    ("name", "size"),
    [("float16", 2), ("bfloat16", 2), ("float8_e4m3fn", 1), ("handle", 8), ("bool", 1)],
)
def test_numpy_dtypes(name, size):
    assert operators.numpy_dtype(name).itemsize == size


@pytest.mark.parametrize("name", ["float16x8", "float4_e2m1fn"])
def test_an_element_type_without_meaning_is_refused(name):
    with pytest.raises(UnsupportedInstruction, match=name):
        operators.numpy_dtype(name)


def test_is_float():
    assert operators.is_float("bfloat16") and operators.is_float("float8_e5m2")
    assert not operators.is_float("uint32") and not operators.is_float("bool")
