"""Tensor Memory: 128 lanes x 512 columns x 32 bits of a CTA; its allocation.

Source: PTX ISA 9.1, tcgen05.alloc / dealloc / relinquish_alloc_permit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import KernelFault
from ...findings import Finding
from ...ir.instruction import instruction
from ...ir.program import EXIT
from ...races.cta_lifetime import is_launched
from ...races.detector import TMEM_BANDS
from ..memory.load_store import store
from ..threads.collectives import by_one_warp, one_warp
from ..threads.divergence import Parted, split
from ..threads.warp import begun
from .layout import COLUMNS

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..cta import CTA
    from ..threads.warp import Group

LANES = 128
WORD = np.dtype(np.uint32)
POISON = 0xFFFFFFFF


class TensorMemory:
    """Contents and allocations of one CTA.

    `allocations` maps the first column to (number of columns, place of the tcgen05.alloc). `writes` and `reads` are the
    race detector's shadow: event numbers by band of 16 lanes and column; the reads of each warpgroup apart.
    """

    kind = "tmem"

    def __init__(self, threads: int = LANES, rank: int = 0) -> None:
        self.rank = rank
        self.words = np.full((LANES, COLUMNS), POISON, np.uint32)
        self.floats = self.words.view(np.float32)
        self.allocations: dict[int, tuple[int, Place]] = {}
        self.last_request = COLUMNS
        self.relinquished = False
        self.writes = np.zeros((TMEM_BANDS, COLUMNS), np.int32)
        self.reads = np.zeros((-(-threads // LANES), TMEM_BANDS, COLUMNS), np.int32)
        self.pair_frees: list[tuple[Any, slice]] = []
        """Accesses of tcgen05.dealloc by the other CTA of the pair, with the columns: none may come after."""
        self.forgotten: list[tuple[Any, slice, Any, Any]] = []
        """Deallocations, the columns, and `writes` and `reads` as they were: what is still in flight may race with those."""
        self.ever_allocated = np.zeros(COLUMNS, bool)
        self.executed_by: dict[Any, set[int]] = {}
        """Position of an allocation or of giving up the permit -> the warps that have executed it."""
        self.executed: dict[str, list[Place]] = {}
        """Mnemonic -> where this CTA has executed it with cta_group::2, for collectives of the pair that may block."""

    def describe(self, first: int, last: int) -> str:
        """ "TMEM columns 0-127"."""
        return f"TMEM columns {first}-{last}"

    def check_freed(self, cta: CTA) -> None:
        """At exit of the CTA: everything allocated has been freed."""
        for column, (columns, place) in self.allocations.items():
            cta.report(
                Finding(
                    "tmem-leak",
                    "the CTA exits without freeing them; the next CTA on this SM waits for them forever",
                    place=place,
                    memory="tmem",
                    what=f"CTA {cta.rank_in_grid}: {columns} TMEM columns from column {column}",
                    fix="the allocating warp: T.ptx.tcgen05.dealloc of the same columns, after the last use",
                )
            )

    def is_free(self, start: int, columns: int) -> bool:
        """Whether nothing is allocated in these columns."""
        return all(start + columns <= a or a + n <= start for a, (n, _) in self.allocations.items())

    def check(self, g: Group, place: Place, column: int, width: int) -> None:
        """Report an access outside live allocations; KernelFault for columns that do not exist."""
        what = f"{place.mnemonic} of TMEM columns {column}-{column + width - 1}"
        if column < 0 or column + width > COLUMNS:
            raise KernelFault(
                "out-of-bounds",
                f"{what}; a CTA has columns 0 to {COLUMNS - 1}",
                "let everything that is in TMEM at one time fit into its columns",
            )
        if self.ever_allocated[column : column + width].all() and g.cta.detector is not None:
            return  # allocated once: whether it still was is for the race detector to say
        if not any(
            a <= column and column + width <= a + n for a, (n, _) in self.allocations.items()
        ):
            held = ", ".join(f"{a}-{a + n - 1}" for a, (n, _) in self.allocations.items()) or "none"
            g.cta.report(
                Finding(
                    "tmem-unallocated",
                    f"no live allocation holds all of them; allocated are {held}",
                    place=place,
                    memory="tmem",
                    what=f"{g}: {what}",
                    fix="allocate enough columns with tcgen05.alloc, and use the address that it returns",
                )
            )


def check_pairs(ctas: list[CTA]) -> None:
    """At exit of a cluster: both CTAs of a pair have executed its collectives. (What is not freed is a leak.)"""
    mnemonic = "tcgen05.relinquish_alloc_permit"
    for even, odd in zip(ctas[::2], ctas[1::2], strict=False):
        places = {cta: cta.tmem.executed.get(mnemonic, []) for cta in (even, odd)}
        more, less = sorted(places, key=lambda cta: -len(places[cta]))
        if len(places[more]) > len(places[less]):
            more.report(
                Finding(
                    "divergent-collective",
                    "with cta_group::2 it is a collective of both CTAs of the pair, and may block until both have come",
                    place=places[more][-1],
                    memory="tmem",
                    what=f"{more} executes {mnemonic}, {less} does not",
                    fix="let one warp of each CTA of the pair execute it",
                )
            )


def split_address(taddr: int) -> tuple[int, int]:
    """(lane, column) of a TMEM address: lane in the upper 16 bits, column in the lower."""
    return taddr >> 16 & 0xFFFF, taddr & 0xFFFF


def find_free(ctas: list[CTA], columns: int) -> int | None:
    """First column of the lowest range that is free in all of the CTAs, aligned to its size; None if there is none."""
    starts = range(0, COLUMNS - columns + 1, columns)
    return next((s for s in starts if all(c.tmem.is_free(s, columns) for c in ctas)), None)


class PairAllocation:
    """tcgen05.alloc with cta_group::2, which one warp of each CTA of a pair executes: the same columns in both."""

    def __init__(self, ctas: list[CTA], place: Place, columns: int) -> None:
        self.ctas, self.place, self.columns = ctas, place, columns
        self.complete = False
        self._start: int | None = None

    def start(self) -> int | None:
        """The first column, once both CTAs have come and enough columns are free."""
        if self._start is None and self.complete:
            self._start = find_free(self.ctas, self.columns)
        return self._start


class AllocationWait:
    """A warp blocked in tcgen05.alloc until columns are free; `pair` for cta_group::2, None for cta_group::1."""

    def __init__(
        self, place: Place, cta: CTA, columns: int, dst: int, pair: PairAllocation | None
    ) -> None:
        self.place, self.cta, self.columns, self.dst, self.pair = place, cta, columns, dst, pair

    def start(self) -> int | None:
        """The first of the columns, if there are enough."""
        return find_free([self.cta], self.columns) if self.pair is None else self.pair.start()

    def ready(self) -> bool:
        """A large enough range is free."""
        return self.start() is not None

    def finish(self, group: Group) -> None:
        """Take the columns, and write their address as a weak store of the warp."""
        _touch(self.cta, "alloc", "change")
        tmem, start = self.cta.tmem, self.start()
        assert start is not None
        tmem.allocations[start] = (self.columns, self.place)
        tmem.writes[:, start : start + self.columns] = 0
        tmem.reads[..., start : start + self.columns] = 0
        tmem.ever_allocated[start : start + self.columns] = True
        tmem.pair_frees.clear()
        store(group, self.place, self.dst, WORD, start)

    def by_several(self) -> bool:
        """Whether several warps of the CTA have executed the allocation."""
        executed = self.cta.tmem.executed_by.items()
        return any(len(warps) > 1 for (_, order), warps in executed if order == self.place.order)

    def describe(self) -> str:
        """How many columns are wanted and what holds them."""
        held = ", ".join(f"{n} from column {a}" for a, (n, _) in self.cta.tmem.allocations.items())
        if self.pair is not None and not self.pair.complete:
            return f"tcgen05.alloc of {self.columns} columns: the other CTA of the pair has not reached its own"
        return f"tcgen05.alloc of {self.columns} columns; allocated are {held or 'none'}"


def _touch(cta: CTA, key: str, how: str) -> None:
    """The step that runs uses the allocations of a CTA ("alloc"), or what it may still ask for ("permit"); see
    `dependence.py`."""
    cta.cluster.touch((key, cta.rank), how)


def _bad_allocation(
    g: Group, place: Place, why: str, fix: str, code: str = "tmem-bad-allocation"
) -> None:
    g.cta.report(
        Finding(code, why, place=place, memory="tmem", what=f"{place.mnemonic} by {g}", fix=fix)
    )


@instruction("tcgen05.alloc", waits=True, uniform=("dst", "n_columns"), owns=True)
def tcgen05_alloc(
    g: Group, place: Place, dst: int, n_columns: int, cta_group: int
) -> AllocationWait | Parted | None:
    """tcgen05.alloc.cta_group.sync.aligned.shared::cta.b32 [dst], nCols: blocks until nCols TMEM columns are free.

    nCols is a power of two from 32 to 512, not more than the CTA's allocation before; executed by one whole warp, with
    cta_group::2 by one of each CTA of the pair, which must make sure that the other CTA has been launched. The address is
    written to shared memory at `dst`. After an illegal request the simulator goes on with a legal one. Several warps
    allocate one after the other, each for itself: those for whom nothing is left wait.
    """
    if g.warps > 1:
        g.cta.counts[place.order] -= g.warps
        return split(g, g.lanes >> 5, g.pc, EXIT)
    g.cta.cluster.use_cta_group(place, cta_group)
    tmem = g.cta.tmem
    if not 32 <= n_columns <= COLUMNS or n_columns & (n_columns - 1):
        _bad_allocation(
            g,
            place,
            f"{n_columns} columns; a power of two from 32 to 512 is legal",
            "ask for 32, 64, 128, 256 or 512",
        )
        n_columns = min(COLUMNS, max(32, 1 << (n_columns - 1).bit_length()))
    if n_columns > tmem.last_request:
        _bad_allocation(
            g,
            place,
            f"{n_columns} columns after {tmem.last_request}: requests may not grow",
            "allocate the largest first",
        )
    if tmem.relinquished:
        _bad_allocation(
            g,
            place,
            "it comes after tcgen05.relinquish_alloc_permit",
            "allocate before relinquishing",
        )
    by_one_warp(g, place)
    tmem.last_request = n_columns
    _touch(g.cta, "permit", "change")
    for cta in [g.cta] if cta_group == 1 else g.cta.cluster.pair(g.cta):
        _touch(cta, "alloc", "look")
    pair = None if cta_group == 1 else _join_pair(g, place, n_columns)
    wait = AllocationWait(place, g.cta, n_columns, dst, pair)
    return begun(g, wait)


def _join_pair(g: Group, place: Place, columns: int) -> PairAllocation:
    """The allocation of the CTA pair: opened by the first of its two CTAs, completed by the second."""
    ctas = g.cta.cluster.pair(g.cta)
    _peer_is_launched(g, place)
    waiting = g.cta.cluster.pair_allocations
    pair = waiting.pop(ctas[0].rank, None)
    if pair is None:
        pair = waiting[ctas[0].rank] = PairAllocation(ctas, place, columns)
        return pair
    if pair.columns != columns:
        sizes = sorted((pair.columns, columns))
        g.cta.report(
            Finding(
                "tmem-bad-allocation",
                f"one CTA of the pair asks for {sizes[0]} columns, the other for {sizes[1]}",
                place=max(pair.place, place, key=lambda p: p.order),
                other=min(pair.place, place, key=lambda p: p.order),
                memory="tmem",
                what=f"{place.mnemonic} of {ctas[0]} and {ctas[1]}",
                fix="ask for the same number in both CTAs",
            )
        )
    pair.complete = True
    return pair


def _peer_is_launched(g: Group, place: Place) -> None:
    """Report a warp that does not know whether the other CTA of the pair has been launched."""
    peer = _peer(g.cta)
    threads = slice(peer.first_component, peer.first_component + peer.threads)
    if g.cta.detector is not None and not is_launched(g.knowledge, threads):
        g.cta.report(
            Finding(
                "peer-not-launched",
                f"with cta_group::2 the warp must make sure that {peer} has been launched, and nothing tells it so",
                place=place,
                memory="tmem",
                what=f"{place.mnemonic} by {g}",
                fix="let both CTAs pass a cluster barrier before it (barrier.cluster.arrive, barrier.cluster.wait)",
            )
        )


def _peer(cta: CTA) -> CTA:
    """The other CTA of the pair."""
    (peer,) = (other for other in cta.cluster.pair(cta) if other is not cta)
    return peer


class PairWait:
    """A warp in a collective of the CTA pair that may block until the other CTA executes it too.

    It does here, unless that CTA has exited, but orders nothing: a kernel must do without either.
    """

    def __init__(self, place: Place, cta: CTA, peer: CTA) -> None:
        self.place, self.peer = place, peer
        self.number = len(cta.tmem.executed[place.mnemonic])

    def ready(self) -> bool:
        """The other CTA has executed it as often."""
        done = len(self.peer.tmem.executed.get(self.place.mnemonic, ()))
        return done >= self.number or self.peer.live_threads == 0

    def finish(self, group: Group) -> None:
        """Nothing is learned."""

    def describe(self) -> str:
        """Who has not come."""
        return (
            f"{self.place.mnemonic}.cta_group::2, which may block until {self.peer} executes it too"
        )


def _of_the_pair(g: Group, place: Place, cta_group: int) -> PairWait | None:
    """The wait for the other CTA in a collective of the pair."""
    if cta_group == 1:
        return None
    g.cta.tmem.executed.setdefault(place.mnemonic, []).extend([place] * g.warps)
    wait = PairWait(place, g.cta, _peer(g.cta))
    return begun(g, wait)


@instruction("tcgen05.dealloc", waits=True, uniform=("taddr", "n_columns"), owns=True)
def tcgen05_dealloc(
    g: Group, place: Place, taddr: int, n_columns: int, cta_group: int
) -> PairWait | None:
    """tcgen05.dealloc.cta_group.sync.aligned.b32 taddr, nCols: free a live allocation, whole; by one whole warp.

    With cta_group::2 by one warp of each CTA of the pair, when neither CTA accesses the TMEM of the pair any more; the
    first may block until the second comes.
    """
    g.cta.cluster.use_cta_group(place, cta_group)
    tmem, column = g.cta.tmem, split_address(taddr)[1]
    _touch(g.cta, "alloc", "change")
    if not g.whole_warps():
        one_warp(g, place)
    for _ in range(g.warps):  # every warp that executes it frees
        held = tmem.allocations.get(column)
        if held is None:
            why = (
                f"no allocation starts at column {column}: it has been freed before, or never made"
            )
            _bad_allocation(
                g,
                place,
                why,
                "let one warp of the CTA free each allocation once",
                "tmem-double-free",
            )
            continue
        if held[0] != n_columns:
            why = f"{n_columns} columns of an allocation of {held[0]} (line {held[1].line})"
            _bad_allocation(g, place, why, f"free all {held[0]} columns")
        if g.cta.detector is not None:
            columns = slice(column, column + held[0])
            g.cta.detector.tmem_free(g, place, tmem, columns)
            if cta_group == 2:
                g.cta.detector.tmem_free_in_peer(g, place, _peer(g.cta).tmem, columns)
        del tmem.allocations[column]
    return _of_the_pair(g, place, cta_group)


@instruction("tcgen05.relinquish_alloc_permit", waits=True, synchronises=True, owns=True)
def tcgen05_relinquish_alloc_permit(g: Group, place: Place, cta_group: int) -> PairWait | None:
    """tcgen05.relinquish_alloc_permit.cta_group.sync.aligned: this CTA allocates no more.

    With cta_group::2 by one warp of each CTA of the pair; the first may block until the second comes.
    """
    g.cta.cluster.use_cta_group(place, cta_group)
    by_one_warp(g, place)
    g.cta.tmem.relinquished = True
    _touch(g.cta, "permit", "change")
    return _of_the_pair(g, place, cta_group)
