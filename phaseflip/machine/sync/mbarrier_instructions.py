"""The mbarrier instructions: init, arrive, expect_tx, waiting for a phase.

Source: PTX ISA 9.1, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...errors import KernelFault
from ...ir.instruction import instruction, traits_of
from ...ir.program import EXIT
from ...ordering.happens_before import FreshWait
from ...ordering.knowledge import Clock
from ..memory.load_store import MBARRIER_BYTES
from ..threads.divergence import Parted, split
from ..threads.warp import begun
from . import mbarrier_report as findings
from .cluster_barrier import peer_address
from .mbarrier import MAX_COUNT, NEVER, Init, Mbarrier, barrier_at
from .mbarrier_report import Repeated
from .mbarrier_wait import LanesWait, MbarrierWait, Parts, consume, report_if_lapped

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..threads.warp import Group


@instruction("mbarrier.init", uniform=("mbar", "count"), synchronises=True)
def mbarrier_init(g: Group, place: Place, mbar: int, count: int) -> None:
    """mbarrier.init.shared.b64 [addr], count: a new object in phase 0 that expects `count` (1 to 2^20-1) arrivals."""
    if not 1 <= count <= MAX_COUNT:
        raise KernelFault(
            "resource-limit",
            f"mbarrier.init with count {count}, which must be 1 to {MAX_COUNT}",
            "give mbarrier.init the number of arrivals of a phase",
        )
    owner = g.cta.cluster.owner(mbar)
    if owner is not g.cta:
        raise KernelFault(
            "out-of-bounds",
            f"it initialises a barrier of {owner}; mbarrier.init takes a barrier of the own CTA",
            "let a thread of each CTA initialise the barriers of its own CTA",
        )
    memory = g.cta.shared
    memory.items(mbar - memory.base, MBARRIER_BYTES)
    barriers, detector = g.cta.cluster.mbarriers, g.cta.detector
    barrier = barriers.get(mbar)
    if barrier is None:
        barrier = barriers[mbar] = Mbarrier(g.cta.barrier_name(mbar), g.cta, None)
    first, before = not barrier.initialised, {init.place for init in barrier.inits}
    at = mbar - memory.base
    for other in before | ({place} if g.n > 1 or not (first or before) else set()):
        g.cta.report(
            findings.reinitialised(barrier.name, place, other, _sharing(g, place, other, at))
        )
    if detector is not None:
        if first:
            one = g.view(np.arange(g.n) == 0)
            one.r = g.r
            offset = mbar - memory.base
            detector.thread_access(one, place, memory, offset, MBARRIER_BYTES, True)
        for lane, event in detector.initialises(g, g.lanes.tolist()).items():
            thread = lane + g.cta.first_component
            barrier.inits.append(Init(place, thread, int(detector.epochs[thread]), *event))
        detector.tick(g)
    if first:
        barrier.initialise(place, count)


_ARRIVAL = ("mbar", "cta", "pred")


@instruction("mbarrier.arrive", uniform=(*_ARRIVAL, "count"), synchronises=True, arrives=True)
def mbarrier_arrive(
    g: Group, place: Place, mbar: int, count: int = 1, cta: int | None = None, pred: int = 1, sem: str = "release",
    scope: str = "cta",
) -> None:  # fmt: skip
    """mbarrier.arrive{.sem.scope}{.space}.b64 _, [addr]{, count}: every lane arrives `count` times and releases.

    `cta`: at the corresponding barrier of that CTA of the cluster (mapa); `pred`: only if it is true. A relaxed arrival
    releases only what a fence of its thread has released before.
    """
    _arrive(g, place, mbar, cta, pred, sem, scope, count, 0)


@instruction(
    "mbarrier.arrive.expect_tx",
    uniform=(*_ARRIVAL, "tx_count"),
    synchronises=True,
    arrives=True,
    tells=("cp.async.bulk.tensor.g2s",),
)
def mbarrier_arrive_expect_tx(
    g: Group, place: Place, mbar: int, tx_count: int, cta: int | None = None, pred: int = 1, sem: str = "release",
    scope: str = "cta",
) -> None:  # fmt: skip
    """mbarrier.arrive.expect_tx{.sem.scope}{.space}.b64 _, [addr], txCount: expect txCount more bytes, then arrive.

    The other operands are those of mbarrier.arrive.
    """
    _arrive(g, place, mbar, cta, pred, sem, scope, 1, tx_count)


@instruction(
    "mbarrier.arrive.noComplete", uniform=("mbar", "count", "pred"), synchronises=True, arrives=True
)
def mbarrier_arrive_no_complete(
    g: Group, place: Place, mbar: int, count: int, pred: int = 1
) -> None:
    """mbarrier.arrive.noComplete.release.cta{.space}.b64 _, [addr], count: arrive `count` times, without ending the phase.

    That others are left to end it is not checked.
    """
    _arrive(g, place, mbar, None, pred, "release", "cta", count, 0)


@instruction("mbarrier.complete_tx", uniform=(*_ARRIVAL, "tx_count"), synchronises=True)
def mbarrier_complete_tx(
    g: Group, place: Place, mbar: int, tx_count: int, cta: int | None = None, pred: int = 1
) -> None:
    """mbarrier.complete_tx.relaxed.scope{.space}.b64 [addr], txCount: as if txCount bytes of a copy had come, from each lane.

    Orders nothing. `cta` and `pred` are those of mbarrier.arrive.
    """
    if not pred:
        return
    if cta is not None:
        mbar = peer_address(g, mbar, cta)
    barrier, detector, clock = barrier_at(g, place, mbar), g.cta.detector, None
    if detector is not None:
        if barrier.cta is not g.cta:
            detector.peer_access(g, place, barrier.cta.rank)
        clock = detector.zero.with_past(detector.release(g))
    barrier.complete_tx(place, tx_count * g.n, intended_phase(g, barrier), clock)


@instruction("mbarrier.expect_tx", uniform=("mbar", "tx_count"), synchronises=True)
def mbarrier_expect_tx(g: Group, place: Place, mbar: int, tx_count: int) -> None:
    """mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [addr], txCount: expect txCount more bytes, each lane; no arrival."""
    barrier = barrier_at(g, place, mbar)
    if barrier is not None:
        barrier.touch("expect")
        barrier.expect_tx(tx_count, g.n)


def _arrive(
    g: Group, place: Place, mbar: int, cta: int | None, pred: int, sem: str, scope: str, count: int, tx_count: int
) -> None:  # fmt: skip
    if not pred:
        return
    if cta is not None:
        mbar = peer_address(g, mbar, cta)
    barrier = barrier_at(g, place, mbar)
    detector, remote = g.cta.detector, barrier.cta is not g.cta
    before = g.view(np.ones(g.n, bool)) if detector is not None else g
    clock = issued = None
    if detector is not None:
        to = "cluster" if remote else "cta"
        relaxed = detector.released_by_fences(g, to) if sem == "relaxed" else None
        if relaxed is not None:
            detector.relaxed_arrival(g, place)
        if remote:
            detector.peer_access(g, place, barrier.cta.rank)
        issued = detector.release(g)
        clock = issued if relaxed is None else relaxed.with_past(issued)
        if remote and scope != "cluster":
            clock = clock.out_of_scope()
    barrier.announce(count * g.n, issued)

    def knows(other: Clock) -> bool:
        return detector is None or detector.knows_clock(before, other)

    if tx_count:
        barrier.expect_tx(tx_count, g.n)
    threads = tuple((g.lanes + g.cta.first_component).tolist())
    barrier.arrive(place, str(g), count * g.n, clock, knows, threads, remote=remote)


def intended_phase(g: Group, barrier: Mbarrier) -> int:
    """The phase that an operation issued now is meant for: the one after the last that its issuer knows to be over."""
    detector = g.cta.detector
    if detector is None:
        return barrier.phase
    for phase in range(barrier.phase - 1, -1, -1):
        clock = barrier.ends.get(phase)
        if clock is None or detector.knows_clock(g, clock):
            return phase + 1
    return 0


@instruction(
    "mbarrier.try_wait.parity",
    waits=True,
    uniform=("mbar", "parity"),
    synchronises=True,
    measure="mbarrier waits",
)
def mbarrier_try_wait_parity(
    g: Group, place: Place, mbar: int, parity: int, scope: str = "cta"
) -> MbarrierWait | LanesWait | Parted | None:
    """mbarrier.try_wait.parity{.acquire.scope}.shared::cta.b64 p, [addr], phaseParity, looped until true.

    Waits until that phase of a barrier of the thread's own CTA has completed.
    `parity` names the current phase or the immediately preceding one; a barrier in phase 0 has a complete phase of
    parity 1 before it. Which of the two it is for these threads follows from what they know to have completed, not from
    how far the barrier has come under this schedule: where hardware may pass at once, the simulator does.
    """
    parts = phase_waits(g, place, mbar, parity, scope)
    if isinstance(parts, Parted):
        return parts
    wait = parts[0][1] if len(parts) == 1 else LanesWait(parts)
    return None if wait is None else begun(g, wait)


def own_barrier(g: Group, place: Place, mbar: int) -> Mbarrier:
    """The barrier that threads wait on, which has to be one of their own CTA."""
    owner = g.cta.cluster.owner(mbar)
    if owner is not g.cta:
        raise KernelFault(
            "out-of-bounds",
            f"it waits on a barrier of {owner}; only a barrier of the own CTA can be waited on",
            "wait on a barrier of the own CTA, and let the other CTA arrive on it",
        )
    return barrier_at(g, place, mbar)


def phase_waits(g: Group, place: Place, mbar: int, parity: int, scope: str) -> Parts | Parted:
    """The wait of each part of a group that has consumed the same phases, None where hardware may pass at once.

    Several parts are lanes of one warp; warps that differ are parted, and execute the instruction again.
    """
    g.cta.bytes["waits"] += g.warps
    barrier = own_barrier(g, place, mbar)
    if parity not in (0, 1):
        found = findings.parity_of_neither_phase(barrier, place, str(g), parity)
        g.cta.cluster.findings.add(found, "parity")
    parity &= 1
    consumed = barrier.consumed[g.lanes + g.cta.first_component]
    if (consumed == consumed[0]).all():
        return [(g, _wait(g, place, barrier, parity, scope))]
    if g.warps > 1:
        g.cta.counts[place.order] -= g.warps  # the warps execute it again, each by itself
        g.cta.bytes["waits"] -= g.warps
        return split(g, g.lanes >> 5, g.pc, EXIT)
    parts = [g.view(consumed == phase) for phase in np.unique(consumed)]
    return [(part, _wait(part, place, barrier, parity, scope)) for part in parts]


def _wait(
    g: Group, place: Place, barrier: Mbarrier, parity: int, scope: str
) -> MbarrierWait | None:
    """The wait of threads that have consumed the same phases; None if hardware may pass at once."""
    consumed = int(barrier.consumed[g.lanes[0] + g.cta.first_component])
    known = known_phase(g, barrier, consumed)
    if known + 1 & 1 != parity:
        # Hardware passes at once if no later phase has completed, and these threads know of none.
        barrier.touch("pass")
        if known != consumed:
            report_if_lapped(g, barrier, known, place)
            if known < 0:
                _note_fresh(g, place, barrier)
        else:
            _note_repeated(g, place, barrier, known)
        consume(g, barrier, known, place, scope)
        return None
    return MbarrierWait(barrier, known + 1, place, scope)


def known_phase(g: Group, barrier: Mbarrier, consumed: int) -> int:
    """The last phase that the threads know to have completed: waited for, or told by other synchronisation.

    Without race checks what others told is not known; then a thread that never waited takes the barrier as it is.
    """
    detector = g.cta.detector
    if detector is None:
        return barrier.phase - 1 if consumed == NEVER else consumed
    known = max(consumed, -1)
    while (clock := barrier.completed.get(known + 1)) is not None and detector.knows_clock(
        g, clock
    ):
        known += 1
    return known


def _note_fresh(g: Group, place: Place, barrier: Mbarrier) -> None:
    """A producer's first wait passes at once, and so does a wait for a result with the wrong parity."""
    detector = g.cta.detector
    arrivals = g.cta.program.arrivals_on(barrier.name)
    told = frozenset(name for p in arrivals for name in traits_of(p.mnemonic).tells)
    if detector is not None and told:
        wait = FreshWait(place, barrier.consumed, told)
        threads = (g.lanes + g.cta.first_component).tolist()
        detector.fresh_waits.update(dict.fromkeys(threads, wait))


