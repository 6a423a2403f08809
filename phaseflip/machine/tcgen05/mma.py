"""The tensor core of a CTA, or of a CTA pair: tcgen05.mma on shared-memory operands and a TMEM accumulator.

Products of fp16 and bf16 are exact in fp32; they are summed in fp32, in an order that hardware does not specify. MMAs on
one accumulator that a thread issues back to back become one larger product: nothing can observe the steps between them.

Source: PTX ISA 9.1, tcgen05.mma; "CTA Pair", "Data Path Layout Organization".
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ...errors import BadInput, KernelFault
from ...findings import Finding
from ...ir.instruction import instruction
from ..memory.load_store import RAW, Memory, register_columns, write_descriptor
from ..operands.matrix_descriptor import (
    ENCODE,
    SharedMatrixDescriptor,
    operand_units,
    reads_past_the_end,
)
from ..operation import ThreadOperation
from ..threads.registers import write_registers
from .allocation import split_address
from .instruction_descriptor import InstructionDescriptor
from .layout import accumulator_columns, accumulator_slices, check_accumulator_address

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.happens_before import Ticket
    from ...ordering.knowledge import Part
    from ..cta import CTA
    from ..threads.warp import Group

_FORMATS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_SWIZZLE_CODES = {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}


Key = tuple[int, int, str]
"""(D's TMEM address, instruction descriptor, kind) of an MMA: those that agree in these may be one batch."""


class Product(ThreadOperation):
    """Back-to-back MMAs of one thread on one accumulator; an asynchronous operation once the batch is closed."""

    __slots__ = ("ctas", "key", "accumulate", "descriptors", "ticket", "knowledge")

    def __init__(
        self, cta: CTA, ctas: list[CTA], place: Place, thread: int, key: Key, accumulate: bool
    ) -> None:
        super().__init__(cta, place, thread)
        self.ctas = ctas
        """The CTAs that hold the operands and D: the issuing one, or a pair, each with its share of the rows."""
        self.key = key
        self.accumulate = accumulate
        self.descriptors: list[tuple[int, int]] = []
        self.ticket: Ticket | None = None
        self.knowledge: Part | None = None
        """What the thread knew at issue: later MMAs of the batch must know the same."""

    def continues(self, place: Place, thread: int, key: Key, part: Any) -> bool:
        """Whether an MMA that accumulates onto the same D is one with this batch: same thread, line and knowledge."""
        if (self.thread, self.key) != (thread, key) or place != self.place:
            return False
        return self.knowledge is None or self.knowledge.same_as(part)

    def land(self) -> None:
        """D (+)= A B^T for all steps of the batch."""
        d_tmem, idesc, kind = self.key
        d, core = InstructionDescriptor.decode(idesc, kind), self.cta.tensor_core
        a_units, b_units, last = core.operands(d, (idesc, kind), self.descriptors, len(self.ctas))
        size = self.cta.shared.size
        if last >= size:
            raise reads_past_the_end("tcgen05.mma", size)
        lane, column = split_address(d_tmem)
        pieces = [
            (self.ctas[p.cta_rank].tmem, p.matrix_index, p.memory_index(lane, column))
            for p in accumulator_slices(d.m, d.n, len(self.ctas))
        ]
        self._tell(a_units, b_units, pieces)
        a = self._operand(a_units, _FORMATS[d.a_format], d.a_mn_major)
        b = self._operand(b_units, _FORMATS[d.b_format], d.b_mn_major)
        product = a @ b.T
        if d.negate_a != d.negate_b:
            product = -product
        for tmem, matrix_index, where in pieces:
            part = product[matrix_index]
            if d.d_format == "float16":
                _store_half(tmem.words, where, part, self.accumulate)
            elif self.accumulate:
                tmem.floats[where] += part
            else:
                tmem.floats[where] = part
        self.done = True

    def _tell(self, a_units: np.ndarray, b_units: np.ndarray, pieces: list[Any]) -> None:
        """Tell the race detector what is read and written."""
        detector, ticket = self.cta.detector, self.ticket
        if detector is None or ticket is None:
            return
        for cta in self.ctas:
            detector.operation_reaches(cta, ticket)
            for units in (a_units, b_units):
                detector.operation_access(ticket, cta.shared, units, writes=False)
        for tmem, _, (rows, columns) in pieces:
            detector.tmem_access(ticket, tmem, rows, columns, writes=True, reads=self.accumulate)

    def _operand(self, units: np.ndarray, dtype: np.dtype, mn_major: bool) -> np.ndarray:
        """(rows, K) float32 matrix: the rows that each of the CTAs holds, at the same positions, one after the other."""
        parts = [_matrix(cta.shared, units, dtype, mn_major) for cta in self.ctas]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
        """Thread -> its newest operation of each queue, newest last: what a commit tracks, with all before them."""
        self._operands: dict[Any, tuple[np.ndarray, np.ndarray, int]] = cta.cluster.operand_cache

    def operands(
        self, d: InstructionDescriptor, key: tuple[int, str], descriptors: list[tuple[int, int]], ctas: int
    ) -> tuple[np.ndarray, np.ndarray, int]:  # fmt: skip
        """Positions of the 16-byte units of A and B, the K steps of a batch side by side, and the last byte of both.

        The rows of both are shared out evenly among the CTAs. key: instruction descriptor and kind.
        """
        key = (*key, ctas, tuple(descriptors))  # type: ignore[assignment]
        found = self._operands.get(key)
        if found is None:
            k_bytes = d.k * d.element_bytes
            sides = []
            for side, all_rows, mn_major in ((0, d.m, d.a_mn_major), (1, d.n, d.b_mn_major)):
                rows = all_rows // ctas
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
        key: Key,
        shape: tuple[int, int],
        operands: tuple[int, int],
        accumulate: bool,
        ctas: list[CTA],
        judged: bool,
    ) -> None:
        """One MMA (M, N = shape; descriptors of A and B) by one thread: append it to the open batch, or open a new one.

        Only MMAs on one accumulator, of one shape and kind, are a pipeline, which executes in the order of issue.
        `judged`: its accesses are put before the race detector.
        """
        batch, detector = self.open, self.cta.detector if judged else None
        part = None if detector is None else detector.part_of(g, thread)
        if batch is None or not accumulate or not batch.continues(place, thread, key, part):
            self.close_batch()
            batch = self.open = Product(self.cta, ctas, place, thread, key, accumulate)
            if detector is not None:
                pipeline = (key[0], *shape, key[2])
                queue = ("tcgen05", self.cta.rank, thread, *pipeline)
                batch.knowledge = part
                batch.ticket = detector.issue(
                    g, thread, queue, place, g.agents(thread), pipelined=True, pipeline=pipeline
                )
                self.track(thread, queue, batch.ticket)
        batch.descriptors.append(operands)

    def track(self, thread: int, queue: Any, ticket: Ticket) -> None:
        """An operation that the next commit of the thread will track."""
        tracked = self.tracked.setdefault(thread, {})
        tracked.pop(queue, None)
        tracked[queue] = ticket

    def close_batch(self) -> None:
        """Hand the open batch to the machine as one asynchronous operation."""
        if self.open is not None:
            batch, self.open = self.open, None
            self.cta.cluster.issue(("tcgen05", self.cta.rank, batch.thread), batch)


