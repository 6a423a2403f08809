"""Vector clocks: what a thread knows to have happened, and under which fences.

Components are the threads of a cluster, then queues of asynchronous operations. A component counts: a thread its epochs
(a new one after every release, fence or issue), a queue its operations. `clock.seen[c] >= n` says that event n of c
happens before whatever holds the clock.

A clock has five rows that travel with every release and acquire:

    SEEN      ordered before (happens-before)
    ASYNC     generic-proxy accesses before a fence.proxy.async of the thread that made them
    TCGEN05   tcgen05.ld/st before a tcgen05.fence::before_thread_sync of the warp that made them
    SCOPED    as SEEN, where every release and acquire on the way had a scope that holds both of its threads
    PAST      certain to have happened, visible or not: what an operation's issuer knew lies in the past of its completion

Clocks are immutable values, so threads that know the same share one: after a CTA barrier, all of them.

Source: FastTrack (Flanagan and Freund, PLDI 2009) for epochs; PTX ISA 9.1, "Memory Consistency Model".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SEEN, ASYNC, TCGEN05, SCOPED, PAST = range(5)
ROWS = 5
Components = int | slice | np.ndarray


class Clock:
    """Knowledge about `size` components; components beyond the size are unknown (0)."""

    __slots__ = ("rows",)

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    @classmethod
    def zero(cls, size: int) -> Clock:
        """Knows nothing."""
        return cls(np.zeros((ROWS, size), np.int32))

    @property
    def seen(self) -> np.ndarray:
        """Row SEEN."""
        return self.rows[SEEN]

    def with_entries(self, size: int, *entries: tuple[int, Components, Any]) -> Clock:
        """A copy of at least `size` components in which row[components] is raised to value, for each entry.

        What is known at first hand (an entry of SEEN) needs no scope.
        """
        rows = self.rows.copy() if self.rows.shape[1] >= size else _padded(self.rows, size)
        for row, components, value in entries:
            rows[row, components] = np.maximum(rows[row, components], value)
            if row == SEEN:
                for follows in (SCOPED, PAST):
                    rows[follows, components] = np.maximum(rows[follows, components], value)
        return Clock(rows)

    def owned_by(self, size: int, own: Components, epochs: Any, fenced: Any) -> Clock:
        """A copy of at least `size` components in which threads know themselves, up to their epochs.

        Nobody knows more of a thread than the thread, so these entries never go down.
        """
        rows = self.rows.copy() if self.rows.shape[1] >= size else _padded(self.rows, size)
        for row in (SEEN, SCOPED, PAST):
            rows[row, own] = epochs
        rows[ASYNC, own] = fenced
        return Clock(rows)

    def with_past(self, other: Clock) -> Clock:
        """The same knowledge, after all that another clock holds: that has happened, but need not be visible."""
        size = max(self.rows.shape[1], other.rows.shape[1])
        rows = _padded(self.rows, size)
        past = rows[PAST, : other.rows.shape[1]]
        np.maximum(past, other.rows[PAST], out=past)
        return Clock(rows)

    def out_of_scope(self) -> Clock:
        """The same knowledge, released or acquired at a scope that does not hold both threads."""
        rows = self.rows.copy()
        rows[SCOPED] = 0
        return Clock(rows)

    def covers(self, row: int, components: Components, epochs: Any) -> bool:
        """Whether the row reaches all the epochs of the components."""
        if isinstance(components, int):
            rows = self.rows
            return components < rows.shape[1] and bool(rows[row, components] >= epochs)
        return bool((self.rows[row, components] >= epochs).all())


def holds(clock: Clock, other: Clock) -> bool:
    """Whether all that is past for another clock is past for this one: what released the other one has happened."""
    mine, theirs = clock.rows[PAST], other.rows[PAST]
    size = min(mine.size, theirs.size)
    return bool((mine[:size] >= theirs[:size]).all()) and not theirs[size:].any()


def _padded(rows: np.ndarray, size: int) -> np.ndarray:
    wide = np.zeros((ROWS, size), np.int32)
    wide[:, : rows.shape[1]] = rows
    return wide


def join(clocks: Iterable[Clock]) -> Clock:
    """The least clock that knows what any of them knows. Equal objects are joined once; one alone is returned itself."""
    distinct = list({id(c): c for c in clocks}.values())
    result = distinct[0]
    for other in distinct[1:]:
        a, b = result.rows, other.rows
        size = max(a.shape[1], b.shape[1])
        if a.shape[1] != b.shape[1]:
            a, b = (x if x.shape[1] == size else _padded(x, size) for x in (a, b))
        result = Clock(np.maximum(a, b))
    return result


def meet(clocks: Iterable[Clock]) -> Clock:
    """The greatest clock that knows only what all of them know. Equal objects count once."""
    distinct = list({id(c): c for c in clocks}.values())
    size = min(c.rows.shape[1] for c in distinct)
    if len(distinct) == 1:
        return distinct[0]
    return Clock(np.minimum.reduce([c.rows[:, :size] for c in distinct]))


@dataclass(frozen=True)
class Part:
    """Threads of a group that know the same.

    `lanes` are their indices in the CTA, ascending. `proxy_fence` is the clock at their last fence.proxy.async,
    `after_fence` the one at their last tcgen05.fence::after_thread_sync: what they had observed by then.
    """

    lanes: np.ndarray
    clock: Clock
    proxy_fence: Clock
    after_fence: Clock

    def same_as(self, other: Part) -> bool:
        """Whether both know the same (by identity: equal values that arose apart stay apart)."""
        return (
            self.clock is other.clock
            and self.proxy_fence is other.proxy_fence
            and self.after_fence is other.after_fence
        )


def among(lanes: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Which of the lanes belong to a part (ascending); by its bounds where it is contiguous, which is usual."""
    first, last = part[0], part[-1]
    if last - first + 1 == len(part):
        return np.asarray((lanes >= first) & (lanes <= last))
    return np.isin(lanes, part)


Knowledge = Sequence[Part]
"""What the threads of a group know: a partition of its lanes."""


def restrict(knowledge: Knowledge, lanes: np.ndarray) -> list[Part]:
    """The knowledge of a subset of the lanes."""
    if len(knowledge) == 1:
        part = knowledge[0]
        return [Part(lanes, part.clock, part.proxy_fence, part.after_fence)]
    found = []
    for part in knowledge:
        if part.lanes[-1] < lanes[0] or part.lanes[0] > lanes[-1]:
            continue
        inside = part.lanes[among(part.lanes, lanes)]
        if len(inside):
            found.append(Part(inside, part.clock, part.proxy_fence, part.after_fence))
    return found


def united(several: Iterable[Knowledge]) -> list[Part]:
    """The knowledge of groups that become one; parts that know the same become one part."""
    found: list[Part] = []
    for part in (p for knowledge in several for p in knowledge):
        for i, other in enumerate(found):
            if part.same_as(other):
                lanes = np.sort(np.concatenate([other.lanes, part.lanes]))
                found[i] = Part(lanes, part.clock, part.proxy_fence, part.after_fence)
                break
        else:
            found.append(part)
    return found
