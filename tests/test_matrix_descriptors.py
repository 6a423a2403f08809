"""Descriptors of tcgen05 operands: fields, canonical layouts, swizzles, and TVM's own layouts."""

from __future__ import annotations

import dataclasses
import functools
import operator
import timeit

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.errors import BadInput, UnsupportedInstruction
from phaseflip.machine.operands.matrix_descriptor import (
    SharedMatrixDescriptor,
    operand_bytes,
    operand_units,
    swizzled_units,
)
from phaseflip.machine.tcgen05.instruction_descriptor import InstructionDescriptor

SWIZZLES = ("none", "32B", "64B", "128B", "128B-atom32B")
multiples_of_16 = st.integers(0, (1 << 14) - 1).map(lambda x: 16 * x)
shared_descriptors = st.builds(
    SharedMatrixDescriptor,
    start_bytes=multiples_of_16,
    leading_bytes=multiples_of_16,
    stride_bytes=multiples_of_16,
    base_offset=st.integers(0, 7),
    leading_mode=st.integers(0, 1),
    swizzle=st.sampled_from(SWIZZLES),
)


# --- shared memory descriptor: fields -------------------------------------------------------------


@given(shared_descriptors)
def test_shared_descriptor_round_trip(desc):
    value = desc.encode()
    assert SharedMatrixDescriptor.decode(value) == desc
    assert SharedMatrixDescriptor.decode(value) is SharedMatrixDescriptor.decode(value)
    assert hash(desc) == hash(SharedMatrixDescriptor.decode(value))


def test_shared_descriptor_fields_lie_where_ptx_puts_them():
    """Bits 0-13 start, 16-29 leading, 32-45 stride, 46-48 = 0b001, 49-51 base, 52 mode, 61-63."""
    value = 0x1234 | 0x2ABC << 16 | 0x3DEF << 32 | 1 << 46 | 5 << 49 | 1 << 52 | 4 << 61
    desc = SharedMatrixDescriptor.decode(value)
    assert desc == SharedMatrixDescriptor(0x12340, 0x2ABC0, 0x3DEF0, 5, 1, "64B")


@pytest.mark.parametrize(
    "code, name", [(0, "none"), (1, "128B-atom32B"), (2, "128B"), (4, "64B"), (6, "32B")]
)
def test_swizzling_mode_codes(code, name):
    assert SharedMatrixDescriptor.decode(1 << 46 | code << 61).swizzle == name


@pytest.mark.parametrize(
    "value, sentence",
    [
        (2 << 61, "bits 46-48 are 0b000"),
        (1 << 46 | 1 << 47, "bits 46-48 are 0b011"),
        (1 << 46 | 1 << 53, "bits 53-60 are 0x1"),
        (1 << 46 | 1 << 14, "overflowed"),
        (1 << 46 | 1 << 30, "overflowed"),
        (1 << 46 | 3 << 61, "swizzling mode 3 is invalid"),
        (1 << 46 | 5 << 61, "swizzling mode 5 is invalid"),
        (1 << 46 | 7 << 61, "swizzling mode 7 is invalid"),
        (1 << 64, "64-bit"),
        (-1, "64-bit"),
    ],
)
def test_malformed_shared_descriptor_is_refused(value, sentence):
    with pytest.raises(BadInput, match=sentence):
        SharedMatrixDescriptor.decode(value)


@pytest.mark.parametrize(
    "field, value",
    [
        ("start_bytes", 8),
        ("start_bytes", 1 << 18),
        ("leading_bytes", -16),
        ("stride_bytes", 17),
        ("base_offset", 8),
        ("leading_mode", 2),
        ("swizzle", "256B"),
    ],
)
def test_shared_descriptor_that_cannot_be_encoded(field, value):
    desc = dataclasses.replace(SharedMatrixDescriptor(0, 0, 1024), **{field: value})
    with pytest.raises(BadInput, match=field):
        desc.encode()


# --- where operands lie: statements of the PTX tables, element by element -------------------------


