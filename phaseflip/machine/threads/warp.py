"""Converged groups of threads: lanes, registers, divergence and reconvergence, and the warp-level instructions.

A `Group` is a set of threads of one CTA that execute the same instruction together. It is as wide as the schedule
allows: a whole CTA, or single warps. A branch whose condition differs among the lanes splits the group; the parts meet
again at a `Join`, the immediate post-dominator of the branch. Lanes of one warp always wait for each other there; whole
warps wait only while somebody else can run, so that roles of different warps never hold each other up.

Source: PTX ISA 9.1, shfl.sync, elect.sync, bar.warp.sync.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...ordering.knowledge import Knowledge, Part, restrict, united

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..cta import CTA

WARP = 32
Lanes = np.ndarray
Array = np.ndarray


class Wait(Protocol):
    """What a blocked group waits for."""

    def ready(self) -> bool:
        """Whether the group may go on."""

    def finish(self, group: Group) -> None:
        """Called once when the group goes on: acquire what was waited for."""

    def describe(self) -> str:
        """One line: what is waited for, and what it still lacks."""


def begun(g: Group, wait: Any) -> Any:
    """What an instruction that waits returns: None if the wait is over, which then has been finished, else the wait.

    Where the schedule cuts runs into steps, a wait that is over ends the step too.
    """
    if g.cta.cluster.recorder is not None or not wait.ready():
        return wait
    wait.finish(g)
    return None


class Group:
    """Threads of one CTA that execute together.

    `lanes` are thread indices in the CTA, ascending; `sel` is the same as a slice where they are contiguous; `r` the
    register slots of the program (an int where all lanes agree, else an array over the lanes); `pc` the next block;
    `knowledge` what the threads have observed (empty without race checks).
    """

    __slots__ = (
        "cta",
        "lanes",
        "sel",
        "n",
        "warps",
        "r",
        "pc",
        "joins",
        "wait",
        "wait_site",
        "knowledge",
        "common",
        "_tiled",
        "_whole_and_loose",
    )

    def __init__(
        self, cta: CTA, lanes: Lanes, r: list[Any], pc: int, joins: tuple[Join, ...] = ()
    ) -> None:
        self.cta = cta
        self.lanes = lanes
        n = self.n = len(lanes)
        first, last = int(lanes[0]), int(lanes[-1])
        contiguous = last - first + 1 == n
        self.sel: slice | Lanes = slice(first, last + 1) if contiguous else lanes
        self.warps = (last >> 5) - (first >> 5) + 1 if contiguous else len(np.unique(lanes >> 5))
        self.r = r
        self.pc = pc
        self.joins = joins
        self.wait: Wait | None = None
        self.wait_site: Place | None = None
        self.knowledge: Knowledge = ()
        self.common: tuple[Knowledge, dict[int | None, Part]] | None = None
        """Knowledge, and what all threads of a warp, or (None) of the group, know; kept until the knowledge changes."""
        self._tiled: tuple[int, Lanes] = (1, lanes)
        self._whole_and_loose: tuple[list[int], list[int]] | None = None

    def subset(self, keep: Array, pc: int, joins: tuple[Join, ...]) -> Group:
        """The group of the lanes where the boolean array `keep` is true."""
        lanes = self.lanes[keep]
        part = Group(self.cta, lanes, _registers(self, keep, len(lanes), pc), pc, joins)
        if self.knowledge:
            part.knowledge = restrict(self.knowledge, lanes)
        return part

    def view(self, keep: Array) -> Group:
        """The lanes where `keep` is true, for bookkeeping only: it has no registers."""
        part = Group(self.cta, self.lanes[keep], [], self.pc)
        part.knowledge = restrict(self.knowledge, part.lanes)
        return part

    def tiled(self, times: int) -> Lanes:
        """The lanes, repeated."""
        if self._tiled[0] != times:
            self._tiled = (times, np.tile(self.lanes, times))
        return self._tiled[1]

    def per_lane(self, value: Any) -> list[Any]:
        """An operand's value for each lane, as Python scalars."""
        return value.tolist() if value.__class__ is np.ndarray else [value] * self.n

    def position(self, place: Place) -> tuple[tuple[int, ...], int]:
        """Where an instruction stands in this group's execution: iterations of the enclosing loops, program order."""
        iterations = []
        for slot in place.loops:
            value = self.r[slot]
            if value.__class__ is not int:
                value = 0 if value is None else int(np.max(value))
            iterations.append(value)
        return tuple(iterations), place.order

    def agents(self, lanes: Any) -> Agents:
        """Words for some of the lanes, put together when asked for."""
        return Agents(self.cta, lanes)

    def warp_ids(self) -> list[int]:
        """Indices of the warps that have a lane here, ascending."""
        if self.sel.__class__ is slice:
            return list(range(int(self.lanes[0]) >> 5, (int(self.lanes[-1]) >> 5) + 1))
        return np.unique(self.lanes >> 5).tolist()

    def warp_list(self) -> Iterable[int]:
        """As `warp_ids`, in any form."""
        if self.sel.__class__ is slice:
            return range(int(self.lanes[0]) >> 5, (int(self.lanes[-1]) >> 5) + 1)
        return self.warp_ids()

    def whole_and_loose(self) -> tuple[list[int], list[int]]:
        """The warps whose lanes are all here, and the lanes of the others."""
        if self._whole_and_loose is None:
            self._whole_and_loose = self._split_by_wholeness()
        return self._whole_and_loose

    def _split_by_wholeness(self) -> tuple[list[int], list[int]]:
        first, last = int(self.lanes[0]), int(self.lanes[-1])
        if self.sel.__class__ is slice and not first % WARP and not (last + 1) % WARP:
            return list(self.warp_list()), []
        if self.n == 1:
            return [], [first]
        loose = self.in_partial_warps().tolist()
        partial = {lane >> 5 for lane in loose}
        return [w for w in self.warp_ids() if w not in partial], loose

    def whole_warps(self) -> bool:
        """Whether every warp that has a lane here has all of its lanes here (collective operations need that)."""
        threads = self.cta.threads
        return self.n == sum(min(WARP, threads - WARP * w) for w in self.warp_ids())

    def in_partial_warps(self) -> Lanes:
        """The lanes whose warps are not whole here."""
        warps, inverse, count = np.unique(self.lanes >> 5, return_inverse=True, return_counts=True)
        size = np.minimum(WARP, self.cta.threads - WARP * warps)
        return self.lanes[(count < size)[inverse]]

    def __str__(self) -> str:
        return str(self.agents(self.lanes))


