"""Where things lie in Tensor Memory: accumulators of `tcgen05.mma`, registers of `tcgen05.ld/st`.

Tensor Memory of one CTA is 128 lanes by 512 columns of 32 bits. A 32-bit address holds the lane in
its upper and the column in its lower half. Everything here is an offset from such an address.

Source: PTX ISA 9.1, "Data Path Layout Organization", "Data Movement Shape", "Access restrictions"
and "Packing and Unpacking" of the tcgen05 family. PTX gives the layouts as figures; they are
restated in words at each function.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from phaseflip.errors import BadInput

LANES = 128
COLUMNS = 512
WARP_LANES = 32

_SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
_REGISTERS_PER_NUM = {"32x32b": 1, "16x64b": 1, "16x32bx2": 1, "16x128b": 2, "16x256b": 4}
_COLUMNS_PER_NUM = {"32x32b": 1, "16x64b": 2, "16x32bx2": 1, "16x128b": 4, "16x256b": 8}


@dataclass(frozen=True)
class AccumulatorSlice:
    """One rectangle of D and the rectangle of Tensor Memory, of the same size, that holds it.

    D[row_start:row_stop, col_start:col_stop] lies in CTA `cta_rank` of the pair (0 for
    cta_group::1) at lanes from lane_start and columns from column_start, both counted from the
    accumulator's address. One element takes one column whatever its type; a 16-bit D sits in the
    lower half of the 32-bit word.
    """

    cta_rank: int
    row_start: int
    row_stop: int
    col_start: int
    col_stop: int
    lane_start: int
    column_start: int

    @property
    def matrix_index(self) -> tuple[slice, slice]:
        """Index of this piece in an (M, N) array."""
        return slice(self.row_start, self.row_stop), slice(self.col_start, self.col_stop)

    def memory_index(self, lane: int, column: int) -> tuple[slice, slice]:
        """Index in the (128, 512) array of its CTA, for an accumulator at (lane, column)."""
        lane, column = lane + self.lane_start, column + self.column_start
        return (
            slice(lane, lane + self.row_stop - self.row_start),
            slice(column, column + self.col_stop - self.col_start),
        )


def data_path_layout(m: int, cta_group: int, ws: bool = False, sparse: bool = False) -> str:
    """The PTX letter, "A" to "G", of the accumulator layout of an MMA of M rows. Raises BadInput.

    A: M=256, pair. B: M=128, pair, dense A. C: M=128, pair, sparse A. D: M=128. E: M=64, .ws. F:
    M=64. G: M=32, .ws.
    """
    if cta_group == 1:
        letters = {128: "D", 64: "E", 32: "G"} if ws else {128: "D", 64: "F"}
    elif cta_group == 2 and not ws:
        letters = {256: "A", 128: "C" if sparse else "B"}
    else:
        raise BadInput(
            f"tcgen05.mma: cta_group must be 1 or 2, and 1 for .ws, not "
            f"{cta_group}{' with .ws' if ws else ''}."
        )
    if m not in letters:
        raise BadInput(
            f"tcgen05.mma{'.ws' if ws else ''}.cta_group::{cta_group}: M is {m}, but must be "
            f"{' or '.join(map(str, sorted(letters)))}."
        )
    return letters[m]


@functools.lru_cache(maxsize=256)
def accumulator_slices(
    m: int, n: int, cta_group: int, ws: bool = False, sparse: bool = False
) -> tuple[AccumulatorSlice, ...]:
    """The pieces that tile the M x N accumulator of one MMA, by CTA rank, row and column; cached.

    Layouts per CTA, r counting the CTA's own rows (rank 1 of a pair owns the upper half of M):

    A, D: lane r, column n.
    B, E: lane r for the left half of N, lane 64 + r for the right half, both from column 0.
    C, F: lane 32 * (r // 16) + r % 16, column n: half of the lanes; the address says which half.
    G: lane 32 * q + r for quarter q of N, each from column 0.

    Raises BadInput for an M that the variant does not have, or an N that does not split.
    """
    letter = data_path_layout(m, cta_group, ws, sparse)
    folds = {"B": 2, "E": 2, "G": 4}.get(letter, 1)
    if n <= 0 or n > COLUMNS or n % folds:
        raise BadInput(
            f"tcgen05.mma: N is {n}, but must be positive, at most {COLUMNS} and a multiple of "
            f"{folds}."
        )
    rows, width = m // cta_group, n // folds
    pieces = []
    for rank in range(cta_group):
        base = rank * rows
        if letter in "CF":
            pieces += [
                AccumulatorSlice(rank, base + r, base + r + 16, 0, n, 2 * r, 0)
                for r in range(0, rows, 16)
            ]
        else:
            pieces += [
                AccumulatorSlice(rank, base, base + rows, q * width, (q + 1) * width, q * rows, 0)
                for q in range(folds)
            ]
    return tuple(pieces)


def accumulator_columns(
    m: int, n: int, cta_group: int, ws: bool = False, sparse: bool = False
) -> int:
    """Number of Tensor Memory columns that the accumulator takes in each CTA. Raises BadInput."""
    pieces = accumulator_slices(m, n, cta_group, ws, sparse)
    return max(piece.column_start + piece.col_stop - piece.col_start for piece in pieces)


def check_accumulator_address(
    lane: int, column: int, m: int, n: int, cta_group: int, ws: bool = False, sparse: bool = False
) -> None:
    """Raise BadInput unless an M x N accumulator may start at (lane, column).

    The lane is 0, or 0 or 16 for layouts C and F ("Tensor Memory Datapath Lane Alignment"); all
    columns must exist.
    """
    letter = data_path_layout(m, cta_group, ws, sparse)
    lanes = (0, 16) if letter in "CF" else (0,)
    if lane not in lanes:
        raise BadInput(
            f"tcgen05.mma: the accumulator of M={m} (layout {letter}) starts at lane {lane}, but "
            f"must start at lane {' or '.join(map(str, lanes))}."
        )
    stop = column + accumulator_columns(m, n, cta_group, ws, sparse)
    if column < 0 or stop > COLUMNS:
        raise BadInput(
            f"tcgen05.mma: accumulator columns {column} to {stop - 1} are not within 0 to "
            f"{COLUMNS - 1}."
        )


class RegisterMap(NamedTuple):
    """What thread t holds in register i, as offsets from the address: (32, registers) int64 arrays.

    Both arrays are read-only. columns_per_register is 1, or 2 with .pack::16b / .unpack::16b: then
    `column` is the column whose lower 16 bits are the lower half of the register, and column + 1
    the one whose lower 16 bits are the upper half.
    """

    lane: np.ndarray
    column: np.ndarray
    columns_per_register: int


def register_count(shape: str, num: int) -> int:
    """Number of 32-bit registers per thread of `.{shape}.x{num}`. Raises BadInput.

    Source: PTX "Various-combinations of .num and .shape".
    """
    if shape not in _SHAPES:
        raise BadInput(f"tcgen05.ld/st: shape .{shape} is not one of .{', .'.join(_SHAPES)}.")
    largest = 128 // _REGISTERS_PER_NUM[shape]
    if num < 1 or num > largest or num & (num - 1):
        raise BadInput(
            f"tcgen05.ld/st.{shape}: .x{num} does not exist; use a power of two from .x1 to "
            f".x{largest}."
        )
    return num * _REGISTERS_PER_NUM[shape]


@functools.lru_cache(maxsize=256)
def ld_registers(
    shape: str, num: int, pack: bool = False, half_split_columns: int | None = None
) -> RegisterMap:
    """Lane and column offset of every register of one warp's `tcgen05.ld/st.{shape}.x{num}`.

    Offsets count from the address' lane and column; 16-lane shapes use 16 lanes from there. For
    thread t, register i:

    32x32b    lane t                          column i
    16x64b    lane t // 4 + 8 * (t % 2)       column 2 * i + t // 2 % 2
    16x128b   lane t // 4 + 8 * (i % 2)       column 4 * (i // 2) + t % 4
    16x256b   lane t // 4 + 8 * (i // 2 % 2)  column 8 * (i // 4) + 2 * (t % 4) + i % 2
    16x32bx2  lane t % 16                     column i, plus half_split_columns for threads 16 to 31

    With pack, every column above stands for two adjacent ones (see RegisterMap), except that
    half_split_columns is the immediate as written. It defaults to the value that makes the two
    halves adjacent. Raises BadInput.
    """
    registers = register_count(shape, num)
    factor = 2 if pack else 1
    if half_split_columns is None:
        half_split_columns = num * factor
    elif shape != "16x32bx2":
        raise BadInput(f"tcgen05.ld/st.{shape}: only .16x32bx2 takes an immHalfSplitoff operand.")
    t = np.arange(WARP_LANES, dtype=np.int64)[:, None]
    i = np.arange(registers, dtype=np.int64)[None, :]
    split = np.zeros_like(t)
    if shape == "32x32b":
        lane, column = t, i
    elif shape == "16x64b":
        lane, column = t // 4 + 8 * (t % 2), 2 * i + t // 2 % 2
    elif shape == "16x128b":
        lane, column = t // 4 + 8 * (i % 2), 4 * (i // 2) + t % 4
    elif shape == "16x256b":
        lane, column = t // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2
    else:
        lane, column, split = t % 16, i, t // 16 * half_split_columns
    lanes, columns = np.broadcast_arrays(lane, column * factor + split)
    result = RegisterMap(np.ascontiguousarray(lanes), np.ascontiguousarray(columns), factor)
    result.lane.setflags(write=False)
    result.column.setflags(write=False)
    return result


@functools.lru_cache(maxsize=256)
def columns_touched(
    shape: str, num: int, pack: bool = False, half_split_columns: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Column ranges (start, stop), offsets from the address, that one ld/st touches in its lanes.

    For .16x32bx2 every lane is touched by two threads, so both halves count: two ranges unless they
    meet. Raises BadInput.
    """
    register_count(shape, num)
    factor = 2 if pack else 1
    width = _COLUMNS_PER_NUM[shape] * num * factor
    if shape != "16x32bx2":
        return ((0, width),)
    split = width if half_split_columns is None else half_split_columns
    (low, high) = sorted((0, split))
    if high <= low + width:
        return ((low, high + width),)
    return (low, low + width), (high, high + width)


def lanes_touched(shape: str) -> int:
    """Number of lanes, from the first on, that one `tcgen05.ld/st.{shape}` touches.

    32, or 16. Raises BadInput for an unknown shape.
    """
    if shape not in _SHAPES:
        raise BadInput(f"tcgen05.ld/st: shape .{shape} is not one of .{', .'.join(_SHAPES)}.")
    return 32 if shape == "32x32b" else 16


def accessible_lanes(warp_id: int) -> range:
    """Lanes that warp `warp_id` of its CTA reaches by `tcgen05.ld/st`: one quarter, all columns.

    Source: PTX "Access restrictions"; the quarter is the warp's rank within its warpgroup.
    """
    first = WARP_LANES * (warp_id % 4)
    return range(first, first + WARP_LANES)


def first_lane(shape: str, lane: int, warp_id: int) -> int:
    """The first lane that warp `warp_id` touches by `.{shape}` at an address of lane `lane`.

    An address in lanes 0 to 31 counts from the warp's own quarter: PTX does not say so, but TVM,
    like most kernels, passes one address to all four warps. Any other lane must be in the quarter.
    Shapes of 32 lanes start at the quarter, shapes of 16 lanes at either half of it. Raises
    BadInput otherwise.
    """
    reach = accessible_lanes(warp_id)
    size = lanes_touched(shape)
    if not (0 <= lane < WARP_LANES or lane in reach) or lane % size:
        legal = " or ".join(str(start) for start in reach[::size])
        raise BadInput(
            f"tcgen05.ld/st.{shape}: warp {warp_id} names lane {lane}, but reaches lanes "
            f"{reach.start} to {reach.stop - 1} only, so the lane must be {legal}."
        )
    return reach.start + lane % WARP_LANES
