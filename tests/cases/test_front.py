"""Cases that lowering, memory layout or the command line refused, stopped by a false alarm, or crashed on."""

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import BadInput, simulate

from .harness import SCHEDULES, errors


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_preferred_cluster_size_runs_as_the_plain_cluster(schedule):
    shape = ("preferred_cluster_ok", 256, 256, 128)
    assert not errors(*shape, schedule=schedule, factory="hgemm_v8")


def ranks(cluster, preferred, grid):
    @T.prim_func
    def kernel(A: T.Buffer((grid,), "int32")):
        T.device_entry()
        b = T.cta_id([grid])
        rank = T.cta_id_in_cluster([cluster], preferred=[preferred])
        tid = T.thread_id([32])
        if tid == 0:
            A[b] = rank

    return simulate(kernel, [np.full(grid, -1, np.int32)]).outputs["A"].tolist()


def test_ranks_in_a_plain_cluster_where_a_larger_one_is_preferred():
    assert ranks(2, 4, 8) == [0, 1] * 4


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((2, 4, 6), "preferred clusters of 4 x 1 x 1 CTAs do not divide the grid: it has 6 along x"),
        ((4, 2, 8), "preferred clusters of 2 x 1 x 1 CTAs are no multiple of the clusters of 4 x 1 x 1"),
    ],
)  # fmt: skip
def test_preferred_clusters_that_cuda_refuses(sizes, reason):
    with pytest.raises(BadInput, match=reason):
        ranks(*sizes)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["c05_f32_out_ok", "c08_bias_arg_ok"])
def test_other_outputs_and_arguments_run_clean(name, schedule):
    assert not errors(name, 128, 256, 128, schedule=schedule)


@T.prim_func
def static_alignment(A: T.Buffer((128,), "float32"), B: T.Buffer((128,), "float32")):
    A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        "runtime.cuTensorMapEncodeTiled", A_map, "float32", 1, A.data, 128, 128, 1, 0, 0, 0, 0
    )
    T.device_entry()
    T.cta_id([1])
    tid = T.thread_id([128])
    bar = T.alloc_shared([1], "uint64")
    S = T.alloc_buffer((128,), "float32", scope="shared", align=128)
    if tid == 0:
        T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
    T.ptx.fence.mbarrier_init()
    T.ptx.fence.proxy_async("shared::cta")
    T.cuda.cta_sync()
    if tid == 0:
        T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), 512)
        T.ptx.cp_async.bulk.tensor.g2s_cluster(
            1, S.data, bar.ptr_to([0]), T.address_of(A_map), 0, 1, "", 0
        )
    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
    B[tid] = S[tid]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_tma_load_into_an_aligned_static_buffer_was_a_false_misaligned_access(schedule):
    A = np.arange(128, dtype=np.float32)
    run = simulate(static_alignment, [A, np.zeros_like(A)], schedule)
    assert run.findings == []
    np.testing.assert_array_equal(run.outputs["B"], A)
