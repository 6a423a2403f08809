"""Fixed bugs of advice: what it says has to mend the kernel, and the waiter that it names has to be the cause."""

import pytest
from tvm.script import tirx as T

from tests.litmus.harness import SCHEDULES, run
from tests.litmus.harness import line_of as litmus_line
from tests.litmus.test_cluster_memory import in_cta


def arrives_relaxed(before=False, after=False, scope="cluster"):
    """Lane 0 of CTA 1 arrives for its warp, relaxed, with a fence before or after the warp's synchronisation."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        peer = in_cta(s, 0)
        if rank == 1:
            peer[lane] = lane  # store
            if before:
                T.ptx.fence("acq_rel", scope)
            T.cuda.warp_sync()
            if lane == 0:
                if after:
                    T.ptx.fence("acq_rel", scope)
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem="relaxed", scope="cluster", remote=0)  # arrive
        else:
            T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
            D[lane] = s[lane]  # load

    return kernel  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_fence_in_every_thread_that_stored_was_to_mend_a_relaxed_arrival_of_one_lane(schedule):
    """What each lane releases before warp_sync, the arrival of lane 0 does not pass on; its own fence after it does."""
    for flags in ({}, {"before": True}):
        race = run(arrives_relaxed, schedule, **flags).findings[0]
        assert race.title == "race shared raw"
        assert f"the mbarrier.arrive at line {litmus_line(arrives_relaxed, 'arrive')} is relaxed" in race.why
        assert race.fix == (
            "give it sem='release', scope='cluster', or put T.ptx.fence('acq_rel', 'cluster') directly before it, in each "
            "thread that arrives"
        )  # fmt: skip
    assert not run(arrives_relaxed, schedule, after=True).findings
