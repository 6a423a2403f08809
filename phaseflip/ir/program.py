"""Program: the executable form of a lowered kernel, as basic blocks of generated Python, each for all lanes at once.

A block is a function of a `Group` that returns the number of the next block, a Wait, or a signal. Blocks end where lanes
may part (a branch), where threads may have to wait, and where an instruction needs one value for all lanes. Everything
between is straight Python, inner loops included, because a NumPy operation costs the same for one lane as for 128.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from .instruction import with_trait
from .place import Place

EXIT = -1
"""The successor of a block after which the thread has returned."""

SHARED_START = 1024
"""Byte offset of a kernel's shared memory in the CTA's window: the first KiB is the system's, as on sm_90 and later."""


class View(NamedTuple):
    """A view of shared memory: its first byte in the CTA's window, as far as addresses tell, name and size."""

    first: int
    name: str
    nbytes: int


@dataclass(frozen=True)
class Flow:
    """What a block does to registers: slots that its instructions and its exit depend on, and (slot, slots that it is
    computed from) of all that it assigns."""

    effects: set[int]
    definitions: list[tuple[int, set[int]]]
    successors: list[int]


@dataclass(eq=False)
class Program:
    """Executable form of one device function; holds no state of any run.

    `blocks[i](group)` runs block i; `live_in[i]` are the register slots that it or a later block reads first,
    `mutable_live_in[i]` those of them that are assigned more than once; `instructions` the Place of every instruction, which
    a run counts by position; `shared_views` the views of shared memory, by first byte; `local_names` (byte offset, name) of
    the local arrays in a thread's frame; `flows` the flow of every block; `loops` the loops around every block, outermost
    first, by the register slots that count their iterations, and `loop_places` where those stand; `barriers` the
    name of the mbarrier, or array of them, that an instruction takes, by its position in `instructions`.
    """

    name: str
    blocks: list[Callable[[Any], Any]]
    source: str
    n_slots: int
    live_in: list[list[int]]
    mutable_live_in: list[list[int]]
    axis_slots: dict[str, int]
    param_slots: list[int]
    frame_bytes: int
    static_shared_bytes: int
    instructions: list[Place]
    extents: dict[str, int]
    shared_views: list[View] = field(default_factory=list)
    barriers: dict[int, str] = field(default_factory=dict)
    local_names: list[tuple[int, str]] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    loops: list[tuple[int, ...]] = field(default_factory=list)
    loop_places: dict[int, Place] = field(default_factory=dict)

    def shared_view(self, offset: int) -> View:
        """The view that a byte offset of the CTA's shared window belongs to, as far as addresses tell.

        Of several that hold the byte, the last to begin; where none does, the last that begins before it.
        """
        at = bisect.bisect_right(self.shared_views, offset, key=lambda view: view.first) - 1
        if at < 0:
            return View(offset, f"shared memory at byte {offset}", 0)
        before = self.shared_views[at::-1]
        return next((v for v in before if offset < v.first + v.nbytes), before[0])

    def shared_name(self, offset: int) -> str:
        """The buffer at a byte offset of the CTA's shared window."""
        return self.shared_view(offset).name

    def overlapping(self, first: int, last: int) -> list[str]:
        """The arrays of shared memory, if they are several, that have all of these bytes of the CTA's window.

        As far as addresses tell: an array whose first element none of them mentions is taken to begin later. Views of one
        extent are two names of one array.
        """
        found = {
            (view.first, view.nbytes): view.name
            for view in self.shared_views
            if view.first <= first and last < view.first + view.nbytes and view.name[0] != "("
        }
        return list(found.values()) if len(found) > 1 else []

    def local_name(self, offset: int) -> str:
        """The local array at a byte offset of the frame."""
        at = bisect.bisect_right(self.local_names, (offset, chr(0x10FFFF))) - 1
        return self.local_names[at][1]

    @cached_property
    def barrier_arrays(self) -> dict[int, View]:
        """As `barriers`, but the array itself, where its size is known."""
        arrays = {view.name: view for view in self.shared_views if view.nbytes}
        return {at: arrays[name] for at, name in self.barriers.items() if name in arrays}

    def init_of(self, barrier: str) -> Place | None:
        """The first mbarrier.init of a barrier, or of the array that holds it ("full" for "full[1]")."""
        return next(iter(self._on(barrier, {"mbarrier.init"})), None)

    def arrivals_on(self, barrier: str) -> list[Place]:
        """The instructions that arrive on a barrier, or on one of the array that holds it."""
        return self._on(barrier, with_trait(lambda traits: traits.arrives))

    def _on(self, barrier: str, mnemonics: set[str]) -> list[Place]:
        array = barrier.partition("[")[0]
        places = [self.instructions[at] for at, name in self.barriers.items() if name == array]
        return [place for place in places if place.mnemonic in mnemonics]
