"""mbarrier: phase, pending arrivals and transaction bytes of a barrier object in shared memory, and waiting on it.

Ordering: an arrival releases what its threads know, a wait that succeeds acquires what was released up to the end of the
phase it observed. Arrivals are read-modify-writes of one object, so what earlier phases released stays included.

Source: PTX ISA 9.1, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...errors import KernelFault
from ...ir.place import Place
from ...ordering.knowledge import ASYNC, PAST, SEEN, Clock, join
from ..memory.load_store import SHARED_BASE
from ..threads.warp import Agents
from . import mbarrier_report as findings
from .mbarrier_report import Arrival, Repeated, Use

if TYPE_CHECKING:
    from ..cta import CTA, Cluster
    from ..threads.warp import Group

MAX_COUNT = (1 << 20) - 1
NEVER = -2
UNKNOWN = 1 << 40
"""Count of a barrier that is used before its init: no number of arrivals completes a phase."""


class Init(NamedTuple):
    """An executed mbarrier.init: the component and epoch of its thread; the event's own component and number."""

    place: Place
    thread: int
    epoch: int
    component: int
    number: int


class Mbarrier:
    """One barrier object.

    `expected` arrivals a phase; `pending` of them still missing in the current phase; `tx` bytes still to come; `phase`
    the number of phases completed since init, whose lowest bit is the parity of the current phase. `started` counts the
    arrivals announced so far, those of operations in flight included; `consumed[t]` is the last phase that thread t has
    waited for. `clock` is what arrivals have released, `completed[p]` that at the end of phase p, of all phases: how far
    behind a thread is that comes to wait depends on the schedule.
    """

    __slots__ = (
        "name", "cta", "expected", "pending", "tx", "phase", "started", "consumed", "clock", "completed", "inits",
        "wait_epochs", "wait_places", "arrivals", "repeated", "undecided", "ends", "registered",
        "loads_in_flight", "overrun", "cta_clock", "cta_completed", "initialised", "abandoned",
        "event_at_end", "init_fences", "async_users", "init_place", "unseen_init", "repeats", "sent", "polled",
    )  # fmt: skip

    def __init__(self, name: str, cta: CTA, expected: int | None) -> None:
        self.name, self.cta = name, cta
        self.expected = self.pending = UNKNOWN if expected is None else expected
        self.initialised = expected is not None
        self.abandoned = False
        """Nothing could run while threads waited, and no init had come: waits pass."""
        self.tx = 0
        self.registered = 0
        """Bytes that this phase has been told to expect."""
        self.loads_in_flight: Counter[int] = Counter()
        """Phase -> bulk loads meant for it that have not landed; it does not end before them, however few bytes it
        expects: which of them would be left out depends on what lands first."""
        self.event_at_end: dict[int, int] = {}
        """Phase -> number of the race detector's next event when it ended."""
        self.overrun: set[int] = set()
        """Phases for which more bytes have come than expected."""
        self.phase = 0
        self.started = 0
        self.consumed = np.full(cta.cluster.threads, NEVER, np.int64)
        self.polled = np.full(cta.cluster.threads, NEVER, np.int64)
        """Thread -> the last phase that it has looked at in vain, with a wait that gives a value."""
        self.clock: Clock | None = None
        self.completed: dict[int, Clock | None] = {}
        self.cta_clock: Clock | None = None
        self.cta_completed: dict[int, Clock] = {}
        """As `clock` and `completed`, for waits that acquire at CTA scope only: once a thread of another CTA has arrived."""
        self.wait_epochs = np.zeros(cta.cluster.threads, np.int32)
        self.wait_places = np.full(cta.cluster.threads, None, object)
        """Thread -> epoch of its last wait here, and where that was."""
        self.arrivals: dict[int, list[Arrival]] = {}
        """Phase -> its arrivals; of the current phase and the one before."""
        self.repeats: set[int] = set()
        """Phases for which threads arrived or sent bytes, and did so there again without knowing that they were over."""
        self.sent: dict[int, set[tuple[Place, int]]] = {}
        """Phase -> whence bytes have come: instruction, and component of the thread."""
        self.repeated: list[Repeated] = []
        """Waits for a phase that their threads had consumed: harmless unless a later arrival is not ordered after them."""
        self.undecided: set[int] = set()
        """Phases in which one instruction arrives more often than expected: which arrival ends them is open."""
        self.ends: dict[int, Clock | None] = {}
        """As `completed`, but for those phases too: who knows it, knows that the phase has ended."""
        self.inits: list[Init] = []
        """Who initialised it; more than one is an error, and nobody is known without race checks."""
        self.init_place: Place | None = None
        self.unseen_init: Counter[Use] = Counter()
        """How often it was used so that no init was known to come before; told at the end, when it is known which came."""
        self.init_fences: dict[int, int] = {}
        """Component of an init -> number there of the fence.mbarrier_init after it."""
        self.async_users: set[int] = set()
        """Components of the threads whose asynchronous operations use it, as soon as their first has been checked."""

    def initialise(self, place: Place, expected: int) -> None:
        """mbarrier.init. What has arrived before counts, as if the init had come first."""
        self.touch("init")
        early = self.expected - self.pending
        self.initialised, self.abandoned, self.init_place = True, False, place
        self.expected, self.pending = expected, max(expected - early, 0)
        if early > expected:
            who = "threads that did not see the init"
            self._report_over_arrival(Arrival(place, who, ()), early - expected, False)
        if early:
            self._settle_bytes(place)

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
        remote: bool = False,
    ) -> None:
        """`count` arrivals that release `clock`. The phase completes when no arrival is pending and no byte is due.

        knows: whether the arriving agent knows all that a clock holds; consumed: the last phase that its threads had all
        waited for when they issued it; remote: the threads belong to another CTA.

        An arrival that does not know that the previous phase has ended could as well have come before its end, where it
        would have been one too many. It counts in the current phase if its threads have arrived in the one before, else
        it is the one too many and does not count.
        """
        end = self.ends.get(self.phase - 1)
        early = end is not None and consumed < self.phase - 1 and not knows(end)
        arrival, phase = Arrival(place, who, threads), self.phase
        fault = early or count > self.pending or phase in self.undecided
        if early or count > self.pending:
            self._report_over_arrival(arrival, count, early)
            before = [t for known in self.arrivals.get(self.phase - 1, ()) for t in known.threads]
            if early and not set(threads) <= set(before):
                self.started -= count
                self.touch("fault")
                return
            count = min(count, self.pending)
        self._release(clock, remote)
        self.arrivals.setdefault(self.phase, []).append(arrival)
        self.pending -= count
        self._settle_bytes(place)
        self.touch("fault" if fault else "end" if self.phase > phase else "arrive", phase)

    def touch(self, how: str, phase: int | None = None) -> None:
        """The step that runs uses this object; see `dependence.py`."""
        self.cta.cluster.touch(("mbarrier", self.full_name), how, phase)

    def _report_over_arrival(self, arrival: Arrival, count: int, early: bool) -> None:
        """If threads have arrived at one place twice for a phase they are named; else, of the arrivals that are too many
        together, the last in the program against the first.
        """
        phase = self.phase - early
        before = self.arrivals.get(phase, [])
        again = findings.arrived_twice([*before, arrival])
        if again is not None:
            self.repeats.add(phase)
            self.cta.report(findings.repeated_arrival(self, again, phase))
            return
        together = [known.place for known in before] + [arrival.place]
        self.cta.report(findings.over_arrival(self, together, arrival.who, count, early))

    def expect_tx(self, nbytes: int, threads: int = 1) -> None:
        """Each thread raises the bytes that must come in this phase; what the object cannot count stops the kernel."""
        self.tx += nbytes * threads
        self.registered += nbytes * threads
        if self.tx > MAX_COUNT:
            one = f"let one thread expect them, and not {threads}; or " if threads > 1 else ""
            raise KernelFault(
                "resource-limit",
                f"{self.full_name} would wait for {self.tx} bytes in a phase, and its tx-count goes to {MAX_COUNT}",
                f"{one}load less in a phase, or over several barriers",
            )

    def complete_tx(
        self, place: Place, nbytes: int, phase: int, clock: Clock | None, thread: int = -1
    ) -> None:
        """`nbytes` that were meant for `phase` have arrived; they release `clock`. thread: the component that sent them."""
        self._release(clock, False)
        if phase < self.phase:
            self.touch("fault")
            if (place, thread) in self.sent.get(phase, ()):
                self.repeats.add(phase)
            self._report_overrun(place, phase)
            known = self.completed.get(phase)
            if known is not None and clock is not None:
                self.completed[phase] = join([known, clock])
                if phase in self.cta_completed:
                    self.cta_completed[phase] = join([self.cta_completed[phase], clock])
            return
        self.sent.setdefault(phase, set()).add((place, thread))
        self.tx -= nbytes
        now, fault = self.phase, phase != self.phase or (self.pending == 0 and self.tx < 0)
        self._settle_bytes(place)
        self.touch("fault" if fault else "end" if self.phase > now else "arrive", phase)

    def _release(self, clock: Clock | None, remote: bool) -> None:
        """Add a clock to what arrivals have released; what threads of another CTA release is out of a CTA's scope."""
        if clock is None:
            return
        if remote and self.cta_clock is None:
            self.cta_clock = self.clock or clock.out_of_scope()
        if self.cta_clock is not None:
            self.cta_clock = join([self.cta_clock, clock.out_of_scope() if remote else clock])
        self.clock = clock if self.clock is None else join([self.clock, clock])

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
            if self.clock is not None and self.cta.detector is not None:
                self.event_at_end[self.phase] = len(self.cta.detector.launch.events)
            if self.cta_clock is not None:
                self.cta_completed[self.phase] = self.cta_clock
            if self.phase in self.undecided:
                self.completed[self.phase] = self.completed.get(self.phase - 1)
                self.cta_completed.pop(self.phase, None)
            for old in (self.arrivals, self.event_at_end, self.sent):
                old.pop(self.phase - 4, None)
            self.phase += 1
            self.pending = self.expected
            self.registered = 0

    def _check_lapped(self) -> None:
        """The current phase is about to complete: whoever waited for the one before must have gone on, for certain.

        That is, those waits must lie in the past of what completes this phase; else a late waiter finds the parity of its
        phase used again.
        """
        if self.clock is None or self.cta.detector is None:
            return
        past = self.clock.rows[PAST, : len(self.consumed)]
        late = np.flatnonzero((self.consumed == self.phase - 1) & (past < self.wait_epochs))
        for place in set(self.wait_places[late].tolist()):
            threads = late[self.wait_places[late] == place] % self.cta.threads
            who = str(Agents(self.cta, threads))
            self.cta.report(findings.lapped_wait(self, place, who, self.phase - 1))

    @property
    def full_name(self) -> str:
        """Its name, in a cluster of several CTAs with its CTA: "full[0] of CTA 1"."""
        return self.name if len(self.cta.cluster.ctas) == 1 else f"{self.name} of {self.cta}"

    def is_of(self, array: str) -> bool:
        """Whether it is a barrier of an array, or the one of this name."""
        return self.name.partition("[")[0] == array

    def never_arrived_on(self) -> bool:
        """Whether no arrival has been counted since the init."""
        return self.phase == 0 and self.pending == self.expected

    def __str__(self) -> str:
        arrivals = f"{self.expected - self.pending} of {self.expected} arrivals"
        came = self.registered - self.tx
        return f"{self.full_name} (in phase {self.phase} with {arrivals}, {came} of {self.registered} bytes)"


