"""The TMEM allocator as a state machine, against a model written from the text of PTX ISA 9.1 (tcgen05.alloc).

"nCols: a power of two, 32 to 512. The number of columns must not increase between two allocations of a CTA. alloc
blocks if the requested amount is not available, until it is. dealloc frees columns that alloc gave, the same number. No
alloc after relinquish_alloc_permit. All that was allocated must be deallocated before the kernel exits."
"""

from collections import Counter
from types import SimpleNamespace

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phaseflip.ir.place import Place
from phaseflip.machine.memory.load_store import SHARED_BASE, Memory
from phaseflip.machine.tcgen05 import allocation as unit
from phaseflip.machine.threads.warp import Group

COUNTS = [32, 64, 128, 256, 512]
PLACE = Place("tcgen05.alloc", "k.py", 3)


class Allocator(RuleBasedStateMachine):
    """Legal requests, illegal ones, frees in any order."""

    @initialize()
    def start(self):
        self.reports = []
        self.cta = cta = SimpleNamespace(
            tmem=unit.TensorMemory(), detector=None, report=self.reports.append, threads=32, globals=[], rank_in_grid=0, rank=0,
            bytes=Counter(),
        )  # fmt: skip
        shared = Memory("shared", lambda offset: "address", SHARED_BASE, 64)
        cta.shared = shared
        cta.cluster = SimpleNamespace(
            ctas=[cta],
            use_cta_group=lambda place, group: None,
            owner=lambda address: cta,
            touch=lambda *use: None,
            recorder=None,
        )
        self.warp = Group(cta, np.arange(32), [], 0)
        self.live = {}
        self.last = 512
        self.expected = []
        self.relinquished = False
        self.blocked = None
        self.grew = False

    def request(self, columns):
        return unit.tcgen05_alloc(self.warp, PLACE, SHARED_BASE, columns, 1)

    def granted(self, columns):
        """The address in shared memory is that of a range which nobody holds."""
        start = int(self.cta.shared.view(unit.WORD)[0])
        mine = set(range(start, start + columns))
        assert max(mine) < 512
        for other, (n, _) in self.live.items():
            assert not mine & set(range(other, other + n))
        self.live[start] = (columns, PLACE)

    @precondition(lambda self: self.blocked is None)
    @rule(data=st.data())
    def alloc(self, data):
        columns = data.draw(st.sampled_from([n for n in COUNTS if n <= self.last]))
        wait = self.request(columns)
        self.last = columns
        if self.relinquished:
            self.expected.append("tmem-bad-allocation")
        used = sum(n for n, _ in self.live.values())
        assert wait is not None or used + columns <= 512
        if not self.grew:
            assert (wait is None) == (used + columns <= 512)
        if wait is None:
            self.granted(columns)
        else:
            assert not wait.ready() and f"{columns} columns" in wait.describe()
            self.blocked = (wait, columns)

    @precondition(lambda self: self.blocked is None and self.last < 512)
    @rule(data=st.data())
    def alloc_more_than_before(self, data):
        columns = data.draw(st.sampled_from([n for n in COUNTS if n > self.last]))
        wait = self.request(columns)
        self.expected += ["tmem-bad-allocation"] * (2 if self.relinquished else 1)
        self.last, self.grew = columns, True
        if wait is None:
            self.granted(columns)
        else:
            self.blocked = (wait, columns)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def dealloc(self, data):
        start = data.draw(st.sampled_from(sorted(self.live)))
        columns, _ = self.live.pop(start)
        unit.tcgen05_dealloc(self.warp, PLACE, start, columns, 1)
        self.unblock()

    @precondition(lambda self: self.live)
    @rule(data=st.data(), other=st.sampled_from(COUNTS))
    def dealloc_another_number(self, data, other):
        start = data.draw(st.sampled_from(sorted(self.live)))
        columns, _ = self.live.pop(start)
        unit.tcgen05_dealloc(self.warp, PLACE, start, other, 1)
        if other != columns:
            self.expected.append("tmem-bad-allocation")
        self.unblock()

    @rule(column=st.integers(0, 511))
    def dealloc_what_nobody_holds(self, column):
        if column not in self.live:
            unit.tcgen05_dealloc(self.warp, PLACE, column, 32, 1)
            self.expected.append("tmem-double-free")

    @rule()
    def relinquish(self):
        unit.tcgen05_relinquish_alloc_permit(self.warp, PLACE, 1)
        self.relinquished = True

    def unblock(self):
        """A blocked allocation goes on as soon as enough is free (in aligned pieces, where counts never grew)."""
        if self.blocked is not None and self.blocked[0].ready():
            wait, columns = self.blocked
            wait.finish(self.warp)
            self.blocked = None
            self.granted(columns)

    @invariant()
    def allocations_agree(self):
        assert {a: n for a, (n, _) in self.cta.tmem.allocations.items()} == {
            a: n for a, (n, _) in self.live.items()
        }

    @invariant()
    def findings_agree(self):
        assert [f.code for f in self.reports] == self.expected

    def teardown(self):
        if hasattr(self, "cta"):
            del self.reports[:]
            self.cta.tmem.check_freed(self.cta)
            assert [f.code for f in self.reports] == ["tmem-leak"] * len(self.live)


TestAllocator = Allocator.TestCase
