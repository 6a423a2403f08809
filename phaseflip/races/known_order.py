"""Of two accesses that race: which comes first, by what their agents know, and whether it matters who comes last."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.place import place_decides
from ..ordering.happens_before import Actor
from ..ordering.knowledge import SEEN
from .remedies import same_cta
from .shadow import Event, Region

COLLECTIVE = "tcgen05.alloc"
"""Writes the address as one store of the warp."""


def known_first(old: Event, event: Event, actor: Actor) -> Event | None:
    """The one that comes first, or None: by the order of the program. `actor` makes the access `event`.

    The asynchronous one of which the other's agent knows that it has been issued. A read before a write of a later pass of
    another role's loop: its agent knows the write of an earlier pass, whose data it reads.
    """
    if old.owner is not event.owner:
        return None
    if old.issued and actor.clock.covers(SEEN, old.issuer, old.issued):
        return old
    if event.issued and old.clock and old.clock.covers(SEEN, event.issuer, event.issued):
        return event
    if old.writes == event.writes:
        return None
    write, read = (old, event) if old.writes else (event, old)
    knows = actor.clock if read is event else read.clock
    replaced = write.replaces if knows is not None and place_decides(write, read) else None
    while replaced is not None:
        if knows.covers(SEEN, replaced.agents, replaced.epochs):
            return read
        replaced = replaced.replaces
    return None


def different_threads(old: Event, late: np.ndarray, event: Event, lanes: Any, same: int) -> bool:
    """Both accesses are by several threads to the same units: whether two different threads collide.

    A collective store is its whole warp's: no lane of the warp collides with it. same: bits of a thread's number that do
    not count.
    """
    if event.place.mnemonic == COLLECTIVE:
        return len(np.setdiff1d(late, lanes)) > 0
    if old.place.mnemonic == COLLECTIVE:
        return len(np.setdiff1d(lanes, old.agents)) > 0
    late, lanes = np.unique(late >> same), np.unique(lanes >> same)
    return len(late) > 1 or len(lanes) > 1 or bool(late[0] != lanes[0])


def stores_the_same(old: Event, event: Event, bad: Any, where: Region) -> bool:
    """Whether threads of two CTAs store equal values to the same global memory: it is all one who comes last."""
    if where.memory.kind != "global" or event.equal is None or not old.writes:
        return False
    if old.owner is event.owner and same_cta(old, event):
        return False
    equal = event.equal()
    return bool(np.repeat(equal, len(where.indices) // len(equal))[bad].all())
