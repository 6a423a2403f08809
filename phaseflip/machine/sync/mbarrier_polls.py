"""Waits for an mbarrier that give a value: one look whether a phase has completed, true or false.

True acquires, as a wait that blocks does; false orders nothing. The first look at a phase gives false, unless what the
threads know tells that the phase is over: hardware may be that slow, and a kernel that takes true for granted is then seen
to, under every schedule. A later look holds its threads until the phase is over, or, so that loops that count their looks
come to an end, until nothing else can happen; a random schedule also lets it end in vain. A result that the kernel drops
orders nothing.

Source: PTX ISA 9.1, 9.7.13.15.16 mbarrier.test_wait, mbarrier.try_wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.instruction import instruction
from ..threads.divergence import Parted
from .mbarrier import barrier_at
from .mbarrier_instructions import (
    intended_phase,
    known_phase,
    mbarrier_arrive,
    own_barrier,
    phase_waits,
)
from .mbarrier_wait import LanesWait, MbarrierWait, Parts, consume

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..threads.warp import Group


class Poll(LanesWait):
    """A look at a phase whose threads wait: until it is over, or in vain. The value goes to register slot `slot`."""

    def __init__(self, parts: Parts, slot: int) -> None:
        super().__init__(parts)
        self.slot = slot

    def finish(self, group: Group) -> None:
        """True for the lanes whose phase is over, which acquire; false for the others."""
        over = [wait is None or wait.ready() for _, wait in self.parts]
        for _, wait in self.parts:
            if wait is not None and not wait.ready():
                wait.barrier.touch("look")  # depends on whatever else is done to the barrier
        done = [
            (part, wait if yes else None)
            for (part, wait), yes in zip(self.parts, over, strict=True)
        ]
        LanesWait(done).finish(group)
        give(group, self.slot, self.parts, over)


def give(g: Group, slot: int, parts: Parts, over: list[bool]) -> None:
    """Write the value of each part of a group to a register slot."""
    if len(set(over)) == 1:
        g.r[slot] = int(over[0])
        return
    value = np.zeros(g.n, np.int64)
    for (part, _), yes in zip(parts, over, strict=True):
        value[np.isin(g.lanes, part.lanes)] = yes
    g.r[slot] = value


def _look(g: Group, parts: Parts | Parted, result: int | None) -> Poll | Parted | None:
    """The first look at a phase that the threads do not know to be over is in vain; the next one waits."""
    if isinstance(parts, Parted):
        return parts
    if result is None:
        return None
    first = False
    for part, wait in parts:
        if wait is not None:
            polled, threads = wait.barrier.polled, part.lanes + part.cta.first_component
            first |= bool((polled[threads] != wait.phase).any())
            polled[threads] = wait.phase
    if first:
        known = [(part, None) for part, wait in parts if wait is None]
        over = [wait is None for _, wait in parts]
        if known and len(parts) > 1:
            LanesWait([(part, None) for part, _ in parts]).finish(g)
        give(g, result, parts, over)
        return None
    poll = Poll(parts, result)
    if not poll.ready():
        return poll
    poll.finish(g)
    return None


@instruction(
    "mbarrier.try_wait.parity.once",
    waits=True,
    uniform=("mbar", "parity"),
    synchronises=True,
    looks=Poll,
)
def mbarrier_try_wait_parity_once(
    g: Group, place: Place, mbar: int, parity: int, scope: str = "cta", ticks: Any = 0, result: int | None = None
) -> Poll | Parted | None:  # fmt: skip
    """mbarrier.try_wait.parity{.acquire.scope}.shared::cta.b64 p, [addr], phaseParity{, suspendTimeHint}: once.

    The operands are those of mbarrier.try_wait.parity; 1 where that phase has completed, 0 where the time ran out before.
    """
    return _look(g, phase_waits(g, place, mbar, parity, scope), result)


@instruction(
    "mbarrier.test_wait.parity",
    waits=True,
    uniform=("mbar", "parity"),
    synchronises=True,
    looks=Poll,
)
def mbarrier_test_wait_parity(
    g: Group, place: Place, mbar: int, parity: int, scope: str = "cta", result: int | None = None
) -> Poll | Parted | None:
    """mbarrier.test_wait.parity{.acquire.scope}.shared::cta.b64 p, [addr], phaseParity: 1 where it has completed, else 0.

    Does not block on hardware; a thread that is held here is one that runs slowly.
    """
    return _look(g, phase_waits(g, place, mbar, parity, scope), result)


@instruction(
    "mbarrier.test_wait", waits=True, uniform=("mbar", "state"), synchronises=True, looks=Poll
)
def mbarrier_test_wait(
    g: Group, place: Place, mbar: int, state: int, scope: str = "cta", result: int | None = None
) -> Poll | Parted | None:
    """mbarrier.test_wait{.acquire.scope}.shared::cta.b64 p, [addr], state: whether the phase of the arrival that gave
    `state` has completed."""
    g.cta.bytes["waits"] += g.warps
    barrier, phase = own_barrier(g, place, mbar), int(state) - 1
    consumed = int(barrier.consumed[g.lanes + g.cta.first_component].min())
    if phase <= known_phase(g, barrier, consumed):
        consume(g, barrier, phase, place, scope)
        return _look(g, [(g, None)], result)
    return _look(g, [(g, MbarrierWait(barrier, phase, place, scope))], result)


@instruction(
    "mbarrier.try_wait", waits=True, uniform=("mbar", "state"), synchronises=True, looks=Poll
)
def mbarrier_try_wait(
    g: Group, place: Place, mbar: int, state: int, scope: str = "cta", result: int | None = None
) -> Poll | Parted | None:
    """mbarrier.try_wait{.acquire.scope}.shared::cta.b64 p, [addr], state: as test_wait, but it may block for a while."""
    return mbarrier_test_wait(g, place, mbar, state, scope, result)


@instruction("mbarrier.arrive.state", uniform=("mbar",), synchronises=True, arrives=True)
def mbarrier_arrive_state(g: Group, place: Place, mbar: int) -> int:
    """mbarrier.arrive{.release.cta}.shared::cta.b64 state, [addr]: arrive once, and give the state before.

    The state is opaque on hardware; here it is 1 and the number of the phase that the arrival belongs to.
    """
    phase = intended_phase(g, barrier_at(g, place, mbar))
    mbarrier_arrive(g, place, mbar)
    return phase + 1
