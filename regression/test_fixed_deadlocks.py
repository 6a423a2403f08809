"""Fixed bugs of reports of deadlocks: the waiter that they name first has to be the cause."""

import pytest

from phaseflip.spelling import T
from tests.litmus.harness import SCHEDULES, run
from tests.litmus.harness import line_of as litmus_line


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
