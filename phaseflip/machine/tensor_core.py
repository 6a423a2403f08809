"""The tensor core of a CTA: tcgen05.mma on shared-memory operands and a TMEM accumulator, commit, fences.

Products of fp16 and bf16 are exact in fp32; they are summed in fp32, in an order that hardware does not specify. MMAs on
one accumulator that a thread issues back to back become one larger product: nothing can observe the steps between them.

Source: PTX ISA 9.1, tcgen05.mma, tcgen05.commit, tcgen05.fence, fence.proxy.async.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..errors import BadInput, KernelFault
from ..finding import Finding
from ..instructions import instruction
from ..ordering import all_done
from ..vector_clock import Clock, holds, join
from .instruction_descriptor import InstructionDescriptor
from .matrix_descriptors import SharedMatrixDescriptor, operand_units
from .mbarrier import Mbarrier, barrier_at, check_init_fence
from .memory import RAW, SHARED_BASE, Memory, register_columns
from .tensor_memory import split_address
from .tensor_memory_layout import accumulator_columns, accumulator_slices, check_accumulator_address

if TYPE_CHECKING:
    from ..finding import Place
    from ..ordering import Ticket
    from ..vector_clock import Part
    from .cta import CTA
    from .warp import Group

_FORMATS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_SWIZZLE_CODES = {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}


class Product:
    """Back-to-back MMAs of one thread on one accumulator; an asynchronous operation once the batch is closed."""

    __slots__ = (
        "cta", "place", "thread", "key", "accumulate", "descriptors", "ticket", "knowledge", "done",
    )  # fmt: skip

    def __init__(
        self, cta: CTA, place: Place, thread: int, key: tuple[int, int, str], accumulate: bool
    ) -> None:
        self.cta, self.place, self.thread = cta, place, thread
        self.key = key
        """(D's TMEM address, instruction descriptor, kind): MMAs that agree in these may be one batch."""
        self.accumulate = accumulate
        self.descriptors: list[tuple[int, int]] = []
        self.ticket: Ticket | None = None
        self.knowledge: Part | None = None
        """What the thread knew at issue: later MMAs of the batch must know the same."""
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words."""
        return thread_name(self.cta, self.thread)

    def continues(self, place: Place, thread: int, key: tuple[int, int, str], part: Any) -> bool:
        """Whether an MMA that accumulates onto the same D is one with this batch: same thread, line and knowledge."""
        if (self.thread, self.key) != (thread, key) or place != self.place:
            return False
        return self.knowledge is None or self.knowledge.same_as(part)

    def land(self) -> None:
        """D (+)= A B^T for all steps of the batch."""
        d_tmem, idesc, kind = self.key
        cta, d = self.cta, InstructionDescriptor.decode(idesc, kind)
        a_units, b_units, last = cta.tensor_core.operands(d, idesc, kind, self.descriptors)
        shared = cta.shared
        if last >= shared.size:
            raise KernelFault(
                "out-of-bounds", f"tcgen05.mma reads shared memory past its {shared.size} bytes"
            )
        lane, column = split_address(d_tmem)
        pieces = [
            (p.matrix_index, p.memory_index(lane, column)) for p in accumulator_slices(d.m, d.n, 1)
        ]
        if cta.detector is not None and self.ticket is not None:
            for units in (a_units, b_units):
                cta.detector.operation_access(self.ticket, shared, units, writes=False)
            for _, (rows, columns) in pieces:
                cta.detector.tmem_access(
                    self.ticket, cta.tmem, rows, columns, writes=True, reads=self.accumulate
                )
        a = _matrix(shared, a_units, _FORMATS[d.a_format], d.a_mn_major)
        b = _matrix(shared, b_units, _FORMATS[d.b_format], d.b_mn_major)
        product = a @ b.T
        if d.negate_a != d.negate_b:
            product = -product
        for matrix_index, where in pieces:
            part = product[matrix_index]
            if d.d_format == "float16":
                _store_half(cta.tmem.words, where, part, self.accumulate)
            elif self.accumulate:
                cta.tmem.floats[where] += part
            else:
                cta.tmem.floats[where] = part
        self.done = True


def thread_name(cta: CTA, thread: int) -> str:
    """ "CTA 3 warp 0 lane 5"."""
    return f"CTA {cta.rank_in_grid} warp {thread >> 5} lane {thread & 31}"


def _matrix(shared: Memory, units: np.ndarray, dtype: np.dtype, mn_major: bool) -> np.ndarray:
    """(rows, K) float32 matrix of the operand whose 16-byte units lie at these positions of shared memory."""
    values = shared.view(RAW[16])[units].view(dtype).astype(np.float32)
    return values.T if mn_major else values


def _store_half(words: np.ndarray, where: Any, part: np.ndarray, accumulate: bool) -> None:
    """A 16-bit accumulator: the low half of each word."""
    if accumulate:
        part = part + (words[where] & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
    words[where] = (words[where] & 0xFFFF0000) | part.astype(np.float16).view(np.uint16)


class TensorCore:
    """Issue side of one CTA: the batch that is still open, and operand positions already computed."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.open: Product | None = None
        self.tracked: dict[int, dict[Any, Ticket]] = {}
        """Thread -> its newest MMA of each pipeline, newest last: what a commit tracks, with all before them."""
        self._operands: dict[Any, tuple[np.ndarray, np.ndarray, int]] = cta.cluster.operand_cache

    def operands(
        self, d: InstructionDescriptor, idesc: int, kind: str, descriptors: list[tuple[int, int]]
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Positions of the 16-byte units of A and B, the K steps of a batch side by side, and the last byte of both."""
        key = (idesc, kind, tuple(descriptors))
        found = self._operands.get(key)
        if found is None:
            k_bytes = d.k * d.element_bytes
            sides = []
            for side, rows, mn_major in ((0, d.m, d.a_mn_major), (1, d.n, d.b_mn_major)):
                decoded = [SharedMatrixDescriptor.decode(pair[side]) for pair in descriptors]
                parts = [
                    operand_units(x, rows, k_bytes, mn_major, d.element_bytes) for x in decoded
                ]
                sides.append(np.concatenate(parts, axis=0 if mn_major else 1))
            last = 16 * max(int(units.max()) for units in sides) + 15
            found = self._operands[key] = (sides[0], sides[1], last)
        return found

    def issue(
        self,
        g: Group,
        place: Place,
        thread: int,
        key: tuple[int, int, str],
        shape: tuple[int, int],
        a: int,
        b: int,
        accumulate: bool,
        judged: bool,
    ) -> None:
        """One MMA (M, N = shape) by one thread: append it to the open batch, or open a new one.

        Only MMAs on one accumulator, of one shape and kind, are a pipeline, which executes in the order of issue.
        `judged`: its accesses are put before the race detector.
        """
        batch, detector = self.open, self.cta.detector if judged else None
        part = None if detector is None else detector.part_of(g, thread)
        if batch is None or not accumulate or not batch.continues(place, thread, key, part):
            self.close_batch()
            batch = self.open = Product(self.cta, place, thread, key, accumulate)
            if detector is not None:
                pipeline = (key[0], *shape, key[2])
                queue = ("tcgen05", self.cta.rank, thread, *pipeline)
                batch.knowledge = part
                batch.ticket = detector.issue(
                    g, thread, queue, place, g.agents(thread), pipelined=True, pipeline=pipeline
                )
                tracked = self.tracked.setdefault(thread, {})
                tracked.pop(queue, None)
                tracked[queue] = batch.ticket
        batch.descriptors.append((a, b))

    def close_batch(self) -> None:
        """Hand the open batch to the machine as one asynchronous operation."""
        if self.open is not None:
            batch, self.open = self.open, None
            self.cta.cluster.issue(("tcgen05", self.cta.rank, batch.thread), batch)


@instruction("tcgen05.mma")
def tcgen05_mma(
    g: Group,
    place: Place,
    d_tmem: Any,
    a_desc: Any,
    b_desc: Any,
    idesc: Any,
    kind: str,
    enable_input_d: Any,
    cta_group: int,
) -> None:
    """tcgen05.mma.cta_group.kind [d_tmem], a_desc, b_desc, idesc, enable_input_d: D = A B^T (+ D), asynchronously.

    One thread issues one MMA; here every lane of the group issues its own. kind::f16 (fp16, bf16) only. Lanes of a warp
    that issue the same MMA are reported; all of them compute, and for the order of accesses the lowest stands for them.
    """
    if cta_group != 1:
        raise KernelFault(
            "resource-limit", "tcgen05.mma.cta_group::2 needs a cluster, which is not simulated yet"
        )
    operands = [g.per_lane(v) for v in (d_tmem, a_desc, b_desc, idesc, enable_input_d)]
    lanes = list(zip(g.lanes.tolist(), *operands, strict=True))
    issued = {(lane[0] >> 5, *lane[1:]) for lane in lanes}
    if len(issued) < g.n:  # two warps that issue the same are found as a pair of accesses
        g.cta.report(
            Finding(
                "duplicate-issue",
                "one thread issues an MMA for the whole tile; here each of these threads issues its own",
                place=place,
                other=place,
                memory="tmem",
                what=f"{g} issue the MMA",
                fix="guard the issue with T.ptx.elect_sync()",
            )
        )
    for thread, d, a, b, i, accumulate in lanes:
        try:
            fields = InstructionDescriptor.decode(i, kind)
            fields.check_shape(cta_group)
            SharedMatrixDescriptor.decode(a), SharedMatrixDescriptor.decode(b)
            check_accumulator_address(*split_address(d), fields.m, fields.n, cta_group)
        except BadInput as error:
            raise KernelFault("out-of-bounds", str(error)) from None
        columns = accumulator_columns(fields.m, fields.n, cta_group)
        g.cta.tmem.check(g, place, split_address(d)[1], columns)
        same = (thread >> 5, d, a, b, i, accumulate)
        g.cta.tensor_core.issue(
            g, place, thread, (d, i, kind), (fields.m, fields.n), a, b, bool(accumulate),
            judged=same in issued,
        )  # fmt: skip
        issued.discard(same)


class Commit:
    """tcgen05.commit in flight: lands after all MMAs that its thread issued before, and arrives on the barrier."""

    __slots__ = ("cta", "place", "thread", "barrier", "tracked", "ticket", "consumed", "done")

    def __init__(
        self, cta: CTA, place: Place, thread: int, barrier: Mbarrier, tracked: list[Ticket], ticket: Ticket | None
    ) -> None:  # fmt: skip
        self.cta, self.place, self.thread = cta, place, thread
        self.barrier, self.tracked, self.ticket = barrier, tracked, ticket
        self.consumed = int(barrier.consumed[thread + cta.first_component])
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words."""
        return thread_name(self.cta, self.thread)

    def land(self) -> None:
        """One arrival, which releases the tracked operations: they are done, and so is what came before them."""
        detector, ticket, clock = self.cta.detector, self.ticket, None
        known: list[Clock] = []
        if detector is not None and ticket is not None:
            tracked = all_done(self.tracked, detector.size) if self.tracked else detector.zero
            clock = ticket.arrived(tracked, detector.size)
            known = [tracked, ticket.clock]

        def knows(other: Clock) -> bool:
            return not known or holds(join(known), other)

        who = f"tcgen05.commit of {self.issuer}"
        self.barrier.arrive(
            self.place, who, 1, clock, knows, (self.thread + self.cta.first_component,), self.consumed,
            None if ticket is None else ticket.clock,
        )  # fmt: skip
        self.done = True


@instruction("tcgen05.commit", uniform=("mbar", "cta_mask"))
def tcgen05_commit(g: Group, place: Place, mbar: int, cta_group: int, cta_mask: int) -> None:
    """tcgen05.commit.cta_group.mbarrier::arrive::one.b64 [mbar]: one arrival when the thread's earlier MMAs are done."""
    if cta_group != 1 or cta_mask:
        raise KernelFault(
            "resource-limit",
            "tcgen05.commit to other CTAs needs a cluster, which is not simulated yet",
        )
    barrier = barrier_at(g, place, mbar)
    core, detector = g.cta.tensor_core, g.cta.detector
    core.close_batch()
    tickets: list[Ticket | None] = [None] * g.n
    if detector is not None:
        lanes = g.lanes.tolist()
        for thread in lanes:
            check_init_fence(g, place, thread, barrier)
        tickets = [
            detector.issue(
                g, t, ("commit", g.cta.rank, t, mbar), place, g.agents(t), pipelined=True
            )
            for t in lanes
        ]  # commits to different barriers may arrive in any order
    clocks = [ticket.clock for ticket in tickets if ticket is not None]
    barrier.announce(g.n, join(clocks) if clocks else None)
    for thread, ticket in zip(g.lanes.tolist(), tickets, strict=True):
        tracked = list(core.tracked.get(thread, {}).values())
        if detector is not None:
            detector.commit(tracked)
        operation = Commit(g.cta, place, thread, barrier, tracked, ticket)
        g.cta.cluster.issue(("tcgen05", g.cta.rank, thread), operation)


@instruction("tcgen05.fence::before_thread_sync")
def tcgen05_fence_before_thread_sync(g: Group, place: Place) -> None:
    """tcgen05.fence::before_thread_sync: orders earlier tcgen05 operations before later synchronisation; no value changes."""
    if g.cta.detector is not None:
        g.cta.detector.fence_before(g)


@instruction("tcgen05.fence::after_thread_sync")
def tcgen05_fence_after_thread_sync(g: Group, place: Place) -> None:
    """tcgen05.fence::after_thread_sync: orders later tcgen05 operations after earlier synchronisation; no value changes."""
    if g.cta.detector is not None:
        g.cta.detector.fence_after(g)


@instruction("fence.proxy.async")
def fence_proxy_async(g: Group, place: Place, space: str) -> None:
    """fence.proxy.async{.space}: orders generic-proxy and async-proxy accesses of this thread; no value changes.

    `space` global orders none of the accesses to shared memory, which are all that the async proxy makes so far.
    """
    if g.cta.detector is not None and space != "global":
        g.cta.detector.fence_proxy_async(g)


@instruction("encode.matrix_descriptor")
def encode_matrix_descriptor(
    g: Group, place: Place, dst: Any, addr: Any, leading: Any, stride: Any, swizzle: Any
) -> None:
    """TVM's helper: write the 64-bit shared-memory descriptor of `addr` to the register buffer at `dst`.

    `leading` and `stride` are in units of 16 bytes; `swizzle` is TVM's code 0-4 (none, 32, 64, 128 bytes, 128 by 32).
    """
    fixed = (
        (leading & 0x3FFF) << 16
        | (stride & 0x3FFF) << 32
        | 1 << 46
        | _SWIZZLE_CODES[int(swizzle)] << 61
    )
    start = ((addr - SHARED_BASE) & 0x3FFFF) >> 4
    value = (
        (start | fixed) if start.__class__ is int else start.astype(np.uint64) | np.uint64(fixed)
    )
    column = register_columns(g, dst, 8)
    if g.cta.written is not None:
        g.cta.written.write(g, column * 8, 8)
    g.cta.frame(RAW[8])[g.sel, column] = value


def add_low_half(desc: Any, offset: Any) -> Any:
    """Add to the low 32 bits of a 64-bit descriptor, as TVM's helper does; the upper half stays."""
    if desc.__class__ is np.ndarray:
        low = (desc + np.uint64(offset)) & np.uint64(0xFFFFFFFF)
        return desc & np.uint64(0xFFFFFFFF00000000) | low
    return desc & 0xFFFFFFFF00000000 | (desc + offset) & 0xFFFFFFFF
