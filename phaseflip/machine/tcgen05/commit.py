"""Completion and ordering of tcgen05 operations and of the async proxy: tcgen05.commit, tcgen05.fence, fence.proxy.async.

Source: PTX ISA 9.1, tcgen05.commit, tcgen05.fence, fence.proxy.async.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ...ir.instruction import instruction
from ...ordering.happens_before import all_done
from ...ordering.knowledge import Clock, holds, join
from ..operation import ThreadOperation
from ..sync.mbarrier import Mbarrier, barrier_at, check_init_fence

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.happens_before import Ticket
    from ..cta import CTA
    from ..threads.warp import Group


class Commit(ThreadOperation):
    """tcgen05.commit in flight: lands after all MMAs that its thread issued before, and arrives on the barriers.

    `signals` are the barriers, each with the ticket of its arrival: to know of one is not to know of the others.
    """

    __slots__ = ("signals", "tracked", "consumed")

    def __init__(
        self, cta: CTA, place: Place, thread: int, signals: list[tuple[Mbarrier, Ticket | None]], tracked: list[Ticket]
    ) -> None:  # fmt: skip
        super().__init__(cta, place, thread)
        self.signals, self.tracked = signals, tracked
        self.consumed = [int(b.consumed[thread + cta.first_component]) for b, _ in signals]

    def land(self) -> None:
        """One arrival on each barrier, which releases the tracked operations: they are done, and what came before them."""
        who = f"tcgen05.commit of {self.issuer}"
        threads = (self.thread + self.cta.first_component,)
        for (barrier, ticket), consumed in zip(self.signals, self.consumed, strict=True):
            clock, knows = self._release(barrier, ticket)
            barrier.arrive(self.place, who, 1, clock, knows, threads, consumed)
        self.done = True

    def _release(
        self, barrier: Mbarrier, ticket: Ticket | None
    ) -> tuple[Clock | None, Callable[[Clock], bool]]:
        """What one arrival releases, and whether its agent knows all that a clock holds."""
        detector = self.cta.detector
        if detector is None or ticket is None:
            return None, lambda other: True
        tracked = all_done(self.tracked, detector.size) if self.tracked else detector.zero
        detector.operation_reaches(barrier.cta, ticket)
        clock = ticket.arrived(tracked, detector.size).with_past(ticket.clock)
        return clock, lambda other: holds(join([tracked, ticket.clock]), other)


@instruction(
    "tcgen05.commit",
    uniform=("mbar", "cta_mask"),
    synchronises=True,
    arrives=True,
    tells=("tcgen05.mma",),
    measure="commits",
)
def tcgen05_commit(g: Group, place: Place, mbar: int, cta_group: int, cta_mask: int | None) -> None:
    """tcgen05.commit.cta_group.mbarrier::arrive::one.shared::cluster{.multicast::cluster}.b64 [mbar]{, ctaMask}.

    One arrival when the thread's earlier MMAs are done; with a mask, at the same offset in each CTA whose bit is set.
    With cta_group::2 the other CTA of the pair must not have exited when it is issued.
    """
    g.cta.cluster.use_cta_group(place, cta_group)
    for cta in g.cta.cluster.pair(g.cta) if cta_group == 2 else ():
        if cta is not g.cta and g.cta.detector is not None:
            g.cta.detector.peer_access(g, place, cta.rank)
    targets = [mbar] if cta_mask is None else g.cta.cluster.multicast(mbar, cta_mask)
    barriers = [barrier_at(g, place, target) for target in targets]
    core, detector = g.cta.tensor_core, g.cta.detector
    core.close_batch()
    operations = []
    for thread in g.lanes.tolist():
        tracked = list(core.tracked.get(thread, {}).values())
        if detector is not None:
            detector.commit(tracked)
            detector.commit_reaches(tracked, {barrier.cta.rank for barrier in barriers})
        signals: list[tuple[Mbarrier, Ticket | None]] = []
        for barrier in barriers:
            check_init_fence(g, place, thread, barrier)
            ticket = None
            if detector is not None:
                # Commits to different barriers may arrive in any order, and so may the signals of one.
                queue = ("commit", g.cta.rank, thread, mbar, cta_mask, barrier.cta.rank)
                ticket = detector.issue(g, thread, queue, place, g.agents(thread), pipelined=True)
            signals.append((barrier, ticket))
        operations.append(Commit(g.cta, place, thread, signals, tracked))
    for i, barrier in enumerate(barriers):
        clocks = [t.clock for t in (op.signals[i][1] for op in operations) if t is not None]
        barrier.announce(g.n, join(clocks) if clocks else None)
    for operation in operations:
        g.cta.cluster.issue(("tcgen05", g.cta.rank, operation.thread), operation)


@instruction("tcgen05.fence::before_thread_sync", synchronises=True)
def tcgen05_fence_before_thread_sync(g: Group, place: Place) -> None:
    """tcgen05.fence::before_thread_sync: orders earlier tcgen05 operations before later synchronisation; no value changes."""
    if g.cta.detector is not None:
        g.cta.detector.fence_before(g)


@instruction("tcgen05.fence::after_thread_sync", synchronises=True)
def tcgen05_fence_after_thread_sync(g: Group, place: Place) -> None:
    """tcgen05.fence::after_thread_sync: orders later tcgen05 operations after earlier synchronisation; no value changes."""
    if g.cta.detector is not None:
        g.cta.detector.fence_after(g)


@instruction("fence.proxy.async", synchronises=True)
def fence_proxy_async(g: Group, place: Place, space: str) -> None:
    """fence.proxy.async{.space}: orders generic-proxy and async-proxy accesses of this thread; no value changes.

    `space` limits it: shared::cta to the shared memory of the thread's own CTA, shared::cluster to that of all CTAs of
    the cluster, global to global memory. A fence against what another CTA's shared memory was read by, or is to be
    overwritten with, is taken to cover it whatever its space.
    """
    if g.cta.detector is not None:
        g.cta.detector.fence_proxy_async(g, space)
