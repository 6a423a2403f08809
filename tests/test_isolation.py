"""Worker processes: what a call that raises, crashes, hangs or prints costs, and that nothing outlives its caller."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from phaseflip.system.worker_pool import (
    CRASHED,
    RAISED,
    RETURNED,
    TIMED_OUT,
    WorkerFailed,
    WorkerPool,
)

ROOT = Path(__file__).resolve().parent.parent
HERE = f"{__name__}:act"


def act(order: tuple[str, Any]) -> Any:
    """What the tests ask a worker to do."""
    what, value = order
    if what == "echo":
        return value
    if what == "pid":
        return os.getpid()
    if what == "raise":
        raise ValueError(value)
    if what == "segfault":
        ctypes.string_at(0)
    if what == "exit":
        os._exit(value)
    if what == "sleep":
        time.sleep(value)
        return os.getpid()
    if what == "hold the interpreter":  # no signal handler and no other thread gets to run
        ctypes.PyDLL(None).sleep(value)
    if what == "print":
        sys.stdout.write(value)
        sys.stdout.flush()
        os.abort()
    if what == "unpicklable":
        return lambda: None
    raise AssertionError(what)


def test_results_come_back_and_the_worker_stays_warm() -> None:
    with WorkerPool(HERE) as pool:
        first, second = pool.call(("pid", 0)), pool.call(("pid", 0))
        assert first.how == RETURNED and first.value == second.value != os.getpid()
        assert pool.call(("echo", {"shape": (1, 2)})).value == {"shape": (1, 2)}
    assert pool.process_ids == []


def test_what_a_call_raises_is_told_and_the_worker_lives_on() -> None:
    with WorkerPool(HERE) as pool:
        before = pool.call(("pid", 0)).value
        ended = pool.call(("raise", "two\nlines"))
        assert ended.how == RAISED and ended.value == ("ValueError", "two lines")
        assert "in act" in ended.detail
        ended = pool.call(("unpicklable", 0))
        assert ended.how == RAISED and "pickle" in ended.value[1].lower()
        assert pool.call(("pid", 0)).value == before


def test_a_call_may_have_a_limit_of_its_own() -> None:
    with WorkerPool(HERE, limit_s=0.2) as pool:
        assert pool.call(("sleep", 0.5), limit_s=30).how == RETURNED
        assert pool.call(("sleep", 30)).value == "over 0.2 s"


@pytest.mark.parametrize(
    ("order", "how", "value", "said"),
    [
        (("segfault", 0), CRASHED, "signal SIGSEGV", "in act"),
        (("exit", 7), CRASHED, "status 7", ""),
        (("print", "last words"), CRASHED, "signal SIGABRT", "last words"),
        (("sleep", 60), TIMED_OUT, "over 0.5 s", ""),
        (("hold the interpreter", 60), TIMED_OUT, "over 0.5 s", ""),
    ],
    ids=["segfault", "exit", "abort", "time-out", "time-out in C"],
)
def test_a_crash_or_hang_costs_one_call(
    order: tuple[str, Any], how: str, value: str, said: str
) -> None:
    with WorkerPool(HERE, limit_s=0.5) as pool:
        group = [("pid", 0), order, ("pid", 1), ("pid", 2)]
        before, ended, after, last = (ended for _, ended in pool.run([group]))
    assert (ended.how, ended.value) == (how, value)
    assert said in ended.detail and ended.seconds < 5
    assert after.how == RETURNED and before.value != after.value == last.value


def test_groups_spread_over_the_workers_and_calls_of_a_group_share_one() -> None:
    groups = [[("sleep", 0.2)] * 2 for _ in range(4)]
    with WorkerPool(HERE, jobs=2) as pool:
        pids = [ended.value for _, ended in pool.run(groups)]
        assert len(pids) == 8 and set(pids) == set(pool.process_ids) and len(set(pids)) == 2
        assert sorted(
            value for _, (_, value, _, _) in pool.run([[("echo", i)] for i in range(9)])
        ) == [*range(9)]
        assert list(pool.run([])) == list(pool.run([[]])) == []


def test_a_worker_that_died_idle_or_was_left_busy_is_replaced() -> None:
    with WorkerPool(HERE) as pool:
        first = pool.call(("pid", 0)).value
        os.kill(first, signal.SIGKILL)
        while pool._workers[0].process.poll() is None:
            time.sleep(0.01)
        second = pool.call(("pid", 0))
        assert second.how == RETURNED and second.value != first
        for _ in pool.run([[("echo", 1)], [("sleep", 60)]]):
            break
        third = pool.call(("pid", 0))
        assert third.how == RETURNED


def test_a_worker_that_cannot_start_says_why() -> None:
    with WorkerPool("phaseflip.no_such_module:f") as pool, pytest.raises(WorkerFailed) as failure:
        pool.call(0)
    assert "no_such_module" in str(failure.value)


def test_a_worker_inside_a_call_dies_with_its_parent() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from phaseflip.system.worker_pool import WorkerPool\n"
        "pool = WorkerPool('test_isolation:act')\n"
        "print(pool.call(('pid', 0)).value, flush=True)\n"
        "pool.call(('sleep', 60))\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT / "tests")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # ended; whoever adopted it has not looked yet
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")
