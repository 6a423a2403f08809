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
