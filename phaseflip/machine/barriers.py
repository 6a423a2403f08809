"""Named barriers of a CTA: bar.sync with id and thread count.

Source: PTX ISA 9.1, bar / barrier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..control_flow import EXIT
from ..errors import KernelFault
from ..finding import Finding, agree
from ..instructions import instruction
from ..vector_clock import Clock, join
from .divergence import Parted, split
from .warp import begun

if TYPE_CHECKING:
    from ..finding import Place
    from .cta import CTA
    from .warp import Group

BARRIERS = 16


class Round:
    """One use of a barrier, and what its threads knew when they arrived."""

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


class NamedBarrier:
    """One of the 16 barriers of a CTA, as used with one count: threads that have arrived in this round, and from where.

    `count` threads complete a round, None: all of the CTA that have not exited. Uses of a barrier with different counts
    must be ordered; where they are not, each goes on as if it were alone, whoever comes first.
    """

    __slots__ = ("number", "cta", "count", "arrived", "round", "places", "last", "entered")

    def __init__(self, number: int, cta: CTA, count: int | None) -> None:
        self.number, self.cta, self.count = number, cta, count
        self.arrived = 0
        self.round = Round()
        self.places: set[Place] = set()
        """From where the current round has been entered, or, before anybody has, the last one."""
        self.last: Round | None = None
        self.entered: Counter[Any] = Counter()
        """Position in the program -> threads that have entered from there: no more than `count`, or rounds mix."""

    def arrive(self, place: Place, threads: int) -> None:
        """`threads` threads arrive."""
        if not self.arrived:
            self.places = set()
        self.places.add(place)
        self.touch("arrive", self.round.number)
        self.arrived += threads
        self.settle()

    def touch(self, how: str, of_round: int) -> None:
        """The step that runs uses this barrier; see `dependence.py`."""
        cluster, rank = self.cta.cluster, self.cta.rank
        cluster.touch(("bar", rank, self.number), how, (self.count, of_round))
        if self.count is None and how == "arrive":
            cluster.touch(("live", rank), "use")

    def expected(self) -> int:
        """Threads that complete a round."""
        return self.cta.live_threads if self.count is None else self.count

    def settle(self) -> None:
        """Complete the round when everybody is there (also called when a thread exits)."""
        if self.arrived and self.arrived >= self.expected():
            if self.count is None and self.arrived < self.cta.threads:
                self.cta.cluster.findings.add(_exited(self), "exited")
            self.arrived = 0
            self.round.complete = True
            self.last, self.round = self.round, Round(self.round.number + 1)

    def may_be_in_use(self, g: Group) -> bool:
        """Whether nothing tells the threads of a group that the last round is over."""
        if self.arrived:
            return True
        detector = g.cta.detector
        if self.last is None or detector is None:
            return False
        return not detector.knows_clock(g, self.last.clock())


class NamedBarriers:
    """The 16 barriers of a CTA, each by the counts that it has been used with."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.used: dict[int, dict[int | None, NamedBarrier]] = {}

    def __iter__(self) -> Iterator[NamedBarrier]:
        return (barrier for counts in self.used.values() for barrier in counts.values())

    def enter(self, g: Group, place: Place, number: int, count: int | None) -> NamedBarrier:
        """The barrier of that number and count; a group is about to arrive. Reports clashes with other counts."""
        counts = self.used.setdefault(number, {})
        found = counts.get(count)
        if found is None:
            found = counts[count] = NamedBarrier(number, self.cta, count)
        if len(counts) > 1:
            for other in counts.values():
                if other is not found and other.may_be_in_use(g):
                    for where in other.places:
                        g.cta.report(_clash(found, place, other, where))
        return found


def _clash(a: NamedBarrier, place: Place, b: NamedBarrier, where: Place) -> Finding:
    """Two uses of one barrier with different counts, named in the order of the program."""
    entries = sorted([(place, a.count), (where, b.count)], key=lambda entry: entry[0].order)
    (first, one), (second, another) = entries
    counts = ["all threads" if count is None else f"count {count}" for count in (another, one)]
    return Finding(
        "barrier-mismatch",
        f"line {first.line} enters it with {counts[1]}, and nothing orders the two uses",
        place=second,
        other=first,
        what=f"barrier {a.number} is entered with {counts[0]}",
        fix="enter a barrier with one count, or give the second use an id of its own",
    )


class BarrierWait:
    """A group that has arrived and waits for the round to complete."""

    __slots__ = ("barrier", "round")

    def __init__(self, barrier: NamedBarrier, arrived_in: Round) -> None:
        self.barrier, self.round = barrier, arrived_in

    def ready(self) -> bool:
        """The round is complete."""
        return self.round.complete

    def finish(self, group: Group) -> None:
        """Everything that the threads of the round did before is ordered before what follows."""
        self.barrier.touch("finish", self.round.number)
        if group.cta.detector is not None:
            group.cta.detector.acquire(group, self.round.clock(), everything=True)

    def describe(self) -> str:
        """Which barrier, and how many of its threads have come."""
        b = self.barrier
        return f"bar.sync {b.number}: {b.arrived} of {b.expected()} threads have arrived"


