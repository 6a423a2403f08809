"""cp.async: copies of 4, 8 or 16 bytes a thread from global to shared memory, their groups, and mbarriers that track them.

Each copy is an operation of its thread, through the generic proxy: it takes place somewhere between its issue and its
completion, in no order with others. Its thread learns that it is complete from cp.async.wait_group, whoever waits for an
mbarrier from cp.async.mbarrier.arrive; nobody learns it otherwise. What a thread knows of its own copies it passes on as
what else it knows.

Source: PTX ISA 9.1, 9.7.9.25.3 cp.async, cp.async.commit_group, cp.async.wait_group; 9.7.13.15.15 cp.async.mbarrier.arrive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import KernelFault
from ...ir.instruction import instruction
from ...races.copies import copy_access
from ..memory.load_store import RAW, Memory, memory_of
from ..operation import ThreadOperation
from ..sync.mbarrier_instructions import own_barrier

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.copy_order import CopyTicket
    from ...ordering.knowledge import Clock
    from ..cta import CTA
    from ..threads.warp import Group


class ThreadCopies:
    """The copies of one thread: those not yet committed, and its groups that it has not waited for, oldest first.

    `issued` counts all of them; a group is its copies and what `issued` was when it was committed.
    """

    __slots__ = ("issued", "open", "groups", "pending")

    def __init__(self) -> None:
        self.issued = 0
        self.open: list[CopyOperation] = []
        self.groups: list[tuple[int, list[CopyOperation]]] = []
        self.pending: list[CopyOperation] = []
        """Those that no cp.async.mbarrier.arrive has seen complete."""


class CopyOperation(ThreadOperation):
    """The copies that lanes of one warp issue together: item numbers of both memories; -1 where zeros are written."""

    __slots__ = ("ticket", "lanes", "source", "target", "sources", "targets", "nbytes", "then")

    def __init__(
        self, cta: CTA, place: Place, lanes: np.ndarray, ticket: CopyTicket | None, source: Memory | None,
        sources: np.ndarray, targets: np.ndarray, nbytes: int,
    ) -> None:  # fmt: skip
        super().__init__(cta, place, int(lanes[0]))
        self.lanes, self.ticket, self.nbytes = lanes, ticket, nbytes
        self.source, self.target, self.sources, self.targets = source, cta.shared, sources, targets
        self.then: list[Callable[[], None]] = []
        """What waits for it to land."""

    def land(self) -> None:
        """Read, write, and tell who waits."""
        raw, read = RAW[self.nbytes], self.sources >= 0
        values = np.zeros(len(self.lanes), raw)
        if self.source is not None and read.any():
            values[read] = self.source.view(raw)[self.sources[read]]
        detector, ticket = self.cta.detector, self.ticket
        if detector is not None and ticket is not None:
            if self.source is not None and read.any():
                where = self.sources[read] * self.nbytes
                copy_access(detector, ticket.of(read), self.source, where, self.nbytes, False)
            copy_access(
                detector, ticket, self.target, self.targets * self.nbytes, self.nbytes, True
            )
        self.target.view(raw)[self.targets] = values
        self.cta.bytes["global_to_shared"] += self.nbytes * len(self.lanes)
        self.done = True
        for act in self.then:
            act()


@instruction("cp.async", completes="cp.async.wait_group")
def cp_async(
    g: Group, place: Place, dst: Any, src: Any, nbytes: int, pred: Any = 1, fill: Any = 1
) -> None:
    """cp.async.{ca, cg}.shared.global [dst], [src], cp-size{, src-size}: 4, 8 or 16 bytes a lane, aligned to their number.

    `pred`: a lane executes it only where it is 1 (@p); `fill`: src-size is 0 where it is false: zeros are written, and
    nothing is read. `dst` lies in the shared memory of the own CTA.
    """
    runs = np.broadcast_to(np.asarray(pred) == 1, (g.n,))
    reads = np.broadcast_to(np.asarray(fill) != 0, (g.n,))
    to, source = (np.broadcast_to(np.asarray(a), (g.n,)) for a in (dst, src))
    for warp in g.warp_list():
        of_warp = runs & (g.lanes >> 5 == warp)
        tickets = _tickets(g, place, of_warp)
        for mine, ticket in tickets:
            if mine.any():
                _start(g, place, mine, ticket, to[mine], source[mine], reads[mine], nbytes)


def _tickets(
    g: Group, place: Place, lanes: np.ndarray
) -> list[tuple[np.ndarray, CopyTicket | None]]:
    """Which lanes issue together, those that know the same, and their ticket."""
    if g.cta.detector is None:
        return [(lanes, None)]
    found: list[tuple[np.ndarray, CopyTicket | None]] = []
    copies = g.cta.detector.copies
    assert copies is not None
    for part in g.knowledge:
        mine = lanes if len(g.knowledge) == 1 else lanes & np.isin(g.lanes, part.lanes)
        if mine.any():
            found.append((mine, copies.issue(g.cta.detector, g, part, g.lanes[mine], place)))
    return found


def _start(
    g: Group, place: Place, mine: np.ndarray, ticket: CopyTicket | None, to: np.ndarray, source: np.ndarray,
    reads: np.ndarray, nbytes: int,
) -> None:  # fmt: skip
    """Issue the copies of some lanes of a warp."""
    target, offsets = memory_of(g, to)
    if target is not g.cta.shared:
        raise KernelFault(
            "out-of-bounds",
            "the destination of cp.async is the shared memory of the thread's own CTA",
            "pass the address of a shared buffer of the own CTA, and reach another CTA with a bulk copy or st",
        )
    targets = np.atleast_1d(target.items(offsets, nbytes))
    sources, memory = np.full(len(to), -1), None
    if reads.any():
        memory, where = memory_of(g, source[reads])
        if memory.kind != "global":
            raise KernelFault(
                "out-of-bounds",
                "the source of cp.async is in global memory",
                "pass the address of a tensor of the kernel, and copy shared memory with ld and st",
            )
        sources[reads] = memory.items(where, nbytes)
    lanes = g.lanes[mine]
    operation = CopyOperation(g.cta, place, lanes, ticket, memory, sources, targets, nbytes)
    for lane in lanes.tolist():
        copies = g.cta.copies.setdefault(lane, ThreadCopies())
        copies.issued += 1
        copies.open.append(operation)
        copies.pending.append(operation)
    g.cta.cluster.issue(("cp.async", g.cta.rank, place.order, int(lanes[0])), operation)


@instruction("cp.async.commit_group", synchronises=True)
def cp_async_commit_group(g: Group, place: Place) -> None:
    """cp.async.commit_group: the executing thread's copies since the last commit become one group, be it empty."""
    for lane in g.lanes.tolist():
        copies = g.cta.copies.setdefault(lane, ThreadCopies())
        copies.groups.append((copies.issued, copies.open))
        copies.open = []


