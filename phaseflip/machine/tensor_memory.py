"""Tensor Memory: 128 lanes x 512 columns x 32 bits of a CTA; allocation, loads to registers, waiting for them.

Source: PTX ISA 9.1, tcgen05.alloc / dealloc / relinquish_alloc_permit, tcgen05.ld, tcgen05.wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadInput, KernelFault
from ..instructions import instruction
from .memory import LOCAL_BASE, memory_of
from .tensor_memory_layout import COLUMNS, columns_touched, first_lane, ld_registers

if TYPE_CHECKING:
    from ..device_ir import Site
    from .cta import CTA
    from .warp import Group

LANES = 128
WORD = np.dtype(np.uint32)
POISON = 0xFFFFFFFF


class TensorMemory:
    """Contents and allocations of one CTA: `allocations` maps the first column to the number of columns."""

    def __init__(self) -> None:
        self.words = np.full((LANES, COLUMNS), POISON, np.uint32)
        self.floats = self.words.view(np.float32)
        self.allocations: dict[int, int] = {}
        self.last_request = COLUMNS
        self.relinquished = False

    def find(self, columns: int) -> int | None:
        """First column of the lowest free range of `columns` columns, aligned to that number; None if there is none."""
        for start in range(0, COLUMNS - columns + 1, columns):
            if all(start + columns <= a or a + n <= start for a, n in self.allocations.items()):
                return start
        return None

    def check(self, column: int, width: int, what: str) -> None:
        """KernelFault unless the columns lie inside one live allocation."""
        if column < 0 or column + width > COLUMNS:
            raise KernelFault(
                "out-of-bounds",
                f"{what} of TMEM columns {column} to {column + width - 1}; there are {COLUMNS}",
            )
        if not any(a <= column and column + width <= a + n for a, n in self.allocations.items()):
            raise KernelFault(
                "tmem-unallocated",
                f"{what} of TMEM columns {column} to {column + width - 1}, which no live allocation holds",
            )


def split_address(taddr: int) -> tuple[int, int]:
    """(lane, column) of a TMEM address: lane in the upper 16 bits, column in the lower."""
    return taddr >> 16 & 0xFFFF, taddr & 0xFFFF


class AllocationWait:
    """A warp blocked in tcgen05.alloc until columns are free."""

    def __init__(self, cta: CTA, columns: int, dst: int) -> None:
        self.cta, self.columns, self.dst = cta, columns, dst

    def ready(self) -> bool:
        """A large enough range is free."""
        return self.cta.tmem.find(self.columns) is not None

    def finish(self, group: Group) -> None:
        """Take the columns and write their address."""
        start = self.cta.tmem.find(self.columns)
        assert start is not None
        self.cta.tmem.allocations[start] = self.columns
        memory, offset = memory_of(group, self.dst)
        memory.view(WORD)[memory.items(offset, 4)] = start

    def describe(self) -> str:
        """How many columns are wanted and what holds them."""
        held = ", ".join(f"{n} from column {a}" for a, n in self.cta.tmem.allocations.items())
        return f"tcgen05.alloc of {self.columns} columns; allocated are {held}"


@instruction("tcgen05.alloc", waits=True, uniform=("dst", "n_columns"))
def tcgen05_alloc(
    g: Group, site: Site, dst: int, n_columns: int, cta_group: int
) -> AllocationWait | None:
    """tcgen05.alloc.cta_group.sync.aligned.shared::cta.b32 [dst], nCols: blocks until nCols TMEM columns are free.

    nCols is a power of two from 32 to 512; the address is written to shared memory at `dst`.
    """
    tmem = g.cta.tmem
    if not 32 <= n_columns <= COLUMNS or n_columns & (n_columns - 1):
        raise KernelFault(
            "tmem-bad-allocation",
            f"tcgen05.alloc of {n_columns} columns; a power of two from 32 to 512 is legal",
        )
    if tmem.relinquished:
        raise KernelFault(
            "tmem-bad-allocation", "tcgen05.alloc after tcgen05.relinquish_alloc_permit"
        )
    if not g.whole_warps() or g.warps != 1:
        raise KernelFault(
            "divergent-collective", f"tcgen05.alloc is for one whole warp, but {g} executes it"
        )
    wait = AllocationWait(g.cta, n_columns, dst)
    if wait.ready():
        wait.finish(g)
        return None
    return wait


@instruction("tcgen05.dealloc", uniform=("taddr", "n_columns"))
def tcgen05_dealloc(g: Group, site: Site, taddr: int, n_columns: int, cta_group: int) -> None:
    """tcgen05.dealloc.cta_group.sync.aligned.b32 taddr, nCols: free a live allocation, whole; by one whole warp."""
    column = split_address(taddr)[1]
    held = g.cta.tmem.allocations.get(column)
    if held is None:
        raise KernelFault(
            "tmem-double-free", f"tcgen05.dealloc of column {column}, where no allocation starts"
        )
    if held != n_columns:
        raise KernelFault(
            "tmem-bad-allocation",
            f"tcgen05.dealloc of {n_columns} columns of an allocation of {held}",
        )
    del g.cta.tmem.allocations[column]


@instruction("tcgen05.relinquish_alloc_permit")
def tcgen05_relinquish_alloc_permit(g: Group, site: Site, cta_group: int) -> None:
    """tcgen05.relinquish_alloc_permit.cta_group.sync.aligned: this CTA allocates no more."""
    g.cta.tmem.relinquished = True


class TensorLoad:
    """One tcgen05.ld in flight: reads TMEM and writes registers when it lands."""

    __slots__ = (
        "group",
        "site",
        "lanes",
        "columns",
        "first_register",
        "registers",
        "factor",
        "done",
    )

    def __init__(
        self,
        group: Group,
        site: Site,
        lanes: Any,
        columns: Any,
        registers: tuple[int, ...],
        factor: int,
    ) -> None:
        self.group, self.site = group, site
        self.lanes, self.columns, self.factor = lanes, columns, factor
        self.registers = [r - LOCAL_BASE >> 2 for r in registers]
        first = self.registers[0]
        contiguous = self.registers == list(range(first, first + len(self.registers)))
        self.first_register = first if contiguous else None
        self.done = False

    @property
    def issuer(self) -> str:
        """The warps, in words."""
        return str(self.group)

    def land(self) -> None:
        """Copy the words."""
        words, g = self.group.cta.tmem.words, self.group
        value = words[self.lanes, self.columns]
        if self.factor == 2:
            value = (value & 0xFFFF) | (words[self.lanes, self.columns + 1] << 16)
        frame = g.cta.frame(WORD)
        if self.first_register is not None:
            frame[g.sel, self.first_register : self.first_register + len(self.registers)] = value
        else:
            frame[g.lanes[:, None], np.array(self.registers)] = value
        self.done = True


@instruction("tcgen05.ld", uniform=("taddr", "row", "column"))
def tcgen05_ld(
    g: Group,
    site: Site,
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
    lane, first_column = split_address(taddr)
    lane, first_column = lane + row, first_column + column
    if not g.whole_warps():
        raise KernelFault(
            "divergent-collective", f"tcgen05.ld is for whole warps, but {g} executes it"
        )
    for start, stop in columns_touched(shape, num, pack):
        g.cta.tmem.check(first_column + start, stop - start, "tcgen05.ld")
    lane_map, column_map, factor = ld_registers(shape, num, pack)
    try:
        firsts = [first_lane(shape, lane, warp) for warp in g.warp_ids()]
    except BadInput as error:
        raise KernelFault("tmem-lane-access", str(error)) from None
    if (
        shape == "32x32b"
        and not pack
        and firsts == list(range(firsts[0], firsts[0] + 32 * len(firsts), 32))
    ):
        lanes: Any = slice(firsts[0], firsts[0] + g.n)
        columns: Any = slice(first_column, first_column + num)
    else:
        lanes = np.concatenate([first + lane_map for first in firsts])
        columns = first_column + np.concatenate([column_map] * len(firsts))
    for r in registers:
        if not 0 <= r - LOCAL_BASE <= g.cta.frame_bytes - 4:
            raise KernelFault(
                "out-of-bounds", "tcgen05.ld into a register outside the thread's local buffers"
            )
    g.cta.cluster.issue(
        ("ld", g.cta.rank, tuple(g.warp_ids())),
        TensorLoad(g, site, lanes, columns, tuple(registers), factor),
    )


class LoadsWait:
    """A group blocked in tcgen05.wait::ld."""

    def __init__(self, group: Group) -> None:
        warps = set(group.warp_ids())
        self.pending = [
            op
            for key, op in group.cta.cluster.in_flight()
            if key[0] == "ld" and key[1] == group.cta.rank and warps.intersection(key[2])
        ]

    def ready(self) -> bool:
        """All of the warps' loads have landed."""
        return all(op.done for op in self.pending)

    def finish(self, group: Group) -> None:
        """Nothing to do: landing has written the registers."""

    def describe(self) -> str:
        """How many loads are in flight."""
        return f"tcgen05.wait::ld for {sum(not op.done for op in self.pending)} loads in flight"


@instruction("tcgen05.wait::ld", waits=True)
def tcgen05_wait_ld(g: Group, site: Site) -> LoadsWait | None:
    """tcgen05.wait::ld.sync.aligned: wait for all tcgen05.ld that the executing warps have issued."""
    wait = LoadsWait(g)
    return None if wait.ready() else wait
