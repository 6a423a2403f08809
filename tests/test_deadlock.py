"""The wait-for picture: who waits for what, what is lacking, and why its supplier has not come."""

import functools
import json
import time
from pathlib import Path

import numpy as np
import pytest
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip import lower, simulate, stepper
from phaseflip.finding import render

N = 64
SCHEDULES = ["in-order", "eager", "lazy", "random:0", "random:5"]


def line_of(mark):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i + 1 for i, text in enumerate(lines) if text.endswith(f"# {mark}"))


@functools.cache
def kernel(reason):
    """Warp 0 arrives once; the second arrival that the barrier expects is missing for one of three reasons."""
    taken = 2 if reason == "branch" else 1

    @T.prim_func
    def body(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 2)
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # first arrival
        if reason == "branch":
            if warp == taken:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # in a branch
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
        if reason == "blocked":
            if warp == 1:
                if lane == 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # behind the wait
        D[warp * 32 + lane] = 1

    return lower(body)


def deadlock(reason, schedule):
    run = simulate(kernel(reason), [np.zeros(N, np.int32)], schedule)
    (finding,) = [f for f in run.findings if f.code == "deadlock"]
    return finding


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("reason", ["branch", "blocked", "none"])
def test_the_report_names_waiters_barrier_phase_and_arrivals(reason, schedule):
    finding = deadlock(reason, schedule)
    assert (finding.file, finding.line) == (__file__, line_of("wait"))
    assert "bar" in finding.message and "phase 0" in finding.message
    assert "1 of 2 arrivals" in finding.message
    waiting = json.loads(json.dumps(finding.to_json()))["details"]
    assert sum(entry["threads"] for entry in waiting) == N
    for entry in waiting:
        assert entry["line"] == line_of("wait") and entry["instruction"].startswith(
            "mbarrier.try_wait"
        )
        assert entry["barrier"] | {"name": ""} == {
            "name": "", "phase": 0, "parity": 0, "arrivals": 1, "expected": 2, "bytes_missing": 0,
        }  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("reason", "mark", "words"),
    [
        ("branch", "in a branch", "in a branch that no thread took"),
        ("blocked", "behind the wait", "every thread that could is blocked before it"),
    ],
)
def test_the_supplier_that_never_came_and_why(reason, mark, words, schedule):
    finding = deadlock(reason, schedule)
    suppliers = {s["line"]: s for s in finding.data[0]["suppliers"]}
    assert suppliers[line_of("first arrival")]["executed"] == 1
    assert suppliers[line_of(mark)]["executed"] == 0
    assert words in suppliers[line_of(mark)]["why"] and words in finding.message
    assert any(words in line for line in finding.details)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("reason", "fix"),
    [
        ("branch", "let the threads that should arrive reach line {}"),
        (
            "blocked",
            "let line {} come before the wait, or leave it to threads that do not wait, or give mbarrier.init the number of"
            " arrivals that come",
        ),
        ("none", "let 2 arrivals come in every phase, or give mbarrier.init the number that do"),
    ],
)
def test_the_report_says_what_where_why_and_the_remedy_and_nothing_twice(reason, fix, schedule):
    finding = deadlock(reason, schedule)
    what, where, why, remedy, *rest = render(finding).splitlines()
    assert what == "error: deadlock: " + finding.what and "CTA 0 warps 0-1 wait for ever" in what
    assert f":{line_of('wait')} (mbarrier.try_wait.parity)" in where
    assert "phase 0 (parity 0) has to complete on mbarrier" in why
    mark = {"branch": "in a branch", "blocked": "behind the wait"}.get(reason, "wait")
    assert remedy == "  fix: " + fix.format(line_of(mark))
    assert not any("has to complete" in line or "warps 0-1" in line for line in rest)
    assert len(rest) == (1 if reason == "none" else 2)


def test_a_deadlock_is_told_in_two_seconds():
    kernel("none")
    started = time.perf_counter()
    deadlock("none", "in-order")
    assert time.perf_counter() - started < 2


