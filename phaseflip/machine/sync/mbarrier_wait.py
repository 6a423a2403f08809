"""Waiting for a phase of an mbarrier, and what the threads know afterwards.

Source: PTX ISA 9.1, "mbarrier.test_wait, mbarrier.try_wait".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ordering.knowledge import united
from . import mbarrier_report as findings

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..threads.warp import Group
    from .mbarrier import Mbarrier


class MbarrierWait:
    """A group that waits until a phase has completed."""

    __slots__ = ("barrier", "phase", "place", "scope")

    def __init__(self, barrier: Mbarrier, phase: int, place: Place, scope: str) -> None:
        self.barrier, self.phase, self.place, self.scope = barrier, phase, place, scope

    @property
    def parity(self) -> int:
        """The operand of the instruction."""
        return self.phase & 1

    def ready(self) -> bool:
        """The awaited phase is complete."""
        return self.barrier.phase > self.phase or self.barrier.abandoned

    def finish(self, group: Group) -> None:
        """Acquire what was released up to the end of the phase."""
        self.barrier.touch("finish", self.phase)
        report_if_lapped(group, self.barrier, self.phase, self.place)
        consume(group, self.barrier, self.phase, self.place, self.scope)

    def describe(self) -> str:
        """What is waited for, and the state of the barrier."""
        return (
            f"phase {self.phase} (parity {self.parity}) has to complete on mbarrier {self.barrier}"
        )


Parts = list[tuple["Group", "MbarrierWait | None"]]
"""Lanes of a group that have consumed the same phases, and what they wait for; None: they pass at once."""


class LanesWait:
    """Lanes of one warp that wait for different phases, since some have waited before: the warp stays together."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def ready(self) -> bool:
        """All of the phases are complete."""
        return all(wait is None or wait.ready() for _, wait in self.parts)

    def finish(self, group: Group) -> None:
        """Each lane acquires what was released up to the end of its phase."""
        for part, wait in self.parts:
            if wait is not None:
                wait.finish(part)
        if group.knowledge and self.parts[0][0] is not group:
            group.knowledge = united(part.knowledge for part, _ in self.parts)

    def describe(self) -> str:
        """Each of the waits."""
        return "; ".join(wait.describe() for _, wait in self.parts if wait is not None)


def report_if_lapped(g: Group, barrier: Mbarrier, phase: int, place: Place) -> None:
    """A wait for `phase` finds that the next one has completed too, so nothing had made that one wait for it."""
    if barrier.phase > phase + 1:
        g.cta.report(findings.lapped_wait(barrier, place, str(g), phase))


def consume(g: Group, barrier: Mbarrier, phase: int, place: Place, scope: str) -> None:
    """The threads have waited for a phase: they acquire, at a scope, what was released up to its end."""
    threads, detector = g.lanes + g.cta.first_component, g.cta.detector
    again = int(barrier.consumed[threads[0]]) == phase
    barrier.consumed[threads] = phase
    if detector is not None:
        if not again:
            barrier.wait_epochs[threads] = detector.epochs[threads]
            barrier.wait_places[threads] = place
        clock = barrier.completed.get(phase)
        if scope == "cta":
            clock = barrier.cta_completed.get(phase, clock)
        if clock is not None:
            detector.acquire(g, clock)
