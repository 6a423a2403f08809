"""Which of two accesses that race comes first, where their agents' knowledge tells it."""

from __future__ import annotations

from .ordering import Actor
from .program_order import place_decides
from .shadow_memory import Event
from .vector_clock import SEEN


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
