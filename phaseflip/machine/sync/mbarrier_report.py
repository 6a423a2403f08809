"""Findings about mbarriers in words.

Source: PTX ISA 9.1, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...findings.finding import CLUSTER_BARRIER, ONLY_THEN, Finding, Place, agree, flip, phase_name
from ...ordering.knowledge import PAST, Clock
from ..memory.load_store import MBARRIER_BYTES

if TYPE_CHECKING:
    from ...ir.program import View
    from ..cta import Cluster
    from .mbarrier import Mbarrier


ALL_BYTES = "expect exactly the bytes of all copies of the phase, every box counted in full"


def to_each_bit(barrier: Mbarrier) -> str:
    """More advice on bytes in a cluster: which copies bring bytes to several CTAs, or how they would."""
    cluster = barrier.cta.cluster
    if len(cluster.ctas) == 1:
        return ""
    lines = cluster.multicasts_on(barrier.name.partition("[")[0])
    if not lines and barrier.tx > 0:
        only = "; to another CTA of the cluster a copy goes only if its cta_mask has that CTA's bit"
        return f"{only} (TVM drops a constant mask of one bit)"
    if not lines:
        return ""
    at = f"line{'s' if len(lines) > 1 else ''} {' and '.join(map(str, lines))}"
    return f"; the copy of {at} comes, with its bytes, to each CTA whose bit its cta_mask has"


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


class Use(NamedTuple):
    """A use of an mbarrier; of_peer: by another CTA than the barrier's."""

    place: Place
    who: str
    of_peer: bool


class Arrival(NamedTuple):
    """An arrival that has been counted; threads: components, none where they are not known."""

    place: Place
    who: str
    threads: tuple[int, ...]


def over_arrival(
    barrier: Mbarrier, together: list[Place], who: str, count: int, early: bool
) -> Finding:
    """One arrival too many among those at the places `together`; `early`: not ordered after the end of a phase."""
    phase = barrier.phase
    lacks = f"its phase {phase} expects {barrier.expected} arrivals and lacks {barrier.pending}"
    unaware = (
        f"it is counted in phase {phase}, but nothing orders it after the end of phase {phase - 1}"
    )
    fix = "make the count of mbarrier.init the number of arrivals of a phase, or let fewer threads arrive"
    if early:
        fix += f"; if this one is meant for phase {phase}, make it wait for the end of phase {phase - 1}"
    return Finding(
        "over-arrival",
        unaware if early else lacks,
        place=max(together, key=lambda p: p.order),
        other=min(together, key=lambda p: p.order),
        what=f"{who}: {count} arrival{'s' if count > 1 else ''} on {barrier.full_name}",
        fix=fix,
    )


def arrived_twice(arrivals: list[Arrival]) -> Arrival | None:
    """The arrival, first in the program, of threads that had all arrived at its place before."""
    arrived: defaultdict[Place, set[int]] = defaultdict(set)
    twice = []
    for arrival in arrivals:
        if arrival.threads and arrived[arrival.place].issuperset(arrival.threads):
            twice.append(arrival)
        arrived[arrival.place].update(arrival.threads)
    return min(twice, key=lambda arrival: arrival.place.order, default=None)


def repeated_arrival(barrier: Mbarrier, arrival: Arrival, phase: int) -> Finding:
    """Threads arrive where they have arrived for `phase`, without knowing that it is over."""
    who = arrival.who
    return Finding(
        "over-arrival",
        f"{agree(who, 'it has', 'they have')} arrived there for phase {phase} before, and nothing in between makes "
        f"{agree(who, 'it', 'them')} wait for the end of that phase",
        place=arrival.place,
        other=arrival.place,
        what=f"{who} {agree(who, 'arrives', 'arrive')} on {barrier.full_name} again",
        fix="a wait in between that shows that the phase is over (for an empty barrier, or for this one): it is missing,"
        " comes too late, or has the wrong parity; only if a phase takes both arrivals, raise the count of mbarrier.init",
        follows=True,
    )


def lapped_wait(barrier: Mbarrier, place: Place, who: str, phase: int) -> Finding:
    """A waiter for `phase` (-1: the one before the first) may find that the next one has completed too."""
    name = f"phase {phase}" if phase >= 0 else "the phase before the first"
    return Finding(
        "lapped-wait",
        f"nothing makes phase {phase + 1} wait for this wait; once it has completed, parity {phase & 1} means "
        f"phase {phase + 2}",
        place=place,
        what=f"{who} {agree(who, 'waits', 'wait')} on {barrier.full_name} for {name}",
        fix="let the arrivals of each phase wait for this thread (an empty barrier, a CTA barrier in the loop, between CTAs"
        " a cluster barrier, or T.cuda.warp_sync before one lane arrives for its warp)",
    )


def stale_wait(barrier: Mbarrier, place: Place, who: str, phase: int) -> Finding:
    """A wait for a consumed phase, while the next one is under way."""
    return Finding(
        "stale-wait",
        f"this thread has waited for {phase_name(phase)} already, so the wait can pass before phase {phase + 1} ends",
        place=place,
        what=f"{who} {agree(who, 'waits', 'wait')} on {barrier.full_name} for the parity of {phase_name(phase)} again",
        fix=flip(barrier.name) + ONLY_THEN,
    )


