"""Tensor maps: what cuTensorMapEncodeTiled accepts, and which bytes a box of one names.

Dimension 0 is the innermost; sizes are in elements, strides in bytes.

Source: CUDA driver API 13.0, cuTensorMapEncodeTiled; PTX ISA 9.1, "Tensor" and "Swizzling modes"; the corners that are
refused: CUDA C++ Programming Guide 13.0, "Tensor Memory Access", and an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import BadInput, KernelFault
from ..operators import numpy_dtype
from .matrix_descriptors import swizzled_units

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


def encode_tiled(name: str, arguments: list[Any]) -> TensorMap:
    """TVM's runtime.cuTensorMapEncodeTiled(map, dtype, rank, base, sizes, strides, box, element strides, modes...).

    BadInput with the reason where the CUDA driver would refuse the arguments.
    """
    dtype, rank, base = str(arguments[1]), int(arguments[2]), arguments[3]
    if not 1 <= rank <= 5:
        raise BadInput(
            f"cuTensorMapEncodeTiled refuses tensor map {name}: rank {rank} is not 1 to 5"
        )
    rest = [int(a) for a in arguments[4:]]
    cuts = [rank, rank - 1, rank, rank]
    groups = []
    for cut in cuts:
        groups.append(tuple(rest[:cut]))
        rest = rest[cut:]
    sizes, strides, box, steps = groups
    interleave, swizzle, _, fill = rest[:4]
    buffer, offset = base if isinstance(base, tuple) else (base, 0)
    if interleave:
        raise BadInput(f"tensor map {name}: interleaved layouts are not simulated; use none")
    if swizzle not in SWIZZLES:
        raise BadInput(f"tensor map {name}: swizzle mode {swizzle} is not simulated; use 0 to 4")
    mode, nan_fill = SWIZZLES[swizzle], bool(fill)
    _check(TensorMap(name, buffer, offset, dtype, sizes, strides, box, steps, mode, nan_fill))
    steps = (
        1,
        *steps[1:],
    )  # the driver ignores that of dimension 0: TMA has none without interleave
    return TensorMap(name, buffer, offset, dtype, sizes, strides, box, steps, mode, nan_fill)


def _check(t: TensorMap) -> None:
    size = t.element_bytes
    rules = [
        (t.offset % 16 == 0, f"the base is at byte {t.offset}; it must be a multiple of 16"),
        (all(0 < s <= 1 << 32 for s in t.sizes), f"sizes {t.sizes} must be 1 to 2^32"),
        (
            all(s % 16 == 0 and 0 < s < 1 << 40 for s in t.strides),
            f"strides {t.strides} must be multiples of 16 bytes",
        ),
        (
            all(0 < b <= MAX_BOX for b in t.box),
            f"box {t.box} must be 1 to {MAX_BOX} in each dimension",
        ),
        (
            all(1 <= e <= 8 for e in t.element_strides),
            f"element strides {t.element_strides} must be 1 to 8",
        ),
        (
            t.box[0] * size % 16 == 0,
            f"the box is {t.box[0] * size} bytes wide; it must be a multiple of 16",
        ),
        (
            t.box[0] * size <= _SPAN_BYTES[t.swizzle],
            f"the box is {t.box[0] * size} bytes wide; swizzle {t.swizzle} allows {_SPAN_BYTES[t.swizzle]}",
        ),
        (
            not t.nan_fill or t.dtype.startswith(("float", "bfloat")),
            "NaN fill needs a floating-point type",
        ),
    ]
    for holds, reason in rules:
        if not holds:
            raise BadInput(f"cuTensorMapEncodeTiled refuses tensor map {t.name}: {reason}")
