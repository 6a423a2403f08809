"""Moves between Tensor Memory and registers: tcgen05.ld, tcgen05.st, and waiting for them.

Both are asynchronous: a load writes its registers, and frees the TMEM that it read, at wait::ld; a store's words are
there for others after wait::st.

Source: PTX ISA 9.1, tcgen05.ld, tcgen05.st, tcgen05.wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BadInput, KernelFault
from ...ir.instruction import instruction
from ...ordering.warp_meetings import warps_meet
from ..memory.load_store import LOCAL_BASE
from ..pipes import Awaited
from ..threads.collectives import one_warp
from ..threads.registers import check_registers, start_loading, write_registers
from ..threads.warp import begun
from .allocation import WORD, split_address
from .layout import columns_touched, first_lane, lanes_touched, ld_registers

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.happens_before import Ticket
    from ..threads.warp import Group


class Transfer:
    """One tcgen05.ld or tcgen05.st in flight: moves words between TMEM and registers when it lands.

    A store takes its registers when it is issued: PTX has a wait for what a load writes, not for what a store reads.
    """

    __slots__ = (
        "group",
        "place",
        "rows",
        "lanes",
        "columns",
        "registers",
        "factor",
        "stored",
        "tickets",
        "done",
    )

    def __init__(
        self,
        group: Group,
        place: Place,
        rows: list[slice],
        lanes: Any,
        columns: Any,
        registers: list[int],
        factor: int,
    ) -> None:
        self.group, self.place, self.rows = group, place, rows
        self.lanes, self.columns, self.factor, self.registers = lanes, columns, factor, registers
        self.stored = self._frame().copy() if place.mnemonic == "tcgen05.st" else None
        self.tickets: list[Ticket] = []
        self.done = False

    def _frame(self) -> np.ndarray:
        """(threads, registers): a view of the registers' words where they are consecutive, else a copy."""
        return np.asarray(self.group.cta.frame(WORD)[self._registers()])

    def _registers(self) -> Any:
        g, first = self.group, self.registers[0]
        if self.registers == list(range(first, first + len(self.registers))):
            return g.sel, slice(first, first + len(self.registers))
        return g.lanes[:, None], np.array(self.registers)

    @property
    def issuer(self) -> str:
        """The warps, in words."""
        return str(self.group)

    def land(self) -> None:
        """Copy the words."""
        g, tmem = self.group, self.group.cta.tmem
        stores, detector = self.stored is not None, g.cta.detector
        if detector is not None:
            low, high = int(np.min(self.columns)), int(np.max(self.columns)) + self.factor
            for ticket, rows in zip(self.tickets, self.rows, strict=True):
                detector.tmem_access(ticket, tmem, rows, slice(low, high), writes=stores)
        columns: Any = self.columns
        if isinstance(self.lanes, slice):
            columns = slice(columns[0], columns[-1] + 1)
        if self.stored is not None:
            self._store(tmem.words, columns, self.stored)
        else:
            value: Any = tmem.words[self.lanes, columns]
            if self.factor == 2:
                value = (value & 0xFFFF) | (tmem.words[self.lanes, columns + 1] << 16)
            g.cta.frame(WORD)[self._registers()] = value
        self.done = True

    def _store(self, words: np.ndarray, columns: Any, value: np.ndarray) -> None:
        if self.factor == 2:  # .unpack::16b: the halves go to the low halves of two columns
            words[self.lanes, columns + 1] = value >> 16
            value = value & 0xFFFF
        words[self.lanes, columns] = value


@instruction(
    "tcgen05.ld",
    uniform=("taddr", "row", "column"),
    completes="tcgen05.wait::ld",
    measure="TMEM loads",
)
def tcgen05_ld(
    g: Group,
    place: Place,
    taddr: int,
    row: int,
    column: int,
    shape: str,
    num: int,
    pack: bool,
    registers: tuple[int, ...],
) -> None:
    """tcgen05.ld.sync.aligned.shape.xnum{.pack::16b}.b32 r, [taddr]: TMEM to registers, asynchronously.

    Warp i of a warpgroup reaches lanes 32i to 32i+31. `registers` are the addresses of the destination registers.
    """
    _transfer(g, place, taddr, row, column, shape, num, pack, registers)


@instruction("tcgen05.st", uniform=("taddr", "row", "column"), completes="tcgen05.wait::st")
def tcgen05_st(
    g: Group,
    place: Place,
    taddr: int,
    row: int,
    column: int,
    shape: str,
    num: int,
    pack: bool,
    registers: tuple[int, ...],
) -> None:
    """tcgen05.st.sync.aligned.shape.xnum{.unpack::16b}.b32 [taddr], r: registers to TMEM, asynchronously.

    The mirror of tcgen05.ld; `pack` stands for .unpack::16b.
    """
    _transfer(g, place, taddr, row, column, shape, num, pack, registers)