def report_uninitialised(cluster: Cluster) -> None:
    """Of each mbarrier the uses without an init before them, once its threads have stopped; those never initialised first."""
    barriers = sorted(cluster.mbarriers.items(), key=lambda item: (item[1].initialised, item[0]))
    for _, barrier in barriers:
        for use, count in barrier.unseen_init.items():
            barrier.cta.report(replace(not_initialised(barrier, use), count=count))
        barrier.unseen_init.clear()


def not_initialised(barrier: Mbarrier, use: Use) -> Finding:
    """A use without an init before it."""
    meet = CLUSTER_BARRIER if use.of_peer else "T.cuda.cta_sync()"
    return Finding(
        "barrier-not-initialised",
        f"no mbarrier.init of this barrier happens before: {_its_init(barrier)}",
        place=use.place,
        what=f"{use.who} {agree(use.who, 'uses', 'use')} {barrier.full_name}",
        fix=f"one thread: T.ptx.mbarrier.init, then {meet} before anyone uses the barrier",
    )


def _its_init(barrier: Mbarrier) -> str:
    """What has become of the init of a barrier: executed, or only those of other slots of its array, or not reached."""
    if barrier.initialised:
        return f"nothing orders the one at line {_init(barrier).line} before this use"
    array = barrier.name.partition("[")[0]
    others = [
        _init(other)
        for other in barrier.cta.cluster.mbarriers.values()
        if other.initialised and other.cta is barrier.cta and other.name.startswith(f"{array}[")
    ]
    if others:
        line = min(others, key=lambda place: place.order).line
        return f"this slot has none; line {line} initialises another slot of {array}"
    init = barrier.cta.program.init_of(barrier.name)
    if init is None:
        return "there is none"
    return f"{barrier.cta} has not executed the one at line {init.line}"


def _init(barrier: Mbarrier) -> Place:
    """The executed init of a barrier; of several the first of the program."""
    assert barrier.init_place is not None
    places = [barrier.init_place, *(init.place for init in barrier.inits)]
    return min(places, key=lambda place: place.order)


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


def past_the_end(barrier: Mbarrier, place: Place, who: str, array: View, offset: int) -> Finding:
    """An instruction that names an array of barriers reaches, at a byte offset, a barrier behind it."""
    index = (offset - array.first) // MBARRIER_BYTES
    count = array.nbytes // MBARRIER_BYTES
    return Finding(
        "out-of-bounds",
        f"{array.name} has {count} barrier{'s' if count > 1 else ''}, and what lies there is {barrier.full_name}; a note, "
        "since the address is legal",
        place=place,
        memory="shared",
        what=f"{place.mnemonic} of {who} takes {array.name}[{index}]",
        fix=f"let the index stay below {count}: a ring has as many stages as barriers",
    )


def reinitialised(name: str, place: Place, other: Place, overlapping: list[str]) -> Finding:
    """Two inits of one barrier: the later of the program is named, against the earlier.

    overlapping: the arrays that have its bytes, if they are several.
    """
    first, second = sorted([place, other], key=lambda p: p.order)
    again = "more than once there" if first == second else f"at line {first.line} too"
    return Finding(
        "barrier-reinitialised",
        f"it is initialised {again}, and no mbarrier.inval came between",
        place=second,
        other=first,
        what=f"mbarrier.init of {name}, which is live",
        fix=f"place {' and '.join(overlapping)} apart, which overlap as far as addresses tell"
        if overlapping
        else "let one thread initialise each barrier, once",
    )


def parity_of_neither_phase(barrier: Mbarrier, place: Place, who: str, parity: int) -> Finding:
    """A wait whose parity is not 0 or 1."""
    return Finding(
        "out-of-bounds",
        f"the parity is {parity}, but 0 and 1 are the valid ones; hardware has been seen to take the lowest bit",
        place=place,
        memory="shared",
        what=f"{who} {agree(who, 'waits', 'wait')} on {barrier.full_name}",
        fix="wait for the phase modulo 2",
    )


def tx_count_mismatch(barrier: Mbarrier, place: Place, phase: int) -> Finding:
    """More bytes have come than the phase was told to expect.

    Named at the arrival of the phase that registers bytes (any arrival, if none does; `place`, a copy, if there is none
    at all), the last in the program: which copy is the one too many depends on what lands first.
    """
    arrivals = [arrival.place for arrival in barrier.arrivals.get(phase, ())]
    registering = [p for p in arrivals if "expect_tx" in p.mnemonic]
    return Finding(
        "tx-count-mismatch",
        f"more bytes arrive for phase {phase} than it was told to expect",
        place=max(registering or arrivals or [place], key=lambda p: p.order),
        what=barrier.full_name,
        fix=ALL_BYTES + to_each_bit(barrier),
        follows=phase in barrier.repeats,
    )
