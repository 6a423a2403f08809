"""Findings about mbarriers in words.

Source: PTX ISA 9.1, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..finding import CLUSTER_BARRIER, Finding, Place
from ..vector_clock import PAST, Clock

if TYPE_CHECKING:
    from .mbarrier import Mbarrier


@dataclass(frozen=True)
class Repeated:
    """A wait for a phase that its threads had consumed: components and epochs of the threads."""

    place: Place
    who: str
    phase: int
    threads: np.ndarray
    epochs: np.ndarray

    def ordered_before(self, clock: Clock | None) -> bool:
        """Whether the wait is certain to have happened before whatever holds the clock."""
        return clock is not None and clock.covers(PAST, self.threads, self.epochs)


def over_arrival(
    barrier: Mbarrier, together: list[Place], who: str, count: int, early: bool
) -> Finding:
    """One arrival too many among those at the places `together`; `early`: not ordered after the end of a phase."""
    phase = barrier.phase
    lacks = f"its phase {phase} expects {barrier.expected} arrivals and lacks {barrier.pending}"
    unaware = (
        f"it is counted in phase {phase}, but nothing orders it after the end of phase {phase - 1}"
    )
    return Finding(
        "over-arrival",
        unaware if early else lacks,
        place=max(together, key=lambda p: p.order),
        other=min(together, key=lambda p: p.order),
        what=f"{who}: {count} arrival{'s' if count > 1 else ''} on {barrier.name}",
        fix="make the count of mbarrier.init the number of arrivals of a phase, or let fewer threads arrive",
    )


def lapped_wait(barrier: Mbarrier, place: Place, who: str, phase: int) -> Finding:
    """A waiter for `phase` (-1: the one before the first) may find that the next one has completed too."""
    name = f"phase {phase}" if phase >= 0 else "the phase before the first"
    return Finding(
        "lapped-wait",
        f"nothing makes phase {phase + 1} wait for this wait; once it has completed, parity {phase & 1} means "
        f"phase {phase + 2}",
        place=place,
        what=f"{who} waits on {barrier.name} for {name}",
        fix="let the arrivals of each phase wait for this thread (an empty barrier, a CTA barrier in the loop, or"
        " T.cuda.warp_sync before one lane arrives for its warp)",
    )


def stale_wait(barrier: Mbarrier, place: Place, who: str, phase: int) -> Finding:
    """A wait for a consumed phase, while the next one is under way."""
    return Finding(
        "stale-wait",
        f"this thread has waited for phase {phase} already, so the wait can pass before phase {phase + 1} ends",
        place=place,
        what=f"{who} waits on {barrier.name} for the parity of phase {phase} again",
        fix="flip the phase after each wait (phase ^= 1)",
    )


def not_initialised(
    place: Place, who: str, name: str, init: Place | None, of_peer: bool
) -> Finding:
    """A use without an init before it; `init` is the first of the program, of_peer: by another CTA than the barrier's."""
    known = (
        "there is none"
        if init is None
        else f"nothing orders the one at line {init.line} before this use"
    )
    meet = CLUSTER_BARRIER if of_peer else "T.cuda.cta_sync()"
    return Finding(
        "barrier-not-initialised",
        f"no mbarrier.init of this barrier happens before: {known}",
        place=place,
        what=f"{who} uses {name}",
        fix=f"one thread: T.ptx.mbarrier.init, then {meet} before anyone uses the barrier",
    )


def init_not_fenced(place: Place, init: Place, name: str) -> Finding:
    """An asynchronous operation uses a barrier whose init is ordered before, but not fenced."""
    return Finding(
        "missing-proxy-fence",
        "no fence.mbarrier_init or fence.proxy.async follows the init; a note, since editions of the PTX ISA that say "
        "how such an operation reaches its mbarrier name the generic proxy, which needs no fence",
        place=place,
        other=init,
        memory="shared",
        kind="raw",
        what=f"{place.mnemonic} uses {name}, which line {init.line} initialises",
        fix="T.ptx.fence.mbarrier_init() after the inits, by the thread that makes them, before the barrier that follows",
    )


def reinitialised(name: str, place: Place, other: Place) -> Finding:
    """Two inits of one barrier: the later of the program is named, against the earlier."""
    first, second = sorted([place, other], key=lambda p: p.order)
    again = "more than once there" if first == second else f"at line {first.line} too"
    return Finding(
        "barrier-reinitialised",
        f"it is initialised {again}, and no mbarrier.inval came between",
        place=second,
        other=first,
        what=f"mbarrier.init of {name}, which is live",
        fix="let one thread initialise each barrier, once",
    )


def tx_count_mismatch(barrier: Mbarrier, place: Place, phase: int) -> Finding:
    """More bytes have come than the phase was told to expect.

    Named at the arrival of the phase that registers bytes (any arrival, if none does; `place`, a copy, if there is none
    at all), the last in the program: which copy is the one too many depends on what lands first.
    """
    arrivals = [p for p, _ in barrier.arrivals.get(phase, ())]
    registering = [p for p in arrivals if "expect_tx" in p.mnemonic]
    return Finding(
        "tx-count-mismatch",
        f"more bytes arrive for phase {phase} than it was told to expect",
        place=max(registering or arrivals or [place], key=lambda p: p.order),
        what=barrier.name,
        fix="expect exactly the bytes of all copies of the phase, every box counted in full",
    )
