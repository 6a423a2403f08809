"""mbarrier: the state machine against a plain model, and waiting on it through TIRx kernels."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.errors import KernelFault
from phaseflip.ir.place import Place
from phaseflip.machine.sync.mbarrier import Mbarrier
from phaseflip.spelling import T

N = 128


def barrier(expected, reports=None):
    """A barrier of a CTA that collects what it reports."""
    reports = [] if reports is None else reports
    cta = SimpleNamespace(
        cluster=SimpleNamespace(threads=N, ctas=[None], touch=lambda *use: None),
        report=reports.append,
    )
    return Mbarrier("bar", cta, expected)


def arrive(b, count=1):
    b.arrive(Place("test", "here", 1), "thread", count, None, lambda clock: True)


def complete_tx(b, nbytes, phase=None):
    b.complete_tx(Place("test", "here", 2), nbytes, b.phase if phase is None else phase, None)


class Model:
    """PTX's description, word by word; but bytes too many, which would block the phase for ever, are forgotten."""

    def __init__(self, expected):
        self.expected, self.pending, self.tx, self.completed = expected, expected, 0, 0

    def settle(self):
        if self.pending == 0 and self.tx <= 0:
            self.completed += 1
            self.pending, self.tx = self.expected, 0

    def arrive(self, count):
        self.pending -= count
        self.settle()

    def complete_tx(self, n):
        self.tx -= n
        self.settle()


@pytest.mark.parametrize("seed", range(20))
def test_random_histories_agree_with_the_model(seed):
    rng = random.Random(seed)
    expected = rng.choice([1, 2, 3, 32, 128])
    real, model = barrier(expected), Model(expected)
    for _ in range(300):
        action = rng.randrange(3)
        if action == 0 and model.pending:
            count = rng.randint(1, model.pending)
            arrive(real, count)
            model.arrive(count)
        elif action == 1 and model.pending:
            n = rng.choice([16, 128, 4096])
            real.expect_tx(n)
            model.tx += n
        elif action == 2 and (model.tx or model.pending):
            n = rng.choice([model.tx, 16])  # may run ahead of its expect_tx: the count is signed
            complete_tx(real, n)
            model.complete_tx(n)
        assert (real.phase, real.pending, real.tx) == (model.completed, model.pending, model.tx)


def test_bytes_that_arrive_before_they_are_announced_do_not_complete_the_phase():
    b = barrier(1)
    complete_tx(b, 64)
    assert (b.phase, b.tx) == (0, -64)
    b.expect_tx(64)
    arrive(b)
    assert (b.phase, b.tx, b.pending) == (1, 0, 1)


def test_more_bytes_than_expected_are_reported_once_a_phase_at_the_arrival_that_registers_bytes():
    reports = []
    b = barrier(2, reports)
    b.loads_in_flight[0] = 2
    b.expect_tx(64)
    b.arrive(Place("mbarrier.arrive.expect_tx", "f", 7, 1), "t", 1, None, lambda clock: True)
    b.arrive(Place("mbarrier.arrive", "f", 9, 2), "t", 1, None, lambda clock: True)
    for left in (1, 0):
        b.loads_in_flight[0] = left
        complete_tx(b, 64, 0)
        assert b.phase == 1 - left  # does not end before all copies meant for it are there
    complete_tx(b, 64, 0)
    (finding,) = reports
    assert (finding.code, finding.line, b.phase, b.tx) == ("tx-count-mismatch", 7, 1, 0)


