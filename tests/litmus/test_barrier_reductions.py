"""bar.red: a barrier like bar.sync, whose threads all get the reduction of their predicates."""

import numpy as np
import pytest

from phaseflip.conformance.helpers import helper
from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run

N = 128


def votes(meet=True):
    """What threads store before the barrier, others read after it."""

    @T.prim_func
    def kernel(D: T.Buffer((4, N), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((N,), "int32", align=16)
        pool.commit()
        s[tid] = tid  # store
        any_77: T.int32 = 0
        if meet:
            any_77 = T.cuda.syncthreads_or(tid == 77)
        D[3, tid] = s[N - 1 - tid]  # load
        all_77: T.int32 = T.cuda.syncthreads_and(tid == 77)
        all_small: T.int32 = T.cuda.syncthreads_and(tid < N)
        none: T.int32 = T.cuda.syncthreads_or(tid > N)
        D[0, tid] = T.if_then_else(any_77 != 0, 1, 0) + T.if_then_else(all_77 != 0, 10, 0)
        D[1, tid] = T.if_then_else(all_small != 0, 1, 0) + T.if_then_else(none != 0, 10, 0)
        D[2, tid] = helper("ptx_bar_red_popc", 1, N, tid % 3)

    return kernel


test_load_after_bar_red_requires_it = requires(votes, "meet", "race shared raw @load <store")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_thread_gets_the_reduction(schedule):
    D = run(votes, schedule).outputs["D"]
    np.testing.assert_array_equal(D[0], 1)
    np.testing.assert_array_equal(D[1], 1)
    np.testing.assert_array_equal(D[2], sum(t % 3 != 0 for t in range(N)))
    np.testing.assert_array_equal(D[3], np.arange(N)[::-1])


def two_sets(count=64):
    """Two halves of the CTA each reduce at a barrier of their own, several times."""

    @T.prim_func
    def kernel(D: T.Buffer((3, N), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        for i in T.serial(3):
            if warp < 2:
                D[i, tid] = helper("ptx_bar_red_popc", 1, count, tid > i)  # low
            else:
                D[i, tid] = helper("ptx_bar_red_and", 2, count, tid > 63 + i)  # high

    return kernel


test_counted_reductions_of_two_sets_are_silent = gives(two_sets)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_set_and_round_reduces_for_itself(schedule):
    D = run(two_sets, schedule).outputs["D"]
    for i in range(3):
        np.testing.assert_array_equal(D[i, :64], 63 - i)
        np.testing.assert_array_equal(D[i, 64:], i == 0)


def in_a_branch(whole=True):
    """Part of a warp reaches the reduction."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        x: T.int32 = 0
        if lane < (32 if whole else 16):
            x = T.cuda.syncthreads_or(lane)  # reduce
        D[lane] = x

    return kernel


def test_reduction_requires_whole_warps():
    assert not run(in_a_branch).findings
    titles = {f.title for f in run(in_a_branch, whole=False).findings if f.severity == "error"}
    assert "divergent-collective" in titles
