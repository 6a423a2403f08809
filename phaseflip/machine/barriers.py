"""Named barriers of a CTA: bar.sync with id and thread count.

Source: PTX ISA 9.1, bar / barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import KernelFault
from ..finding import Finding
from ..instructions import instruction
from ..vector_clock import Clock, join

if TYPE_CHECKING:
    from ..finding import Place
    from .cta import CTA
    from .warp import Group

BARRIERS = 16


class Round:
    """One use of a barrier, and what its threads knew when they arrived."""

    __slots__ = ("complete", "clocks", "_joined")

    def __init__(self) -> None:
        self.complete = False
        self.clocks: list[Clock] = []
        self._joined: Clock | None = None

    def clock(self) -> Clock:
        """What all of its threads knew."""
        if self._joined is None:
            self._joined = join(self.clocks)
        return self._joined


class NamedBarrier:
    """One of the 16 barriers of a CTA: threads that have arrived in this round, and from where."""

    __slots__ = ("number", "cta", "count", "arrived", "round", "places", "positions", "previous")

    def __init__(self, number: int, cta: CTA) -> None:
        self.number, self.cta = number, cta
        self.count: int | None = None
        self.arrived = 0
        self.round = Round()
        self.places: list[Place] = []
        self.positions: set[Any] = set()
        self.previous: set[Any] = set()
        """Positions in the program from which this round, and the one before, has been entered."""

    def too_many(self, position: Any, threads: int, count: int) -> bool:
        """Whether more threads come to a barrier at one position of the program than complete it.

        They come together, or the last of them when the others have completed the round already.
        """
        return self.arrived + threads > count or position in self.previous

    def arrive(self, place: Place, threads: int, count: int | None) -> None:
        """`threads` threads arrive; `count` is the number expected, None for all that have not exited."""
        self.places.append(place)
        if self.arrived and count != self.count:
            fault = KernelFault(
                "barrier-mismatch",
                f"barrier {self.number} is entered with count {count}, but threads wait in it with count {self.count}",
            )
            fault.site = max(self.places, key=lambda p: p.order)  # whoever comes last
            raise fault
        self.count = count
        self.arrived += threads
        self.settle()

    def expected(self) -> int:
        """Threads that complete a round."""
        return self.cta.live_threads if self.count is None else self.count

    def settle(self) -> None:
        """Complete the round when everybody is there (also called when a thread exits)."""
        if self.arrived and self.arrived >= self.expected():
            self.arrived, self.places = 0, []
            self.previous, self.positions = self.positions, set()
            self.round.complete = True
            self.round = Round()


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
        if group.cta.detector is not None:
            group.cta.detector.acquire(group, self.round.clock(), everything=True)

    def describe(self) -> str:
        """Which barrier, and how many of its threads have come."""
        b = self.barrier
        return f"bar.sync {b.number}: {b.arrived} of {b.expected()} threads have arrived"


@instruction("bar.sync", waits=True, uniform=("barrier", "count"))
def bar_sync(g: Group, place: Place, barrier: int, count: int | None) -> BarrierWait | None:
    """bar.sync a{, b}: wait until b threads (all of the CTA that have not exited, without b) have arrived at barrier a.

    `a` is 0 to 15; b a multiple of the warp size. The same as barrier.sync.aligned: whole warps, all lanes together.
    """
    if not g.whole_warps():
        g.cta.report(
            Finding(
                "divergent-collective",
                "bar.sync is executed by whole warps, all lanes together",
                place=place,
                what=f"only {g} reaches bar.sync {barrier}",
                fix="move the barrier out of the branch that separates the lanes",
            )
        )
    return barrier_sync(g, place, barrier, count)


@instruction("barrier.sync", waits=True, uniform=("barrier", "count"))
def barrier_sync(g: Group, place: Place, barrier: int, count: int | None) -> BarrierWait | None:
    """barrier.sync a, b: as bar.sync, but lanes of a warp may arrive apart."""
    g.cta.bytes["waits"] += g.warps
    found = _arrive(g, place, barrier, count)
    wait = BarrierWait(found[0], found[1])
    if not wait.ready():
        return wait
    wait.finish(g)
    return None


@instruction("bar.arrive", uniform=("barrier", "count"))
def bar_arrive(g: Group, place: Place, barrier: int, count: int) -> None:
    """bar.arrive a, b: arrive at barrier a, which b threads complete, without waiting."""
    _arrive(g, place, barrier, count)


def _arrive(g: Group, place: Place, barrier: int, count: int | None) -> tuple[NamedBarrier, Round]:
    """The barrier, and the round that the group has arrived in."""
    if not 0 <= barrier < BARRIERS:
        raise KernelFault(
            "barrier-mismatch", f"bar.sync {barrier}: a CTA has barriers 0 to {BARRIERS - 1}"
        )
    found = g.cta.barriers[barrier]
    arrived_in, position = found.round, g.position(place)
    if count is not None and found.too_many(position, g.n, count):
        g.cta.report(
            Finding(
                "barrier-mismatch",
                f"{count} threads complete a round of it, but more of them come to this instruction",
                place=place,
                what=f"{g} enters barrier {barrier} with count {count}",
                fix="make the count the number of threads that execute it, or give each group an id of its own",
            )
        )
    found.positions.add(position)
    if g.cta.detector is not None:
        arrived_in.clocks.append(g.cta.detector.release(g))
    found.arrive(place, g.n, count)
    return found, arrived_in


@instruction("fence")
def fence(g: Group, place: Place, sem: str, scope: str) -> None:
    """fence.sem.scope: releases what the thread did before to whoever observes its later relaxed arrivals.

    Other synchronisation through memory is not modelled.
    """
    if g.cta.detector is not None:
        g.cta.detector.fence_release(g, "cta" if scope == "cta" else "cluster")
