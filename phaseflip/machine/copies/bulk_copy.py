"""Bulk copies, which the async proxy makes, and bulk groups; of plain bytes here, of boxes of a tensor in `tma.py`.

A load is an agent of its own: it starts with what its issuer knew, writes shared memory through the async proxy, and
tells the mbarrier how many bytes have come, which releases its own accesses only, with an implicit proxy fence. A store
reads shared memory and writes global memory; a bulk group tells its thread when the reads, and when all, are done.

Source: PTX ISA 9.1, cp.async.bulk, cp.async.bulk.commit_group, cp.async.bulk.wait_group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...errors import KernelFault
from ...ir.instruction import instruction
from ...ir.traits import MBARRIER
from ..memory.load_store import RAW, SHARED_BASE, Memory, memory_of
from ..operation import ThreadOperation
from ..pipes import Awaited
from ..sync.mbarrier import Mbarrier, barrier_at, check_init_fence
from ..sync.mbarrier_instructions import intended_phase
from ..threads.warp import begun

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.happens_before import Ticket
    from ...ordering.knowledge import Clock
    from ..cta import CTA
    from ..threads.warp import Group


class Bytes(Protocol):
    """The bytes of a bulk copy on both sides: `units` of 16 bytes of the shared memory of `cta`, and some of `memory`."""

    cta: CTA
    shared: Memory
    memory: Memory
    units: np.ndarray

    @property
    def nbytes(self) -> int:
        """Bytes that are moved and counted."""

    def touched(self) -> np.ndarray:
        """16-byte units of `memory` that are touched."""

    def load(self) -> None:
        """Move them to shared memory."""

    def store(self) -> None:
        """Move them from shared memory."""


@dataclass(eq=False)
class Copy:
    """What a load brings to one CTA: bytes, the barrier that counts them, the phase meant. Its completion is its own."""

    box: Bytes
    barrier: Mbarrier
    phase: int
    ticket: Ticket | None


class Load(ThreadOperation):
    """One bulk load in flight: a copy for each CTA that it goes to."""

    __slots__ = ("copies",)

    def __init__(self, cta: CTA, place: Place, thread: int, copies: list[Copy]) -> None:
        super().__init__(cta, place, thread)
        self.copies = copies

    def land(self) -> None:
        """Copy the boxes, and tell the barriers."""
        for copy in self.copies:
            box, barrier, clock = copy.box, copy.barrier, self._tell(copy)
            box.load()
            self.cta.bytes[f"{box.memory.kind}_to_shared"] += box.nbytes
            barrier.loads_in_flight[copy.phase] -= 1
            thread = self.thread + self.cta.first_component
            barrier.complete_tx(self.place, box.nbytes, copy.phase, clock, thread)
        self.done = True

    def _tell(self, copy: Copy) -> Clock | None:
        """Tell the race detector what is read and written; what the completion releases."""
        detector, ticket, box, barrier = self.cta.detector, copy.ticket, copy.box, copy.barrier
        if detector is None or ticket is None:
            return None
        detector.operation_access(ticket, box.memory, box.touched(), writes=False, fenced=True)
        if copy.phase < barrier.phase:  # which was told to expect too few bytes
            end = barrier.event_at_end.get(copy.phase, 0)
            detector.late_write(ticket, box.shared, box.units, end)
        else:
            detector.operation_access(ticket, box.shared, box.units, writes=True, fenced=True)
        if box.memory.kind == "shared":
            detector.operation_reaches(self.cta, ticket)
        detector.operation_reaches(box.cta, ticket)
        detector.operation_reaches(barrier.cta, ticket)
        return ticket.arrived(detector.zero, detector.size).with_past(ticket.clock)


class Store(ThreadOperation):
    """One bulk store in flight: `read` is its ticket as a reader of shared memory, `write` as a writer of global."""

    __slots__ = ("box", "read", "write")

    def __init__(
        self,
        cta: CTA,
        place: Place,
        thread: int,
        box: Bytes,
        read: Ticket | None,
        write: Ticket | None,
    ) -> None:
        super().__init__(cta, place, thread)
        self.box, self.read, self.write = box, read, write

    def land(self) -> None:
        """Copy the box."""
        detector = self.cta.detector
        if detector is not None and self.read is not None and self.write is not None:
            detector.operation_reaches(self.cta, self.read)
            detector.operation_access(
                self.read, self.box.shared, self.box.units, writes=False, fenced=True
            )
            detector.operation_access(
                self.write, self.box.memory, self.box.touched(), writes=True, fenced=True
            )
        self.box.store()
        self.cta.bytes["shared_to_global"] += self.box.nbytes
        self.done = True


class BulkGroups:
    """Bulk groups of one thread: stores not yet committed, and the committed groups, oldest first.

    `read` and `done` count the groups, oldest first, that its waits cover: their sources read, or all of it done.
    """

    __slots__ = ("open", "groups", "read", "done")

    def __init__(self) -> None:
        self.open: list[Store] = []
        self.groups: list[list[Store]] = []
        self.read = self.done = 0

    def uncovered(self, reads_only: bool) -> Iterator[tuple[int, Store]]:
        """(how many groups are newer, store) of the groups that no wait covers so far, newest first."""
        for at in range(len(self.groups) - 1, (self.read if reads_only else self.done) - 1, -1):
            for store in self.groups[at]:
                yield len(self.groups) - 1 - at, store

    def wait(self, newest: int, reads_only: bool) -> list[Store]:
        """A wait for all but the newest groups: the stores that no wait has covered so far."""
        end = max(len(self.groups) - newest, 0)
        first = self.read if reads_only else self.done
        self.read = max(self.read, end)
        if not reads_only:
            self.done = max(self.done, end)
        return [store for group in self.groups[first:end] for store in group]


def copy_to(
    g: Group, place: Place, thread: int, box: Bytes, mbar: int, queue: tuple[Any, ...]
) -> Copy:
    """What a thread's load brings to one CTA, counted on the barrier at `mbar`; `queue` names the load's operands."""
    barrier = barrier_at(g, place, mbar)
    check_init_fence(g, place, thread, barrier)
    ticket = None
    if g.cta.detector is not None:
        name = ("tma", g.cta.rank, *queue, box.cta.rank)
        ticket = g.cta.detector.issue(g, thread, name, place, g.agents(thread))
        g.cta.detector.homes[ticket.component] = barrier.cta.rank
    return Copy(box, barrier, intended_phase(g, barrier), ticket)


def start_load(g: Group, place: Place, thread: int, copies: list[Copy]) -> None:
    """A thread issues a load: its copies may land in any order with those of other loads."""
    for copy in copies:
        copy.barrier.touch("issue", copy.phase)
        copy.barrier.loads_in_flight[copy.phase] += 1
    load = Load(g.cta, place, thread, copies)
    g.cta.cluster.issue(None, load)


def start_store(g: Group, place: Place, thread: int, box: Bytes) -> None:
    """A thread issues a store, which belongs to its next bulk group."""
    read = write = None
    if g.cta.detector is not None:
        read, write = (
            g.cta.detector.issue(g, thread, (kind, g.cta.rank, thread), place, g.agents(thread))
            for kind in ("bulk-read", "bulk-write")
        )
    operation = Store(g.cta, place, thread, box, read, write)
    g.cta.bulk_groups.setdefault(thread, BulkGroups()).open.append(operation)
    g.cta.cluster.issue(("bulk", g.cta.rank, thread), operation)


class _Row:
    """Consecutive bytes: those of the shared memory of a CTA from byte `start`, and of a memory from byte `other`."""

    def __init__(self, cta: CTA, start: int, memory: Memory, other: int, nbytes: int) -> None:
        self.cta, self.shared, self.memory, self.nbytes = cta, cta.shared, memory, nbytes
        if nbytes % 16 or nbytes <= 0:
            raise KernelFault(
                "misaligned-access",
                f"a bulk copy of {nbytes} bytes; a positive multiple of 16 is legal",
                "copy whole 16-byte units, and what is left with plain loads and stores",
            )
        for side, first in ((self.shared, start), (memory, other)):
            if first % 16:
                raise KernelFault(
                    "misaligned-access",
                    f"a bulk copy starts at byte {first} of {side.kind} memory; a multiple of 16 is legal",
                    "start the copy at a multiple of 16 bytes: align the buffer, or correct the offset",
                )
            if not 0 <= first <= side.size - nbytes:
                raise KernelFault(
                    "out-of-bounds",
                    f"a bulk copy of {nbytes} bytes at byte {first} of {side.kind} memory, which has {side.size} bytes",
                    "correct the address or the size, or copy less at the edge",
                )
        self.units = np.arange(start >> 4, start + nbytes >> 4)
        self._others = np.arange(other >> 4, other + nbytes >> 4)

    def touched(self) -> np.ndarray:
        """16-byte units of the other memory."""
        return self._others

    def load(self) -> None:
        """To shared memory."""
        self.shared.view(RAW[16])[self.units] = self.memory.view(RAW[16])[self._others]

    def store(self) -> None:
        """From shared memory."""
        self.memory.view(RAW[16])[self._others] = self.shared.view(RAW[16])[self.units]


def _row(g: Group, shared: int, other: int, nbytes: int) -> _Row:
    """The bytes between a shared address, of any CTA of the cluster, and another address."""
    cta = g.cta.cluster.owner(shared)
    memory, offset = memory_of(g, other)
    return _Row(cta, (shared | SHARED_BASE) - cta.shared_base, memory, offset, nbytes)


@instruction("cp.async.bulk.g2s", completes=MBARRIER)
def cp_async_bulk_g2s(
    g: Group,
    place: Place,
    dst: Any,
    src: Any,
    nbytes: Any,
    mbar: Any,
    own: bool,
    cta_mask: Any = None,
) -> None:
    """cp.async.bulk.{shared::cta, shared::cluster}.global.mbarrier::complete_tx::bytes{.multicast::cluster}
    [dstMem], [srcMem], size, [mbar]{, ctaMask}.

    `size` bytes, a multiple of 16 as are both addresses, from global to shared memory, counted on `mbar`; with a mask to
    the same offsets in each CTA whose bit is set. `own`: shared::cta, the destination is the thread's own CTA.
    """
    operands = (g.per_lane(v) for v in (dst, src, nbytes, mbar, cta_mask))
    for thread, to, source, size, barrier, mask in zip(g.lanes.tolist(), *operands, strict=True):
        _check_owner(g, "destination", to, own)
        copies = []
        if mask is None:
            copies.append(copy_to(g, place, thread, _row(g, to, source, size), barrier, (barrier,)))
        else:
            g.cta.cluster.multicasts.add(place)
            multicast = g.cta.cluster.multicast
            for there, counted in zip(multicast(to, mask), multicast(barrier, mask), strict=True):
                row = _row(g, there, source, size)
                copies.append(copy_to(g, place, thread, row, counted, (barrier, mask)))
        start_load(g, place, thread, copies)


def _check_owner(g: Group, what: str, address: int, own: bool) -> None:
    rank = g.cta.cluster.owner(address).rank
    if own and rank != g.cta.rank:
        raise KernelFault(
            "out-of-bounds",
            f"the {what} of this bulk copy must lie in the shared memory of the thread's own CTA, not of CTA {rank}",
            "pass the address as it is in the own CTA, without mapa",
        )


@instruction("cp.async.bulk.s2s", completes=MBARRIER)
def cp_async_bulk_s2s(g: Group, place: Place, dst: Any, src: Any, nbytes: Any, mbar: Any) -> None:
    """cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [dstMem], [srcMem], size, [mbar].

    `size` bytes, a multiple of 16 as are both addresses, from the thread's own CTA to another one of the cluster, counted
    on `mbar`.
    """
    operands = (g.per_lane(v) for v in (dst, src, nbytes, mbar))
    for thread, to, source, size, barrier in zip(g.lanes.tolist(), *operands, strict=True):
        _check_owner(g, "source", source, True)
        if g.cta.cluster.owner(to) is g.cta:
            raise KernelFault(
                "out-of-bounds",
                "a bulk copy from shared memory to shared memory must lead to another CTA",
                "map the destination and its barrier to the other CTA with mapa",
            )
        row = _row(g, to, source | SHARED_BASE, size)
        start_load(g, place, thread, [copy_to(g, place, thread, row, barrier, (barrier, "s2s"))])


@instruction("cp.async.bulk.s2g", completes="cp.async.bulk.wait_group", stores_global=True)
def cp_async_bulk_s2g(g: Group, place: Place, dst: Any, src: Any, nbytes: Any) -> None:
    """cp.async.bulk.global.shared::cta.bulk_group [dstMem], [srcMem], size: a multiple of 16 bytes, as are both addresses.

    Completion is told by bulk groups.
    """
    operands = (g.per_lane(v) for v in (dst, src, nbytes))
    for thread, to, source, size in zip(g.lanes.tolist(), *operands, strict=True):
        _check_owner(g, "source", source, True)
        start_store(g, place, thread, _row(g, source, to, size))


@instruction("cp.async.bulk.commit_group", synchronises=True)
def cp_async_bulk_commit_group(g: Group, place: Place) -> None:
    """cp.async.bulk.commit_group: the executing thread's bulk stores since the last commit become one group."""
    for thread in g.lanes.tolist():
        groups = g.cta.bulk_groups.setdefault(thread, BulkGroups())
        if g.cta.detector is not None:
            tickets = (ticket for store in groups.open for ticket in (store.read, store.write))
            g.cta.detector.commit_group(g, place, tickets)
        groups.groups.append(groups.open)
        groups.open = []


