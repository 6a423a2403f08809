"""The tensor memory accelerator: bulk tensor copies between global and shared memory, and bulk groups.

A load is an agent of its own: it starts with what its issuer knew, writes shared memory through the async proxy, and
tells the mbarrier how many bytes have come, which releases its own accesses only, with an implicit proxy fence. A store
reads shared memory and writes global memory; a bulk group tells its thread when the reads, and when all, are done.

Source: PTX ISA 9.1, cp.async.bulk.tensor, cp.async.bulk.commit_group, cp.async.bulk.wait_group, prefetch.tensormap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import KernelFault
from ..instructions import instruction
from .mbarrier import Mbarrier, barrier_at, check_init_fence
from .mbarrier_instructions import intended_phase
from .memory import RAW, SHARED_BASE
from .tensor_core import thread_name
from .tensor_map import NAN_FILL, TensorMap

if TYPE_CHECKING:
    from ..finding import Place
    from ..ordering import Ticket
    from ..vector_clock import Clock
    from .cta import CTA
    from .warp import Group

TENSOR_MAP_BASE = 3 << 32
TENSOR_MAP_BYTES = 128


def tensor_map_at(g: Group, address: Any) -> TensorMap:
    """The tensor map that a kernel parameter holds."""
    index, rest = divmod(int(address) - TENSOR_MAP_BASE, TENSOR_MAP_BYTES)
    maps = g.cta.cluster.tensor_maps
    if rest or not 0 <= index < len(maps):
        raise KernelFault(
            "out-of-bounds", f"address {int(address):#x} is not that of a tensor map parameter"
        )
    return maps[index]


class _Box:
    """A box of a tensor map and its place in shared memory: the bytes on both sides."""

    def __init__(
        self, g: Group, tensor_map: TensorMap, cta: CTA, start: int, corner: tuple[int, ...], stores: bool
    ) -> None:  # fmt: skip
        self.map, self.cta, self.shared = tensor_map, cta, cta.shared
        tensor_map.check_corner(corner, stores)
        self.memory = next(m for m in g.cta.globals if m.name_at(0) == tensor_map.buffer)
        if start % 128:
            raise KernelFault(
                "misaligned-access",
                f"the shared address of a bulk tensor copy is at byte {start}; a multiple of 128 is legal",
            )
        cache = g.cta.cluster.operand_cache
        key = ("box", start, tensor_map.box_bytes, tensor_map.swizzle)
        if key not in cache:
            cache[key] = tensor_map.shared_units(start)
        self.units: np.ndarray = cache[key]
        if (
            16 * int(self.units.max()) + 16 > self.shared.size
        ):  # swizzling reaches to the end of a line
            raise KernelFault(
                "out-of-bounds",
                f"a box of {tensor_map.box_bytes} bytes at byte {start} of shared memory",
            )
        self.global_units = tensor_map.global_units(corner)
        if self.global_units is None:
            self.offsets, self.inside = tensor_map.element_offsets(corner, whole_units=stores)
            last = self.offsets[self.inside].max(initial=0) + tensor_map.element_bytes
            if last > self.memory.size:
                raise KernelFault(
                    "out-of-bounds",
                    f"a box at {corner} of tensor map {tensor_map.name} ends at byte {last} of {tensor_map.buffer}, which"
                    f" has {self.memory.size}",
                )

    def touched(self) -> np.ndarray:
        """16-byte units of the buffer that the box touches."""
        if self.global_units is not None:
            return self.global_units
        return np.unique(self.offsets[self.inside] >> 4)

    def load(self) -> None:
        """Global to shared; outside the tensor zero, or NaN."""
        if self.global_units is not None:
            self.shared.view(RAW[16])[self.units] = self.memory.view(RAW[16])[self.global_units]
            return
        dtype = RAW[self.map.element_bytes]
        values = np.zeros(self.map.box_shape, dtype)
        if self.map.nan_fill:
            values.reshape(-1).view(np.uint32)[...] = NAN_FILL
        values[self.inside] = self.memory.view(dtype)[
            self.offsets[self.inside] // self.map.element_bytes
        ]
        self.shared.view(RAW[16])[self.units] = values.reshape(-1).view(RAW[16])

    def store(self) -> None:
        """Shared to global, as far as the box lies inside the tensor."""
        units = self.shared.view(RAW[16])[self.units]
        if self.global_units is not None:
            self.memory.view(RAW[16])[self.global_units] = units
            return
        dtype = RAW[self.map.element_bytes]
        values = units.view(dtype).reshape(self.map.box_shape)
        self.memory.view(dtype)[self.offsets[self.inside] // self.map.element_bytes] = values[
            self.inside
        ]


@dataclass(eq=False)
class _Copy:
    """What a load brings to one CTA: a box, the barrier that counts it, the phase meant. Its completion is its own."""

    box: _Box
    barrier: Mbarrier
    phase: int
    ticket: Ticket | None


class Load:
    """One bulk tensor load in flight: a copy for each CTA that it goes to."""

    __slots__ = ("cta", "place", "thread", "copies", "done")

    def __init__(self, cta: CTA, place: Place, thread: int, copies: list[_Copy]) -> None:
        self.cta, self.place, self.thread, self.copies = cta, place, thread, copies
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words."""
        return thread_name(self.cta, self.thread)

    def land(self) -> None:
        """Copy the boxes, and tell the barriers."""
        for copy in self.copies:
            box, barrier, clock = copy.box, copy.barrier, self._tell(copy)
            box.load()
            self.cta.bytes["global_to_shared"] += box.map.box_bytes
            barrier.loads_in_flight[copy.phase] -= 1
            barrier.complete_tx(self.place, box.map.box_bytes, copy.phase, clock)
        self.done = True

    def _tell(self, copy: _Copy) -> Clock | None:
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
        detector.operation_reaches(box.cta, ticket)
        detector.operation_reaches(barrier.cta, ticket)
        return ticket.arrived(detector.zero, detector.size).with_past(ticket.clock)