def barrier_at(g: Group, place: Place, address: int) -> Mbarrier:
    """The barrier object at a shared address; notes where no init is visible to the group.

    What is done to it before its init counts as if the init had come first, whichever comes first under this schedule;
    waits pass if none ever comes. The address may be a generic or a 32-bit shared one, of any CTA of the cluster.
    """
    address |= SHARED_BASE
    cta, detector = g.cta.cluster.owner(address), g.cta.detector
    found = cta.cluster.mbarriers.get(address)
    if found is None:
        found = Mbarrier(cta.barrier_name(address), cta, None)
        cta.cluster.mbarriers[address] = found
    array = g.cta.program.barrier_arrays.get(place.order)
    offset = address - cta.shared_base
    if array is not None and offset >= array.first + array.nbytes and not found.is_of(array.name):
        end = findings.past_the_end(found, place, str(g), array, offset)
        cta.cluster.findings.add(end, "array")
    found.touch("use")
    if detector is None:
        visible = found.initialised
    else:
        visible = any(detector.knows(g, init.component, init.number) for init in found.inits)
    if not visible:
        found.unseen_init[Use(place, str(g), g.cta is not cta)] += 1
    return found


def check_init_fence(g: Group, place: Place, lane: int, barrier: Mbarrier) -> None:
    """A thread issues an operation that arrives on the barrier: a note if no fence on the path follows the init.

    fence.mbarrier_init or fence.proxy.async of the initialising thread, or a fence.proxy.async of the issuing one.
    """
    detector, thread = g.cta.detector, lane + g.cta.first_component
    if detector is None or thread in barrier.async_users:
        return
    barrier.async_users.add(thread)
    clock, fenced = detector.snapshot(g, lane), detector.part_of(g, lane).proxy_fence
    for init in barrier.inits:
        if not clock.covers(SEEN, init.component, init.number):
            continue  # which is barrier-not-initialised
        fence = barrier.init_fences.get(init.component)
        if not (
            (fence is not None and clock.covers(SEEN, init.component, fence))
            or clock.covers(ASYNC, init.thread, init.epoch)
            or fenced.covers(SEEN, init.thread, init.epoch)
        ):
            unfenced = findings.init_not_fenced(place, init.place, barrier.name)
            g.cta.cluster.findings.add(unfenced, "init")


def abandon_uninitialised(cluster: Cluster) -> bool:
    """Nothing can run: threads that wait on barriers without an init go on. False if there are none (left)."""
    found = [b for b in cluster.mbarriers.values() if not (b.initialised or b.abandoned)]
    for barrier in found:
        barrier.abandoned = True
    return bool(found)
