"""The clusters of a launch that have not started: one after the other starts, unless a running cluster cancels it.

Source: PTX ISA 9.1, clusterlaunchcontrol.try_cancel.
"""

from __future__ import annotations

from .schedule import Schedule


class LaunchControl:
    """`waiting` are the clusters that have not started, (x, y, z) in the grid of clusters, in grid order."""

    def __init__(
        self, clusters: tuple[int, ...], shape: tuple[int, ...], schedule: Schedule
    ) -> None:
        width, height, depth = clusters
        self.shape, self.schedule = shape, schedule
        self.waiting = [
            (x, y, z) for z in range(depth) for y in range(height) for x in range(width)
        ]

    def start(self) -> tuple[int, int, int]:
        """The next cluster starts."""
        return self.waiting.pop(0)

    def cancel(self) -> tuple[int, ...] | None:
        """Cancel a cluster that has not started: the index of its first CTA in the grid; None if it fails.

        The schedule chooses which, and where it chooses at random whether all that wait start in time: then it fails.
        """
        waiting = len(self.waiting)
        chosen = self.schedule.pick(waiting + self.schedule.polls_end, 0) if waiting else 0
        if chosen == waiting:
            return None
        index = self.waiting.pop(chosen)
        return tuple(i * size for i, size in zip(index, self.shape, strict=True))