class Store:
    """One bulk tensor store in flight: `read` is its ticket as a reader of shared memory, `write` as a writer of global."""

    __slots__ = ("cta", "place", "thread", "box", "read", "write", "done")

    def __init__(
        self,
        cta: CTA,
        place: Place,
        thread: int,
        box: _Box,
        read: Ticket | None,
        write: Ticket | None,
    ) -> None:
        self.cta, self.place, self.thread, self.box = cta, place, thread, box
        self.read, self.write = read, write
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words."""
        return thread_name(self.cta, self.thread)

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
        self.cta.bytes["shared_to_global"] += self.box.map.box_bytes
        self.done = True


class BulkGroups:
    """Bulk groups of one thread: stores not yet committed, and the committed groups, oldest first."""

    __slots__ = ("open", "groups")

    def __init__(self) -> None:
        self.open: list[Store] = []
        self.groups: list[list[Store]] = []


@instruction("cp.async.bulk.tensor.g2s")
def cp_async_bulk_tensor_g2s(
    g: Group, place: Place, dst: Any, mbar: Any, tensor_map: Any, coordinates: Any, cta_mask: Any = None,
    cta_group: int = 1,
) -> None:  # fmt: skip
    """cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes{.multicast::cluster}{.cta_group}
    [dst], [map, coords], [mbar]{, ctaMask}.

    One box from global to shared memory, with a mask to the same offset in each CTA whose bit is set. Its full size is
    counted on a barrier, whatever lies outside the tensor: the one in the CTA it goes to, or with cta_group::2 the one in
    that CTA or its peer, whichever has the rank parity of the CTA that `mbar` lies in.
    """
    operands = (dst, mbar, tensor_map, cta_mask, *coordinates)
    lanes = [g.lanes.tolist()] + [g.per_lane(v) for v in operands]
    cluster, detector = g.cta.cluster, g.cta.detector
    for thread, to, barrier_address, map_address, mask, *corner in zip(*lanes, strict=True):
        targets = [to] if mask is None else cluster.multicast(to, mask)
        copies = []
        for target in targets:
            cta = cluster.owner(target)
            address = _signalled(cta, barrier_address, cta_group, mask is not None)
            barrier = barrier_at(g, place, address)
            check_init_fence(g, place, thread, barrier)
            offset = (target | SHARED_BASE) - cta.shared_base
            box = _Box(g, tensor_map_at(g, map_address), cta, offset, tuple(corner), stores=False)
            ticket = None
            if detector is not None:
                queue = ("tma", g.cta.rank, barrier_address, mask, cta.rank)
                ticket = detector.issue(g, thread, queue, place, g.agents(thread))
            copies.append(_Copy(box, barrier, intended_phase(g, barrier), ticket))
        for copy in copies:
            copy.barrier.loads_in_flight[copy.phase] += 1
        load = Load(g.cta, place, thread, copies)
        cluster.issue(("tma", g.cta.rank, thread, id(load)), load)


def _signalled(cta: CTA, mbar: int, cta_group: int, multicast: bool) -> int:
    """Address of the barrier that a copy into a CTA is counted on, where `mbar` was given."""
    given, rank = cta.cluster.owner(mbar).rank, cta.rank
    if cta_group == 2:
        rank = rank & ~1 | given & 1
    if not multicast and given != rank:
        raise KernelFault(
            "out-of-bounds",
            f"a copy into CTA {cta.rank} of the cluster names a barrier of CTA {given}: it must lie in the same CTA, or "
            "with cta_group::2 in the same pair",
        )
    return cta.cluster.multicast(mbar, 1 << rank)[0]


@instruction("cp.async.bulk.tensor.s2g")
def cp_async_bulk_tensor_s2g(
    g: Group, place: Place, src: Any, tensor_map: Any, coordinates: Any
) -> None:
    """cp.async.bulk.tensor.Nd.global.shared::cta.tile.bulk_group [map, coords], [src]: one box to global memory.

    What lies outside the tensor is not written. Completion is told by bulk groups.
    """
    lanes = [g.lanes.tolist()] + [g.per_lane(v) for v in (src, tensor_map, *coordinates)]
    for thread, start, map_address, *corner in zip(*lanes, strict=True):
        offset = start - g.cta.shared_base
        box = _Box(g, tensor_map_at(g, map_address), g.cta, offset, tuple(corner), stores=True)
        read = write = None
        if g.cta.detector is not None:
            read, write = (
                g.cta.detector.issue(g, thread, (kind, g.cta.rank, thread), place, g.agents(thread))
                for kind in ("bulk-read", "bulk-write")
            )
        operation = Store(g.cta, place, thread, box, read, write)
        g.cta.bulk_groups.setdefault(thread, BulkGroups()).open.append(operation)
        g.cta.cluster.issue(("bulk", g.cta.rank, thread), operation)


@instruction("cp.async.bulk.commit_group")
def cp_async_bulk_commit_group(g: Group, place: Place) -> None:
    """cp.async.bulk.commit_group: the executing thread's bulk stores since the last commit become one group."""
    for thread in g.lanes.tolist():
        groups = g.cta.bulk_groups.setdefault(thread, BulkGroups())
        groups.groups.append(groups.open)
        groups.open = []