def test_the_first_waiter_of_the_program_is_named_whoever_came_first():
    """Warp 1 waits at an earlier line than warp 0."""

    @T.prim_func
    def body(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        if warp == 1:
            T.ptx.bar.sync(1, 64)  # earlier
        else:
            T.ptx.bar.sync(2, 64)  # later
        D[warp * 32 + lane] = 1

    lowered = lower(body)
    for schedule in SCHEDULES:
        (finding,) = simulate(lowered, [np.zeros(N, np.int32)], schedule).findings
        assert finding.line == line_of("earlier")
        text = render(finding)
        assert "bar.sync 1: 32 of 64 threads" in text and "bar.sync 2: 32 of 64 threads" in text


# -- loops that poll memory ---------------------------------------------------------------------------------------------
@T.prim_func
def polls(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    while D[tid] == 0:  # poll
        T.evaluate(0)


@T.prim_func
def polls_and_counts(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 0
    while D[tid] == 0:  # counted poll
        n = n + 1
    D[tid] = n


@T.prim_func
def stores_what_is_there(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    while D[tid] == 0:  # storing poll
        D[tid] = 0


@T.prim_func
def two_loops(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    if warp == 0:
        while D[0] == 0:  # nested poll
            while D[1] != 0:
                T.evaluate(0)
    else:
        while D[2] == 0:
            if D[3] != 0:
                D[4] = 1


@T.prim_func
def spins(D: T.Buffer((N,), "int32")):
    """Without any instruction in the loop, save one that is not reached."""
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 1
    while n != 0:  # spin
        if n == 2:
            D[tid] = 1
    D[tid] = n


@T.prim_func
def spins_around(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 1
    i: T.int32 = 0
    while n != 0:  # outer spin
        i = 0
        while i < 50:
            i = i + 1
    D[tid] = n


@T.prim_func
def spins_within(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 0
    for i in T.serial(N + tid):
        while i == 40:  # inner spin
            n = i
    D[tid] = n


NO_INSTRUCTION = [(spins, "spin"), (spins_around, "outer spin"), (spins_within, "inner spin")]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("body", "mark"),
    [
        *NO_INSTRUCTION,
        (polls, "poll"),
        (polls_and_counts, "counted poll"),
        (stores_what_is_there, "storing poll"),
        (two_loops, "nested poll"),
    ],
)
def test_a_loop_that_polls_for_ever_is_given_up_in_seconds(body, mark, schedule):
    lowered = lower(body)
    started = time.process_time()
    run = simulate(lowered, [np.zeros(N, np.int32)], schedule)
    assert time.process_time() - started < 5
    (finding,) = [f for f in run.findings if f.code == "deadlock"]
    assert run.stopped and finding.line == line_of(mark)
    assert finding.what == "CTA 0 warps 0-1 run a loop that does not end" and finding.fix


@T.prim_func
def released_after_long_work(D: T.Buffer((N,), "int32")):
    """Warp 1 needs far more blocks than a turn has before it writes what warp 0 polls."""
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    total: T.int32 = 0
    if warp == 0:
        while D[32] == 0:
            T.evaluate(0)
        D[lane] = 7
    else:
        for i in T.serial(20000):
            total = total + i * lane
        D[32 + lane] = total + 1


def waits_first():
    """Warp 0 waits for warp 1, which would arrive in another branch of its loop, but waits for what nobody supplies."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((2,), "uint64", align=8)
        never = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                for i in T.serial(2):
                    T.ptx.mbarrier.init(bar.ptr_to([i]), 32)
                    T.ptx.mbarrier.init(never.ptr_to([i]), 32)
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        if warp == 1:
            for i in T.serial(2):
                if i == 1:
                    T.ptx.mbarrier.try_wait(never.ptr_to([1 - i]), 0)  # cause
                if i > 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        D[warp * 32 + lane] = 1

    return kernel


@T.prim_func
def released_behind_a_join(D: T.Buffer((N,), "int32")):
    """Warp 1 would wait for warp 0 where their branches meet, before it writes what warp 0 polls."""
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    x: T.int32 = 0
    if warp == 0:
        while D[32] == 0:
            T.evaluate(0)
    else:
        x = 3
    if warp == 1:
        D[32 + lane] = x + 1
    if warp == 0:
        D[lane] = 7


@T.prim_func
def released_in_rounds(D: T.Buffer((N,), "int32")):
    """The warps take turns, each polling what the other counts."""
    T.device_entry()
    bx = T.cta_id([1])
    warp = T.warp_id([2])
    lane = T.lane_id([32])
    if warp == 0:
        for i in T.serial(3):
            while D[32] < i:
                T.evaluate(0)
            D[lane] = i + 1
    else:
        for i in T.serial(3):
            while D[0] < i + 1:
                T.evaluate(0)
            D[32 + lane] = i + 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("body", "last"),
    [(released_after_long_work, 7), (released_behind_a_join, 7), (released_in_rounds, 3)],
)
def test_a_loop_that_is_released_is_not_accused(body, last, schedule):
    run = simulate(lower(body), [np.zeros(N, np.int32)], schedule)
    assert "deadlock" not in {f.code for f in run.findings} and not run.stopped
    assert (run.outputs["D"][:32] == last).all() and (run.outputs["D"][32:] != 0).all()


def test_what_a_loop_polls_may_come_from_a_copy_in_flight():
    """Under lazy nothing lands while a thread can run, and the thread that polls always can."""

    @T.prim_func
    def body(A: T.Buffer((32, 8), "float16"), D: T.Buffer((32,), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((32, 8), "float16", layout=TileLayout(S[(32, 8) : (8, 1)]))
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        s[lane, 0] = T.float16(0)
        T.cuda.cta_sync()
        if lane == 0:
            Tx.copy_async(s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0]))
        while s[lane, 0] == T.float16(0):
            T.evaluate(0)
        D[lane] = s[lane, 0]

    lowered = lower(body)
    for schedule in SCHEDULES:
        arrays = [np.ones((32, 8), np.float16), np.zeros(32, np.float16)]
        run = simulate(lowered, arrays, schedule, checks="deadlock")
        assert run.findings == [] and (run.outputs["D"] == 1).all()


@T.prim_func
def never_repeats(D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([N])
    n: T.int32 = 1
    while n != 0:  # count
        n = n + 2
    D[tid] = n


def test_a_loop_whose_registers_never_repeat_is_given_up_too(monkeypatch):
    monkeypatch.setattr(stepper, "POLL_BLOCKS", 30_000)
    (finding,) = simulate(never_repeats, [np.zeros(N, np.int32)]).findings
    assert finding.code == "deadlock" and "does not end" in finding.what
