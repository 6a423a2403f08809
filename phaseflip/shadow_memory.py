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
    lane: the only lane of TMEM that is touched of those that are tracked together; strong: the scope of a strong access.
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


class HiddenRead:
    """A read that a later one replaced in the shadow without standing for it."""

    __slots__ = ("event", "indices", "unit_bytes", "low", "high", "whole")

    def __init__(self, event: Event, indices: np.ndarray, unit_bytes: int) -> None:
        self.event, self.indices, self.unit_bytes = event, indices, unit_bytes
        self.low = int(indices.min()) * unit_bytes
        self.high = (int(indices.max()) + 1) * unit_bytes - 1
        self.whole = event.units is None and len(indices) * unit_bytes == self.high - self.low + 1
        """Whether it touched every byte from low to high: a tile does, and then no sets need be compared."""

    def meets(self, extent: tuple[int, int]) -> bool:
        """Whether it may touch bytes from the first to the last of an extent."""
        return self.low <= extent[1] and extent[0] <= self.high


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
        self.hidden_reads: list[HiddenRead] = []
        self.deferred: list[tuple[Event, Any, int]] | None = []
        """Reads of a memory that nothing has written yet: (event, offsets, nbytes). None once it has been written."""

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

    def _refine(self, pages: np.ndarray) -> None:
        """Track these pages by bytes from now on."""
        new = pages[~self.fine_pages[pages]]
        if not len(new):
            return
        if not len(self.fine_writes):
            self.fine_writes = np.zeros(len(self.writes) * UNIT, np.int32)
            self.fine_reads = np.zeros(len(self.reads) * UNIT, np.int32)
        for page in new.tolist():
            coarse = slice(page * PAGE // UNIT, (page + 1) * PAGE // UNIT)
            fine = slice(page * PAGE, min((page + 1) * PAGE, len(self.fine_writes)))
            self.fine_writes[fine] = np.repeat(self.writes[coarse], UNIT)
            self.fine_reads[fine] = np.repeat(self.reads[coarse], UNIT)
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

    __slots__ = ("memory", "indices", "unit_bytes", "agents", "_extent", "_touched")

    def __init__(self, memory: Any, indices: np.ndarray, unit_bytes: int, agents: Any) -> None:
        self.memory, self.indices, self.unit_bytes = memory, indices, unit_bytes
        self.agents = agents
        self._extent: tuple[int, int] | None = None
        self._touched: np.ndarray | None = None

    def extent(self) -> tuple[int, int]:
        """First and last byte."""
        if self._extent is None:
            low, high = int(self.indices.min()), int(self.indices.max())
            self._extent = low * self.unit_bytes, (high + 1) * self.unit_bytes - 1
        return self._extent

    def whole(self) -> bool:
        """Whether one agent touches every byte of the extent, each once."""
        low, high = self.extent()
        return self.agents is None and len(self.indices) * self.unit_bytes == high - low + 1

    def shared_with(self, hidden: HiddenRead) -> np.ndarray:
        """Which of the units a hidden read touched."""
        if hidden.whole:
            first, last = hidden.low // self.unit_bytes, hidden.high // self.unit_bytes
            return np.asarray((self.indices >= first) & (self.indices <= last))
        there = rescaled(hidden.indices, hidden.unit_bytes, self.unit_bytes)
        return np.isin(self.indices, there)

    def covers(self, hidden: HiddenRead) -> bool:
        """Whether this access touches all that a hidden read touched."""
        low, high = self.extent()
        if hidden.low < low or high < hidden.high:
            return False
        if self.whole():
            return True
        there = rescaled(hidden.indices, hidden.unit_bytes, self.unit_bytes)
        return bool(np.isin(there, self.indices).all())

    def left_of(self, hidden: HiddenRead) -> np.ndarray:
        """The units of a hidden read that this access does not touch, ascending."""
        first = self.extent()[0] // self.unit_bytes
        if (
            self._touched is None
        ):  # one bit for each unit of the extent: many reads may be asked about
            self._touched = np.zeros(int(self.indices.max()) - first + 1, bool)
            self._touched[self.indices - first] = True
        there = rescaled(hidden.indices, hidden.unit_bytes, self.unit_bytes)
        touched = (there >= first) & (there < first + len(self._touched))
        touched[touched] = self._touched[there[touched] - first]
        rest = there[~touched]
        return rest if (rest[1:] > rest[:-1]).all() else np.unique(rest)

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


def rescaled(indices: np.ndarray, size: int, wanted: int) -> np.ndarray:
    """Unit numbers in another unit size."""
    if size == wanted:
        return indices
    if size > wanted:
        return (indices[:, None] * size + np.arange(size)).reshape(-1)
    return np.unique(indices // wanted)
