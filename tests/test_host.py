"""The host part of a lowered kernel, executed: geometry, arguments, and TVM's own argument checks."""

import ml_dtypes
import numpy as np
import pytest

from kernels.hgemm_v3 import KERNEL as V3
from phaseflip import lower
from phaseflip.errors import BadInput, UnsupportedInstruction
from phaseflip.frontend.tirx.host_interpreter import HostPlan
from phaseflip.ir import nodes as ir
from phaseflip.spelling import T


@pytest.fixture(scope="module")
def gemm():
    return lower(V3.build(256, 384, 128))


def gemm_arrays(dtype=np.float16):
    return [np.zeros(s, dtype) for s in ((256, 128), (384, 128), (256, 384))]


def test_the_launch_of_a_gemm(gemm):
    launch = gemm.host.launch(gemm_arrays())
    assert sorted(launch.arguments) == ["A", "B", "D"]
    assert launch.arguments == [p.name.split("_")[0] for p in gemm.device.params]
    assert launch.extents["threadIdx.x"] == 128
    grid = [launch.extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]
    assert sorted(grid) == [1, 2, 3]
    operands = 2 * 128 * 64 * 2
    assert operands + 1024 <= launch.dynamic_shared_bytes <= operands + 2048


def test_a_plan_runs_once_for_arrays_of_one_form(gemm):
    first = gemm.host.launch(gemm_arrays())
    assert gemm.host.launch(gemm_arrays()) is first
    with pytest.raises(BadInput):
        gemm.host.launch(gemm_arrays(np.float32))
    again = HostPlan(gemm.host.function, gemm.host.names, gemm.host.device)
    assert again.launch(gemm_arrays()) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a[:2] + [np.zeros((256, 256), np.float16)],
        lambda a: [np.zeros((256, 64), np.float16), *a[1:]],
        lambda a: [np.zeros(256 * 128, np.float16), *a[1:]],
        lambda a: [a[0].astype(np.float32), *a[1:]],
        lambda a: [a[0].astype(ml_dtypes.bfloat16), *a[1:]],
        lambda a: [a[0].view(np.int16), *a[1:]],
        lambda a: [a[0].view(np.uint16), *a[1:]],
        lambda a: [np.zeros((128, 256), np.float16).T, *a[1:]],
    ],
    ids=["shape D", "shape A", "rank", "float32", "bfloat16", "int16", "uint16", "strides"],
)  # fmt: skip
def test_tvms_own_checks_are_executed(gemm, change):
    """Arrays are checked before that as well; the checks that TVM compiled into the kernel hold on their own."""
    with pytest.raises(BadInput, match="from TVM's argument check") as error:
        gemm.host.launch(change(gemm_arrays()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32"]
)  # fmt: skip
def test_element_types_as_tvm_encodes_them(dtype):
    @T.prim_func
    def kernel(A: T.Buffer((64,), dtype), D: T.Buffer((64,), dtype)):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([64])
        D[tid] = A[tid]

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    lowered = lower(kernel)
    launch = lowered.host.launch([np.zeros(64, kind), np.zeros(64, kind)])
    assert launch.arguments == ["A", "D"] and launch.extents["threadIdx.x"] == 64
    other = np.zeros(64, np.float64)
    with pytest.raises(BadInput, match="from TVM's argument check"):
        lowered.host.launch([other, np.zeros(64, kind)])


SITE = ir.Site("host.py", 1)


def plan(*body):
    return HostPlan(ir.Function("main", [], list(body)), [], ir.Function("kernel", [], []))


def test_a_host_part_that_launches_nothing_is_refused():
    with pytest.raises(BadInput, match="without launching"):
        plan().launch([])


def test_an_unknown_host_call_is_named():
    call = ir.Call("tirx.tvm_fly_to_the_moon", [], "int32", SITE)
    with pytest.raises(UnsupportedInstruction, match="host.py:1.*tvm_fly_to_the_moon"):
        plan(ir.Evaluate(call, SITE)).launch([])


def test_an_unknown_host_function_is_named():
    args = [ir.Const("upload", "str"), *(ir.Const(0, "int32") for _ in range(3))]
    call = ir.Call("tirx.tvm_call_packed_lowered", args, "int32", SITE)
    with pytest.raises(UnsupportedInstruction, match="upload"):
        plan(ir.Evaluate(call, SITE)).launch([])


def test_a_failed_assertion_gives_tvms_sentence():
    false = ir.Const(False, "bool")
    with pytest.raises(BadInput, match="ValueError from TVM's argument check: no way"):
        plan(ir.Assert(false, "ValueError", "no way", SITE)).launch([])