def issued_once(g: Group, place: Place, operands: list[tuple[Any, ...]], what: str) -> set[Any]:
    """(warp, operands) of the operations that the lanes issue, each once, from (thread, operands) of every lane.

    Reports where lanes of a warp issue the same. Two warps that do are found as a pair of accesses.
    """
    issued = {(lane[0] >> 5, *lane[1:]) for lane in operands}
    if len(issued) < g.n:
        g.cta.report(
            Finding(
                "duplicate-issue",
                "one thread issues it for the whole tile; here each of these threads issues its own",
                place=place,
                other=place,
                memory="tmem",
                what=f"{g} issue the {what}",
                fix="guard the issue with T.ptx.elect_sync()",
            )
        )
    return issued


@instruction("tcgen05.mma", called="MMA", completes="tcgen05.commit", measure="MMA instructions")
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

    One thread issues one MMA; here every lane of the group issues its own. kind::f16 (fp16, bf16) only. With cta_group::2
    each CTA of the pair holds one half of the rows of A and of B, at the same addresses, and of D. Lanes of a warp that
    issue the same MMA are reported; all of them compute, and for the order of accesses the lowest stands for them.
    """
    g.cta.cluster.use_cta_group(place, cta_group)
    ctas = [g.cta] if cta_group == 1 else g.cta.cluster.pair(g.cta)
    values = [g.per_lane(v) for v in (d_tmem, a_desc, b_desc, idesc, enable_input_d)]
    lanes = list(zip(g.lanes.tolist(), *values, strict=True))
    issued = issued_once(g, place, lanes, "MMA")
    for thread, d, a, b, i, accumulate in lanes:
        fields, columns = _checked(d, a, b, i, kind, cta_group)
        for cta in ctas:
            cta.tmem.check(g, place, split_address(d)[1], columns)
        same = (thread >> 5, d, a, b, i, accumulate)
        g.cta.tensor_core.issue(
            g, place, thread, (d, i, kind), (fields.m, fields.n), (a, b), bool(accumulate), ctas,
            judged=same in issued,
        )  # fmt: skip
        issued.discard(same)


@functools.lru_cache(maxsize=4096)
def _checked(
    d: int, a: int, b: int, idesc: int, kind: str, cta_group: int
) -> tuple[InstructionDescriptor, int]:
    """The decoded instruction descriptor and the columns of D, all operands found legal; else a KernelFault."""
    try:
        fields = InstructionDescriptor.decode(idesc, kind)
        fields.check_shape(cta_group)
        SharedMatrixDescriptor.decode(a), SharedMatrixDescriptor.decode(b)
        check_accumulator_address(*split_address(d), fields.m, fields.n, cta_group)
    except BadInput as error:
        raise KernelFault("out-of-bounds", str(error), ENCODE) from None
    return fields, accumulator_columns(fields.m, fields.n, cta_group)


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
    write_descriptor(g, place, dst, addr, fixed)


@instruction("encode.instruction_descriptor")
def encode_instruction_descriptor(g: Group, place: Place, dst: Any, value: int) -> None:
    """TVM's helper: write the 32-bit instruction descriptor to the register at `dst`; its fields are all constants."""
    column = register_columns(g, dst, 4)
    write_registers(g, column * 4, 4)
    g.cta.frame(RAW[4])[g.sel if column.__class__ is int else g.lanes, column] = value


def add_low_half(desc: Any, offset: Any) -> Any:
    """Add to the low 32 bits of a 64-bit descriptor, as TVM's helper does; the upper half stays."""
    if desc.__class__ is np.ndarray:
        low = (desc + np.uint64(offset)) & np.uint64(0xFFFFFFFF)
        return desc & np.uint64(0xFFFFFFFF00000000) | low
    return desc & 0xFFFFFFFF00000000 | (desc + offset) & 0xFFFFFFFF
