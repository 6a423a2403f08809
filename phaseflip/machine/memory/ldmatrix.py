"""ldmatrix and stmatrix: 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.

Lanes 8i to 8i + 7 give the addresses of the eight rows of matrix i. Lane l holds in register i the two elements
2 (l % 4) and the next of row l / 4 of matrix i; with .trans, of its column l / 4.

Source: PTX ISA 9.1, 9.7.14.5.15 ldmatrix, 9.7.14.5.16 stmatrix.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import KernelFault
from ...ir.instruction import instruction
from ...ordering.warp_meetings import warps_meet
from ..threads.collectives import one_warp
from ..threads.registers import check_registers, write_registers
from .load_store import RAW, memory_of, observe, register_columns

if TYPE_CHECKING:
    from ...findings.finding import Place
    from ..threads.warp import Group
    from .load_store import Memory

ROW_BYTES = 16
_LANE = np.arange(32)


def _rows(g: Group, addr: Any, matrices: int) -> tuple[Memory, np.ndarray, np.ndarray]:
    """(shared memory, byte offset of each row: (warps, matrices, 8), the lanes that give them, flat)."""
    given = np.broadcast_to(np.asarray(addr), (g.n,)).reshape(-1, 32)[:, : 8 * matrices]
    memory, offsets = memory_of(g, given.reshape(-1))
    if memory.kind != "shared":
        raise KernelFault(
            "out-of-bounds",
            "the address of a matrix row is not in shared memory",
            "stage the matrix in shared memory, and pass the addresses of its rows there",
        )
    if memory is not g.cta.shared:
        raise KernelFault(
            "out-of-bounds",
            f"the address of a matrix row is in the shared memory of another CTA (rank {memory.rank}); ldmatrix and "
            "stmatrix take .shared::cta addresses",
            "copy the rows to the own CTA first (ld, st or a bulk copy), or access those of the other CTA with ld and st",
        )
    memory.items(offsets, ROW_BYTES)  # in bounds, and aligned
    lanes = g.lanes.reshape(-1, 32)[:, : 8 * matrices].reshape(-1)
    return memory, offsets.reshape(-1, matrices, 8), lanes


def _elements(trans: bool) -> tuple[np.ndarray, np.ndarray]:
    """(row, column) of the two elements that each lane holds of a matrix: arrays (32, 2)."""
    along, across = (
        2 * (_LANE[:, None] & 3) + np.arange(2),
        np.broadcast_to(_LANE[:, None] >> 2, (32, 2)),
    )
    return (along, across) if trans else (across, along)


def _move(
    g: Group, place: Place, addr: Any, trans: bool, registers: tuple[int, ...], writes: bool
) -> tuple[Any, Any] | None:
    """Indices of shared memory (as 16-bit items) and of the registers, each (warps, matrices, 32, 2), or None."""
    if not g.whole_warps():
        one_warp(g, place)
        return None
    if g.cta.detector is not None:
        warps_meet(g.cta.detector, g)
    memory, offsets, lanes = _rows(g, addr, len(registers))
    observe(g, place, memory, offsets.reshape(-1), ROW_BYTES, writes, lanes)
    g.cta.bytes["shared_stored" if writes else "shared_loaded"] += offsets.size * ROW_BYTES
    row, column = _elements(trans)
    shared_items = offsets[:, :, row] // 2 + column
    first = [register_columns(g, r, 4) for r in registers]
    first_bytes = 4 * np.array(first)[:, None]
    if writes:
        check_registers(g, place, first_bytes, 4)
    else:
        write_registers(g, first_bytes, 4)
    columns = 2 * np.array(first)[None, :, None, None] + np.arange(2)
    threads = g.lanes.reshape(-1, 32)[:, None, :, None]
    return shared_items, (threads, columns)


@instruction("ldmatrix")
def ldmatrix(g: Group, place: Place, addr: Any, trans: bool, registers: tuple[int, ...]) -> None:
    """ldmatrix.sync.aligned.m8n8.xnum{.trans}.shared.b16 r, [p]: one register a matrix, 1, 2 or 4 of them."""
    found = _move(g, place, addr, trans, registers, writes=False)
    if found is not None:
        g.cta.frame(RAW[2])[found[1]] = g.cta.shared.view(RAW[2])[found[0]]


@instruction("stmatrix")
def stmatrix(g: Group, place: Place, addr: Any, trans: bool, registers: tuple[int, ...]) -> None:
    """stmatrix.sync.aligned.m8n8.xnum{.trans}.shared.b16 [p], r: the mirror of ldmatrix."""
    found = _move(g, place, addr, trans, registers, writes=True)
    if found is not None:
        g.cta.shared.view(RAW[2])[found[0]] = g.cta.frame(RAW[2])[found[1]]
