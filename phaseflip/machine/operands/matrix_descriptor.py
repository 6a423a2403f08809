"""Shared-memory matrix descriptors of `tcgen05.mma` and `tcgen05.cp`: where an operand lies.

Source: PTX ISA 9.1, "Shared memory descriptor", "Matrix Shape", "Canonical Layouts" and
"Shared Memory Layout and Swizzling" of the tcgen05 family.

Where an operand lies: the unit is 16 bytes (PTX: "128-bit element type normalized matrix"), S is
the swizzle width in units (32B: 2, 64B: 4, 128B: 8). Canonical layouts, before swizzling; r counts
M or N, k counts elements of K, j and u count units:

    K-major,  none      start + (r % 8) + (r // 8) * stride + j * leading
    K-major,  swizzled  start + (r % 8) * S + (r // 8) * stride + j            (leading is not used)
    MN-major, none      start + (k % 8) + (k // 8) * leading + u * stride
    MN-major, swizzled  start + (k % 8) * S + (k // 8) * stride + (u % S) + (u // S) * leading
    MN-major, 32-byte atoms: the same, S = 8, in groups of 4 instead of 8 along K (swizzle atom 8x4)

Then the swizzle permutes the units of one repeating pattern of 8 (32-byte atoms: 4) rows. It is an
exclusive or on bits of the address just computed, not of the offset from `start`: a start advanced
by 32 bytes inside an atom, as kernels do from one K step to the next, needs no other correction.
With line = address // 128 - base_offset:

    32B: unit ^ (line & 1)    64B: unit ^ (line & 3)    128B: unit ^ (line & 7)
    128B with 32-byte atoms: unit ^ ((line & 3) << 1)

Readings where PTX is silent: a base offset that is not 0 says where the pattern starts, hence the
subtraction. For 32-byte atoms PTX gives the 8x4 MN-major atom and no strides; groups of 4 along K
follow the atom, as in CUTLASS. K-major 32-byte atoms, which PTX allows without showing an atom, are
taken as rows of 128 bytes. Departure: the absolute leading-dimension mode, for K of 48 bytes on
sm_103a only, is refused.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

import numpy as np

from phaseflip.errors import BadInput, KernelFault, UnsupportedInstruction

UNIT_BYTES = 16
ENCODE = "let TVM's encode intrinsics build the descriptors, from legal shapes and addresses of aligned shared buffers"
"""What mends a descriptor with bits that are not legal."""

_SWIZZLE_OF_CODE = {0: "none", 1: "128B-atom32B", 2: "128B", 4: "64B", 6: "32B"}
_CODE_OF_SWIZZLE = {name: code for code, name in _SWIZZLE_OF_CODE.items()}
_WIDTH_UNITS = {"32B": 2, "64B": 4, "128B": 8, "128B-atom32B": 8}
_ADDRESS_BYTES = 1 << 18  # matrix-descriptor-encode(x) = (x & 0x3FFFF) >> 4


@dataclass(frozen=True)
class SharedMatrixDescriptor:
    """The 64-bit shared memory descriptor of one operand; all offsets in bytes.

    swizzle is "none", "32B", "64B", "128B" or "128B-atom32B"; leading_mode 0 is a relative offset,
    1 an absolute address. Source: PTX "Shared memory descriptor layout".
    """

    start_bytes: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int = 0
    leading_mode: int = 0
    swizzle: str = "128B"
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        sizes = self.start_bytes, self.leading_bytes, self.stride_bytes
        value = hash((*sizes, self.base_offset, self.leading_mode, self.swizzle))
        object.__setattr__(self, "_hash", value)

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def decode(cls, desc: int) -> SharedMatrixDescriptor:
        """Fields of the 64-bit value `desc`; equal values give the same object. Raises BadInput."""
        return _decode_shared(int(desc))

    def encode(self) -> int:
        """The 64-bit value; the mirror of decode. Raises BadInput for a field that does not fit."""
        for name in ("start_bytes", "leading_bytes", "stride_bytes"):
            value = getattr(self, name)
            if value % UNIT_BYTES or not 0 <= value < _ADDRESS_BYTES:
                raise BadInput(
                    f"shared memory descriptor: {name} is {value}, but must be a multiple of 16 "
                    f"below {_ADDRESS_BYTES}."
                )
        if not 0 <= self.base_offset < 8 or self.leading_mode not in (0, 1):
            raise BadInput(
                f"shared memory descriptor: base_offset is {self.base_offset} and leading_mode "
                f"{self.leading_mode}, but they must be 0 to 7 and 0 or 1."
            )
        if self.swizzle not in _CODE_OF_SWIZZLE:
            raise BadInput(
                f"shared memory descriptor: swizzle {self.swizzle!r} is not one of "
                f"{', '.join(_CODE_OF_SWIZZLE)}."
            )
        return (
            self.start_bytes >> 4
            | self.leading_bytes >> 4 << 16
            | self.stride_bytes >> 4 << 32
            | 0b001 << 46
            | self.base_offset << 49
            | self.leading_mode << 52
            | _CODE_OF_SWIZZLE[self.swizzle] << 61
        )


@functools.lru_cache(maxsize=4096)
def _decode_shared(desc: int) -> SharedMatrixDescriptor:
    if not 0 <= desc < 1 << 64:
        raise BadInput(f"shared memory descriptor: {desc:#x} is not an unsigned 64-bit value.")
    if desc >> 46 & 7 != 0b001:
        raise BadInput(
            f"shared memory descriptor {desc:#018x}: bits 46-48 are {desc >> 46 & 7:#05b}, but "
            "must be the constant 0b001."
        )
    if desc >> 53 & 0xFF:
        raise BadInput(
            f"shared memory descriptor {desc:#018x}: bits 53-60 are {desc >> 53 & 0xFF:#x}, but "
            "must be 0."
        )
    if desc >> 14 & 3 or desc >> 30 & 3:
        raise BadInput(
            f"shared memory descriptor {desc:#018x}: bits 14-15 and 30-31 must be 0; an address or "
            "offset overflowed."
        )
    code = desc >> 61
    if code not in _SWIZZLE_OF_CODE:
        raise BadInput(
            f"shared memory descriptor {desc:#018x}: swizzling mode {code} is invalid; use 0 "
            "(none), 1 (128B with 32-byte atoms), 2 (128B), 4 (64B) or 6 (32B)."
        )
    return SharedMatrixDescriptor(
        start_bytes=(desc & 0x3FFF) << 4,
        leading_bytes=(desc >> 16 & 0x3FFF) << 4,
        stride_bytes=(desc >> 32 & 0x3FFF) << 4,
        base_offset=desc >> 49 & 7,
        leading_mode=desc >> 52 & 1,
        swizzle=_SWIZZLE_OF_CODE[code],
    )


@functools.lru_cache(maxsize=1024)
def operand_units(
    desc: SharedMatrixDescriptor, rows: int, k_bytes: int, mn_major: bool, element_bytes: int
) -> np.ndarray:
    """Positions of an operand's 16-byte vectors, in 16-byte units from the start of shared memory.

    The start is that of the CTA's shared window. rows is this CTA's part of M or N, k_bytes is K
    times element_bytes. Returns a cached, read-only, C-contiguous int64 array. K-major: shape
    (rows, k_bytes / 16), unit [r, j] holds elements K = 16 * j / element_bytes and up of row r.
    MN-major: shape (K, rows * element_bytes / 16), unit [k, u] holds rows 16 * u / element_bytes
    and up of column k. Positions may lie outside shared memory: the caller's memory checks them.
    Source: see the module docstring. Raises BadInput for extents that are not whole units,
    UnsupportedInstruction for the absolute leading mode.
    """
    if rows <= 0 or k_bytes <= 0 or element_bytes <= 0 or k_bytes % element_bytes:
        raise BadInput(
            f"matrix operand: rows {rows}, K bytes {k_bytes} and element bytes {element_bytes} "
            "must be positive and whole elements."
        )
    contiguous_bytes = rows * element_bytes if mn_major else k_bytes
    if contiguous_bytes % UNIT_BYTES:
        raise BadInput(
            f"matrix operand: the contiguous dimension has {contiguous_bytes} bytes, but must be a "
            "multiple of 16 bytes."
        )
    if desc.leading_mode:
        raise UnsupportedInstruction(
            "tcgen05.mma: the absolute leading-dimension address mode (descriptor bit 52) exists "
            "on sm_103a only; use a relative offset (0)."
        )
    start, leading, stride = desc.start_bytes >> 4, desc.leading_bytes >> 4, desc.stride_bytes >> 4
    swizzled = desc.swizzle != "none"
    width = _WIDTH_UNITS[desc.swizzle] if swizzled else 1
    along = np.arange(contiguous_bytes // UNIT_BYTES, dtype=np.int64)[None, :]
    if mn_major:
        across = np.arange(k_bytes // element_bytes, dtype=np.int64)[:, None]
        group = 4 if desc.swizzle == "128B-atom32B" else 8
        if swizzled:
            units = across % group * width + across // group * stride
            units = units + along % width + along // width * leading
        else:
            units = across % 8 + across // 8 * leading + along * stride
    else:
        across = np.arange(rows, dtype=np.int64)[:, None]
        units = across % 8 * width + across // 8 * stride + along * (1 if swizzled else leading)
    units = swizzled_units(units + start, desc.swizzle, desc.base_offset)
    units.setflags(write=False)
    return units


def swizzled_units(units: np.ndarray, swizzle: str, base_offset: int = 0) -> np.ndarray:
    """A new array: int64 positions in 16-byte units of the shared window, swizzled.

    The same permutation serves `cp.async.bulk.tensor` with the swizzle of that name and base_offset
    0, as its shared address must be aligned to the pattern. Source: PTX "Layout for swizzle atoms".
    """
    line = (units >> 3) - base_offset
    if swizzle == "none":
        return np.array(units, dtype=np.int64, order="C")
    if swizzle == "128B-atom32B":
        return np.asarray(units ^ ((line & 3) << 1), dtype=np.int64, order="C")
    return np.asarray(units ^ (line & (_WIDTH_UNITS[swizzle] - 1)), dtype=np.int64, order="C")


@functools.lru_cache(maxsize=1024)
def operand_bytes(
    desc: SharedMatrixDescriptor, rows: int, k_bytes: int, mn_major: bool, element_bytes: int
) -> tuple[tuple[int, int], ...]:
    """Sorted, disjoint, maximal byte ranges (start, stop) that operand_units touches.

    Cached; raises what operand_units raises.
    """
    units = np.unique(operand_units(desc, rows, k_bytes, mn_major, element_bytes))
    breaks = np.flatnonzero(np.diff(units) != 1) + 1
    starts = units[np.concatenate(([0], breaks))] * UNIT_BYTES
    stops = (units[np.concatenate((breaks - 1, [units.size - 1]))] + 1) * UNIT_BYTES
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def reads_past_the_end(what: str, size: int) -> KernelFault:
    """The error for an instruction `what` with an operand past the `size` bytes of shared memory."""
    return KernelFault(
        "out-of-bounds",
        f"{what} reads shared memory past its {size} bytes",
        "give the descriptor the address, leading and stride offsets of an operand within the shared buffer",
    )
