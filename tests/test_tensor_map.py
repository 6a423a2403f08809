"""Tensor maps against a plain model that enumerates the elements of a box, and every refusal of the driver."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phaseflip.errors import BadInput
from phaseflip.ir.arithmetic import numpy_dtype
from phaseflip.machine.copies.tensor_map import ENCODED, SWIZZLES, TensorMap, encode_tiled

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "uint8": 1}
SPAN = {"none": 512, "32B": 32, "64B": 64, "128B": 128, "128B-atom32B": 128}


@st.composite
def maps(draw):
    """A legal map of a small tensor, and a corner of a box that touches it, misses it or crosses its edges."""
    dtype = draw(st.sampled_from(sorted(BYTES)))
    size, rank = BYTES[dtype], draw(st.integers(1, 5))
    swizzle = draw(st.sampled_from(sorted(SPAN)))
    sizes = tuple(draw(st.integers(1, 40 if d == 0 else 5)) for d in range(rank))
    strides, least = [], sizes[0] * size
    for d in range(1, rank):
        strides.append(-(-least // 16) * 16 + 16 * draw(st.integers(0, 2)))
        least = strides[-1] * sizes[d]
    width = 16 // size * draw(st.integers(1, min(SPAN[swizzle], 64) // 16))
    box = (width, *(draw(st.integers(1, 4)) for _ in range(rank - 1)))
    steps = (1, *(draw(st.sampled_from((1, 1, 2, 3))) for _ in range(rank - 1)))
    corner = tuple(draw(st.integers(-b - 1, n + 1)) for b, n in zip(box, sizes, strict=True))
    offset = 16 * draw(st.integers(0, 3))
    return (
        TensorMap("m", "A", offset, dtype, sizes, tuple(strides), box, steps, swizzle, False),
        corner,
    )


def model(t, corner):
    """[(byte offset, inside)] of a box's elements, innermost dimension fastest: one at a time."""
    found = []
    ranges = [range(0, b, e) for b, e in zip(t.box, t.element_strides, strict=True)]
    for index in itertools.product(*ranges[::-1]):
        at = [c + i for c, i in zip(corner, index[::-1], strict=True)]
        steps = (BYTES[t.dtype], *t.strides)
        offset = t.offset + sum(a * s for a, s in zip(at, steps, strict=True))
        found.append((offset, all(0 <= a < n for a, n in zip(at, t.sizes, strict=True))))
    return found


@given(maps())
@settings(max_examples=200, deadline=None)
def test_elements_of_a_box(drawn):
    t, corner = drawn
    offsets, inside = t.element_offsets(corner)
    expected = model(t, corner)
    assert offsets.shape == inside.shape == t.box_shape
    assert list(zip(offsets.ravel().tolist(), inside.ravel().tolist(), strict=True)) == expected
    assert t.box_bytes == len(expected) * t.element_bytes