@instruction("bar.sync", waits=True, uniform=("barrier", "count"))
def bar_sync(
    g: Group, place: Place, barrier: int, count: int | None
) -> BarrierWait | Parted | None:
    """bar.sync a{, b}: wait until b threads (all of the CTA that have not exited, without b) have arrived at barrier a.

    `a` is 0 to 15; b a multiple of the warp size. The same as barrier.sync.aligned: whole warps, all lanes together.
    """
    if not g.whole_warps():
        part = g.agents(g.in_partial_warps())
        g.cta.report(
            Finding(
                "divergent-collective",
                "bar.sync is executed by whole warps, all lanes together",
                place=place,
                what=f"only {part} {agree(part, 'reaches', 'reach')} bar.sync {barrier}",
                fix="move the barrier out of the branch that separates the lanes",
            )
        )
    return _sync(g, place, barrier, count, aligned=count is None)


@instruction("barrier.sync", waits=True, uniform=("barrier", "count"))
def barrier_sync(
    g: Group, place: Place, barrier: int, count: int | None
) -> BarrierWait | Parted | None:
    """barrier.sync a, b: as bar.sync, but lanes of a warp may arrive apart, and threads at different instructions."""
    return _sync(g, place, barrier, count, aligned=False)


def _sync(
    g: Group, place: Place, barrier: int, count: int | None, aligned: bool
) -> BarrierWait | Parted | None:
    """Arrive and wait; `aligned`: all threads of the CTA execute this very instruction."""
    if count is not None and g.n > count and g.warps > 1:
        g.cta.counts[place.order] -= g.warps  # more than a round takes: warp by warp
        return split(g, g.lanes >> 5, g.pc, EXIT)
    g.cta.bytes["waits"] += g.warps
    found = _arrive(g, place, barrier, count, aligned)
    wait = BarrierWait(found[0], found[1])
    return begun(g, wait)


@instruction("bar.arrive", uniform=("barrier", "count"))
def bar_arrive(g: Group, place: Place, barrier: int, count: int) -> None:
    """bar.arrive a, b: arrive at barrier a, which b threads complete, without waiting."""
    _arrive(g, place, barrier, count)


def _arrive(
    g: Group, place: Place, barrier: int, count: int | None, aligned: bool = False
) -> tuple[NamedBarrier, Round]:
    """The barrier, and the round that the group has arrived in."""
    if not 0 <= barrier < BARRIERS:
        raise KernelFault(
            "barrier-mismatch",
            f"bar.sync {barrier}: a CTA has barriers 0 to {BARRIERS - 1}",
            f"use an id from 0 to {BARRIERS - 1}, and a different one for each set of threads",
        )
    found = g.cta.barriers.enter(g, place, barrier, count)
    if count is not None:
        position = g.position(place)
        found.entered[position] += g.n
        if found.entered[position] > count:
            g.cta.report(
                Finding(
                    "barrier-mismatch",
                    f"{count} threads complete a round of it, but more of them come to this instruction",
                    place=place,
                    what=f"barrier {barrier} is entered with count {count}",
                    fix="make the count the number of threads that execute it, or give each group an id of its own",
                )
            )
    if aligned and found.arrived:
        for other in found.places - {place}:
            g.cta.report(_two_instructions(found, *sorted([other, place], key=lambda p: p.order)))
    arrived_in = found.round
    if g.cta.detector is not None:
        arrived_in.clocks.append(g.cta.detector.release(g))
    found.arrive(place, g.n)
    return found, arrived_in


def _two_instructions(barrier: NamedBarrier, first: Place, second: Place) -> Finding:
    """Threads of one round have entered a barrier of the whole CTA at two instructions."""
    return Finding(
        "divergent-collective",
        "bar.sync without a thread count is one instruction that all threads of the CTA execute",
        place=first,
        other=second,
        what=f"some threads enter barrier {barrier.number} at line {first.line}, others at line {second.line}",
        fix="in a branch, use a barrier with an id and a thread count of its own (T.cuda.warpgroup_sync)",
    )


def _exited(barrier: NamedBarrier) -> Finding:
    """Threads of the CTA had exited when the others met at a barrier of the whole CTA.

    The text has it both ways: bar.sync is `.aligned`, "all threads in CTA will execute the same" instruction; but it waits
    for threads that have not exited, and `exit` releases barriers that wait for all.
    """
    return Finding(
        "divergent-collective",
        "bar.sync is .aligned, executed by all threads of the CTA; that exited threads are excused is a rule of `exit`",
        place=min(barrier.places, key=lambda p: p.order),
        what=f"{barrier.arrived} of {barrier.cta.threads} threads meet at barrier {barrier.number}; the others have exited",
        fix="let every thread of the CTA stay until its last barrier, or give the barrier a thread count",
    )


@instruction("fence")
def fence(g: Group, place: Place, sem: str, scope: str) -> None:
    """fence.sem.scope: releases what the thread did before to whoever observes its later relaxed arrivals.

    Other synchronisation through memory is not modelled.
    """
    if g.cta.detector is not None:
        g.cta.detector.fence_release(g, "cta" if scope == "cta" else "cluster")
