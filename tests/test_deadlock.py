"""The wait-for picture: who waits for what, what is lacking, and why its supplier has not come."""

import functools
import json
import time
from pathlib import Path

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.findings import render
from phaseflip.spelling import T

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
            "name": "", "cta": 0, "phase": 0, "parity": 0, "arrivals": 1, "expected": 2, "bytes_missing": 0,
            "arrived_in": [],
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
