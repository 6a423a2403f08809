"""Tensor Memory: accumulator layouts A to G and the register fragments of tcgen05.ld/st."""

from __future__ import annotations

import numpy as np
import pytest

from phaseflip.errors import BadInput
from phaseflip.machine.tcgen05.layout import (
    accessible_lanes,
    accumulator_columns,
    accumulator_slices,
    check_accumulator_address,
    columns_touched,
    data_path_layout,
    first_lane,
    lanes_touched,
    ld_registers,
    register_count,
)

# letter: (M, cta_group, ws, sparse)
VARIANTS = {
    "A": (256, 2, False, False),
    "B": (128, 2, False, False),
    "C": (128, 2, False, True),
    "D": (128, 1, False, False),
    "E": (64, 1, True, False),
    "F": (64, 1, False, False),
    "G": (32, 1, True, False),
}


def place(letter, n):
    """(cta_rank, lane, column) of every element by accumulator_slices; -1 where it is silent."""
    m, cta_group, ws, sparse = VARIANTS[letter]
    where = np.full((m, n, 3), -1)
    for piece in accumulator_slices(m, n, cta_group, ws, sparse):
        index = piece.matrix_index
        assert (where[index] == -1).all(), "pieces overlap in D"
        lanes, columns = piece.memory_index(0, 0)
        block = where[index]  # a view
        block[..., 0] = piece.cta_rank
        block[..., 1] = np.arange(lanes.start, lanes.stop)[:, None]
        block[..., 2] = np.arange(columns.start, columns.stop)[None, :]
    return where


# --- accumulators ---------------------------------------------------------------------------------


@pytest.mark.parametrize("letter", sorted(VARIANTS))
@pytest.mark.parametrize("n", [64, 256])
def test_every_element_has_one_place_of_its_own(letter, n):
    where = place(letter, n)
    assert where.min() >= 0 and where[..., 1].max() < 128
    flat = (where[..., 0] * 128 + where[..., 1]) * 512 + where[..., 2]
    assert np.unique(flat).size == flat.size
    m, cta_group, ws, sparse = VARIANTS[letter]
    assert where[..., 2].max() + 1 == accumulator_columns(m, n, cta_group, ws, sparse)


