"""Instructions of the named barriers of a CTA, and fence.

Source: PTX ISA 9.1, bar / barrier, fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import KernelFault
from ...findings import Finding, agree
from ...ir.instruction import instruction
from ...ir.program import EXIT
from ..threads.divergence import Parted, split
from ..threads.warp import WARP, begun
from .named_barrier import Arrival, NamedBarrier

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from ...ir.place import Place
    from ..threads.warp import Group

BARRIERS = 16


class BarrierWait:
    """A group that has arrived and waits for its phase to complete."""

    __slots__ = ("barrier", "arrival")

    def __init__(self, barrier: NamedBarrier, arrival: Arrival) -> None:
        self.barrier, self.arrival = barrier, arrival

    def ready(self) -> bool:
        """The phase is complete."""
        return self.arrival.phase is not None

    def finish(self, group: Group) -> None:
        """Everything that the threads of the phase did before is ordered before what follows."""
        assert self.arrival.phase is not None
        self.barrier.touch("finish", self.arrival.count, self.arrival.phase.number)
        if group.cta.detector is not None:
            group.cta.detector.acquire(group, self.arrival.phase.clock(), everything=True)

    def describe(self) -> str:
        """Which barrier, and how many of its threads have come."""
        b, count = self.barrier, self.arrival.count
        return (
            f"bar.sync {b.number}: {b.arrived(count)} of {b.expected(count)} threads have arrived"
        )


@instruction(
    "bar.sync",
    waits=True,
    uniform=("barrier", "count"),
    synchronises=True,
    supplies=BarrierWait,
    measure="CTA barriers",
)
def bar_sync(
    g: Group, place: Place, barrier: int, count: int | None
) -> BarrierWait | Parted | None:
    """bar.sync a{, b}: wait until b threads (all of the CTA that have not exited, without b) have arrived at barrier a.

    `a` is 0 to 15; b a multiple of the warp size. The same as barrier.sync.aligned: whole warps, all lanes together.
    """
    check_whole_warps(g, place, barrier)
    return meet(g, place, barrier, count)


@instruction(
    "barrier.sync",
    waits=True,
    uniform=("barrier", "count"),
    synchronises=True,
    supplies=BarrierWait,
)
def barrier_sync(
    g: Group, place: Place, barrier: int, count: int | None
) -> BarrierWait | Parted | None:
    """barrier.sync a, b: as bar.sync, but lanes of a warp may arrive apart, and threads at different instructions."""
    return meet(g, place, barrier, count)


def check_whole_warps(g: Group, place: Place, barrier: int) -> None:
    """A finding where an aligned instruction on a barrier is reached by part of a warp."""
    if not g.whole_warps():
        part = g.agents(g.in_partial_warps())
        g.cta.report(
            Finding(
                "divergent-collective",
                f"{place.mnemonic} is executed by whole warps, all lanes together",
                place=place,
                what=f"only {part} {agree(part, 'reaches', 'reach')} {place.mnemonic} {barrier}",
                fix="move the barrier out of the branch that separates the lanes",
            )
        )


def meet(
    g: Group,
    place: Place,
    barrier: int,
    count: int | None,
    votes: np.ndarray | None = None,
    wait_of: Callable[[NamedBarrier, Arrival], BarrierWait] = BarrierWait,
) -> BarrierWait | Parted | None:
    """Arrive, with votes for a reduction, and wait; warp by warp where barriers complete late."""
    if g.warps > 1 and g.cta.cluster.late_barriers:
        g.cta.counts[place.order] -= g.warps
        return split(g, g.lanes >> 5, g.pc, EXIT)
    g.cta.bytes["waits"] += g.warps
    found = _barrier(g, place, barrier, count)
    return begun(g, wait_of(found, _arrive(g, place, found, count, votes)))


@instruction("bar.arrive", uniform=("barrier", "count"), synchronises=True, supplies=BarrierWait)
def bar_arrive(g: Group, place: Place, barrier: int, count: int) -> None:
    """bar.arrive a, b: arrive at barrier a, which b threads complete, without waiting."""
    found = _barrier(g, place, barrier, count)
    if g.warps == 1 or not g.cta.cluster.late_barriers:
        _arrive(g, place, found, count)
        return
    found.touch("arrive", count, None)
    position, released = g.position(place), []
    for warp in g.warp_ids():
        inside = g.view(g.lanes >> 5 == warp)
        clock = None if g.cta.detector is None else g.cta.detector.release(inside)
        released.append((inside, clock))
    for inside, clock in released:
        found.pending.append(Arrival(place, inside.lanes, count, clock, position))


def _arrive(
    g: Group, place: Place, barrier: NamedBarrier, count: int | None, votes: np.ndarray | None = None
) -> Arrival:  # fmt: skip
    """The arrival of a group, of one warp where barriers complete late."""
    clock = None if g.cta.detector is None else g.cta.detector.release(g)
    arrival = Arrival(place, g.lanes, count, clock)
    arrival.votes = votes
    if g.cta.cluster.late_barriers:
        arrival.position = g.position(place)
        barrier.touch("arrive", count, None)
        barrier.pending.append(arrival)
    else:
        barrier.arrive(g, arrival)
    return arrival


def _barrier(g: Group, place: Place, number: int, count: int | None) -> NamedBarrier:
    """The barrier of that number; KernelFault if a CTA has none, a finding for a count that no barrier can have."""
    if not 0 <= number < BARRIERS:
        raise KernelFault(
            "barrier-mismatch",
            f"bar.sync {number}: a CTA has barriers 0 to {BARRIERS - 1}",
            f"use an id from 0 to {BARRIERS - 1}, and a different one for each set of threads",
        )
    if count is not None and (count % WARP or count <= 0):
        g.cta.report(
            Finding(
                "barrier-mismatch",
                f"the count of a barrier is a multiple of the warp size, {WARP}: whole warps arrive",
                place=place,
                what=f"barrier {number} is entered with count {count}",
                fix=f"let whole warps take part, and count {WARP} threads for each",
            )
        )
    return g.cta.barriers.barrier(number)


@instruction("fence", synchronises=True)
def fence(g: Group, place: Place, sem: str, scope: str) -> None:
    """fence.sem.scope: releases what the thread did before to whoever observes its later relaxed arrivals or strong stores.

    What its earlier strong loads have read is acquired.
    """
    if g.cta.detector is not None:
        g.cta.detector.flags.fence(g.cta.detector, g, scope)
        g.cta.detector.fence_release(g, "cta" if scope == "cta" else "cluster")
