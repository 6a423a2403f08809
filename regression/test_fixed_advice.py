"""Fixed bugs of advice: what it says has to mend the kernel, and the waiter that it names has to be the cause."""

import pytest
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from phaseflip.finding import Finding, Findings, Place
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


def waits_for_starved(more=232):
    """Warp 0 of a producer warpgroup waits for warpgroups 1 and 2, which wait for registers."""

    @T.prim_func
    def kernel(D: T.Buffer((384,), "int32")):
        T.device_entry()
        T.cta_id([1])
        wg = T.warpgroup_id([3])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if wg == 0 and warp == 0 and lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 256)
        T.cuda.cta_sync()
        if wg == 0:
            T.ptx.setmaxnreg(False, 40)
            if warp == 0:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        else:
            T.ptx.setmaxnreg(True, more)  # inc
            T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        D[wg * 128 + warp * 32 + lane] = 1

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_began_with_a_producer_where_its_consumers_wait_for_registers(schedule):
    [deadlock] = run(waits_for_starved, schedule, more=240).findings
    assert deadlock.place.mnemonic == "setmaxnreg"
    assert deadlock.line == litmus_line(waits_for_starved, "inc")
    assert deadlock.fix.endswith("(setmaxnreg.dec), or ask for 232 at most")
    assert not run(waits_for_starved, schedule, more=232).findings


def turns(first=True):
    """Warps 1 and 2 take turns by named barriers; warp 0 waits for an mbarrier on which both arrive in each turn."""

    @T.prim_func
    def kernel(D: T.Buffer((96,), "int32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0 and lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 128)
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        else:
            if first and warp == 2:
                T.ptx.bar.arrive(1, 64)
            for _turn in T.serial(2):
                T.ptx.bar.sync(warp, 64)  # turn
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
                T.ptx.bar.arrive(3 - warp, 64)
            if warp == 1:
                T.ptx.bar.sync(1, 64)
        D[warp * 32 + lane] = 1

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_began_with_a_producer_where_its_consumers_wait_for_each_others_turn(schedule):
    """And said that it holds them up."""
    [deadlock] = run(turns, schedule, first=False).findings
    line = litmus_line(turns, "turn")
    assert deadlock.line == line and deadlock.what.startswith("CTA 0 warp 1 waits for ever")
    assert deadlock.fix.startswith(
        f"CTA 0 warp 1 and CTA 0 warp 2 at line {line} (bar.sync 2) hold each other up: "
    )
    assert not run(turns, schedule).findings


def ring(astray=0):
    """Warp 0 waits for an empty barrier that warps 1 and 2 arrive on, then announces bytes that warp 1 waits for.

    astray: it announces the first at another barrier.
    """

    @T.prim_func
    def kernel(D: T.Buffer((96,), "int32")):
        T.device_entry()
        T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = pool.alloc((2,), "uint64", align=8)
        empty = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0 and lane == 0:
            for i in T.serial(2):
                T.ptx.mbarrier.init(full.ptr_to([i]), 1)
            T.ptx.mbarrier.init(empty.ptr_to([0]), 2)
        T.cuda.cta_sync()
        if lane == 0:
            if warp == 0:
                for i in T.serial(2):
                    if i > 0:
                        T.ptx.mbarrier.try_wait(empty.ptr_to([0]), i - 1)
                    T.ptx.mbarrier.arrive.expect_tx(full.ptr_to([(1 - i) * astray]), 64)  # announce
            if warp == 1:
                for i in T.serial(2):
                    T.ptx.mbarrier.complete_tx(full.ptr_to([0]), 64)
                    T.ptx.mbarrier.try_wait(full.ptr_to([0]), i)  # full
                    T.ptx.mbarrier.arrive(empty.ptr_to([0]))
            if warp == 2:
                T.ptx.mbarrier.arrive(empty.ptr_to([0]))
        D[warp * 32 + lane] = 1

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_began_with_a_producer_where_bytes_came_that_it_had_not_announced(schedule):
    """And advised another count of arrivals for its empty barrier, which is right."""
    deadlock = run(ring, schedule, astray=1).findings[-1]
    assert deadlock.code == "deadlock" and deadlock.line == litmus_line(ring, "full")
    assert deadlock.why.endswith("64 bytes have come that no arrival has announced")
    line = litmus_line(ring, "announce")
    assert deadlock.fix.startswith(f"let line {line} announce, on full[0] too, the bytes")
    assert not run(ring, schedule).findings


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


def polls_the_next(ctas=2, reverse=False):
    """A CTA polls what its neighbour in the grid writes: the next one, or in `reverse` the one before."""
    writer = 0 if reverse else ctas - 1

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cta = T.cta_id([ctas])
        T.warp_id([1])
        lane = T.lane_id([32])
        flag = T.alloc_local((1,), "int32")
        if cta == writer:
            D[lane] = 1
        else:
            flag[0] = 0
            while flag[0] == 0:
                T.ptx.ld(D.ptr_to([lane]), "int32", "b32", dst=flag.ptr_to([0]))

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("ctas", "rest"), [(2, "1 CTA has"), (3, "2 CTAs have")])
def test_a_loop_that_polls_what_a_later_cta_writes_was_told_that_nobody_writes_it(
    ctas, rest, schedule
):
    [deadlock] = run(polls_the_next, schedule, ctas=ctas).findings
    assert f"the simulator runs clusters one after the other: {rest} not started" in deadlock.why
    assert "let an earlier CTA of the grid write it" in deadlock.fix


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_last_cta_is_not_told_of_ctas_that_have_not_started(schedule):
    found = run(polls_the_next, schedule, reverse=True).findings
    assert not any(f.code == "deadlock" for f in found)


@pytest.mark.parametrize("code", ["missing-tcgen05-fence", "missing-proxy-fence"])
def test_a_fence_was_missed_before_the_race_at_the_same_two_lines(code):
    """Some of the accesses race, and others are ordered by something else, without the fence."""
    mma, ld, other = (Place("a", "k.py", line) for line in (8, 9, 10))
    findings = Findings()
    findings.add(Finding(code, "w", place=mma, other=ld))
    findings.add(Finding(code, "w", place=mma, other=other))
    findings.add(Finding("race", "w", place=mma, other=ld))
    assert [(f.code, f.other) for f in findings.all()] == [(code, other), ("race", ld), (code, ld)]