def _note_repeated(g: Group, place: Place, barrier: Mbarrier, phase: int) -> None:
    """A wait for a consumed phase: stale if the next phase is under way, else perhaps once arrivals for it come."""
    detector = g.cta.detector
    if barrier.started > (phase + 1) * barrier.expected:
        g.cta.report(findings.stale_wait(barrier, place, str(g), phase))
    elif detector is not None:
        threads = g.lanes + g.cta.first_component
        epochs = detector.epochs[threads]
        barrier.repeated.append(Repeated(place, str(g), phase, threads, epochs))
    if detector is not None:
        for lane in g.lanes.tolist():
            detector.stale_waits[lane + g.cta.first_component] = (place, phase, barrier.name)


def _sharing(g: Group, place: Place, other: Place, at: int) -> list[str]:
    """The objects at a byte of shared memory, if they are several: by what two inits call it, or else by their extents."""
    inits = sorted((other, place), key=lambda p: p.order)
    names = [g.cta.program.barriers.get(p.order, "") for p in inits]
    if all(names) and names[0] != names[1]:
        return names
    return g.cta.shared.overlapping(at, at + MBARRIER_BYTES - 1)


@instruction("fence.mbarrier_init", synchronises=True)
def fence_mbarrier_init(g: Group, place: Place) -> None:
    """fence.mbarrier_init.release.cluster: with a relaxed arrival after it, releases the thread's earlier inits only."""
    detector = g.cta.detector
    if detector is None:
        return
    fences = detector.fence_inits(g)
    for barrier in g.cta.cluster.mbarriers.values():
        for init in barrier.inits:
            if init.component in fences:
                barrier.init_fences.setdefault(init.component, fences[init.component])
