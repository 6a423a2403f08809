"""State of a named barrier: who has arrived, and which arrivals make a phase.

Judged by order. A phase is certain if everybody who arrives knows the phase before to be over, and its threads are exactly
as many as its count: then the same threads meet under every schedule. An arrival that breaks this raises UncertainBarrier,
under every schedule, for as long as all phases are certain all schedules do the same. The launch is then run again with
barriers that complete late, only when nothing else can happen: whoever can come without a phase has come by then, under
every schedule, and of those who have the first in the program meet.

Source: PTX ISA 9.1, bar / barrier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...errors import UncertainBarrier
from ...ordering.knowledge import Clock, join
from ...ordering.warp_meetings import warps_know
from . import named_barrier_report as findings

if TYPE_CHECKING:
    import numpy as np

    from ...ir.place import Place
    from ..cta import CTA
    from ..threads.warp import Group


class Round:
    """One phase of a barrier, by its number, and what its threads knew when they arrived."""

    __slots__ = ("number", "complete", "clocks", "_joined")

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.complete = False
        self.clocks: list[Clock] = []
        self._joined: Clock | None = None

    def clock(self) -> Clock:
        """What all of its threads knew."""
        if self._joined is None:
            self._joined = join(self.clocks)
        return self._joined


class Phase(Round):
    """A complete phase of a named barrier: the arrivals that made it."""

    __slots__ = ("arrivals",)

    def __init__(self, number: int, arrivals: list[Arrival]) -> None:
        super().__init__(number)
        self.complete, self.arrivals = True, arrivals
        self.clocks = [a.clock for a in arrivals if a.clock is not None]


class Arrival:
    """Threads that have arrived by one instruction; `clock` is what they knew, `phase` None until theirs is complete.

    `position` is where in the program (iterations, order), and only known where barriers complete late; `votes` what the
    threads bring to a reduction.
    """

    __slots__ = ("place", "lanes", "count", "clock", "position", "phase", "votes")

    def __init__(
        self,
        place: Place,
        lanes: np.ndarray,
        count: int | None,
        clock: Clock | None = None,
        position: tuple[tuple[int, ...], int] = ((), 0),
    ) -> None:
        self.place, self.lanes, self.count, self.clock = place, lanes, count, clock
        self.position = position
        self.phase: Phase | None = None
        self.votes: np.ndarray | None = None

    @property
    def waits(self) -> bool:
        """Whether its threads come to nothing else before the phase is complete."""
        return self.place.mnemonic != "bar.arrive"


class NamedBarrier:
    """One of the 16 barriers of a CTA: `pending` are the arrivals of the phase that is not complete, `last` the one before."""

    __slots__ = ("number", "cta", "pending", "last", "judged")

    def __init__(self, number: int, cta: CTA) -> None:
        self.number, self.cta = number, cta
        self.pending: list[Arrival] = []
        self.last: Phase | None = None
        self.judged = 0
        """How many of the pending arrivals have been judged together."""

    def expected(self, count: int | None) -> int:
        """Threads that complete a phase: `count`, None for all of the CTA that have not exited."""
        return self.cta.live_threads if count is None else count

    def named(self, count: int | None) -> int:
        """The number of threads that an instruction names; without a count all of the CTA."""
        return self.cta.threads if count is None else count

    def arrived(self, count: int | None) -> int:
        """Threads that have arrived with that count and whose phase is not complete."""
        named = self.named(count)
        return sum(len(a.lanes) for a in self.pending if self.named(a.count) == named)

    def phases(self) -> int:
        """How many phases are complete."""
        return 0 if self.last is None else self.last.number + 1

    def touch(self, how: str, count: int | None, phase: int | None) -> None:
        """The step that runs uses this barrier; see `dependence.py`. phase: None where the phases are made up late."""
        cluster, rank = self.cta.cluster, self.cta.rank
        cluster.touch(("bar", rank, self.number), how, (count, phase))
        if count is None and how == "arrive":
            cluster.touch(("live", rank), "use")

    def arrive(self, g: Group, arrival: Arrival) -> None:
        """A group arrives; the phase completes with its last thread. UncertainBarrier where a schedule could matter."""
        self.touch("arrive", arrival.count, self.phases())
        self._check_certain(g, arrival)
        self.pending.append(arrival)
        self.settle()

    def settle(self) -> None:
        """Complete the phase when everybody is there (also called when a thread exits)."""
        if not self.pending:
            return
        count = None if any(a.count is None for a in self.pending) else self.pending[0].count
        if self.arrived(count) >= self.expected(count):
            phase, self.pending = self.pending, []
            self._complete(phase)

    def _check_certain(self, g: Group, arrival: Arrival) -> None:
        """Every schedule must put these threads into this phase: with its count, once, and after the phase before."""
        count, here = arrival.count, 0
        for other in self.pending:
            again = not other.waits and bool(set(other.lanes.tolist()) & set(g.lanes.tolist()))
            if again or self.named(other.count) != self.named(count):
                raise UncertainBarrier
            here += len(other.lanes)
        if here + g.n > self.expected(count):
            raise UncertainBarrier
        if self.last is not None and g.cta.detector is not None:
            if not warps_know(g.cta.detector, g, self.last.clock()):
                raise UncertainBarrier

    def _complete(self, arrivals: list[Arrival]) -> None:
        """These arrivals make a phase."""
        self.last = phase = Phase(self.phases(), arrivals)
        for arrival in arrivals:
            arrival.phase = phase
        findings.judge_phase(self, arrivals)

    def complete_late(self) -> bool:
        """Nothing else can happen: judge who has come, and let the first of them meet. False if they are too few.

        Arrivals with different counts do not mix. The first are those that their threads have made first, then by place
        in the program, then by lane.
        """
        if len(self.pending) > self.judged:
            findings.judge_pending(self)
            self.judged = len(self.pending)
        turns = sorted(self._turns(), key=lambda turn: turn[:3])
        for count in dict.fromkeys(self.named(a.count) for *_, a in turns):
            phase, threads = [], 0
            alike = [a for *_, a in turns if self.named(a.count) == count]
            expected = min(self.expected(a.count) for a in alike)
            for arrival in alike:
                if threads < expected:
                    phase.append(arrival)
                    threads += len(arrival.lanes)
            if threads >= expected:
                self.pending = [a for a in self.pending if a not in phase]
                self.judged = 0
                self._complete(phase)
                return True
        return False

    def _turns(self) -> Iterator[tuple[int, tuple[tuple[int, ...], int], int, Arrival]]:
        """Each pending arrival with how many its threads have made before it, where it stands, and its first lane."""
        made: Counter[int] = Counter()
        for arrival in self.pending:
            lane = int(arrival.lanes[0])
            yield made[lane], arrival.position, lane, arrival
            made[lane] += 1


class NamedBarriers:
    """The 16 barriers of a CTA."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.used: dict[int, NamedBarrier] = {}

    def __iter__(self) -> Iterator[NamedBarrier]:
        return iter(self.used.values())

    def barrier(self, number: int) -> NamedBarrier:
        """The barrier of that number."""
        found = self.used.get(number)
        if found is None:
            found = self.used[number] = NamedBarrier(number, self.cta)
        return found

    def unused(self) -> int:
        """The lowest number from 1 on that nobody has used yet; 15 if all are in use."""
        return next((n for n in range(1, 16) if n not in self.used), 15)

    def exited(self) -> None:
        """Threads have exited: barriers of the whole CTA no longer wait for them."""
        if not self.cta.cluster.late_barriers:
            for barrier in self:
                barrier.settle()

    def complete_late(self) -> bool:
        """Nothing else can happen: complete a phase of each barrier that can. False if none can."""
        done = [self.used[number].complete_late() for number in sorted(self.used)]
        return any(done)

    def stopped(self) -> None:
        """The run has ended: judge what never completed."""
        for barrier in self:
            findings.judge_phase(barrier, barrier.pending, complete=False)
            barrier.pending = []


def complete_late_barriers(ctas: list[CTA]) -> bool:
    """Where barriers complete late: those of all CTAs of a cluster. False if there are none (left)."""
    if not ctas[0].cluster.late_barriers:
        return False
    done = [cta.barriers.complete_late() for cta in ctas]
    return any(done)
