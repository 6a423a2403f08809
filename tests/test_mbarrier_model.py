"""The mbarrier object as a state machine, against a model written from the text of PTX ISA 9.1 (mbarrier).

"Phase completion: pending count reaches zero and tx-count reaches zero. Then the pending count is set to the expected
count, and the phase advances." Expected count 1 to 2**20 - 1; tx-count within +-(2**20 - 1); test_wait.parity names
the current phase or the immediately preceding one.
"""

from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phaseflip.ir.place import Place
from phaseflip.machine.sync.mbarrier import Mbarrier
from phaseflip.machine.sync.mbarrier_wait import MbarrierWait

THREADS = 64


def untouched(*use):
    """Nobody asks what a step uses."""


TX_LIMIT = (1 << 20) - 1


class MbarrierMachine(RuleBasedStateMachine):
    """Arrivals, transactions and waits in any order that PTX allows; and arrivals that it does not."""

    @initialize(expected=st.sampled_from([1, 2, 3, 32, 128, TX_LIMIT]))
    def init(self, expected):
        self.reports = []
        cta = SimpleNamespace(
            cluster=SimpleNamespace(threads=THREADS, ctas=[None], touch=untouched),
            report=self.reports.append,
        )
        self.real = Mbarrier("bar", cta, expected)
        self.expected = self.pending = expected
        self.tx = self.registered = self.completed = self.told = 0
        self.waits = []

    def advance(self):
        if self.pending == 0 and self.tx == 0:
            self.completed += 1
            self.pending = self.expected
            self.registered = 0

    def arrive_real(self, count):
        self.real.announce(count, None)
        self.real.arrive(
            Place("mbarrier.arrive", "k.py", 1), "thread", count, None, lambda clock: True
        )

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def arrive(self, data):
        count = data.draw(st.integers(1, min(self.pending, 200)) | st.just(self.pending))
        if count == self.pending and self.tx < 0:
            return  # more bytes than expected: tx-count-mismatch, which test_mbarrier.py covers
        self.arrive_real(count)
        self.pending -= count
        self.advance()

    @precondition(lambda self: self.pending)
    @rule(nbytes=st.sampled_from([16, 4096, 16384]))
    def expect_tx(self, nbytes):
        if self.tx + nbytes <= TX_LIMIT:
            self.real.expect_tx(nbytes)
            self.tx += nbytes
            self.registered += nbytes

    @precondition(lambda self: self.pending or self.tx)
    @rule(part=st.sampled_from([16, 4096, None]))
    def complete_tx(self, part):
        """All that is due, or a part, or more than has been announced so far (only while an arrival is pending)."""
        nbytes = part if part is not None else self.tx
        if nbytes > 0 and (nbytes <= self.tx or (self.pending and self.tx - nbytes >= -TX_LIMIT)):
            self.real.complete_tx(Place("copy", "k.py", 2), nbytes, self.completed, None)
            self.tx -= nbytes
            self.advance()

    @precondition(lambda self: self.pending == 0)
    @rule(count=st.integers(1, 3))
    def arrive_when_none_is_pending(self, count):
        """All have arrived, bytes are due: one more is an error, and does not count."""
        self.arrive_real(count)
        self.told += 1

    @rule()
    def wait_for_the_current_phase(self):
        self.waits.append((MbarrierWait(self.real, self.completed, Place(), "cta"), self.completed))

    @invariant()
    def state_agrees(self):
        real = self.real
        assert (real.phase, real.pending, real.tx) == (self.completed, self.pending, self.tx)
        assert real.expected == self.expected

    @invariant()
    def waits_pass_when_their_phase_is_complete(self):
        for wait, phase in self.waits:
            assert wait.ready() == (self.completed > phase)
            assert wait.parity == phase % 2

    @invariant()
    def only_arrivals_too_many_are_reported(self):
        assert [f.code for f in self.reports] == ["over-arrival"] * self.told

    @invariant()
    def the_words_tell_the_state(self):
        arrived = f"{self.expected - self.pending} of {self.expected} arrivals"
        came = f", {self.registered - self.tx} of {self.registered} bytes"
        assert str(self.real) == f"bar (in phase {self.completed} with {arrived}{came})"


TestMbarrier = MbarrierMachine.TestCase


def test_threads_start_without_having_waited():
    cta = SimpleNamespace(cluster=SimpleNamespace(threads=THREADS), report=None)
    assert (Mbarrier("bar", cta, 1).consumed < -1).all()
    assert len(np.unique(Mbarrier("bar", cta, 1).wait_epochs)) == 1