class Agents:
    """Names threads of a CTA: "CTA 0 warp 2 lane 5". Made for every access, so the text waits until it is wanted."""

    __slots__ = ("cta", "lanes")

    def __init__(self, cta: CTA, lanes: Any) -> None:
        self.cta, self.lanes = cta, lanes

    def __str__(self) -> str:
        return f"CTA {self.cta.rank_in_grid} " + describe_lanes(
            np.atleast_1d(self.lanes), self.cta.threads
        )


def _registers(g: Group, keep: Array, n: int, pc: int) -> list[Any]:
    """The registers of a part of a group, as far as block `pc` and those after it read them."""
    r: list[Any] = [None] * len(g.r)
    for slot in g.cta.program.live_in[pc]:
        r[slot] = _subset(g.r[slot], keep, n)
    return r


def _subset(value: Any, keep: Array, n: int) -> Any:
    if value.__class__ is not np.ndarray:
        return value
    part = value[keep]
    return part[0].item() if n == 1 and part.dtype.kind in "iub" else part


def describe_lanes(lanes: Lanes, threads: int) -> str:
    """Plain words for a set of threads: "warps 0-3", "warp 0 lane 5", "96 threads of warps 1-3"."""
    warps = np.unique(lanes >> 5)
    names = f"warp {warps[0]}" if len(warps) == 1 else f"warps {_ranges(warps)}"
    full = sum(min(WARP, threads - WARP * int(w)) for w in warps)
    if len(lanes) == full:
        return names
    if len(warps) == 1:
        inside = lanes & 31
        return f"{names} lane{'s' if len(lanes) > 1 else ''} {_ranges(inside)}"
    return f"{len(lanes)} threads of {names}"


