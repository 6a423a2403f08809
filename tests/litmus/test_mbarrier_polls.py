"""Waits for an mbarrier that give a value: true acquires, false orders nothing, and a loop of them is a wait."""

import numpy as np
import pytest

from phaseflip.conformance.helpers import helper
from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run


def polled(loop=True, arrive=True, test=False, drop=False):
    """Warp 0 writes and arrives; warp 1 polls the barrier, and reads."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32", align=16)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
        T.cuda.cta_sync()
        if warp == 0:
            s[lane] = lane * 3  # store
            if arrive:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        else:
            if drop:
                T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 0, 20)
                T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 0, 20)
            elif test:
                while helper("ptx_mbarrier_test_wait_parity", bar.ptr_to([0]), 0) == 0:  # test
                    T.cuda.nano_sleep(20)
            elif loop:
                while T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 0, 20) == 0:  # poll
                    T.cuda.nano_sleep(20)
            else:
                if T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 0, 20) == 0:
                    T.cuda.nano_sleep(20)
            D[lane] = s[31 - lane]  # load

    return kernel


RACE = "race shared raw @load <store"
test_load_requires_that_a_poll_succeeds = requires(polled, "loop", RACE)
test_a_result_that_is_dropped_orders_nothing = gives(polled, RACE, drop=True)
test_a_loop_of_test_wait_is_a_wait = gives(polled, test=True)
test_a_loop_of_polls_for_what_never_comes_is_a_deadlock = gives(
    polled, "deadlock @poll", arrive=False
)
test_a_loop_of_test_wait_for_what_never_comes_is_a_deadlock = gives(
    polled, "deadlock @test", arrive=False, test=True
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_deadlock_of_polls_says_what_is_missing(schedule):
    found = next(f for f in run(polled, schedule, arrive=False).findings if f.code == "deadlock")
    assert "phase 0 (parity 0) has to complete on mbarrier bar" in found.why
    assert found.data[0]["barrier"]["expected"] == 32


def by_state(wait=True, test=True):
    """Every thread arrives, and waits for the phase whose state its arrival gave; twice."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([64])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((2, 64), "int32", align=16)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 64)
        T.cuda.cta_sync()
        x: T.int32 = tid
        for i in T.serial(2):
            s[i, tid] = x + 1  # store
            state: T.uint64 = helper("ptx_mbarrier_arrive_state", bar.ptr_to([0]))
            if wait:
                if test:
                    while helper("ptx_mbarrier_test_wait", bar.ptr_to([0]), state) == T.uint32(0):
                        T.cuda.nano_sleep(20)
                else:
                    while helper("ptx_mbarrier_try_wait_state", bar.ptr_to([0]), state) == T.uint32(
                        0
                    ):
                        T.cuda.nano_sleep(20)
            x = s[i, 63 - tid]  # load
        D[tid] = x

    return kernel


test_test_wait_by_state_is_a_wait = gives(by_state)
test_try_wait_by_state_is_a_wait = gives(by_state, test=False)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_values_come_with_the_phase(schedule):
    expected = [63 - lane + 0 for lane in range(64)]
    twice = [(63 - (63 - lane) + 1) + 1 for lane in range(64)]
    D = run(by_state, schedule).outputs["D"].tolist()
    assert D == twice and expected != D
    assert run(polled, schedule).outputs["D"].tolist() == [(31 - i) * 3 for i in range(32)]


def bounded(tries=4):
    """A loop that gives up after so many looks, and says so."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cta_sync()
        done: T.int32 = 0
        for _i in T.serial(tries):
            if T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 0, 20) == T.uint32(1):
                done = 1
        D[lane] = 100 + done

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_loop_that_counts_its_looks_ends(schedule):
    result = run(bounded, schedule)
    assert not result.findings
    np.testing.assert_array_equal(result.outputs["D"], 100)


def passed(after=True):
    """Who has passed a phase sees later looks at it succeed at once."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
        T.cuda.cta_sync()
        T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.cuda.cta_sync()
        found: T.uint32 = T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 0, 20)
        fresh: T.uint32 = T.ptx.mbarrier.try_wait_once(bar.ptr_to([0]), 1, 20)
        D[lane] = T.cast(found * T.uint32(10) + fresh, "int32")

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_is_known_to_be_over_is_over_and_what_cannot_come_is_not(schedule):
    np.testing.assert_array_equal(run(passed, schedule).outputs["D"], 10)