@pytest.mark.parametrize("m, n, cta_group", [(128, 256, 1), (256, 256, 2)])
def test_full_data_path_is_row_to_lane(m, n, cta_group):
    """M=128: row r in lane r. M=256 in a pair: rows 128 to 255 in the other CTA, lane r - 128."""
    where = place("D" if cta_group == 1 else "A", n)
    for row in (0, 1, 31, 127, 128, 255):
        if row < m:
            for col in (0, 17, n - 1):
                assert where[row, col].tolist() == [row // 128, row % 128, col]
    assert len(accumulator_slices(m, n, cta_group)) == cta_group


def test_m64_uses_the_first_16_lanes_of_each_warp():
    where = place("F", 32)
    lanes = [*range(16), *range(32, 48), *range(64, 80), *range(96, 112)]
    np.testing.assert_array_equal(where[:, 0, 1], lanes)
    np.testing.assert_array_equal(where[5, :, 2], np.arange(32))


def test_m128_of_a_pair_folds_the_halves_of_n():
    """Each CTA owns 64 rows: lanes 0-63 hold the left half of N, lanes 64-127 the right half."""
    where = place("B", 128)
    for row, col, expected in [
        (0, 0, [0, 0, 0]),
        (63, 63, [0, 63, 63]),
        (0, 64, [0, 64, 0]),
        (63, 127, [0, 127, 63]),
        (64, 0, [1, 0, 0]),
        (127, 127, [1, 127, 63]),
    ]:
        assert where[row, col].tolist() == expected
    assert accumulator_columns(128, 128, 2) == 64


def test_weight_stationary_folds_n():
    """M=64 .ws in halves over 64 lanes each, M=32 .ws in quarters over 32 lanes each."""
    halves, quarters = place("E", 64), place("G", 64)
    assert halves[3, 31].tolist() == [0, 3, 31] and halves[3, 32].tolist() == [0, 67, 0]
    assert [quarters[5, 16 * q].tolist() for q in range(4)] == [
        [0, 5 + 32 * q, 0] for q in range(4)
    ]


@pytest.mark.parametrize("letter", sorted(VARIANTS))
@pytest.mark.parametrize("n", [64, 128])
def test_accumulators_agree_with_tvm(letter, n):
    """TVM's layouts are the view of one CTA; both CTAs of a pair have the same one."""
    from tvm.tirx.layout import tmem_datapath_layout

    m, cta_group, _, _ = VARIANTS[letter]
    rows = m // cta_group
    layout = tmem_datapath_layout(letter, rows, n)
    where = place(letter, n)
    for row in range(rows):
        for col in (0, 1, n // 4, n // 2 - 1, n // 2, n - 1):
            at = {str(axis): int(value) for axis, value in layout.apply(row * n + col).items()}
            for rank in range(cta_group):
                expected = [rank, at.get("TLane", 0), at.get("TCol", 0)]
                assert where[rank * rows + row, col].tolist() == expected


def test_writing_and_reading_an_accumulator_through_the_slices():
    memory = np.zeros((2, 128, 512), np.float32)
    d = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    back = np.zeros_like(d)
    for piece in accumulator_slices(128, 64, 2):
        memory[piece.cta_rank][piece.memory_index(0, 100)] = d[piece.matrix_index]
    for piece in accumulator_slices(128, 64, 2):
        back[piece.matrix_index] = memory[piece.cta_rank][piece.memory_index(0, 100)]
    np.testing.assert_array_equal(back, d)
    assert not memory[:, :, :100].any() and not memory[:, :, 132:].any()


def test_letters_and_refusals():
    for letter, (m, cta_group, ws, sparse) in VARIANTS.items():
        assert data_path_layout(m, cta_group, ws, sparse) == letter
    assert data_path_layout(128, 1, ws=True) == "D"
    for m, cta_group, ws in [(32, 1, False), (256, 1, False), (64, 2, False), (256, 1, True)]:
        with pytest.raises(BadInput, match=f"M is {m}"):
            data_path_layout(m, cta_group, ws)
    for cta_group, ws in [(3, False), (2, True)]:
        with pytest.raises(BadInput, match="cta_group"):
            data_path_layout(128, cta_group, ws)
    for n in (0, -8, 520):
        with pytest.raises(BadInput, match=f"N is {n}"):
            accumulator_slices(128, n, 1)
    with pytest.raises(BadInput, match="multiple of 4"):
        accumulator_slices(32, 66, 1, ws=True)


def test_accumulator_addresses():
    check_accumulator_address(0, 256, 128, 256, 1)
    check_accumulator_address(16, 0, 64, 256, 1)
    check_accumulator_address(0, 384, 128, 256, 2)
    with pytest.raises(BadInput, match="must start at lane 0"):
        check_accumulator_address(16, 0, 128, 256, 1)
    with pytest.raises(BadInput, match="must start at lane 0 or 16"):
        check_accumulator_address(32, 0, 64, 256, 1)
    with pytest.raises(BadInput, match="columns 257 to 512"):
        check_accumulator_address(0, 257, 128, 256, 1)


# --- registers of ld and st -----------------------------------------------------------------------


def nums(shape):
    largest = {"16x128b": 64, "16x256b": 32}.get(shape, 128)
    return [num for num in (1, 2, 4, 8, 16, 32, 64, 128) if num <= largest]


SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
ALL = [(shape, num) for shape in SHAPES for num in nums(shape)]


@pytest.mark.parametrize("shape, num", ALL)
@pytest.mark.parametrize("pack", [False, True])
def test_registers_cover_the_rectangle_once(shape, num, pack):
    lane, column, per_register = ld_registers(shape, num, pack)
    assert lane.shape == column.shape == (32, register_count(shape, num))
    assert per_register == (2 if pack else 1)
    cells = {
        (int(a), int(b) + half)
        for a, b in zip(lane.flat, column.flat, strict=True)
        for half in range(per_register)
    }
    assert len(cells) == lane.size * per_register
    assert {a for a, _ in cells} == set(range(lanes_touched(shape)))
    ((start, stop),) = columns_touched(shape, num, pack)
    assert start == 0 and {b for _, b in cells} == set(range(stop))
    assert not lane.flags.writeable and not column.flags.writeable
    assert lane.flags.c_contiguous and column.flags.c_contiguous
    assert ld_registers(shape, num, pack).lane is lane


@pytest.mark.parametrize("num", nums("32x32b"))
def test_32x32b_thread_t_register_i_is_lane_t_column_i(num):
    lane, column, _ = ld_registers("32x32b", num)
    for t in range(32):
        assert lane[t].tolist() == [t] * num and column[t].tolist() == list(range(num))


def test_16x64b_figure():
    """Threads 0 and 2 hold columns 0 and 1 of lane 0, threads 1 and 3 those of lane 8; 4, 6 and
    5, 7 the same of lanes 1 and 9; and so on. The next register is two columns further."""
    lane, column, _ = ld_registers("16x64b", 2)
    assert lane[:8, 0].tolist() == [0, 8, 0, 8, 1, 9, 1, 9]
    assert column[:8, 0].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert lane[31].tolist() == [15, 15] and column[31].tolist() == [1, 3]


def test_16x128b_figure():
    """Threads 4r to 4r + 3 hold columns 0 to 3 of lane r in r0 and of lane r + 8 in r1."""
    lane, column, _ = ld_registers("16x128b", 2)
    assert lane[13].tolist() == [3, 11, 3, 11] and column[13].tolist() == [1, 1, 5, 5]


def test_16x256b_is_the_accumulator_fragment_of_mma_m16n8():
    """c0, c1 in row t / 4, c2, c3 eight rows down; columns 2 * (t % 4) and the next."""
    lane, column, _ = ld_registers("16x256b", 4)
    for t in range(32):
        for i in range(16):
            c = i % 4
            assert lane[t, i] == t // 4 + (8 if c >= 2 else 0)
            assert column[t, i] == 8 * (i // 4) + t % 4 * 2 + (c & 1)


def test_16x32bx2_is_two_accesses_of_16_lanes():
    """Threads 0-15 read 16 lanes at the address, threads 16-31 the same lanes at the offset."""
    lane, column, _ = ld_registers("16x32bx2", 2, half_split_columns=40)
    np.testing.assert_array_equal(lane[:, 0], [*range(16), *range(16)])
    assert column[3].tolist() == [0, 1] and column[19].tolist() == [40, 41]
    assert columns_touched("16x32bx2", 2, False, 40) == ((0, 2), (40, 42))
    assert columns_touched("16x32bx2", 2, False, 2) == ((0, 4),)
    assert columns_touched("16x32bx2", 2, True, 40) == ((0, 4), (40, 44))


@pytest.mark.parametrize("shape, num", ALL)
def test_pack_takes_two_adjacent_columns_for_one(shape, num):
    plain, packed = ld_registers(shape, num), ld_registers(shape, num, pack=True)
    np.testing.assert_array_equal(packed.lane, plain.lane)
    np.testing.assert_array_equal(packed.column, 2 * plain.column)


@pytest.mark.parametrize("shape", ["32x32b", "16x64b", "16x128b", "16x256b"])
@pytest.mark.parametrize("num", [1, 2, 8])
def test_registers_agree_with_tvm(shape, num):
    """TVM: (row, column) of a warpgroup's tile -> warp, lane of the warp, register "m"."""
    from tvm.tirx.layout import tcgen05_atom_layout

    columns = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8}[shape] * num
    rows = 128 if shape == "32x32b" else 64
    layout = tcgen05_atom_layout(shape, (rows, columns), "float32")
    lane, column, _ = ld_registers(shape, num)
    per_warp = rows // 4
    for row in range(rows):
        for col in range(columns):
            at = {str(axis): int(v) for axis, v in layout.apply(row * columns + col).items()}
            thread = at["tid_in_wg"] if "tid_in_wg" in at else None
            warp = at.get("wid_in_wg", 0) if thread is None else thread // 32
            t = at.get("laneid", 0) if thread is None else thread % 32
            i = at.get("m", 0)
            assert warp == row // per_warp
            assert (lane[t, i], column[t, i]) == (row % per_warp, col)


@pytest.mark.parametrize("shape, num", ALL)
def test_register_counts_agree_with_tvm(shape, num):
    from tvm.backend.cuda.intrinsics.tcgen05 import _tcgen05_ld_st_n_regs

    assert register_count(shape, num) == _tcgen05_ld_st_n_regs(shape, num)


@pytest.mark.parametrize(
    "shape, num", [("16x128b", 128), ("16x256b", 64), ("32x32b", 256), ("32x32b", 3), ("32x32b", 0)]
)
def test_repetitions_that_do_not_exist(shape, num):
    with pytest.raises(BadInput, match=rf"\.x{num} does not exist"):
        ld_registers(shape, num)
    with pytest.raises(BadInput, match=rf"\.x{num} does not exist"):
        columns_touched(shape, num)


def test_other_refusals():
    for function in (lambda s: ld_registers(s, 1), lambda s: columns_touched(s, 1), lanes_touched):
        with pytest.raises(BadInput, match="8x8b"):
            function("8x8b")
    with pytest.raises(BadInput, match="immHalfSplitoff"):
        ld_registers("16x64b", 1, half_split_columns=4)


def test_lanes_of_warps():
    assert [accessible_lanes(w) for w in range(4)] == [
        range(32),
        range(32, 64),
        range(64, 96),
        range(96, 128),
    ]
    assert accessible_lanes(6) == range(64, 96)
    assert first_lane("32x32b", 0, 2) == first_lane("32x32b", 64, 6) == 64
    assert first_lane("16x64b", 16, 3) == first_lane("16x64b", 112, 3) == 112
    for shape, lane, warp in [("32x32b", 32, 2), ("32x32b", 16, 0), ("16x64b", 8, 0)]:
        with pytest.raises(BadInput, match=f"warp {warp} names lane {lane}"):
            first_lane(shape, lane, warp)
    with pytest.raises(BadInput):
        first_lane("16x256b", -16, 0)