@pytest.mark.parametrize(
    ("threads", "advice"),
    [(1, "load less"), (32, "let one thread expect them, and not 32; or load less")],
)
def test_bytes_that_the_object_cannot_count_stop_the_kernel(threads, advice):
    b = barrier(1)
    b.expect_tx((2**20 - 1) // 32 * 32 // threads, threads)
    with pytest.raises(KernelFault, match="would wait for 1048576 bytes in a phase") as stop:
        b.expect_tx(32 // threads, threads)
    assert stop.value.fix == f"{advice} in a phase, or over several barriers"


def test_more_arrivals_than_expected_are_reported():
    reports = []
    b = barrier(2, reports)
    arrive(b, 3)
    assert [f.code for f in reports] == ["over-arrival"]


def arrives(b, line, *threads, knows=True):
    b.arrive(
        Place("arrive", "f", line, line),
        f"t{threads}",
        len(threads),
        None,
        lambda _: knows,
        threads,
    )


def test_threads_that_arrive_again_too_early_are_named_whether_the_phase_has_ended_or_not():
    ended, pending = [], []
    b = barrier(2, ended)
    arrives(b, 4, 0)
    arrives(b, 9, 1)
    b.ends[0] = object()
    arrives(b, 4, 0, knows=False)  # phase 0 is over, which it does not know
    b = barrier(2, pending)
    b.expect_tx(16)
    arrives(b, 4, 0)
    arrives(b, 4, 0)
    arrives(b, 9, 1)  # the one too many by the count, and innocent
    for (finding,) in (ended, pending):
        assert (finding.code, finding.line, finding.other.line) == ("over-arrival", 4, 4)
        assert finding.what == "t(0,) arrives on bar again" and finding.follows
        assert "for phase 0 before, and nothing in between" in finding.why


def test_another_thread_that_arrives_too_early_is_one_too_many():
    reports = []
    b = barrier(1, reports)
    arrives(b, 4, 0)
    b.ends[0] = object()
    arrives(b, 9, 1, knows=False)
    (finding,) = reports
    assert (finding.code, finding.line, finding.other.line) == ("over-arrival", 9, 4)
    assert not finding.follows and finding.fix.startswith("make the count of mbarrier.init")


@pytest.mark.parametrize("thread", [0, 1])
def test_bytes_follow_if_their_thread_had_sent_some_for_the_phase_before(thread):
    reports = []
    b = barrier(1, reports)
    b.expect_tx(16)
    arrives(b, 4, 0)
    for sender in (0, thread):
        b.complete_tx(Place("copy", "f", 5, 5), 16, 0, None, sender)
    (finding,) = reports
    assert (finding.code, finding.follows) == ("tx-count-mismatch", thread == 0)


def test_the_state_in_words():
    b = barrier(4)
    arrive(b)
    b.expect_tx(96)
    assert str(b) == "bar (in phase 0 with 1 of 4 arrivals, 0 of 96 bytes)"


# -- in kernels -------------------------------------------------------------------------------------------------------
def phases_kernel(parities):
    """Warp 0 commits once a phase, three times; all wait for phase i by the parity in bit i of `parities`."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        for i in T.serial(3):
            if warp == 0:
                if T.ptx.elect_sync():
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), T.shift_right(parities, i) & 1)
            T.cuda.cta_sync()
        D[warp * 32 + lane] = warp

    return lower(kernel)


@pytest.mark.parametrize("schedule", ["in-order", "eager", "lazy", "random:1"])
def test_alternating_parities_follow_the_phases(schedule):
    run = simulate(phases_kernel(0b010), [np.full(N, -1, np.int32)], schedule)
    assert [str(f) for f in run.findings if f.severity == "error"] == []
    np.testing.assert_array_equal(run.outputs["D"], np.arange(N) // 32)
    assert run.counters["tcgen05.commit"] == 3
    assert run.counters["barrier_waits"] == 4 * (1 + 3 + 3)


@pytest.mark.parametrize("schedule", ["in-order", "eager", "lazy", "random:1"])
def test_a_parity_that_is_not_flipped_is_an_error_under_every_schedule(schedule):
    """The second wait names parity 0 again: it may pass on phase 0, or block for ever once phase 1 is complete."""
    run = simulate(phases_kernel(0b000), [np.full(N, -1, np.int32)], schedule)
    assert "stale-wait" in [f.code for f in run.findings if f.severity == "error"]


@pytest.mark.parametrize("schedule", ["in-order", "eager", "lazy", "random:1"])
def test_a_fresh_barrier_lets_parity_1_pass(schedule):
    """A producer's first wait: the phase before phase 0 counts as complete."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 1)
        D[tid] = 1

    run = simulate(kernel, [np.zeros(N, np.int32)], schedule)
    assert run.findings == []
    assert run.outputs["D"].all()


def test_waiting_on_a_barrier_without_init_is_reported_at_its_line():
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # here
        D[tid] = 1

    run = simulate(kernel, [np.zeros(N, np.int32)])
    (finding,) = run.findings
    assert finding.code == "barrier-not-initialised"
    with open(__file__, encoding="utf-8") as file:
        lines = file.read().splitlines()
    assert finding.file == __file__ and lines[finding.line - 1].endswith("# here")
