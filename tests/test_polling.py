"""Loops that poll memory: given up where nothing that they read can change any more, and only there."""

import time
from pathlib import Path

import numpy as np
import pytest
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip import lower, simulate
from phaseflip.run import stepper
from phaseflip.spelling import T

N = 64
SCHEDULES = ["in-order", "eager", "lazy", "random:0", "random:5"]


def line_of(mark):
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i + 1 for i, text in enumerate(lines) if text.endswith(f"# {mark}"))


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
