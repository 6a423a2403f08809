"""tcgen05.cp: asynchronous copies from shared memory to Tensor Memory.

Where rows go, as PTX tells it by warps: row r of a matrix of 128 goes to lane r. .64x128b goes to two warps of each pair,
32 rows each: with .warpx2::02_13 row r to lanes r and r + 64, with .warpx2::01_23 rows 0-31 to lanes r and r + 32 and
rows 32-63 to lanes r + 32 and r + 64. .32x128b.warpx4 goes to lanes r, r + 32, r + 64 and r + 96. Of .4x256b PTX does not
say it; row r goes to lane 32 r, as TVM's planner has it, which was compared with hardware.

A copy is in a pipeline with later MMAs of its thread, and of threads that tcgen05 fences order after it. Other copies, and
MMAs before it, are ordered by waiting only.

Source: PTX ISA 9.1, tcgen05.cp; "Data Movement Shape", "Pipelined tcgen05 Instructions".
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BadInput, KernelFault
from ...ir.instruction import instruction
from ...ordering.happens_before import COPIES
from ..memory.load_store import RAW
from ..operands.matrix_descriptor import (
    ENCODE,
    SharedMatrixDescriptor,
    operand_units,
    reads_past_the_end,
)
from ..operation import ThreadOperation
from .allocation import LANES, WORD, split_address
from .mma import issued_once

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.happens_before import Ticket
    from ..cta import CTA
    from ..threads.warp import Group

SHAPES = {
    "128x256b": (128, 2), "4x256b": (4, 2), "128x128b": (128, 1), "64x128b": (64, 1), "32x128b": (32, 1)
}  # fmt: skip
"""Shape -> rows, and units of 16 bytes of a row."""


@functools.cache
def destination_lanes(shape: str, multicast: str) -> np.ndarray:
    """(copies, rows): the lanes that each row goes to."""
    rows = np.arange(SHAPES[shape][0])
    if multicast == "warpx4":
        return rows + 32 * np.arange(4)[:, None]
    if multicast == "warpx2::02_13":
        return rows + 64 * np.arange(2)[:, None]
    if multicast == "warpx2::01_23":
        return rows + rows // 32 * 32 + 32 * np.arange(2)[:, None]
    return (rows * 32 if shape == "4x256b" else rows)[None, :]


class TensorCopy(ThreadOperation):
    """One tcgen05.cp in flight, from the shared memory of each of the CTAs to its TMEM, at the same addresses."""

    __slots__ = ("ctas", "units", "lanes", "column", "ticket")

    def __init__(
        self, ctas: list[CTA], cta: CTA, place: Place, thread: int, units: np.ndarray, lanes: np.ndarray, column: int,
        ticket: Ticket | None,
    ) -> None:  # fmt: skip
        super().__init__(cta, place, thread)
        self.ctas, self.ticket = ctas, ticket
        self.units, self.lanes, self.column = units, lanes, column

    @property
    def width(self) -> int:
        """Columns written."""
        return 4 * self.units.shape[1]

    def land(self) -> None:
        """Copy the rows."""
        for cta in self.ctas:
            if int(self.units.max()) >= cta.shared.size >> 4:
                raise reads_past_the_end("tcgen05.cp", cta.shared.size)
            self._tell(cta)
            words = np.ascontiguousarray(cta.shared.view(RAW[16])[self.units]).view(WORD)
            for lanes in self.lanes:
                cta.tmem.words[lanes, self.column : self.column + self.width] = words
        self.done = True

    def _tell(self, cta: CTA) -> None:
        """Tell the race detector what is read and written."""
        detector, ticket = self.cta.detector, self.ticket
        if detector is None or ticket is None:
            return
        detector.operation_reaches(cta, ticket)
        detector.operation_access(ticket, cta.shared, self.units, writes=False)
        columns = slice(self.column, self.column + self.width)
        if self.lanes.size == LANES:
            detector.tmem_access(ticket, cta.tmem, slice(0, LANES), columns, writes=True)
            return
        for lane in self.lanes.reshape(-1).tolist():
            one = slice(lane, lane + 1)
            detector.tmem_access(ticket, cta.tmem, one, columns, writes=True, lane=lane)


@instruction("tcgen05.cp", completes="tcgen05.commit")
def tcgen05_cp(
    g: Group, place: Place, taddr: Any, desc: Any, row: Any, column: Any, shape: str, multicast: str, cta_group: int
) -> None:  # fmt: skip
    """tcgen05.cp.cta_group.shape{.multicast} [taddr], s-desc: rows of shared memory to lanes of TMEM, asynchronously.

    shape: 128x256b, 4x256b, 128x128b, 64x128b (with warpx2::02_13 or ::01_23), 32x128b (with warpx4): rows and bits of a
    row, which go to 8 or 4 columns. The rows are those of a K-major operand of 32 or 16 bytes. One thread issues one copy.
    With cta_group::2 each CTA of the pair copies from its own shared memory, as is read into the text, which says only
    where to. `row` and `column` are added to taddr. .dst_fmt.src_fmt is refused when decoding.
    """
    g.cta.cluster.use_cta_group(place, cta_group)
    ctas = [g.cta] if cta_group == 1 else g.cta.cluster.pair(g.cta)
    values = [g.per_lane(v) for v in (taddr, desc, row, column)]
    operands = list(zip(g.lanes.tolist(), *values, strict=True))
    issued = issued_once(g, place, operands, "copy")
    core, detector = g.cta.tensor_core, g.cta.detector
    core.close_batch()
    for thread, address, descriptor, more_rows, more_columns in operands:
        lane, first = split_address(address)
        units = _source(descriptor, shape)
        lanes, first = destination_lanes(shape, multicast) + lane + more_rows, first + more_columns
        if not 0 <= lanes.min() <= lanes.max() < LANES:
            raise KernelFault(
                "out-of-bounds",
                f"tcgen05.cp.{shape} at lane {lane + more_rows} reaches lanes {lanes.min()} to {lanes.max()}; TMEM has {LANES}",
                "start at the lane from which all rows fit, 0 where they fill TMEM",
            )
        for cta in ctas:
            cta.tmem.check(g, place, first, 4 * units.shape[1])
        ticket, same = None, (thread >> 5, address, descriptor, more_rows, more_columns)
        if detector is not None and same in issued:
            queue = ("cp", g.cta.rank, thread)
            ticket = detector.issue(g, thread, queue, place, g.agents(thread), pipeline=COPIES)
            core.track(thread, queue, ticket)
        issued.discard(same)
        operation = TensorCopy(ctas, g.cta, place, thread, units, lanes, first, ticket)
        g.cta.cluster.issue(("tcgen05", g.cta.rank, thread), operation)


@functools.lru_cache(maxsize=4096)
def _source(descriptor: int, shape: str) -> np.ndarray:
    """(rows, units of a row): numbers of the 16-byte units of shared memory."""
    rows, width = SHAPES[shape]
    try:
        decoded = SharedMatrixDescriptor.decode(descriptor)
        return operand_units(decoded, rows, 16 * width, mn_major=False, element_bytes=1)
    except BadInput as error:
        raise KernelFault("out-of-bounds", str(error), ENCODE) from None
