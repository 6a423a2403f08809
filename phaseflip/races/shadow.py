"""Shadow memory: for every byte, which access last wrote it and which read it since.

An access is an `Event`, and the shadow holds event numbers (0: never). Tiles move in vectors of 16 bytes, so a page of
1 KiB is tracked in units of 16 bytes until something smaller touches it; from then on by single bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

UNIT = 16
PAGE = 1024


@dataclass(eq=False)
class Event:
    """One executed access.

    agents: components (see `vector_clock`) of the accessing threads, ascending, or the one of an asynchronous queue;
    epochs: theirs.
    proxy: "generic", "async" or "tmem". units and unit_agents: what each of several threads touched, as far as they
    differ; None where all touched everything. Position is (iterations of the enclosing loops, order in the program).
    issued: the issuer's epoch when it issued an asynchronous operation; clock: what its agent knew;
    lane: the only lane of TMEM that is touched of those that are tracked together; strong: the scope of a strong access;
    equal: whether what a store brings is there already, for each place that it goes to; asked for before it is carried out.
    """

    number: int
    writes: bool
    proxy: str
    place: Any
    who: Any
    owner: Any
    agents: Any
    epochs: Any
    position: tuple[tuple[int, ...], int]
    issuer: int = -1
    fenced: bool = False
    issued: int = 0
    clock: Any = None
    lane: int | None = None
    strong: str = ""
    equal: Any = None
    units: np.ndarray | None = None
    unit_agents: np.ndarray | None = None
    unit_bytes: int = UNIT
    order: np.ndarray | None = field(default=None, repr=False)
    shared: bool = False
    clean: bool = False
    """Whether nothing was found wrong when it was judged."""
    replaces: Event | None = field(default=None, repr=False)
    """The write of the same bytes by the same threads, in an earlier pass of their loop, that this one replaced."""

    def agents_of(self, first_bytes: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray]:
        """(rows, components): the components that touched the unit at each of these byte offsets.

        Component i touched the unit at first_bytes[rows[i]]; where one touched each unit, rows are all, in order.
        """
        assert self.units is not None and self.unit_agents is not None
        if self.order is None:
            self.order = np.argsort(self.units, kind="stable")
            ordered = self.units[self.order]
            self.shared = bool((ordered[1:] == ordered[:-1]).any())
        wanted = first_bytes // self.unit_bytes
        at = np.searchsorted(self.units, wanted, sorter=self.order)
        if not self.shared:
            return slice(None), self.unit_agents[self.order[np.minimum(at, len(self.order) - 1)]]
        count = np.searchsorted(self.units, wanted, "right", sorter=self.order) - at
        rows = np.repeat(np.arange(len(at)), count)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
        return rows, self.unit_agents[self.order[at[rows] + within]]

    def epoch_of(self, agents: np.ndarray) -> np.ndarray:
        """Epoch of each of these components in this event."""
        return self.epochs[np.searchsorted(self.agents, agents)]


class Shadow:
    """Shadow of a memory of `size` bytes."""

    def __init__(self, size: int, initialised: bool) -> None:
        self.size = size
        units = -(-size // UNIT)
        self.writes = np.zeros(units, np.int32)
        self.reads = np.zeros(units, np.int32)
        self.fine_pages = np.zeros(-(-size // PAGE), bool)
        self.fine_end = 0  # no byte from here on is tracked singly
        self.fine_writes = np.zeros(0, np.int32)
        self.fine_reads = np.zeros(0, np.int32)
        self.initialised = initialised
        self.hidden: np.ndarray | None = None
        self.fine_hidden: np.ndarray | None = None
        """By unit and by byte, which of `sets` is there; None as long as no read is hidden (see `hidden_reads`)."""
        self.sets: list[tuple[Any, ...]] = [()]
        self.set_numbers: dict[tuple[Any, ...], int] = {(): 0}
        self.deferred: list[tuple[Event, Any, int, Any]] | None = []
        """Reads of a memory that nothing has written yet: (event, offsets, nbytes, actor). None once it has been written."""

    def locate(self, offset: Any, nbytes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """(write array, read array, indices, bytes of a unit) for accesses of nbytes at byte offsets (int or array)."""
        if offset.__class__ is int and nbytes < UNIT:
            page = offset // PAGE
            if not self.fine_pages[page]:
                self._refine(np.array([page]))
            return self.fine_writes, self.fine_reads, np.arange(offset, offset + nbytes), 1
        if nbytes == UNIT:
            first = offset if offset.__class__ is int else int(offset.min())
            if first >= self.fine_end or not self.fine_pages[np.unique(offset // PAGE)].any():
                return self.writes, self.reads, np.atleast_1d(offset) >> 4, UNIT
        self._refine(np.unique(np.atleast_1d(offset) // PAGE))
        indices = (np.atleast_1d(offset)[:, None] + np.arange(nbytes)).reshape(-1)
        return self.fine_writes, self.fine_reads, indices, 1

    def hidden_at(self, where: Region) -> np.ndarray | None:
        """Numbers of the sets of hidden reads at the units of an access; None where there are none."""
        held = self.hidden if where.unit_bytes == UNIT else self.fine_hidden
        there = None if held is None else held[where.indices]
        return there if there is not None and there.any() else None

    def hide(self, where: Region, sets: Any) -> None:
        """Sets of these numbers are at the units of an access from now on."""
        if self.hidden is None:
            self.hidden = np.zeros(len(self.writes), np.int32)
        if self.fine_hidden is None and len(self.fine_writes):
            self.fine_hidden = np.zeros(len(self.fine_writes), np.int32)
        held = self.hidden if where.unit_bytes == UNIT else self.fine_hidden
        assert held is not None
        held[where.indices] = sets

    def set_of(self, members: tuple[Any, ...]) -> int:
        """The number of a set of hidden reads."""
        number = self.set_numbers.setdefault(members, len(self.sets))
        if number == len(self.sets):
            self.sets.append(members)
        return number

    def _refine(self, pages: np.ndarray) -> None:
        """Track these pages by bytes from now on."""
        new = pages[~self.fine_pages[pages]]
        if not len(new):
            return
        if not len(self.fine_writes):
            self.fine_writes = np.zeros(len(self.writes) * UNIT, np.int32)
            self.fine_reads = np.zeros(len(self.reads) * UNIT, np.int32)
        if self.hidden is not None and self.fine_hidden is None:
            self.fine_hidden = np.zeros(len(self.fine_writes), np.int32)
        for page in new.tolist():
            coarse = slice(page * PAGE // UNIT, (page + 1) * PAGE // UNIT)
            fine = slice(page * PAGE, min((page + 1) * PAGE, len(self.fine_writes)))
            self.fine_writes[fine] = np.repeat(self.writes[coarse], UNIT)
            self.fine_reads[fine] = np.repeat(self.reads[coarse], UNIT)
            if self.hidden is not None and self.fine_hidden is not None:
                self.fine_hidden[fine] = np.repeat(self.hidden[coarse], UNIT)
        self.fine_pages[new] = True
        self.fine_end = max(self.fine_end, (int(new[-1]) + 1) * PAGE)


def numbers(found: np.ndarray) -> list[int]:
    """Distinct event numbers in a piece of shadow, 0 left out; cheap when all are equal, which is usual."""
    flat = found.reshape(-1)
    first = int(flat[0])
    if (flat == first).all():
        return [first] if first else []
    return [n for n in np.unique(flat).tolist() if n]


class Region:
    """The units of an access: for messages and for precise comparison."""

    __slots__ = ("memory", "indices", "unit_bytes", "agents")

    def __init__(self, memory: Any, indices: np.ndarray, unit_bytes: int, agents: Any) -> None:
        self.memory, self.indices, self.unit_bytes = memory, indices, unit_bytes
        self.agents = agents

    def at(self, mask: Any) -> tuple[Any, int, int]:
        """(memory, first byte or column, last) of the masked units."""
        found = (
            self.indices if mask is None or len(mask) != len(self.indices) else self.indices[mask]
        )
        return (
            self.memory,
            int(found.min()) * self.unit_bytes,
            (int(found.max()) + 1) * self.unit_bytes - 1,
        )
