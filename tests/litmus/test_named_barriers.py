"""The count of a named barrier is the number of threads that execute it."""

import pytest
from tvm.script import tirx as T

from .harness import SCHEDULES, line_of, run

N = 128


def counted(count=128):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        for _i in T.serial(2):
            T.ptx.bar.sync(1, count)  # meet
        D[tid] = tid

    return kernel


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_more_threads_than_the_count_are_a_mismatch_under_every_schedule(schedule):
    found = [
        f
        for f in run(counted, schedule, count=96).findings
        if (f.code, f.line) == ("barrier-mismatch", line_of(counted, "meet"))
    ]
    assert len(found) == 1 and found[0].severity == "error"


@pytest.mark.parametrize("schedule", SCHEDULES[:4])
def test_the_right_count_is_silent(schedule):
    assert run(counted, schedule).findings == []
