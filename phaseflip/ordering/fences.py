"""What the fences of threads have released for relaxed arrivals, and which memory their proxy fences cover.

Source: PTX ISA 9.1, fence, fence.proxy.async.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

import numpy as np

from .knowledge import ASYNC, SEEN, Clock, join

FENCE_SCOPES = ("cta", "cluster")
PROXY_FENCE_COVERS = {
    "": ("own", "peer", "global"),
    "shared::cta": ("own",),
    "shared::cluster": ("own", "peer"),
    "global": ("global",),
}
"""State space of a fence.proxy.async -> memory it covers: shared memory of the thread's CTA, that of others, global."""


class ReleasedByFences:
    """For every thread what it knew at its last releasing fence: a clock, and its own epochs (in all and fenced)."""

    def __init__(self, threads: int, zero: Clock) -> None:
        self.clocks = np.full(threads, zero, object)
        self.epochs = np.zeros(threads, np.int32)
        self.fenced = np.zeros(threads, np.int32)

    def add(self, thread: int, clock: Clock) -> None:
        """A thread releases a clock too."""
        self.clocks[thread] = join([self.clocks[thread], clock])

    def clock(self, threads: np.ndarray, size: int) -> Clock:
        """What the fences of these threads released, together."""
        return join(self.clocks[threads].tolist()).with_entries(
            size, (SEEN, threads, self.epochs[threads]), (ASYNC, threads, self.fenced[threads])
        )


class ProxyFences:
    """Proxy fences that cover memory other than the shared memory of the thread's CTA: who executed one, in which epoch.

    A row of the clock is kept for that memory alone, which is almost all that kernels fence. Here every fence is kept; it
    ends an epoch, so who has seen a later one of its thread has seen the fence.
    """

    def __init__(self) -> None:
        self.executed: dict[str, dict[int, list[int]]] = {"peer": {}, "global": {}}
        """Memory -> thread -> the epochs that its fences end, ascending."""

    def execute(self, space: str, threads: np.ndarray, epochs: np.ndarray) -> None:
        """Threads execute a fence of a state space."""
        for memory in self.executed.keys() & set(PROXY_FENCE_COVERS[space]):
            for thread, epoch in zip(threads.tolist(), epochs.tolist(), strict=True):
                self.executed[memory].setdefault(thread, []).append(epoch)

    def cover(self, memory: str, agents: Any, epochs: Any, clock: Clock) -> bool:
        """Whether each agent is seen to have fenced its accesses up to an epoch to "peer" or "global" memory."""
        executed, agents = self.executed[memory], np.atleast_1d(agents)
        known = zip(
            agents.tolist(),
            np.atleast_1d(epochs).tolist(),
            clock.seen[agents].tolist(),
            strict=True,
        )
        for agent, epoch, seen in known:
            fences = executed.get(agent, [])
            newest = (
                bisect_left(fences, seen) - 1
            )  # of those that end an epoch before the last seen
            if newest < 0 or fences[newest] < epoch:
                return False
        return True