def _transfer(
    g: Group,
    place: Place,
    taddr: int,
    row: int,
    column: int,
    shape: str,
    num: int,
    pack: bool,
    registers: tuple[int, ...],
) -> None:
    lane, first_column = split_address(taddr)
    lane, first_column = lane + row, first_column + column
    if not g.whole_warps():
        one_warp(g, place)
        return
    for start, stop in columns_touched(shape, num, pack):
        g.cta.tmem.check(g, place, first_column + start, stop - start)
    lane_map, column_map, factor = ld_registers(shape, num, pack)
    warps = g.warp_ids()
    try:
        firsts = [first_lane(shape, lane, warp) for warp in warps]
    except BadInput as error:
        fix = "let each warp name the lanes that it reaches, from 32 * (warp % 4), or leave the lane 0"
        raise KernelFault("tmem-lane-access", str(error), fix) from None
    rows = [slice(first, first + lanes_touched(shape)) for first in firsts]
    if (
        shape == "32x32b"
        and not pack
        and firsts == list(range(firsts[0], firsts[0] + 32 * len(firsts), 32))
    ):
        lanes: Any = slice(firsts[0], firsts[0] + g.n)
        columns: Any = np.arange(first_column, first_column + num)
    else:
        lanes = np.concatenate([first + lane_map for first in firsts])
        columns = first_column + np.concatenate([column_map] * len(firsts))
    items = [r - LOCAL_BASE >> 2 for r in registers]
    if not 0 <= min(items) <= max(items) < g.cta.frame_bytes // 4:
        raise KernelFault(
            "out-of-bounds",
            f"{place.mnemonic} of a register outside the thread's local buffers",
            "give the local buffer an element for every register of the instruction",
        )
    first_bytes = 4 * np.array(items)[:, None]
    if place.mnemonic == "tcgen05.st":
        check_registers(g, place, first_bytes, 4)
    else:  # until wait::ld, they count as being loaded
        write_registers(g, first_bytes, 4)
    operation = Transfer(g, place, rows, lanes, columns, items, factor)
    queue_name = place.mnemonic.removeprefix("tcgen05.")
    for warp in warps:
        g.cta.transfers.setdefault((queue_name, warp), []).append(operation)
        if queue_name == "ld":
            start_loading(g.cta, warp, 4 * min(items), 4 * max(items) + 4, place)
        if g.cta.detector is not None:
            queue = (queue_name, g.cta.rank, warp)
            who = g.agents(np.arange(32 * warp, 32 * warp + 32))
            operation.tickets.append(
                g.cta.detector.issue(g, 32 * warp, queue, place, who, collective=True)
            )
    g.cta.cluster.issue((queue_name, g.cta.rank, tuple(warps)), operation)


class TransfersWait:
    """A group blocked in tcgen05.wait::ld or wait::st."""

    def __init__(self, group: Group, kind: str) -> None:
        self.kind = kind
        transfers = group.cta.transfers
        self.pending = Awaited(
            op for warp in group.warp_ids() for op in transfers.pop((kind, warp), ())
        )

    def ready(self) -> bool:
        """All of the warps' transfers have landed."""
        return self.pending.landed()

    def finish(self, group: Group) -> None:
        """The threads know that their transfers are done; after loads, the registers may be read."""
        cta = group.cta
        if self.kind == "ld":
            for warp in group.warp_ids():
                cta.loading.pop(warp, None)
        if cta.detector is not None:
            cta.detector.transfers_done(group, self.kind)
            warps_meet(cta.detector, group)

    def describe(self) -> str:
        """How many are in flight."""
        return f"tcgen05.wait::{self.kind} for {len(self.pending)} operations in flight"


def _wait_transfers(g: Group, place: Place, kind: str) -> TransfersWait | None:
    if not g.whole_warps():
        one_warp(g, place)
    wait = TransfersWait(g, kind)
    return begun(g, wait)


@instruction("tcgen05.wait::ld", waits=True, synchronises=True)
def tcgen05_wait_ld(g: Group, place: Place) -> TransfersWait | None:
    """tcgen05.wait::ld.sync.aligned: wait for all tcgen05.ld that the executing warps have issued."""
    return _wait_transfers(g, place, "ld")


@instruction("tcgen05.wait::st", waits=True, synchronises=True)
def tcgen05_wait_st(g: Group, place: Place) -> TransfersWait | None:
    """tcgen05.wait::st.sync.aligned: wait for all tcgen05.st that the executing warps have issued."""
    return _wait_transfers(g, place, "st")
