"""Synchronisation through memory: strong stores that release, strong loads that acquire.

A strong store that releases (st.release; st.relaxed or st.volatile after a releasing fence) leaves beside its bytes what its
thread knew. A strong load that reads those bytes learns it: at once (ld.acquire), or at the thread's next fence. Two strong
accesses do not collide as far as their scopes include both threads.

A thread that reads a flag for the first time since it was stored, and does not know of the store, reads what was there
before: hardware may be that slow, and a kernel that does not look at the value is then seen to, under every schedule.

Source: PTX ISA 9.1, 8.7 Morally strong operations, 8.8 Release and Acquire Patterns, 8.9.4 Memory synchronization.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .knowledge import SEEN, Clock, join, united

SCOPES = ("cta", "cluster", "gpu", "sys")


@dataclass(eq=False)
class Flag:
    """The newest strong store to some bytes: its event, thread and scope, what it released, and what was there before."""

    number: int
    thread: int
    epoch: int
    rank: int
    scope: str
    clock: Clock | None
    before: Any
    earlier: Flag | None
    seen: set[int] = field(default_factory=set)
    """Threads that have read the bytes since."""

    def released_to(self, rank: int, scope: str) -> Clock | None:
        """What a strong load of a scope by a thread of the CTA of a rank learns from it."""
        if self.clock is None or self.rank == rank or "cta" not in (self.scope, scope):
            return self.clock
        return self.clock.out_of_scope()


class Flags:
    """The flags of one cluster by memory and byte offset, and what threads will learn at their next fence."""

    def __init__(self) -> None:
        self.stored: dict[tuple[int, int], Flag] = {}
        self.at_fence: dict[int, list[tuple[Clock, bool]]] = {}
        """Thread -> what strong loads have read, and whether a thread of its own CTA had released it."""

    def store(
        self, order: Any, g: Any, memory: Any, offset: int, nbytes: int, scope: str, clock: Clock | None
    ) -> None:  # fmt: skip
        """One thread (the group) has told of a strong store that releases a clock; the bytes are still the old ones."""
        number, thread = (
            _last_write(memory, offset, nbytes),
            int(g.lanes[0]) + g.cta.first_component,
        )
        key, before = (memory.base, offset), memory.data[offset : offset + nbytes].copy()
        earlier = self.stored.get(key)
        if earlier is not None:
            earlier.earlier = None
        epoch = int(order.epochs[thread])
        self.stored[key] = Flag(number, thread, epoch, g.cta.rank, scope, clock, before, earlier)

    def read(
        self, g: Any, memory: Any, offset: int, nbytes: int, lanes: np.ndarray, scope: str
    ) -> tuple[np.ndarray, Flag | None]:
        """Which of some lanes read what was there before the newest strong store, and the flag, if there is one."""
        old, flag = np.zeros(len(lanes), bool), self.stored.get((memory.base, offset))
        if (
            flag is None
            or len(flag.before) != nbytes
            or flag.number != _last_write(memory, offset, nbytes)
        ):
            return old, None
        for part in g.knowledge:
            if part.clock.covers(SEEN, flag.thread, flag.epoch):
                continue
            for i in np.flatnonzero(np.isin(lanes, part.lanes)):
                thread = int(lanes[i]) + g.cta.first_component
                old[i] = thread != flag.thread and thread not in flag.seen
                flag.seen.add(thread)
        return old, flag

    def learn(self, order: Any, g: Any, learnt: list[tuple[np.ndarray, Flag]], acquire: bool, scope: str) -> None:  # fmt: skip
        """Lanes have read flags: they learn what was released, now or at their next fence."""
        clocks: dict[int, list[tuple[Clock, bool]]] = {}
        for lanes, flag in learnt:
            clock = flag.released_to(g.cta.rank, scope)
            if clock is not None:
                for lane in lanes.tolist():
                    clocks.setdefault(lane, []).append((clock, flag.rank == g.cta.rank))
        if not acquire:
            for lane, found in clocks.items():
                self.at_fence.setdefault(lane + g.cta.first_component, []).extend(found)
            return
        _acquire(order, g, {lane: [c for c, _ in found] for lane, found in clocks.items()})

    def fence(self, order: Any, g: Any, scope: str) -> None:
        """fence.acq_rel or .sc: the threads learn what their earlier strong loads have read."""
        clocks = {}
        for lane in g.lanes.tolist():
            found = self.at_fence.pop(lane + g.cta.first_component, [])
            if found:
                clocks[lane] = [
                    c if near or scope != "cta" else c.out_of_scope() for c, near in found
                ]
        _acquire(order, g, clocks)


def _acquire(order: Any, g: Any, clocks: dict[int, list[Clock]]) -> None:
    """Each lane learns its clocks; lanes that learn the same together."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for lane in g.lanes.tolist():
        alike.setdefault(tuple(id(c) for c in clocks.get(lane, ())), []).append(lane)
    if set(alike) == {()}:
        return
    parts = []
    for lanes in alike.values():
        some = g.view(np.isin(g.lanes, lanes))
        if mine := clocks.get(lanes[0]):
            order.acquire(some, join(mine))
        parts.append(some.knowledge)
    g.knowledge = united(parts)


def _last_write(memory: Any, offset: int, nbytes: int) -> int:
    """Number of the event that wrote all of some bytes last; -1 if they are of several."""
    writes, _, indices, _ = memory.shadow.locate(offset, nbytes)
    found = writes[indices]
    return int(found[0]) if (found == found[0]).all() else -1


def includes_both(old: Any, event: Any, one_cta: bool) -> bool:
    """Whether the scopes of two strong accesses include both threads; one_cta: these are of one CTA."""
    if old.owner is event.owner:
        return one_cta or "cta" not in (old.strong, event.strong)
    return old.strong in ("gpu", "sys") and event.strong in ("gpu", "sys")