@given(maps())
@settings(max_examples=200, deadline=None)
def test_units_of_a_box_that_lies_inside(drawn):
    t, corner = drawn
    units = t.global_units(corner)
    elements = model(t, corner)
    aligned = (t.offset + corner[0] * t.element_bytes) % 16 == 0
    plain = set(t.element_strides) == {1}
    whole = all(c >= 0 and c + b <= n for c, b, n in zip(corner, t.box, t.sizes, strict=True))
    assert (units is not None) == (whole and aligned and plain)
    if units is not None:
        starts = [offset for offset, _ in elements][:: 16 // t.element_bytes]
        assert all(inside for _, inside in elements)
        assert (units * 16).tolist() == starts


def swizzled(byte, swizzle):
    """PTX: the 16-byte unit's number within its line of 128 bytes, xor the line's number, as far as the mode reaches."""
    bits = {"none": (0, 0), "32B": (1, 0), "64B": (3, 0), "128B": (7, 0), "128B-atom32B": (3, 1)}
    mask, shift = bits[swizzle]
    return byte ^ (((byte >> 7 & mask) << shift) << 4)


@given(maps(), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_units_of_shared_memory(drawn, block):
    """Row by row; a swizzled row starts one span after the row before, though the box be narrower."""
    t, _ = drawn
    start = 1024 * block
    units = t.shared_units(start)
    row = t.box[0] * BYTES[t.dtype]
    pitch = row if t.swizzle == "none" else SPAN[t.swizzle]
    at = [start + pitch * r + b for r in range(t.box_bytes // row) for b in range(0, row, 16)]
    expected = [swizzled(byte, t.swizzle) // 16 for byte in at]
    assert units.tolist() == expected
    assert len(set(expected)) == len(expected)


# -- what the driver takes and refuses -----------------------------------------------------------------------------------------
LEGAL = {
    "dtype": "float16", "rank": 2, "base": ("A", 32), "sizes": (64, 40), "strides": (128,), "box": (64, 8), "steps": (1, 1),
    "interleave": 0, "swizzle": 3, "promotion": 2, "fill": 0, "forced": (),
}  # fmt: skip


def encode(**changes):
    """encode_tiled with TVM's argument order."""
    v = LEGAL | changes
    arguments = [
        "map", v["dtype"], v["rank"], v["base"], *v["sizes"], *v["strides"], *v["box"], *v["steps"],
        v["interleave"], v["swizzle"], v["promotion"], v["fill"], *v["forced"],
    ]  # fmt: skip
    return encode_tiled("A_map", arguments)


RANK_3 = {"rank": 3, "sizes": (64, 40, 4), "strides": (128, 5120), "box": (64, 8, 1), "steps": (1, 1, 1)}  # fmt: skip
FLOAT32 = {"dtype": "float32", "sizes": (32, 40), "box": (32, 8)}


def test_the_order_of_the_arguments():
    t = encode(steps=(1, 2), fill=1)
    assert (t.name, t.buffer, t.offset, t.dtype) == ("A_map", "A", 32, "float16")
    assert (t.sizes, t.strides, t.box) == ((64, 40), (128,), (64, 8))
    assert (t.element_strides, t.swizzle, t.nan_fill) == ((1, 2), "128B", True)
    assert encode(base="A").offset == 0
    assert t.box_shape == (4, 64)


@pytest.mark.parametrize(
    "changes",
    [
        {"sizes": (64, 1 << 32)}, {"strides": (0,)}, {"strides": (16,)}, {"strides": ((1 << 40) - 16,)},
        {"box": (64, 256)}, {"steps": (1, 8)}, {"promotion": 0}, {"promotion": 3}, {"forced": (-1,)}, RANK_3,
        RANK_3 | {"strides": (5120, 128)}, RANK_3 | {"strides": (128, 0)}, FLOAT32 | {"fill": 1},
        {"swizzle": 0, "box": (256, 8)}, {"rank": 1, "sizes": (64,), "strides": (), "box": (64,), "steps": (1,)},
    ],
)  # fmt: skip
def test_what_tvm_and_a_driver_take(changes):
    """The last values before each limit, and strides that lead backwards or nowhere: an H200's driver takes them all."""
    t = encode(**changes)
    wanted = LEGAL | changes
    assert [t.sizes, t.strides, t.box, t.element_strides] == [
        wanted[key] for key in ("sizes", "strides", "box", "steps")
    ]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"rank": 0, "sizes": (), "strides": (), "box": (), "steps": ()}, "rank 0 is not 1 to 5"),
        (
            {"rank": 6, "sizes": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6, "steps": (1,) * 6},
            "rank 6 is not 1 to 5",
        ),
        ({"steps": (1,)}, "14 arguments; rank 2 takes 15 or one more"),
        ({"forced": (-1, 0)}, "17 arguments; rank 2 takes 15 or one more"),
        ({"base": ("A", 8)}, "the base is at byte 8; it must be a multiple of 16"),
        ({"sizes": (64, 0)}, "sizes (64, 0) must be 1 to 2^32"),
        ({"sizes": (64, -1)}, "sizes (64, -1) must be 1 to 2^32"),
        ({"sizes": (64, (1 << 32) + 1)}, "must be 1 to 2^32"),
        ({"strides": (136,)}, "strides (136,) must be multiples of 16 bytes"),
        ({"strides": (-16,)}, "strides (-16,) must not be negative"),
        ({"strides": (1 << 40,)}, "strides (1099511627776,) must be less than 2^40 bytes"),
        ({"box": (64, 257)}, "box (64, 257) must be 1 to 256 in each dimension"),
        ({"box": (64, 0)}, "box (64, 0) must be 1 to 256 in each dimension"),
        ({"steps": (1, 9)}, "element strides (1, 9) must be 1 to 8"),
        ({"steps": (0, 1)}, "element strides (0, 1) must be 1 to 8"),
        ({"steps": (2, 1)}, "element strides (2, 1) must begin with 1: dimension 0 has none"),
        ({"steps": (8, 8)}, "element strides (8, 8) must begin with 1: dimension 0 has none"),
        ({"box": (4, 8)}, "the box is 8 bytes wide; it must be a multiple of 16"),
        ({"box": (128, 8)}, "the box is 256 bytes wide; swizzle 128B allows 128"),
        ({"swizzle": 1}, "the box is 128 bytes wide; swizzle 32B allows 32"),
        ({"swizzle": 2}, "the box is 128 bytes wide; swizzle 64B allows 64"),
        *(({"swizzle": n}, f"swizzle mode {n} is not 0 to 3") for n in (-1, 4, 5, 6, 7)),
        *(({"promotion": n}, f"L2 promotion {n} is not 0 to 3") for n in (-1, 4)),
        *(({"fill": n}, f"fill mode {n} is not 0 or 1") for n in (-1, 2)),
        ({"dtype": "uint8", "box": (128, 8), "fill": 1}, "NaN fill needs a floating-point type"),
        ({"dtype": "float8_e5m2", "box": (128, 8), "fill": 1}, "NaN fill needs a floating-point type"),
        (FLOAT32 | {"fill": 1, "forced": (11,)}, "NaN fill needs a floating-point type"),
        ({"interleave": -1}, "interleave mode -1 is not 0 to 2"),
        ({"interleave": 3}, "interleave mode 3 is not 0 to 2"),
        ({"interleave": 1}, "interleaved layouts need rank 3 or more, not 2"),
        (RANK_3 | {"interleave": 2}, "interleave mode 2 needs swizzle mode 1, not 3"),
        *(
            ({"forced": (n,)}, f"the type {n} is forced; -1 (none) and 11 (TFLOAT32) are legal")
            for n in (-2, 0, 6, 7, 10, 12, 16)
        ),
        ({"forced": (11,)}, "TFLOAT32 is forced upon float16; it must be float32"),
        (FLOAT32 | {"dtype": "int32", "forced": (11,)}, "TFLOAT32 is forced upon int32; it must be float32"),
        *(
            ({"dtype": d}, f"elements of type {d}; legal are {', '.join(ENCODED)}")
            for d in ("bool", "int16", "float16x2", "float8_e8m0fnu", "float8_e4m3", "float6_e2m3fn", "int4")
        ),
    ],
)  # fmt: skip
def test_refusals_of_tvms_runtime(changes, reason):
    """Each was refused by libtvm_runtime_cuda of TVM 0.26, for this reason."""
    with pytest.raises(BadInput) as error:
        encode(**changes)
    assert "cuTensorMapEncodeTiled refuses tensor map A_map: " in str(error.value)
    assert str(error.value).endswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (RANK_3 | {"interleave": 1}, "interleaved layouts are not simulated"),
        (RANK_3 | {"interleave": 2, "swizzle": 1}, "interleaved layouts are not simulated"),
        ({"dtype": "float4_e2m1fn", "sizes": (128, 40), "box": (128, 8)}, "4-bit elements are not simulated"),
        (FLOAT32 | {"forced": (11,)}, "the rounding of TFLOAT32 is not simulated"),
    ],
)  # fmt: skip
def test_legal_maps_that_are_not_simulated(changes, reason):
    with pytest.raises(BadInput, match=f"^tensor map A_map: {reason}$"):
        encode(**changes)


@pytest.mark.parametrize("dtype", sorted(set(ENCODED) - {"float4_e2m1fn"}))
def test_every_element_type_that_tvm_encodes(dtype):
    width = 16 // numpy_dtype(dtype).itemsize
    assert encode(dtype=dtype, box=(width, 8)).box_bytes == 16 * 8


@pytest.mark.parametrize("swizzle", range(4))
def test_the_widest_box_of_each_swizzle(swizzle):
    span = min(SPAN[SWIZZLES[swizzle]], 512)
    assert encode(sizes=(512, 8), strides=(1024,), box=(span // 2, 8), swizzle=swizzle)