class BulkWait:
    """Threads blocked in cp.async.bulk.wait_group."""

    def __init__(self, group: Group, newest: int, reads_only: bool) -> None:
        self.reads_only = reads_only
        self.awaited: list[tuple[int, Store]] = []
        for thread in group.lanes.tolist():
            groups = group.cta.bulk_groups.setdefault(thread, BulkGroups()).groups
            for committed in groups[: max(len(groups) - newest, 0)]:
                self.awaited += [(thread, operation) for operation in committed]

    def ready(self) -> bool:
        """The awaited groups have landed."""
        return all(operation.done for _, operation in self.awaited)

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
        return f"cp.async.bulk.wait_group for {sum(not o.done for _, o in self.awaited)} stores in flight"


@instruction("cp.async.bulk.wait_group", waits=True)
def cp_async_bulk_wait_group(
    g: Group, place: Place, newest: int, reads_only: bool
) -> BulkWait | None:
    """cp.async.bulk.wait_group{.read} N: wait until at most the N newest groups of the executing thread are pending.

    `.read` waits only until their sources have been read.
    """
    wait = BulkWait(g, newest, reads_only)
    if not wait.ready():
        return wait
    wait.finish(g)
    return None


@instruction("prefetch.tensormap")
def prefetch_tensormap(g: Group, place: Place, tensor_map: Any) -> None:
    """prefetch.tensormap [a]: a hint; nothing changes."""