def canonical_element(desc, mn, k, mn_major, element_bytes):
    """Byte position of one element before swizzling, from the CuTe canonical layouts PTX prints.

    With T = 16 / element_bytes and all strides in elements; SBO and LBO are the two offsets:
      MN none  ((T,1,m),(8,k)):((1,T,SBO),(1T,LBO))    K none  ((8,m),(T,2k)):((1T,SBO),(1,LBO))
      MN 32B   ((T,2,m),(8,k)):((1,T,LBO),(2T,SBO))    K 32B   ((8,m),(T,2k)):((2T,SBO),(1,T))
      MN 64B   ((T,4,m),(8,k)):((1,T,LBO),(4T,SBO))    K 64B   ((8,m),(T,2k)):((4T,SBO),(1,T))
      MN 128B  ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))    K 128B  ((8,m),(T,2k)):((8T,SBO),(1,T))
      MN 128B, 32-byte atoms  ((T,8,m),(4,k)):((1,T,LBO),(8T,SBO))
    """
    t = 16 // element_bytes
    sbo, lbo = desc.stride_bytes // element_bytes, desc.leading_bytes // element_bytes
    w = {"none": 1, "32B": 2, "64B": 4, "128B": 8, "128B-atom32B": 8}[desc.swizzle]
    none = desc.swizzle == "none"
    if mn_major:
        atom_k = 4 if desc.swizzle == "128B-atom32B" else 8
        at_mn = mn % t + mn // t % w * t + mn // (t * w) * (sbo if none else lbo)
        at_k = k % atom_k * w * t + k // atom_k * (lbo if none else sbo)
    else:
        at_mn = mn % 8 * w * t + mn // 8 * sbo
        at_k = k % t + k // t * (lbo if none else t)
    return desc.start_bytes + (at_mn + at_k) * element_bytes


def swizzled_byte(byte, swizzle, base_offset=0):
    """CuTe Swizzle<B,4,3> with B = 0 to 3, and Swizzle<2,5,2> for 32-byte atoms, on one address."""
    bits, base, shift = {
        "none": (0, 4, 3),
        "32B": (1, 4, 3),
        "64B": (2, 4, 3),
        "128B": (3, 4, 3),
        "128B-atom32B": (2, 5, 2),
    }[swizzle]
    mask = (1 << bits) - 1
    return byte ^ (((byte - 128 * base_offset) >> (base + shift) & mask) << base)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize("element_bytes", [1, 2, 4])
