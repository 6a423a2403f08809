"""Accesses by cp.async before the judge: those of several lanes at once where nothing is wrong, else each by itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ordering.copy_order import CopyTicket
from ..ordering.happens_before import Actor
from ..ordering.knowledge import SEEN
from .detector import RaceDetector
from .shadow import Event, Region, Shadow, numbers


def copy_access(
    detector: RaceDetector, ticket: CopyTicket, memory: Any, offset: np.ndarray, nbytes: int, writes: bool
) -> None:  # fmt: skip
    """Copies read or write nbytes each at a byte offset of a memory."""
    shadow: Shadow = memory.shadow
    detector.begin(memory, writes)
    together = shadow.deferred is not None or _alike(
        detector, ticket, memory, offset, nbytes, writes
    )
    rows = [np.ones(len(offset), bool)] if together else list(np.eye(len(offset), dtype=bool))
    for keep in rows:
        some = ticket.of(keep)
        event = _event(detector, some, writes)
        actor = _actor(detector, some, alone=not together)
        detector.told(memory, offset[keep], nbytes, event, actor)


def _alike(
    detector: RaceDetector, ticket: CopyTicket, memory: Any, offset: np.ndarray, nbytes: int, writes: bool
) -> bool:  # fmt: skip
    """Whether what the threads know in common is enough to find nothing wrong."""
    shadow: Shadow = memory.shadow
    written, read, indices, unit_bytes = shadow.locate(offset, nbytes)
    where = Region(memory, indices, unit_bytes, None)
    if shadow.hidden_at(where) is not None:
        return False
    found = numbers(written[indices]) + (numbers(read[indices]) if writes else [])
    event, actor = _event(detector, ticket, writes), _actor(detector, ticket, alone=False)
    old = (detector.launch.events[n] for n in found)
    return all(e is None or detector.in_order(e, None, event, actor, where) for e in old)


def _event(detector: RaceDetector, ticket: CopyTicket, writes: bool) -> Event:
    assert detector.copies is not None
    components = ticket.threads + detector.copies.first
    return Event(
        0, writes, "generic", ticket.place, ticket.who, detector, components, ticket.numbers, ticket.position,
        int(ticket.threads[0]), issued=int(ticket.epochs[0]),
    )  # fmt: skip


def _actor(detector: RaceDetector, ticket: CopyTicket, alone: bool) -> Actor:
    """What all threads of a ticket know in common, or what its only one does."""
    part, clock = ticket.part, ticket.part.clock
    if alone:
        assert detector.copies is not None
        clock = clock.owned_by(detector.size, ticket.threads, ticket.epochs, ticket.fenced)
        known = (SEEN, ticket.threads + detector.copies.first, ticket.copied)
        clock = clock.with_entries(detector.size, known)
    return Actor(clock, part.proxy_fence, part.after_fence)
