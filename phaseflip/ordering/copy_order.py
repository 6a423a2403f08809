"""What is known of the cp.async copies of threads: each thread's are a component of their own, after all threads'.

A thread that has waited for a copy knows it as it knows its own accesses: apart from the clock, so that threads can share
one. Nothing here is kept for a kernel without cp.async.

Source: PTX ISA 9.1, cp.async.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .knowledge import ASYNC, SEEN, Clock, Part


@dataclass(eq=False)
class CopyTicket:
    """The copies that lanes of one warp issue in one step: their threads (components), the numbers of the copies among
    those of each thread, and what the threads knew, in common (`part`) and of themselves."""

    part: Part
    threads: np.ndarray
    numbers: np.ndarray
    epochs: np.ndarray
    fenced: np.ndarray
    copied: np.ndarray
    place: Any
    who: Any
    position: tuple[tuple[int, ...], int]

    def of(self, keep: np.ndarray) -> CopyTicket:
        """That of some of the copies."""
        if keep.all():
            return self
        some = {
            name: getattr(self, name)[keep]
            for name in ("threads", "numbers", "epochs", "fenced", "copied")
        }
        return replace(self, **some)


class Copies:
    """Of every thread: copies issued, those that it knows to be complete, and those that it has fenced for the async proxy."""

    def __init__(self, threads: int) -> None:
        self.first = threads
        """Component of the copies of thread 0."""
        self.issued, self.done, self.fenced = (np.zeros(threads, np.int32) for _ in range(3))

    def issue(self, order: Any, g: Any, part: Part, lanes: np.ndarray, place: Any) -> CopyTicket:
        """Lanes of a part of a group issue a cp.async each; order: of the cluster's threads."""
        own = lanes + g.cta.first_component
        self.issued[own] += 1
        known = (order.epochs[own].copy(), order.fenced[own].copy(), self.done[own].copy())
        order.epochs[own] += 1
        who, position = g.agents(lanes), g.position(place)
        return CopyTicket(part, own, self.issued[own].copy(), *known, place, who, position)

    def complete(self, thread: int, number: int) -> None:
        """A thread knows that its copies up to a number are complete."""
        self.done[thread] = max(int(self.done[thread]), number)

    def clock(self, threads: np.ndarray, size: int) -> Clock:
        """Knows that all copies that threads have issued are complete, and nothing else."""
        entry = (SEEN, threads + self.first, self.issued[threads])
        return Clock.zero(size).with_entries(size, entry)

    def known_to(self, clock: Clock, own: Any, size: int) -> Clock:
        """A clock and what its threads know of their own copies."""
        theirs = (
            slice(own.start + self.first, own.stop + self.first)
            if isinstance(own, slice)
            else own + self.first
        )
        return clock.with_entries(
            size, (SEEN, theirs, self.done[own]), (ASYNC, theirs, self.fenced[own])
        )

    def fence(self, own: Any, clock: Clock) -> None:
        """Threads fence for the async proxy: that counts for their copies that they know to be complete."""
        seen = clock.seen[self.first : self.first + len(self.done)]
        self.done[own] = np.maximum(self.done[own], seen[own])
        self.fenced[own] = np.maximum(self.fenced[own], self.done[own])

    def as_threads(self, components: np.ndarray) -> np.ndarray:
        """The components; a thread and its own copies as the thread alone."""
        own = len(components) == 2 and components[1] == components[0] + self.first
        return components[:1] if own else components

    def own(self, agents: np.ndarray, numbers: np.ndarray, accessing: Any) -> Any:
        """Which copies (components and numbers) are the accessing threads' own, and known to them to be complete."""
        threads = agents - self.first
        return (threads == accessing) & (numbers <= self.done[threads])


def threads_of(e: Any) -> np.ndarray:
    """The threads of an access by threads, or of copies by cp.async."""
    copies = e.place.mnemonic == "cp.async" and e.owner.copies is not None
    return np.asarray(e.agents - e.owner.copies.first if copies else e.agents)


def waited_for(copy: Any) -> bool:
    """Whether the threads of copies by cp.async know that they are complete."""
    return bool((copy.owner.copies.done[threads_of(copy)] >= copy.epochs).all())


def same_threads(copy: Any, other: Any) -> bool:
    """Whether the threads of an access are among those of copies by cp.async."""
    if not isinstance(other.agents, np.ndarray):
        return False
    return bool(np.isin(threads_of(other), threads_of(copy)).all())