def _ranges(values: Array) -> str:
    parts, start = [], int(values[0])
    previous = start
    for v in [int(x) for x in values[1:]] + [None]:
        if v != previous + 1:
            parts.append(str(start) if start == previous else f"{start}-{previous}")
            start = v  # type: ignore[assignment]
        previous = v  # type: ignore[assignment]
    return ", ".join(parts)


class Join:
    """Where the parts of a split group meet again: block `pc`, with the registers that the whole group had."""

    __slots__ = ("pc", "parent", "arrived", "outstanding")

    def __init__(self, parent: Group, pc: int) -> None:
        self.pc = pc
        self.parent = parent
        self.arrived: list[Group] = []
        self.outstanding = parent.n

    def arrive(self, group: Group) -> Group | None:
        """The group reached the join. Returns the whole group once nobody is missing, else None."""
        self.arrived.append(group)
        self.outstanding -= group.n
        if self.outstanding:
            return None
        arrived, self.arrived = self.arrived, []
        return self._merge(arrived)

    def release(self) -> Group | None:
        """Let the warps go on that are complete here although others are missing; None if there is none."""
        if not self.arrived:
            return None
        parent_lanes, parent_count = np.unique(self.parent.lanes >> 5, return_counts=True)
        expected = dict(zip(parent_lanes.tolist(), parent_count.tolist(), strict=True))
        here, count = np.unique(
            np.concatenate([g.lanes for g in self.arrived]) >> 5, return_counts=True
        )
        complete = {
            w for w, c in zip(here.tolist(), count.tolist(), strict=True) if expected[w] == c
        }
        free: list[Group] = []
        staying: list[Group] = []
        for g in self.arrived:
            goes = np.isin(g.lanes >> 5, list(complete))
            for part, keep in ((free, goes), (staying, ~goes)):
                if keep.all():
                    part.append(g)
                elif keep.any():
                    part.append(g.subset(keep, g.pc, g.joins))
        if not free:
            return None
        self.arrived = staying
        return self._merge(free)

    def _merge(self, groups: list[Group]) -> Group:
        """One group of all lanes of `groups`: registers as before the split, but for those that were assigned since."""
        parent = self.parent
        lanes = np.sort(np.concatenate([g.lanes for g in groups]))
        if len(lanes) == parent.n:
            r = list(parent.r)
        else:
            keep = np.isin(parent.lanes, lanes)
            r = _registers(parent, keep, len(lanes), self.pc)
        for slot in parent.cta.program.mutable_live_in[self.pc]:
            r[slot] = _combine(lanes, groups, slot)
        whole = Group(parent.cta, lanes, r, self.pc, parent.joins)
        if parent.knowledge:
            whole.knowledge = united(g.knowledge for g in groups)
        return whole


def _combine(lanes: Lanes, groups: list[Group], slot: int) -> Any:
    first = groups[0].r[slot]
    if all(g.r[slot] is first or _same_scalar(g.r[slot], first) for g in groups[1:]):
        if len(groups) == 1 or first.__class__ is not np.ndarray:
            return first
    values = [g.r[slot] for g in groups if g.r[slot] is not None]
    if not values:
        return None
    out = np.zeros(len(lanes), _common_dtype(values))
    for g in groups:
        if g.r[slot] is not None:
            out[np.searchsorted(lanes, g.lanes)] = g.r[slot]
    return out


def _common_dtype(values: list[Any]) -> np.dtype:
    """The dtype of an array of such values: uint64 for unsigned 64-bit ones, which may be Python ints here."""
    dtypes = [v.dtype for v in values if hasattr(v, "dtype")]
    if np.dtype(np.uint64) in dtypes or any(v.__class__ is int and v >= 1 << 63 for v in values):
        return np.dtype(np.uint64)
    return dtypes[0] if dtypes else np.asarray(values[0]).dtype


def _same_scalar(a: Any, b: Any) -> bool:
    if a.__class__ is np.ndarray or b.__class__ is np.ndarray:
        return False
    return bool(a == b) and (a != 0 or np.signbit(a) == np.signbit(b))


def same(value: Any) -> Any:
    """The Python scalar that all elements of an array equal, or the array itself when they differ."""
    first = value[0]
    if not (value == first).all() or (first == 0 and value.dtype.kind == "f"):
        return value
    return first.item() if value.dtype.kind in "iub" else first