class BulkWait:
    """Threads blocked in cp.async.bulk.wait_group."""

    def __init__(self, group: Group, newest: int, reads_only: bool) -> None:
        self.reads_only = reads_only
        self.awaited: list[tuple[int, Store]] = []
        for thread in group.lanes.tolist():
            groups = group.cta.bulk_groups.setdefault(thread, BulkGroups())
            self.awaited += [(thread, store) for store in groups.wait(newest, reads_only)]
        self.stores = Awaited(store for _, store in self.awaited)

    def ready(self) -> bool:
        """The awaited groups have landed."""
        return self.stores.landed()

    def finish(self, group: Group) -> None:
        """The threads know that their stores have been read, and, unless .read, that they are done."""
        detector = group.cta.detector
        if detector is not None:
            for thread, operation in self.awaited:
                for ticket in [operation.read] + ([] if self.reads_only else [operation.write]):
                    if ticket is not None:
                        detector.learn(group, thread, ticket)

    def describe(self) -> str:
        """How many stores are in flight."""
        return f"cp.async.bulk.wait_group for {len(self.stores)} stores in flight"


@instruction("cp.async.bulk.wait_group", waits=True, synchronises=True)
def cp_async_bulk_wait_group(
    g: Group, place: Place, newest: int, reads_only: bool
) -> BulkWait | None:
    """cp.async.bulk.wait_group{.read} N: wait until at most the N newest groups of the executing thread are pending.

    `.read` waits only until their sources have been read.
    """
    if g.cta.detector is not None:
        for thread in g.lanes.tolist():
            groups = g.cta.bulk_groups.setdefault(thread, BulkGroups())
            reads = ((newer, store.read) for newer, store in groups.uncovered(True))
            writes = ((newer, store.write) for newer, store in groups.uncovered(reads_only))
            g.cta.detector.wait_group(g, place, newest, reads, False)
            g.cta.detector.wait_group(g, place, newest, writes, reads_only)
    return begun(g, BulkWait(g, newest, reads_only))
