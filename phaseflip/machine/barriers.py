"""Named barriers of a CTA: bar.sync with id and thread count.

Source: PTX ISA 9.1, bar / barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import KernelFault
from ..finding import Finding
from ..instructions import instruction
from ..vector_clock import Clock, join

if TYPE_CHECKING:
    from ..finding import Place
    from .cta import CTA
    from .warp import Group

BARRIERS = 16


class NamedBarrier:
    """One of the 16 barriers of a CTA: threads that have arrived in this round, and rounds completed."""

    __slots__ = ("number", "cta", "count", "arrived", "round", "clocks", "completed")

    def __init__(self, number: int, cta: CTA) -> None:
        self.number, self.cta = number, cta
        self.count: int | None = None
        self.arrived = 0
        self.round = 0
        self.clocks: list[Clock] = []
        self.completed: dict[int, Clock] = {}
        """Round -> what its threads knew when they arrived; of the last few rounds."""

    def arrive(self, threads: int, count: int | None) -> None:
        """`threads` threads arrive; `count` is the number expected, None for all that have not exited."""
        if self.arrived and count != self.count:
            raise KernelFault(
                "barrier-mismatch",
                f"barrier {self.number} is entered with count {count}, but threads wait in it with count {self.count}",
            )
        self.count = count
        self.arrived += threads
        self.settle()

    def expected(self) -> int:
        """Threads that complete a round."""
        return self.cta.live_threads if self.count is None else self.count

    def settle(self) -> None:
        """Complete the round when everybody is there (also called when a thread exits)."""
        if self.arrived and self.arrived >= self.expected():
            self.arrived = 0
            if self.clocks:
                self.completed[self.round], self.clocks = join(self.clocks), []
                self.completed.pop(self.round - 8, None)
            self.round += 1


class BarrierWait:
    """A group that has arrived and waits for the round to complete."""

    __slots__ = ("barrier", "round")

    def __init__(self, barrier: NamedBarrier, arrived_in: int) -> None:
        self.barrier, self.round = barrier, arrived_in

    def ready(self) -> bool:
        """The round is complete."""
        return self.barrier.round > self.round

    def finish(self, group: Group) -> None:
        """Everything that the threads of the round did before is ordered before what follows."""
        if group.cta.detector is not None:
            group.cta.detector.acquire(group, self.barrier.completed[self.round], everything=True)

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
    found = _arrive(g, barrier, count)
    wait = BarrierWait(found[0], found[1])
    if not wait.ready():
        return wait
    wait.finish(g)
    return None


@instruction("bar.arrive", uniform=("barrier", "count"))
def bar_arrive(g: Group, place: Place, barrier: int, count: int) -> None:
    """bar.arrive a, b: arrive at barrier a, which b threads complete, without waiting."""
    _arrive(g, barrier, count)


def _arrive(g: Group, barrier: int, count: int | None) -> tuple[NamedBarrier, int]:
    """The barrier, and the round that the group has arrived in."""
    if not 0 <= barrier < BARRIERS:
        raise KernelFault(
            "barrier-mismatch", f"bar.sync {barrier}: a CTA has barriers 0 to {BARRIERS - 1}"
        )
    found = g.cta.barriers[barrier]
    arrived_in = found.round
    if g.cta.detector is not None:
        found.clocks.append(g.cta.detector.release(g))
    found.arrive(g.n, count)
    return found, arrived_in


@instruction("fence")
def fence(g: Group, place: Place, sem: str, scope: str) -> None:
    """fence.sem.scope: orders nothing by itself; only with synchronisation through memory, which is not modelled."""