class CopyWait:
    """Threads blocked in cp.async.wait_group."""

    def __init__(self, g: Group, newest: int) -> None:
        self.newest = newest
        self.awaited: set[CopyOperation] = set()
        for lane in g.lanes.tolist():
            copies = g.cta.copies.get(lane)
            if copies is not None:
                for _, group in copies.groups[: max(len(copies.groups) - newest, 0)]:
                    self.awaited.update(group)

    def ready(self) -> bool:
        """The awaited groups have landed."""
        return all(operation.done for operation in self.awaited)

    def finish(self, group: Group) -> None:
        """Each thread knows that its own copies are done."""
        detector = group.cta.detector
        known = None if detector is None else detector.copies
        for lane in group.lanes.tolist():
            copies = group.cta.copies.get(lane)
            if copies is None or len(copies.groups) <= self.newest:
                continue
            count = len(copies.groups) - self.newest
            done = copies.groups[count - 1][0]
            copies.groups = copies.groups[count:]
            if known is not None:
                known.complete(lane + group.cta.first_component, done)

    def describe(self) -> str:
        """How many copies are in flight."""
        return f"cp.async.wait_group for {sum(not o.done for o in self.awaited)} copies in flight"


@instruction("cp.async.wait_group", waits=True, synchronises=True)
def cp_async_wait_group(
    g: Group, place: Place, newest: int, result: int | None = None
) -> CopyWait | None:
    """cp.async.wait_group N: wait until at most the N newest groups of the executing thread are pending."""
    wait = CopyWait(g, newest)
    if not wait.ready():
        return wait
    wait.finish(g)
    return None


@instruction("cp.async.mbarrier.arrive", uniform=("mbar",), synchronises=True, arrives=True)
def cp_async_mbarrier_arrive(g: Group, place: Place, mbar: int, noinc: bool) -> None:
    """cp.async.mbarrier.arrive{.noinc}.shared::cta.b64 [addr]: arrive once for each lane when its earlier copies are done.

    Tells of these copies, and of nothing else. Without .noinc the pending count is raised by one for each lane first, so that
    the arrival counts for nothing in the end.
    """
    barrier, detector = own_barrier(g, place, mbar), g.cta.detector
    tracked: set[CopyOperation] = set()
    for lane in g.lanes.tolist():
        copies = g.cta.copies.get(lane)
        if copies is not None:
            tracked.update(operation for operation in copies.pending if not operation.done)
            copies.pending = [operation for operation in copies.pending if not operation.done]
    before, clock, issued = g.view(np.ones(g.n, bool)) if detector is not None else g, None, None
    threads, who, n = tuple((g.lanes + g.cta.first_component).tolist()), str(g), g.n
    if detector is not None:
        issued = detector.release(g)
        own = detector.copies
        clock = detector.zero if own is None else own.clock(np.array(threads), detector.size)
        clock = clock.with_past(issued)
    if noinc:
        barrier.announce(n, issued)
    else:
        barrier.pending += n

    def knows(other: Clock) -> bool:
        return not noinc or detector is None or detector.knows_clock(before, other)

    def arrive() -> None:
        left.pop()
        if not left:
            barrier.arrive(place, who, n, clock, knows, threads)

    left = [None] * max(len(tracked), 1)
    for operation in tracked:
        operation.then.append(arrive)
    if not tracked:
        arrive()