def test_operand_units_follow_the_canonical_layout(swizzle, mn_major, element_bytes):
    desc = SharedMatrixDescriptor(4096 + 32, 5 * 1024, 3 * 1024, swizzle=swizzle)
    rows, k_bytes = 64, 32
    units = operand_units(desc, rows, k_bytes, mn_major, element_bytes)
    for mn in range(rows):
        for k in range(k_bytes // element_bytes):
            linear = canonical_element(desc, mn, k, mn_major, element_bytes)
            byte = swizzled_byte(linear, swizzle)
            along, across = (mn, k) if mn_major else (k, mn)
            unit = units[across, along * element_bytes // 16]
            assert unit == byte // 16
            assert byte % 16 == along * element_bytes % 16


def test_128b_k_major_atom_is_the_figure_of_ptx():
    """Figure "K major 128B swizzling": row r holds the units 0 to 7 permuted by xor with r."""
    desc = SharedMatrixDescriptor(0, 0, 1024, swizzle="128B")
    units = operand_units(desc, 8, 128, False, 2)
    expected = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [5, 4, 7, 6, 1, 0, 3, 2],
        [6, 7, 4, 5, 2, 3, 0, 1],
        [7, 6, 5, 4, 3, 2, 1, 0],
    ]
    np.testing.assert_array_equal(units - 8 * np.arange(8)[:, None], expected)


def test_narrow_swizzles_permute_within_their_width():
    """64B: rows 0,1 as they are, 2,3 xor 1, 4,5 xor 2, 6,7 xor 3. 32B: rows 4 to 7 exchange."""
    desc = SharedMatrixDescriptor(0, 0, 512, swizzle="64B")
    units = operand_units(desc, 8, 64, False, 2) - 4 * np.arange(8)[:, None]
    np.testing.assert_array_equal(units[:, 0], [0, 0, 1, 1, 2, 2, 3, 3])
    np.testing.assert_array_equal(units[6], [3, 2, 1, 0])
    desc = SharedMatrixDescriptor(0, 0, 256, swizzle="32B")
    units = operand_units(desc, 8, 32, False, 2) - 2 * np.arange(8)[:, None]
    np.testing.assert_array_equal(units, [[0, 1]] * 4 + [[1, 0]] * 4)


def test_32_byte_atoms_move_in_pairs_of_units():
    desc = SharedMatrixDescriptor(0, 0, 512, swizzle="128B-atom32B")
    units = operand_units(desc, 32, 16, True, 4) - 8 * np.arange(4)[:, None]
    expected = [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [2, 3, 0, 1, 6, 7, 4, 5],
        [4, 5, 6, 7, 0, 1, 2, 3],
        [6, 7, 4, 5, 2, 3, 0, 1],
    ]
    np.testing.assert_array_equal(units, expected)


@pytest.mark.parametrize("swizzle", ["32B", "64B", "128B", "128B-atom32B"])
def test_swizzle_is_a_permutation_of_each_repeating_pattern(swizzle):
    pattern = {"32B": 16, "64B": 32, "128B": 64, "128B-atom32B": 32}[swizzle]
    units = np.arange(4 * pattern)
    moved = swizzled_units(units, swizzle)
    np.testing.assert_array_equal(moved // pattern, units // pattern)
    np.testing.assert_array_equal(np.sort(moved), units)
    np.testing.assert_array_equal(swizzled_units(moved, swizzle), units)


@pytest.mark.parametrize("step", [0, 32, 64, 96])
def test_start_advanced_inside_the_atom_reads_the_next_k_step(step):
    whole = operand_units(SharedMatrixDescriptor(2048, 0, 1024, swizzle="128B"), 64, 128, False, 2)
    desc = SharedMatrixDescriptor(2048 + step, 0, 1024, swizzle="128B")
    part = operand_units(desc, 64, 32, False, 2)
    np.testing.assert_array_equal(part, whole[:, step // 16 : step // 16 + 2])


def test_base_offset_names_the_start_of_a_pattern_off_its_boundary():
    """base offset = (pattern start >> 7) & 7: the pattern looks the same from its own start."""
    aligned = operand_units(SharedMatrixDescriptor(0, 0, 1024, swizzle="128B"), 16, 32, False, 2)
    desc = SharedMatrixDescriptor(3 * 128, 0, 1024, base_offset=3, swizzle="128B")
    np.testing.assert_array_equal(operand_units(desc, 16, 32, False, 2), aligned + 24)


def test_leading_offset_is_unused_for_swizzled_k_major():
    for leading in (0, 16, 4096):
        desc = SharedMatrixDescriptor(0, leading, 1024, swizzle="128B")
        zero = SharedMatrixDescriptor(0, 0, 1024, swizzle="128B")
        np.testing.assert_array_equal(
            operand_units(desc, 64, 32, False, 2), operand_units(zero, 64, 32, False, 2)
        )


@pytest.mark.parametrize("args", [(0, 32, 2), (64, 0, 2), (64, 33, 2), (64, 24, 2), (64, 32, 0)])
def test_operand_of_broken_units_is_refused(args):
    rows, k_bytes, element_bytes = args
    with pytest.raises(BadInput, match="matrix operand"):
        operand_units(SharedMatrixDescriptor(0, 0, 1024), rows, k_bytes, False, element_bytes)


def test_absolute_leading_mode_is_unsupported():
    with pytest.raises(UnsupportedInstruction, match="sm_103a"):
        operand_units(SharedMatrixDescriptor(0, 0, 1024, leading_mode=1), 64, 32, False, 2)


@given(
    desc=shared_descriptors.map(lambda d: dataclasses.replace(d, leading_mode=0)),
    mn_major=st.booleans(),
)
def test_operand_bytes_are_the_bytes_of_operand_units(desc, mn_major):
    ranges = operand_bytes(desc, 64, 32, mn_major, 2)
    units = operand_units(desc, 64, 32, mn_major, 2)
    named = {byte for start, stop in ranges for byte in range(start, stop, 16)}
    assert named == {16 * int(unit) for unit in units.flat}
    assert all(a[1] < b[0] for a, b in zip(ranges, ranges[1:], strict=False))
    assert all(start < stop for start, stop in ranges)


def test_operand_bytes_of_a_contiguous_tile_are_one_range():
    desc = SharedMatrixDescriptor(1024, 0, 1024, swizzle="128B")
    assert operand_bytes(desc, 128, 128, False, 2) == ((1024, 1024 + 128 * 128),)


def test_operand_units_are_cached_read_only_and_quick():
    value = SharedMatrixDescriptor(1024, 0, 1024, swizzle="128B").encode()
    desc = SharedMatrixDescriptor.decode(value)
    units = operand_units(desc, 128, 32, False, 2)
    assert operand_units(SharedMatrixDescriptor.decode(value), 128, 32, False, 2) is units
    assert units.dtype == np.int64 and units.flags.c_contiguous and not units.flags.writeable
    call = functools.partial(operand_units, desc, 128, 32, False, 2)
    assert min(timeit.repeat(call, number=1000, repeat=20)) / 1000 < 5e-6  # 0.3 us, with slack


# --- instruction descriptor -----------------------------------------------------------------------

FORMATS = {
    "f16": (["float16", "bfloat16"], ["float32"]),
    "tf32": (["tfloat32"], ["float32"]),
    "f8f6f4": (
        ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"],
        ["float16", "float32"],
    ),
    "i8": (["int8", "uint8"], ["int32"]),
}


@st.composite
def instruction_descriptors(draw):
    kind = draw(st.sampled_from(sorted(FORMATS)))
    inputs, outputs = FORMATS[kind]
    floating = kind != "i8"
    return InstructionDescriptor(
        kind=kind,
        m=draw(st.sampled_from([32, 64, 128, 256])),
        n=8 * draw(st.integers(1, 32)),
        d_format=draw(st.sampled_from(outputs)),
        a_format=draw(st.sampled_from(inputs)),
        b_format=draw(st.sampled_from(inputs)),
        negate_a=floating and draw(st.booleans()),
        negate_b=floating and draw(st.booleans()),
        a_mn_major=draw(st.booleans()),
        b_mn_major=draw(st.booleans()),
        sparse=draw(st.booleans()),
        sparsity_selector=draw(st.integers(0, 3)),
        saturate=not floating and draw(st.booleans()),
        max_shift=draw(st.sampled_from([0, 8, 16, 32])),
    )


@given(instruction_descriptors())
def test_instruction_descriptor_round_trip(desc):
    assert InstructionDescriptor.decode(desc.encode(), desc.kind) == desc


def test_instruction_descriptor_fields_lie_where_ptx_puts_them():
    value = 1 << 4 | 1 << 7 | 0 << 10 | 1 << 14 | 1 << 15 | (256 >> 3) << 17 | (128 >> 4) << 24
    desc = InstructionDescriptor.decode(value, "f16")
    assert (desc.m, desc.n, desc.k, desc.element_bytes) == (128, 256, 16, 2)
    assert (desc.d_format, desc.a_format, desc.b_format) == ("float32", "bfloat16", "float16")
    assert (desc.negate_a, desc.negate_b, desc.a_mn_major, desc.b_mn_major) == (0, 1, 1, 0)
    assert not desc.sparse and not desc.saturate and desc.max_shift == 0


@pytest.mark.parametrize(
    "value, kind, sentence",
    [
        (1 << 4 | 1 << 6, "f16", "reserved"),
        (1 << 4 | 1 << 23, "f16", "reserved"),
        (1 << 4 | 1 << 29, "f16", "reserved"),
        (2 << 4, "f16", "format code 2 of matrix D"),
        (1 << 4 | 2 << 7, "f16", "format code 2 of matrix A"),
        (1 << 4 | 2 << 7, "tf32", "format code 0 of matrix B"),
        (1 << 4 | 2 << 10, "f8f6f4", "format code 2 of matrix B"),
        (1 << 7, "f16", "bfloat16 inputs need"),
        (2 << 4 | 1 << 13, "i8", "negate"),
        (1 << 4 | 1 << 3, "f16", "saturate"),
        (1 << 4, "f64", "kind::f64"),
        (1 << 32, "f16", "32-bit"),
    ],
)
def test_malformed_instruction_descriptor_is_refused(value, kind, sentence):
    with pytest.raises(BadInput, match=sentence):
        InstructionDescriptor.decode(value, kind)


@pytest.mark.parametrize(
    "change", [{"a_format": "int8"}, {"n": 12}, {"m": 100}, {"max_shift": 4}, {"kind": "f64"}]
)
def test_instruction_descriptor_that_cannot_be_encoded(change):
    desc = InstructionDescriptor("f16", 128, 128, "float32", "float16", "float16")
    with pytest.raises(BadInput):
        dataclasses.replace(desc, **change).encode()


def shape_is_legal(kind, m, n, cta_group, ws=False, **fields):
    inputs, outputs = FORMATS[kind]
    desc = InstructionDescriptor(kind, m, n, outputs[-1], inputs[0], inputs[0], **fields)
    try:
        desc.check_shape(cta_group, ws)
    except BadInput as error:
        assert f"M={m} N={n}" in str(error)
        return False
    return True


@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_legal_shapes_are_those_of_the_ptx_table(kind):
    i8 = kind == "i8"
    for m in range(16, 272, 16):
        for n in range(8, 264, 8):
            in_i8_list = n in (8, 16, 24, 32) or n % 16 == 0
            one = m in (64, 128) and n <= 256 and (in_i8_list or not i8)
            two = m in (128, 256) and n <= 256 and n % (32 if i8 else 16) == 0
            assert shape_is_legal(kind, m, n, 1) == one, (m, n)
            assert shape_is_legal(kind, m, n, 2) == two, (m, n)
            ws = m in (32, 64, 128)
            assert shape_is_legal(kind, m, n, 1, ws=True) == (ws and n in (64, 128, 256))
            sparse_ws = shape_is_legal(kind, m, n, 1, ws=True, sparse=True)
            assert sparse_ws == (ws and n in (64, 128))


def test_transposed_8_bit_b_takes_a_wider_step():
    for kind in ("f8f6f4", "i8"):
        assert not shape_is_legal(kind, 128, 24, 1, b_mn_major=True)
        assert shape_is_legal(kind, 128, 48, 1, b_mn_major=True)
        assert not shape_is_legal(kind, 256, 48, 2, b_mn_major=True)
        assert shape_is_legal(kind, 256, 96, 2, b_mn_major=True)
    assert shape_is_legal("f16", 128, 24, 1, b_mn_major=True)


def test_other_refusals_of_check_shape():
    desc = InstructionDescriptor("f16", 128, 128, "float32", "float16", "float16")
    with pytest.raises(BadInput, match="must be 1 or 2"):
        desc.check_shape(3)
    with pytest.raises(BadInput, match=r"\.ws exists for cta_group::1"):
        desc.check_shape(2, ws=True)
    with pytest.raises(BadInput, match="maximum shift"):
        dataclasses.replace(desc, max_shift=8).check_shape(1)


@pytest.mark.parametrize("swizzle", SWIZZLES)
@pytest.mark.parametrize("kind", sorted(FORMATS))
def test_transposed_operands_allow_only_their_swizzles(kind, swizzle):
    inputs, outputs = FORMATS[kind]
    desc = InstructionDescriptor(kind, 128, 128, outputs[-1], inputs[0], inputs[0], b_mn_major=True)
    operand = SharedMatrixDescriptor(0, 0, 1024, swizzle=swizzle)
    desc.check_operand(operand, "A")
    if (kind == "tf32") == (swizzle == "128B-atom32B"):
        desc.check_operand(operand, "B")
    else:
        with pytest.raises(BadInput, match="MN-major"):
            desc.check_operand(operand, "B")


# --- against TVM: what its layouts place, its descriptors must name -------------------------------


def tvm_descriptor_of(dtype, mode, layout, shape, transposed):
    """Leading and stride offset in 16-byte units, as TVM's gemm_async lowering derives them.

    The walk of its matcher for one whole buffer: does the layout tile the swizzle atom, and how far
    apart are the atoms along either dimension. Returns (leading, stride, mn_major).
    """
    from tvm.backend.cuda.tile_primitive import tma_utils

    if mode == tma_utils.SwizzleMode.SWIZZLE_NONE:
        # 16-byte vectors, first dimension fastest. K-major as in TVM. For MN-major its
        # matcher still says (shape[0], 8), where PTX and CUTLASS give the two the other way.
        return (8, shape[0], True) if transposed else (shape[0], 8, False)
    atom, atom_shape = tma_utils.mma_atom_layout(dtype, mode), tma_utils.mma_atom_shape(dtype, mode)
    tiler = atom.is_tile_inner(layout, list(shape), atom_shape)
    tiles = [s // a for s, a in zip(shape, atom_shape, strict=True)]
    grouped, seps = tiler.canonicalize().group(tiles)
    assert list(seps) == [0, 1, 2]
    size = functools.reduce(operator.mul, atom_shape, 1)

    def offset(dim):
        return 0 if int(dim.extent) == 1 else int(dim.stride) * size // 8

    return offset(grouped.shard[-1]), offset(grouped.shard[-2]), transposed


def tvm_offset_units(layout, linear):
    """Descriptor advance in 16-byte units: TVM applies the layout without its swizzle."""
    from tvm.tirx.layout import ComposeLayout

    tile = layout.tile_layout if isinstance(layout, ComposeLayout) else layout
    return int(tile.apply(linear)["m"]) // 8


TVM_CASES = [
    (mode, rows, k, transposed)
    for mode, atom_columns in ((0, 8), (1, 16), (2, 32), (3, 64))
    for rows in (64, 128, 256)
    for k in (16, 32, 64, 128)
    for transposed in (False, True)
    if (rows if transposed else k) % atom_columns == 0
]


@pytest.mark.parametrize("mode_value, rows, k, transposed", TVM_CASES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operand_units_read_back_what_tvm_layouts_place(mode_value, rows, k, transposed, dtype):
    """Lay a matrix out by TVM's layout, then read every 16-wide K step by TVM's descriptors."""
    from tvm.backend.cuda.tile_primitive import tma_utils

    mode = tma_utils.SwizzleMode(mode_value)
    shape = (k, rows) if transposed else (rows, k)
    layout = tma_utils.mma_shared_layout(dtype, mode, shape)
    leading, stride, mn_major = tvm_descriptor_of(dtype, mode, layout, shape, transposed)

    base = 3 * 1024
    memory = np.zeros((base + 2 * rows * k, 1), np.uint8).reshape(-1)
    element = np.float16 if dtype == "float16" else ml_dtypes.bfloat16
    values = np.arange(rows * k, dtype=np.uint16).view(element).reshape(shape)
    units_of = memory.reshape(-1, 16)
    for vector in range(rows * k // 8):
        at = int(layout.apply(8 * vector)["m"])
        assert at % 8 == 0 and int(layout.apply(8 * vector + 7)["m"]) == at + 7
        units_of[base // 16 + at // 8] = values.reshape(-1, 8)[vector].view(np.uint8)

    swizzle = ("none", "32B", "64B", "128B")[mode_value]
    for step in range(k // 16):
        first = step * 16 * (rows if transposed else 1)
        start = base + 16 * tvm_offset_units(layout, first)
        desc = SharedMatrixDescriptor(start, 16 * leading, 16 * stride, swizzle=swizzle)
        desc = SharedMatrixDescriptor.decode(desc.encode())
        units = operand_units(desc, rows, 32, mn_major, 2)
        got = units_of[units].reshape(units.shape[0], -1).view(element)
        want = (
            values[step * 16 : step * 16 + 16]
            if transposed
            else values[:, step * 16 : step * 16 + 16]
        )
        assert np.array_equal(got.view(np.uint16), want.view(np.uint16)), step


@pytest.mark.parametrize("cta_group, m, n", [(1, 64, 64), (1, 128, 128), (2, 256, 256)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_instruction_descriptor_agrees_with_tvm(cta_group, m, n, dtype):
    from tvm.backend.cuda.tile_primitive.gemm_async.tcgen05 import (
        _encode_instr_descriptor_dense_uint32 as tvm_encode,
    )

    value = tvm_encode(m, n, 16, "float32", dtype, dtype, False, True, cta_group=cta_group)
    desc = InstructionDescriptor.decode(value, "f16")
    desc.check_shape(cta_group)
    assert desc == InstructionDescriptor("f16", m, n, "float32", dtype, dtype, b_mn_major=True)
    assert desc.encode() == value
