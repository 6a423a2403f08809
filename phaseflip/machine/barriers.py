"""Named barriers of a CTA: bar.sync with id and thread count.

Source: PTX ISA 9.1, bar / barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import KernelFault
from ..instructions import instruction

if TYPE_CHECKING:
    from ..device_ir import Site
    from .cta import CTA
    from .warp import Group

BARRIERS = 16


class NamedBarrier:
    """One of the 16 barriers of a CTA: threads that have arrived in this round, and rounds completed."""

    __slots__ = ("number", "cta", "count", "arrived", "round")

    def __init__(self, number: int, cta: CTA) -> None:
        self.number, self.cta = number, cta
        self.count: int | None = None
        self.arrived = 0
        self.round = 0

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
            self.round += 1


class BarrierWait:
    """A group that has arrived and waits for the round to complete."""

    __slots__ = ("barrier", "round")

    def __init__(self, barrier: NamedBarrier) -> None:
        self.barrier, self.round = barrier, barrier.round

    def ready(self) -> bool:
        """The round is complete."""
        return self.barrier.round > self.round

    def finish(self, group: Group) -> None:
        """Nothing to do: completion was counted at the last arrival."""

    def describe(self) -> str:
        """Which barrier, and how many of its threads have come."""
        b = self.barrier
        return f"bar.sync {b.number}: {b.arrived} of {b.expected()} threads have arrived"


@instruction("bar.sync", waits=True, uniform=("barrier", "count"))
def bar_sync(g: Group, site: Site, barrier: int, count: int | None) -> BarrierWait | None:
    """bar.sync a{, b}: wait until b threads (all of the CTA that have not exited, without b) have arrived at barrier a.

    `a` is 0 to 15; b a multiple of the warp size.
    """
    if not 0 <= barrier < BARRIERS:
        raise KernelFault(
            "barrier-mismatch", f"bar.sync {barrier}: a CTA has barriers 0 to {BARRIERS - 1}"
        )
    g.cta.bytes["waits"] += g.warps
    found = g.cta.barriers[barrier]
    wait = BarrierWait(found)
    found.arrive(g.n, count)
    return None if wait.ready() else wait
