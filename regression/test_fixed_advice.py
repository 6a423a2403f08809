"""Fixed bugs of advice: what it says has to mend the kernel."""

import numpy as np
import pytest
from tvm.backend.cuda.lang.pipeline import TMABar
from tvm.script.tirx import tile as Tx

from phaseflip import lower, simulate
from phaseflip.findings import Finding, Findings, flip
from phaseflip.ir.place import Place
from phaseflip.spelling import T
from tests.litmus import test_cluster_tma as cluster_tma
from tests.litmus.harness import SCHEDULES, run
from tests.litmus.harness import line_of as litmus_line
from tests.litmus.test_cluster_memory import in_cta
from tests.litmus.test_cluster_tcgen05 import LAYOUT, ROWS, K, M


def arrives_relaxed(before=False, after=False, sem="relaxed", scope="cluster"):
    """Lane 0 of CTA 1 arrives for its warp, relaxed, with a fence before or after the warp's synchronisation."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        T.warp_id([1])
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
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem=sem, scope=scope, remote=0)  # arrive
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
        assert (
            f"the mbarrier.arrive at line {litmus_line(arrives_relaxed, 'arrive')} is relaxed"
            in race.why
        )
        assert race.fix == (
            "give it sem='release', scope='cluster', or put T.ptx.fence('acq_rel', 'cluster') directly before it, in each "
            "thread that arrives"
        )  # fmt: skip
    assert not run(arrives_relaxed, schedule, after=True).findings


def products(own=True):
    """Each CTA multiplies on its own and overwrites its operand once a commit has arrived: its own, or the other CTA's."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((2 * M,), "int32")):
        T.device_entry()
        T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        Tx.cta.copy(s[:, :], A[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cluster_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        if warp == 0:
            if T.ptx.elect_sync():
                Tx.gemm_async(
                    tmem[:, 0:32], s[:, :], s[0:32, :], accum=False, dispatch="tcgen05", cta_group=1
                )
                to = T.meta_var(rank if own else 1 - rank)
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1, cta_mask=T.shift_left(1, to))
        T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        T.ptx.fence.proxy_async("shared::cta")
        s[warp * 32 + lane, 0] = T.float16(0)  # reuse
        D[rank * M + warp * 32 + lane] = 1
        T.cuda.cluster_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


@pytest.mark.parametrize("schedule", ["in-order", "lazy", "random:1"])
def test_a_commit_that_arrives_in_the_other_cta_only_was_to_be_waited_for_without_a_word_of_its_mask(
    schedule,
):
    assert not run(products, schedule).findings
    race = next(
        f
        for f in run(products, schedule, own=False).findings
        if f.place.line == litmus_line(products, "reuse")
    )
    assert race.title == "race shared war"
    assert race.fix.endswith("arrives on, with the bit of the waiting CTA in its cta_mask")


TO_EACH_BIT = "of line {load} comes, with its bytes, to each CTA whose bit its cta_mask has"


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("flags", "code", "fix"),
    [
        ({"mask": 1}, "deadlock", "has that CTA's bit (TVM drops a constant mask of one bit)"),
        ({"peer_bytes": 2 * cluster_tma.BOX}, "deadlock", TO_EACH_BIT),
        ({"peer_bytes": cluster_tma.BOX // 2}, "tx-count-mismatch", TO_EACH_BIT),
    ],
)  # fmt: skip
def test_bytes_of_a_multicast_copy_were_to_be_counted_without_a_word_of_its_mask(
    flags, code, fix, schedule
):
    finding = next(
        f for f in run(cluster_tma.multicast, schedule, **flags).findings if f.code == code
    )
    assert finding.fix.endswith(fix.format(load=litmus_line(cluster_tma.multicast, "load")))


@pytest.mark.parametrize("code", ["missing-tcgen05-fence", "missing-proxy-fence"])
def test_a_fence_was_missed_before_the_race_at_the_same_two_lines(code):
    """Some of the accesses race, and others are ordered by something else, without the fence."""
    mma, ld, other = (Place("a", "k.py", line) for line in (8, 9, 10))
    findings = Findings()
    findings.add(Finding(code, "w", place=mma, other=ld))
    findings.add(Finding(code, "w", place=mma, other=other))
    findings.add(Finding("race", "w", place=mma, other=ld))
    assert [(f.code, f.other) for f in findings.all()] == [(code, other), ("race", ld), (code, ld)]


def staged(left=1, read=True, waiter=0, early=True):
    """Warp 0 stores two buffers in turn, and waits with `left` groups pending before the warps overwrite one again.

    waiter: the lane that waits; early: before the barrier, or after it.
    """

    @T.prim_func
    def kernel(D: T.Buffer((4 * 64,), "int32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((2, 64), "int32", align=128)
        pool.commit()
        for i in T.serial(4):
            if early and warp == 0 and lane == waiter:
                T.ptx.cp_async.bulk.wait_group(left, read=read)  # before
            T.cuda.cta_sync()
            if not early and warp == 0 and lane == waiter:
                T.ptx.cp_async.bulk.wait_group(left, read=read)  # after
            s[i % 2, warp * 32 + lane] = i  # write
            T.ptx.fence.proxy_async("shared::cta")
            T.cuda.cta_sync()
            if warp == 0 and lane == 0:
                T.ptx.cp_async_bulk_s2g(D.ptr_to([i * 64]), s.ptr_to([i % 2, 0]), 256)  # copy
                T.ptx.cp_async.bulk.commit_group()
        if warp == 0 and lane == 0:
            T.ptx.cp_async.bulk.wait_group(0, read=False)

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("flags", "why", "fix"),
    [
        (
            {"left": 2},
            "the wait_group(2) at line {before} leaves the copy at line {copy} pending",
            "wait_group(1) at line {before}, then",
        ),
        (
            {"waiter": 1},
            "no wait_group of the thread that issues the copy at line {copy} comes before line {write}",
            "by the thread that issues it, then a barrier",
        ),
        (
            {"early": False},
            "no barrier orders line {after}, which waits for the copy at line {copy}, before line {write}",
            "put a barrier between line {after} and line {write}",
        ),
    ],
)  # fmt: skip
def test_a_race_with_a_bulk_store_said_that_no_barrier_comes_between(flags, why, fix, schedule):
    lines = {mark: litmus_line(staged, mark) for mark in ("before", "after", "write", "copy")}
    race = next(f for f in run(staged, schedule, **flags).findings if f.code == "race")
    assert race.why == why.format(**lines) and fix.format(**lines) in race.fix
    assert not run(staged, schedule).findings


def test_a_wait_for_the_wrong_stage_was_to_be_mended_by_flipping_the_phase_only():
    assert flip("done") == "flip the phase after each wait (phase ^= 1)"
    assert flip("full[1]").endswith("wait on the barrier of the stage that is used next")


def test_a_leak_of_tensor_memory_was_told_before_the_free_of_a_wrong_address():
    findings = Findings()
    findings.add(Finding("tmem-leak", "w", place=Place("tcgen05.alloc", "k.py", 1)))
    findings.add(Finding("tmem-double-free", "w", place=Place("tcgen05.dealloc", "k.py", 9)))
    assert [f.code for f in findings.all()] == ["tmem-double-free", "tmem-leak"]


@pytest.mark.parametrize("remote", [False, True])
def test_mbarrier_init_in_another_cta_was_an_index_out_of_bounds(remote):
    @T.prim_func
    def kernel(D: T.Buffer((2,), "int32")):
        T.device_entry()
        T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = TMABar(pool, 1)
        pool.commit()
        if lane == 0:
            if remote:
                far = bar.remote_view(1)
                T.ptx.mbarrier.init(far.ptr_to([0]), 1)
            else:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            D[rank] = 1
        T.cuda.cluster_sync()

    found = simulate(lower(kernel), [np.zeros(2, np.int32)]).findings
    whys = [f.why for f in found]
    wrong = "it initialises a barrier of CTA 1; mbarrier.init takes a barrier of the own CTA"
    assert whys == ([wrong] if remote else [])


def overlapping(apart=False, sync=False):
    """Warp 0 stores to one array, warp 1 loads from another, which has the bytes of its second half unless `apart`."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        first = pool.alloc((2, 32), "int32")
        pool.move_base_to(256 if apart else 128)
        second = pool.alloc((2, 32), "int32")
        pool.commit()
        if warp == 1:
            second[0, lane] = 1
            second[1, lane] = 1
        if sync:
            T.cuda.cta_sync()
        if warp == 0:
            first[0, lane] = 0
            first[1, lane] = 0  # store
        T.cuda.cta_sync()
        if warp == 0:
            D[lane] = first[0, lane] + first[1, lane] + second[0, lane]

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_race_of_two_arrays_that_overlap_did_not_say_so(schedule):
    [race] = run(overlapping, schedule).findings
    assert race.why.endswith("; as far as addresses tell, first and second overlap there")
    assert race.fix.endswith(", or place first and second apart")
    assert not run(overlapping, schedule, apart=True).findings
    assert not run(overlapping, schedule, sync=True).findings


def barriers(apart=True):
    """Two arrays of barriers, the second in the bytes of the first unless `apart`."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        T.cta_id([1])
        T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = pool.alloc((2,), "uint64", align=8)
        pool.move_base_to(16 if apart else 8)
        empty = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            for i in T.serial(2):
                T.ptx.mbarrier.init(full.ptr_to([i]), 1)
            T.ptx.mbarrier.init(empty.ptr_to([0]), 1)  # again
        D[lane] = 0

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_barrier_placed_over_another_was_to_be_initialised_once(schedule):
    [finding] = run(barriers, schedule, apart=False).findings
    assert finding.code == "barrier-reinitialised" and finding.line == litmus_line(
        barriers, "again"
    )
    assert finding.fix == "place full and empty apart, which overlap as far as addresses tell"
    assert not run(barriers, schedule).findings


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_accumulators_of_one_thread_that_overlap_were_said_to_be_of_two_threads(schedule):
    """Columns 0-31 and 16-47, by one instruction in a loop."""
    found = run(two_accumulators, schedule, step=16).findings
    assert [f.why for f in found if f.kind == "waw"] == [
        f"two MMAs at line {litmus_line(two_accumulators, 'mma')} have accumulators that overlap but are not the same"
    ]
    assert not run(two_accumulators, schedule, step=32).findings


def two_accumulators(step=32):
    """One thread issues two products whose accumulators are `step` columns apart."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "int32")):
        T.device_entry()
        T.cta_id([1])
        T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        Tx.cta.copy(s[:, :], A[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        if warp == 0:
            if T.ptx.elect_sync():
                for i in T.serial(2):
                    Tx.gemm_async(  # mma
                        tmem[:, i * step : i * step + 32],
                        s[:, :],
                        s[0:32, :],
                        accum=False,
                        dispatch="tcgen05",
                    )
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = 1
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel
