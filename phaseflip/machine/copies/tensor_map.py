"""Tensor maps: what cuTensorMapEncodeTiled accepts, and which bytes a box of one names.

Dimension 0 is the innermost; sizes are in elements, strides in bytes.

Source: CUDA driver API 13.0, cuTensorMapEncodeTiled, and an H200's driver; TVM 0.26's runtime, which checks more; PTX ISA
9.1, "Tensor" and "Swizzling modes"; the corners that are refused: CUDA C++ Programming Guide 13.0, "Tensor Memory
Access", and an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import BadInput, KernelFault
from ...ir.arithmetic import numpy_dtype
from ..operands.matrix_descriptor import swizzled_units

SWIZZLES = {0: "none", 1: "32B", 2: "64B", 3: "128B", 4: "128B-atom32B"}
_SPAN_BYTES = {"none": 1 << 30, "32B": 32, "64B": 64, "128B": 128, "128B-atom32B": 128}
MAX_BOX = 256
NAN_FILL = 0x7FF77FF7
"""The 32 bits that fill what lies outside a tensor of floats, if NaN is asked for; seen on an H200."""


@dataclass(frozen=True)
class TensorMap:
    """One encoded map of tile mode.

    `buffer` is the parameter that it maps, from byte `offset`; sizes (rank), strides (rank - 1) in bytes, box (rank)
    and element_strides (rank) as the driver takes them; `nan_fill` fills what lies outside with NaN instead of zero.
    """

    name: str
    buffer: str
    offset: int
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: str
    nan_fill: bool

    @cached_property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return numpy_dtype(self.dtype).itemsize

    @cached_property
    def box_shape(self) -> tuple[int, ...]:
        """Elements that one box holds, outermost dimension first."""
        steps = zip(self.box, self.element_strides, strict=True)
        return tuple(-(-extent // step) for extent, step in steps)[::-1]

    @cached_property
    def box_bytes(self) -> int:
        """Bytes that one copy moves; all of them count, also those outside the tensor."""
        return int(np.prod(self.box_shape)) * self.element_bytes

    def check_corner(self, corner: tuple[int, ...], stores: bool) -> None:
        """KernelFault for a corner that a GPU refuses (an H200 stops with "illegal instruction").

        Dimension 0 starts on 16 bytes of the global tensor, as its strides do; a store's corner is not negative.
        """
        nbytes = corner[0] * self.element_bytes
        if nbytes % 16:
            raise KernelFault(
                "misaligned-access",
                f"coordinate {corner[0]} of dimension 0 of tensor map {self.name} is {nbytes} bytes from its start;"
                " a multiple of 16 is legal",
                f"start boxes at multiples of {max(16 // self.element_bytes, 1)} elements of dimension 0, the contiguous one",
            )
        if stores and min(corner) < 0:
            raise KernelFault(
                "out-of-bounds",
                f"a bulk tensor store to {self.name} starts at {corner}; what lies behind the tensor is not written,"
                " but no coordinate may be negative",
                "start the box inside the tensor, and store what is left over without the tensor map",
            )

    def shared_units(self, start: int) -> np.ndarray:
        """Numbers of the 16-byte units of shared memory that a box takes from byte `start`, in box order, swizzled.

        Swizzled rows start a span of the swizzle apart, however narrow the box; others follow each other.
        """
        units = np.arange(self.box_bytes // 16, dtype=np.int64)
        if self.swizzle != "none":
            width = self.box[0] * self.element_bytes // 16
            units = units // width * (_SPAN_BYTES[self.swizzle] // 16) + units % width
        return swizzled_units(units + (start >> 4), self.swizzle)

    def global_units(self, corner: tuple[int, ...]) -> np.ndarray | None:
        """Numbers of the 16-byte units of the buffer that a box takes, in box order: the usual case.

        None where the box reaches outside, has element strides, or does not start on a unit.
        """
        whole = all(
            0 <= c and c + b <= n for c, b, n in zip(corner, self.box, self.sizes, strict=True)
        )
        start = self.offset + corner[0] * self.element_bytes
        if not whole or start % 16 or any(step != 1 for step in self.element_strides):
            return None
        rows: Any = np.int64(start)
        rank = len(self.sizes)
        for d in range(1, rank):
            shape = [1] * rank
            shape[rank - 1 - d] = -1
            rows = rows + (
                (corner[d] + np.arange(self.box[d], dtype=np.int64)) * self.strides[d - 1]
            ).reshape(shape)
        units = (rows >> 4) + np.arange(self.box[0] * self.element_bytes // 16, dtype=np.int64)
        return np.asarray(units.reshape(-1))

    def element_offsets(
        self, corner: tuple[int, ...], whole_units: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """(byte offset of each element of the box in the buffer, whether it lies inside), shaped like the box.

        corner: coordinates of the box's first element, dimension 0 first; may be negative or beyond the tensor.
        whole_units: dimension 0 ends with the 16-byte unit that its last element is in, as it does for stores.
        """
        offsets: Any = np.int64(self.offset)
        inside: Any = np.bool_(True)
        rank = len(self.sizes)
        for d in range(rank):
            index = (
                corner[d]
                + np.arange(self.box_shape[rank - 1 - d], dtype=np.int64) * self.element_strides[d]
            )
            step = self.element_bytes if d == 0 else self.strides[d - 1]
            shape = [1] * rank
            shape[rank - 1 - d] = -1
            offsets = offsets + (index * step).reshape(shape)
            size = self.sizes[d]
            if d == 0 and whole_units:
                size = -(-size * self.element_bytes // 16) * 16 // self.element_bytes
            inside = inside & ((index >= 0) & (index < size)).reshape(shape)
        return np.broadcast_to(offsets, self.box_shape), np.broadcast_to(inside, self.box_shape)


ENCODED = {
    "int8": False, "int32": False, "int64": False, "uint8": False, "uint16": False, "uint32": False, "uint64": False,
    "float16": True, "float32": True, "float64": True, "bfloat16": True, "float8_e4m3fn": False, "float8_e5m2": False,
    "float4_e2m1fn": False,
}  # fmt: skip
"""Element types that TVM's runtime has a CUtensorMapDataType for, and whether that is a floating-point one."""

TFLOAT32 = 11
"""The one CUtensorMapDataType that may be forced, upon float32."""


def encode_tiled(name: str, arguments: list[Any]) -> TensorMap:
    """TVM's runtime.cuTensorMapEncodeTiled(map, dtype, rank, base, sizes, strides, box, element strides, modes...).

    The modes are interleave, swizzle, L2 promotion, fill, and maybe the forced type of an element. BadInput with the reason
    where TVM's runtime or the CUDA driver refuses the arguments, or the simulator cannot do what they ask for.
    """
    dtype, rank, base = str(arguments[1]), int(arguments[2]), arguments[3]
    _require(name, [(1 <= rank <= 5, f"rank {rank} is not 1 to 5")])
    given, wanted = len(arguments), 7 + 4 * rank
    _require(
        name,
        [
            (
                given in (wanted, wanted + 1),
                f"{given} arguments; rank {rank} takes {wanted} or one more",
            )
        ],
    )
    rest = [int(a) for a in arguments[4:]]
    sizes, strides, box, steps, modes = _cut(rest, rank, rank - 1, rank, rank)
    buffer, offset = base if isinstance(base, tuple) else (base, 0)
    _require(name, _extent_rules(offset, sizes, strides, box, steps))
    _require(name, _type_rules(dtype, modes))
    _require(name, _mode_rules(rank, *modes[:4]))
    interleave, swizzle, _, fill = modes[:4]
    for unknown, what in (
        (interleave, "interleaved layouts are"),
        (dtype == "float4_e2m1fn", "4-bit elements are"),
        (TFLOAT32 in modes[4:], "the rounding of TFLOAT32 is"),
    ):
        if unknown:
            raise BadInput(f"tensor map {name}: {what} not simulated")
    found = TensorMap(
        name, buffer, offset, dtype, sizes, strides, box, steps, SWIZZLES[swizzle], bool(fill)
    )
    _require(name, _box_rules(found))
    return found


def _cut(values: list[int], *lengths: int) -> list[tuple[int, ...]]:
    """The values in pieces of these lengths, and what is left."""
    ends = np.cumsum([0, *lengths]).tolist()
    return [tuple(values[a:b]) for a, b in zip(ends, [*ends[1:], None], strict=True)]


Rules = list[tuple[bool, str]]
"""What must hold, and the reason where it does not."""


def _require(name: str, rules: Rules) -> None:
    for holds, reason in rules:
        if not holds:
            raise BadInput(f"cuTensorMapEncodeTiled refuses tensor map {name}: {reason}")


def _extent_rules(
    offset: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    box: tuple[int, ...],
    steps: tuple[int, ...],
) -> Rules:
    return [
        (all(0 < s <= 1 << 32 for s in sizes), f"sizes {sizes} must be 1 to 2^32"),
        (all(s >= 0 for s in strides), f"strides {strides} must not be negative"),
        (all(s % 16 == 0 for s in strides), f"strides {strides} must be multiples of 16 bytes"),
        (all(s < 1 << 40 for s in strides), f"strides {strides} must be less than 2^40 bytes"),
        (all(0 < b <= MAX_BOX for b in box), f"box {box} must be 1 to {MAX_BOX} in each dimension"),
        (all(1 <= e <= 8 for e in steps), f"element strides {steps} must be 1 to 8"),
        (steps[0] == 1, f"element strides {steps} must begin with 1: dimension 0 has none"),
        (offset % 16 == 0, f"the base is at byte {offset}; it must be a multiple of 16"),
    ]


def _type_rules(dtype: str, modes: tuple[int, ...]) -> Rules:
    """Of an element; `modes` are those of `encode_tiled`."""
    forced = modes[4] if len(modes) > 4 else -1
    is_float = ENCODED.get(dtype, False) and forced == -1
    return [
        (dtype in ENCODED, f"elements of type {dtype}; legal are {', '.join(ENCODED)}"),
        (forced in (-1, TFLOAT32), f"the type {forced} is forced; -1 (none) and 11 (TFLOAT32) are legal"),
        (forced == -1 or dtype == "float32", f"TFLOAT32 is forced upon {dtype}; it must be float32"),
        (modes[3] in (0, 1), f"fill mode {modes[3]} is not 0 or 1"),
        (not modes[3] or is_float, "NaN fill needs a floating-point type"),
    ]  # fmt: skip


def _mode_rules(rank: int, interleave: int, swizzle: int, promotion: int, _: int) -> Rules:
    return [
        (0 <= interleave <= 2, f"interleave mode {interleave} is not 0 to 2"),
        (0 <= swizzle <= 3, f"swizzle mode {swizzle} is not 0 to 3"),
        (0 <= promotion <= 3, f"L2 promotion {promotion} is not 0 to 3"),
        (not interleave or rank >= 3, f"interleaved layouts need rank 3 or more, not {rank}"),
        (interleave != 2 or swizzle == 1, f"interleave mode 2 needs swizzle mode 1, not {swizzle}"),
    ]


def _box_rules(t: TensorMap) -> Rules:
    width, span = t.box[0] * t.element_bytes, _SPAN_BYTES[t.swizzle]
    return [
        (width % 16 == 0, f"the box is {width} bytes wide; it must be a multiple of 16"),
        (width <= span, f"the box is {width} bytes wide; swizzle {t.swizzle} allows {span}"),
    ]
