"""mbarrier: phase, pending arrivals and transaction bytes of a barrier object in shared memory, and waiting on it.

Ordering: an arrival releases what its threads know, a wait that succeeds acquires what was released up to the end of the
phase it observed. Arrivals are read-modify-writes of one object, so what earlier phases released stays included.

Source: PTX ISA 9.1, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ..control_flow import EXIT
from ..errors import KernelFault
from ..instructions import instruction
from ..vector_clock import Clock, join, united
from . import mbarrier_findings as findings
from .divergence import Parted, split
from .mbarrier_findings import Repeated
from .warp import Agents

if TYPE_CHECKING:
    from ..finding import Place
    from .cta import CTA
    from .warp import Group

MAX_COUNT = (1 << 20) - 1
NEVER = -2


class Mbarrier:
    """One barrier object.

    `expected` arrivals a phase; `pending` of them still missing in the current phase; `tx` bytes still to come; `phase`
    the number of phases completed since init, whose lowest bit is the parity of the current phase. `started` counts the
    arrivals announced so far, those of operations in flight included; `consumed[t]` is the last phase that thread t has
    waited for. `clock` is what arrivals have released, `completed[p]` that at the end of phase p.
    """

    __slots__ = (
        "name", "cta", "expected", "pending", "tx", "phase", "started", "consumed", "clock", "completed", "init",
        "wait_epochs", "wait_places", "arrivals", "repeated", "undecided", "ends", "after", "registered",
        "loads_in_flight", "overrun",
    )  # fmt: skip

    def __init__(
        self, name: str, cta: CTA, expected: int, init: tuple[Place, int, int] | None
    ) -> None:
        self.name, self.cta = name, cta
        self.expected = self.pending = expected
        self.tx = 0
        self.registered = 0
        """Bytes that this phase has been told to expect."""
        self.loads_in_flight: Counter[int] = Counter()
        """Phase -> bulk loads meant for it that have not landed; it does not end before them, however few bytes it
        expects: which of them would be left out depends on what lands first."""
        self.overrun: set[int] = set()
        """Phases for which more bytes have come than expected."""
        self.phase = 0
        self.started = 0
        self.consumed = np.full(cta.cluster.threads, NEVER, np.int64)
        self.clock: Clock | None = None
        self.after: Clock | None = None
        """What the arrivals are ordered after."""
        self.completed: dict[int, Clock | None] = {}
        self.wait_epochs = np.zeros(cta.cluster.threads, np.int32)
        self.wait_places = np.full(cta.cluster.threads, None, object)
        """Thread -> epoch of its last wait here, and where that was."""
        self.arrivals: dict[int, list[tuple[Place, tuple[int, ...]]]] = {}
        """Phase -> (place, threads) of its arrivals; of the current phase and the one before."""
        self.repeated: list[Repeated] = []
        """Waits for a phase that their threads had consumed: harmless unless a later arrival is not ordered after them."""
        self.undecided: set[int] = set()
        """Phases in which one instruction arrives more often than expected: which arrival ends them is open."""
        self.ends: dict[int, Clock | None] = {}
        """As `completed`, but for those phases too: who knows it, knows that the phase has ended."""
        self.init = init
        """(place, component, epoch) of the thread that initialised it; None without race checks."""

    def announce(self, count: int, clock: Clock | None) -> None:
        """`count` arrivals have been issued by one instruction; `clock` is what its threads know.

        A wait for a consumed phase that is not ordered before them meant the phase that they belong to.
        """
        if count > self.expected:
            self.undecided.add(self.phase)
        self.started += count
        if self.repeated:
            late = [r for r in self.repeated if not r.ordered_before(clock)]
            self.repeated = []
            for wait in late:
                self.cta.report(findings.stale_wait(self, wait.place, wait.who, wait.phase))

    def arrive(
        self,
        place: Place,
        who: str,
        count: int,
        clock: Clock | None,
        knows: Callable[[Clock], bool],
        threads: tuple[int, ...] = (),
        consumed: int = NEVER,
        issued: Clock | None = None,
    ) -> None:
        """`count` arrivals that release `clock`. The phase completes when no arrival is pending and no byte is due.

        knows: whether the arriving agent knows all that a clock holds; consumed: the last phase that its threads had all
        waited for when they issued it, and issued what they knew then, where that is more than `clock`.

        An arrival that does not know that the previous phase has ended could as well have come before its end, where it
        would have been one too many. It counts in the current phase if its threads have arrived in the one before, else
        it is the one too many and does not count.
        """
        end = self.ends.get(self.phase - 1)
        early = end is not None and consumed < self.phase - 1 and not knows(end)
        if early or count > self.pending:
            self._report_over_arrival(place, who, count, early)
            before = [t for _, known in self.arrivals.get(self.phase - 1, ()) for t in known]
            if early and not set(threads) <= set(before):
                self.started -= count
                return
            count = min(count, self.pending)
        if clock is not None:
            self.clock = clock if self.clock is None else join([self.clock, clock])
        after = [c for c in (self.after, clock, issued) if c is not None]
        self.after = join(after) if after else None
        self.arrivals.setdefault(self.phase, []).append((place, threads))
        self.pending -= count
        self._settle_bytes(place)

    def _report_over_arrival(self, place: Place, who: str, count: int, early: bool) -> None:
        """Of the arrivals that are too many together, the last in the program is named, against the first."""
        together = [p for p, _ in self.arrivals.get(self.phase - early, ())] + [place]
        self.cta.report(findings.over_arrival(self, together, who, count, early))

    def expect_tx(self, nbytes: int) -> None:
        """Raise the number of bytes that must arrive in this phase."""
        self.tx += nbytes
        self.registered += nbytes

    def complete_tx(self, place: Place, nbytes: int, phase: int, clock: Clock | None) -> None:
        """`nbytes` that were meant for `phase` have arrived; they release `clock`."""
        if clock is not None:
            self.clock = clock if self.clock is None else join([self.clock, clock])
        if phase < self.phase:
            self._report_overrun(place, phase)
            known = self.completed.get(phase)
            if known is not None and clock is not None:
                self.completed[phase] = join([known, clock])
            return
        self.tx -= nbytes
        self._settle_bytes(place)

    def _report_overrun(self, place: Place, phase: int) -> None:
        """Once a phase."""
        if phase not in self.overrun:
            self.overrun.add(phase)
            self.cta.report(findings.tx_count_mismatch(self, place, phase))

    def _settle_bytes(self, place: Place) -> None:
        """After all arrivals no more bytes may have come than were registered."""
        if self.loads_in_flight[self.phase]:
            return
        if self.pending == 0 and self.tx < 0:
            self._report_overrun(place, self.phase)
            self.tx = 0
        self._complete()

    def _complete(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self._check_lapped()
            self.ends[self.phase] = self.completed[self.phase] = self.clock
            if self.phase in self.undecided:
                self.completed[self.phase] = self.completed.get(self.phase - 1)
            for old in (self.ends, self.completed, self.arrivals):
                old.pop(self.phase - 4, None)
            self.phase += 1
            self.pending = self.expected
            self.registered = 0

    def _check_lapped(self) -> None:
        """The current phase is about to complete: whoever waited for the one before must have gone on, for certain.

        That is, the arrivals of this phase must be ordered after those waits; else a late waiter finds the parity of its
        phase used again.
        """
        if self.after is None or self.phase == 0 or self.cta.detector is None:
            return
        seen = self.after.seen[: len(self.consumed)]
        late = np.flatnonzero((self.consumed == self.phase - 1) & (seen < self.wait_epochs))
        for place in set(self.wait_places[late].tolist()):
            threads = late[self.wait_places[late] == place] % self.cta.threads
            who = str(Agents(self.cta, threads))
            self.cta.report(findings.lapped_wait(self, place, who, self.phase - 1))

    def __str__(self) -> str:
        arrivals = f"{self.expected - self.pending} of {self.expected} arrivals"
        came = self.registered - self.tx
        nbytes = f", {came} of {self.registered} bytes" if self.registered or self.tx else ""
        return f"{self.name} (phase {self.phase}, {arrivals}{nbytes})"


class MbarrierWait:
    """A group that waits until a phase has completed."""

    __slots__ = ("barrier", "phase", "place")

    def __init__(self, barrier: Mbarrier, phase: int, place: Place) -> None:
        self.barrier, self.phase, self.place = barrier, phase, place

    @property
    def parity(self) -> int:
        """The operand of the instruction."""
        return self.phase & 1

    def ready(self) -> bool:
        """The awaited phase is complete."""
        return self.barrier.phase > self.phase

    def finish(self, group: Group) -> None:
        """Acquire what was released up to the end of the phase."""
        if self.barrier.phase > self.phase + 1:
            group.cta.report(findings.lapped_wait(self.barrier, self.place, str(group), self.phase))
        _consume(group, self.barrier, self.phase, self.place)

    def describe(self) -> str:
        """What is waited for, and the state of the barrier."""
        return f"mbarrier {self.barrier}: waits for phase {self.phase} (parity {self.parity}) to complete"


class LanesWait:
    """Lanes of one warp that wait for different phases, since some have waited before: the warp stays together."""

    def __init__(self, parts: list[tuple[Group, MbarrierWait | None]]) -> None:
        self.parts = parts

    def ready(self) -> bool:
        """All of the phases are complete."""
        return all(wait is None or wait.ready() for _, wait in self.parts)

    def finish(self, group: Group) -> None:
        """Each lane acquires what was released up to the end of its phase."""
        for part, wait in self.parts:
            if wait is not None:
                wait.finish(part)
        if group.knowledge:
            group.knowledge = united(part.knowledge for part, _ in self.parts)

    def describe(self) -> str:
        """Each of the waits."""
        return "; ".join(wait.describe() for _, wait in self.parts if wait is not None)


def _consume(g: Group, barrier: Mbarrier, phase: int, place: Place) -> None:
    threads, detector = g.lanes + g.cta.first_component, g.cta.detector
    again = int(barrier.consumed[threads[0]]) == phase
    barrier.consumed[threads] = phase
    if detector is not None:
        if not again:
            barrier.wait_epochs[threads] = detector.epochs[threads]
            barrier.wait_places[threads] = place
        clock = barrier.completed.get(phase)
        if clock is not None:
            detector.acquire(g, clock)


def barrier_at(g: Group, place: Place, address: int) -> Mbarrier | None:
    """The barrier object at a shared address; reports barrier-not-initialised where no init is visible to the group.

    None where no init has been executed at all.
    """
    found = g.cta.cluster.mbarriers.get(address)
    if found is not None:
        detector = g.cta.detector
        if detector is None or found.init is None or detector.knows(g, *found.init[1:]):
            return found
    init = None if found is None or found.init is None else found.init[0]
    g.cta.report(findings.not_initialised(place, str(g), g.cta.shared_name(address), init))
    return found


@instruction("mbarrier.init", uniform=("mbar", "count"))
def mbarrier_init(g: Group, place: Place, mbar: int, count: int) -> None:
    """mbarrier.init.shared.b64 [addr], count: a new object in phase 0 that expects `count` (1 to 2^20-1) arrivals."""
    if not 1 <= count <= MAX_COUNT:
        raise KernelFault(
            "resource-limit", f"mbarrier.init with count {count}, which must be 1 to {MAX_COUNT}"
        )
    memory = g.cta.shared
    memory.items(mbar - memory.base, 8)
    barriers, detector = g.cta.cluster.mbarriers, g.cta.detector
    known = barriers.get(mbar)
    if known is not None or g.n > 1:
        other = place if known is None or known.init is None else known.init[0]
        name = g.cta.shared_name(mbar)
        g.cta.report(findings.reinitialised(place, other, str(g), g.n, name))
        if known is not None:
            return
    init = None
    if detector is not None:
        thread = int(g.lanes[0]) + g.cta.first_component
        init = (place, thread, int(detector.epochs[thread]))
        one = g.view(np.arange(g.n) == 0)
        one.r = g.r
        detector.thread_access(one, place, memory, mbar - memory.base, 8, True)
        detector.tick(g)
    barriers[mbar] = Mbarrier(g.cta.shared_name(mbar), g.cta, count, init)


@instruction("mbarrier.arrive", uniform=("mbar", "count"))
def mbarrier_arrive(g: Group, place: Place, mbar: int, count: int = 1) -> None:
    """mbarrier.arrive.release.cta.shared::cta.b64 _, [addr], count: every lane arrives `count` times and releases."""
    barrier = barrier_at(g, place, mbar)
    if barrier is not None:
        _arrive(g, place, barrier, count, 0)


@instruction("mbarrier.arrive.expect_tx", uniform=("mbar", "tx_count"))
def mbarrier_arrive_expect_tx(g: Group, place: Place, mbar: int, tx_count: int) -> None:
    """mbarrier.arrive.expect_tx.release.cta.b64 _, [addr], txCount: expect txCount more bytes, then arrive, each lane."""
    barrier = barrier_at(g, place, mbar)
    if barrier is not None:
        _arrive(g, place, barrier, 1, tx_count)


def _arrive(g: Group, place: Place, barrier: Mbarrier, count: int, tx_count: int) -> None:
    detector = g.cta.detector
    before = g.view(np.ones(g.n, bool)) if detector is not None else g
    clock = None if detector is None else detector.release(g)
    barrier.announce(count * g.n, clock)

    def knows(other: Clock) -> bool:
        return detector is None or detector.knows_clock(before, other)

    if tx_count:
        barrier.expect_tx(tx_count * g.n)
    threads = tuple((g.lanes + g.cta.first_component).tolist())
    barrier.arrive(place, str(g), count * g.n, clock, knows, threads)


def intended_phase(g: Group, barrier: Mbarrier) -> int:
    """The phase that an operation issued now is meant for: the one after the last that its issuer knows to be over."""
    detector = g.cta.detector
    if detector is None:
        return barrier.phase
    for phase in range(barrier.phase - 1, max(barrier.phase - 5, -1), -1):
        clock = barrier.ends.get(phase)
        if clock is None or detector.knows_clock(g, clock):
            return phase + 1
    return max(barrier.phase - 4, 0)


@instruction("mbarrier.try_wait.parity", waits=True, uniform=("mbar", "parity"))
def mbarrier_try_wait_parity(
    g: Group, place: Place, mbar: int, parity: int
) -> MbarrierWait | LanesWait | Parted | None:
    """mbarrier.try_wait.parity p, [addr], phaseParity, looped until true: waits until that phase has completed.

    `parity` names the current phase or the immediately preceding one; a barrier in phase 0 has a complete phase of
    parity 1 before it. Which of the two it is for these threads follows from what they know to have completed, not from
    how far the barrier has come under this schedule: where hardware may pass at once, the simulator does.
    """
    g.cta.bytes["waits"] += g.warps
    barrier, parity = barrier_at(g, place, mbar), parity & 1
    if barrier is None:
        return None
    consumed = barrier.consumed[g.lanes + g.cta.first_component]
    if (consumed == consumed[0]).all():
        wait: MbarrierWait | LanesWait | None = _wait(g, place, barrier, parity)
    elif g.warps > 1:
        g.cta.counts[place.order] -= g.warps  # the warps execute it again, each by itself
        g.cta.bytes["waits"] -= g.warps
        return split(g, g.lanes >> 5, g.pc, EXIT)
    else:
        parts = [g.view(consumed == phase) for phase in np.unique(consumed)]
        wait = LanesWait([(part, _wait(part, place, barrier, parity)) for part in parts])
    if wait is None or not wait.ready():
        return wait
    wait.finish(g)
    return None


def _wait(g: Group, place: Place, barrier: Mbarrier, parity: int) -> MbarrierWait | None:
    """The wait of threads that have consumed the same phases; None if hardware may pass at once."""
    consumed = int(barrier.consumed[g.lanes[0] + g.cta.first_component])
    known = _known_phase(g, barrier, consumed)
    if known + 1 & 1 != parity:
        # Hardware passes at once if no later phase has completed, and these threads know of none.
        if known >= 0 and known == consumed:
            _note_repeated(g, place, barrier, known)
        _consume(g, barrier, known, place)
        return None
    return MbarrierWait(barrier, known + 1, place)


def _known_phase(g: Group, barrier: Mbarrier, consumed: int) -> int:
    """The last phase that the threads know to have completed: waited for, or told by other synchronisation.

    Without race checks what others told is not known; then a thread that never waited takes the barrier as it is.
    """
    detector = g.cta.detector
    if detector is None:
        return barrier.phase - 1 if consumed == NEVER else consumed
    known = max(consumed, -1)
    while (clock := barrier.completed.get(known + 1)) is not None and detector.knows_clock(
        g, clock
    ):
        known += 1
    return known


def _note_repeated(g: Group, place: Place, barrier: Mbarrier, phase: int) -> None:
    """A wait for a consumed phase: stale if the next phase is under way, else perhaps once arrivals for it come."""
    detector = g.cta.detector
    if barrier.started > (phase + 1) * barrier.expected:
        g.cta.report(findings.stale_wait(barrier, place, str(g), phase))
    elif detector is not None:
        threads = g.lanes + g.cta.first_component
        epochs = detector.epochs[threads]
        barrier.repeated.append(Repeated(place, str(g), phase, threads, epochs))
    if detector is not None:
        for lane in g.lanes.tolist():
            detector.stale_waits[lane + g.cta.first_component] = (place, phase)


@instruction("fence.mbarrier_init")
def fence_mbarrier_init(g: Group, place: Place) -> None:
    """fence.mbarrier_init.release.cluster: makes earlier inits of this thread visible in the cluster; no value changes."""
