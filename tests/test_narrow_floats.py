"""Parameters of 8, 6 and 4 bits, and conversions to 8 and 6 bits, which saturate."""

import ml_dtypes
import numpy as np
import pytest
import torch
from tvm.script import tirx as T

from phaseflip import UnsupportedInstruction, launch, lower, simulate

BYTES = [
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
    "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn",
]  # fmt: skip
IN_CUDA = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn")


def copy(dtype):
    @T.prim_func
    def kernel(A: T.Buffer((64,), dtype), B: T.Buffer((64,), dtype)):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([64])
        B[tid] = A[63 - tid]

    return kernel


def all_bits(dtype):
    """64 bit patterns of the type: of a type of 8 bits every fourth, the specials among them."""
    step = 4 if dtype.startswith("float8") else 1
    return (np.arange(64, dtype=np.uint8) * step + step - 1).view(getattr(ml_dtypes, dtype))


@pytest.mark.parametrize("dtype", BYTES)
def test_a_parameter_of_a_narrow_type_keeps_its_bits(dtype):
    A = all_bits(dtype)
    run = simulate(copy(dtype), [A, np.zeros_like(A)])
    assert run.findings == [] and run.outputs["B"].dtype == A.dtype
    assert (run.outputs["B"].view("u1") == A.view("u1")[::-1]).all()


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_launch_takes_the_narrow_types_of_torch(dtype):
    bits = torch.arange(64, dtype=torch.uint8)
    B = torch.zeros(64, dtype=torch.uint8).view(getattr(torch, dtype))
    launch(copy(dtype), bits.view(getattr(torch, dtype)), B)
    assert torch.equal(B.view(torch.uint8), bits.flip(0))


@pytest.mark.parametrize("other", sorted({*BYTES, "float4_e2m1fn"} - {"float8_e4m3fn"}))
def test_another_narrow_type_is_refused_by_tvms_own_check(other):
    """The codes and bits that TVM compiled into the host part are DLPack's."""
    arrays = [np.zeros(64, getattr(ml_dtypes, other)) for _ in "AB"]
    with pytest.raises(ValueError, match="from TVM's argument check"):
        lower(copy("float8_e4m3fn")).host.launch(arrays)
    assert lower(copy(other)).host.launch(arrays).arguments == ["A", "B"]


def convert(source, dtype):
    @T.prim_func
    def kernel(
        A: T.Buffer((64,), source), B: T.Buffer((64,), dtype), C: T.Buffer((64,), "float32")
    ):
        T.device_entry()
        T.cta_id([1])
        tid = T.thread_id([64])
        B[tid] = T.cast(A[tid], dtype)
        C[tid] = T.cast(B[tid], "float32")

    return kernel


LARGEST = {"float8_e4m3fn": 448, "float8_e5m2": 57344, "float6_e2m3fn": 7.5, "float6_e3m2fn": 28}


@pytest.mark.parametrize("source", ["float32", "float16"])
@pytest.mark.parametrize("dtype", sorted(LARGEST))
def test_a_conversion_rounds_to_even_and_saturates(source, dtype):
    """PTX ISA 9.1, cvt: .satfinite, without which these types are no destination."""
    A = np.zeros(64, source)
    A[:7] = np.inf, -np.inf, np.nan, 60000, -60000, 0.3125, -2.0625
    run = simulate(
        convert(source, dtype), [A, np.zeros(64, getattr(ml_dtypes, dtype)), np.zeros(64, "f4")]
    )
    most = LARGEST[dtype]
    nan = np.nan if dtype.startswith("float8") else most
    quarter = 0.25 if dtype == "float6_e2m3fn" else 0.3125  # steps of an eighth, a tie: to even
    expected = [most, -most, nan, most, -most, quarter, -2.0]
    np.testing.assert_array_equal(run.outputs["C"][:7], np.array(expected, "f4"))


def test_a_conversion_to_powers_of_two_is_refused():
    with pytest.raises(UnsupportedInstruction, match="conversions to float8_e8m0fnu"):
        lower(convert("float32", "float8_e8m0fnu")).program  # noqa: B018


@pytest.mark.parametrize("dtype", IN_CUDA)
def test_these_types_are_those_of_tvms_cuda_text(dtype):
    assert f"__nv_fp{dtype[5]}_{dtype.split('_')[1].removesuffix('fn').removesuffix('fnu')}" in (
        lower(copy(dtype)).cuda_source()
    )


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "int4", "uint4"])
def test_elements_that_share_a_byte_are_refused(dtype):
    A = np.zeros(64, getattr(ml_dtypes, dtype))
    with pytest.raises(
        UnsupportedInstruction, match=f"single elements of {dtype} are not simulated"
    ):
        simulate(copy(dtype), [A, A.copy()])


def test_bytes_of_4_bit_elements_are_moved_as_they_lie():
    @T.prim_func
    def kernel(A: T.Buffer((64,), "float4_e2m1fn"), B: T.Buffer((64,), "float4_e2m1fn")):
        T.device_entry()
        T.cta_id([1])
        T.thread_id([1])
        r = T.alloc_local((8,), "uint32")
        T.ptx.ld(A.data, "uint32", "u32", dst=r.ptr_to([0]), space="global", vec="v8")
        r[0] = r[0] + T.uint32(1)
        T.ptx.st(B.data, src=r.ptr_to([0]), space="global", vec="v8", ptx_type="u32")

    bits = np.arange(64, dtype=np.uint8) % 16
    A = bits.view(ml_dtypes.float4_e2m1fn)
    run = simulate(kernel, [A, np.zeros_like(A)])
    bits[0] = 1  # the low half of the first byte
    assert run.findings == []
    assert (run.outputs["B"].view("u1") == bits).all()
    assert run.counters["bytes_global_loaded"] == 32
