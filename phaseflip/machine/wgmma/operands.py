"""Where the operands of wgmma lie: the matrix descriptor of A and B in shared memory, the accumulator in registers.

Source: PTX ISA 9.1, 9.7.15.5 "Matrix Descriptor Format", "Register Fragments and Shared Memory Matrix Layouts".
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BadInput
from ...ir.instruction import instruction
from ..memory.load_store import write_descriptor
from ..operands.matrix_descriptor import SharedMatrixDescriptor

if TYPE_CHECKING:
    from ...findings.finding import Place
    from ..threads.warp import Group

WARPS = 4
"""Warps of a warpgroup; each has a quarter of the 64 rows."""

_SWIZZLE_OF_CODE = {0: "none", 1: "128B", 2: "64B", 3: "32B"}
_TVM_SWIZZLE_CODES = {0: 0, 1: 3, 2: 2, 3: 1}


@functools.lru_cache(maxsize=4096)
def decode_descriptor(desc: int) -> SharedMatrixDescriptor:
    """Fields of wgmma's 64-bit matrix descriptor. BadInput for a reserved bit that is set.

    Bits 0-13 start, 16-29 leading, 32-45 stride (bytes / 16), 49-51 base offset, 62-63 swizzle (0 none, 1 128B, 2 64B,
    3 32B). The layouts that it names are those of tcgen05's.
    """
    used = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62
    if desc & ~used:
        raise BadInput(
            f"wgmma matrix descriptor {desc:#018x}: reserved bits {desc & ~used:#x} are set, but must be 0"
        )
    return SharedMatrixDescriptor(
        start_bytes=(desc & 0x3FFF) << 4,
        leading_bytes=(desc >> 16 & 0x3FFF) << 4,
        stride_bytes=(desc >> 32 & 0x3FFF) << 4,
        base_offset=desc >> 49 & 7,
        swizzle=_SWIZZLE_OF_CODE[desc >> 62],
    )


@functools.lru_cache(maxsize=64)
def fragment(n: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows, columns) of the 64 x n accumulator that the registers of 128 threads hold: arrays (128, n / 2).

    Register i of lane l of warp w holds row 16 w + l / 4 + 8 (i / 2 % 2), column 8 (i / 4) + 2 (l % 4) + i % 2.
    """
    thread, i = np.arange(32 * WARPS)[:, None], np.arange(n // 2)[None, :]
    rows = 16 * (thread >> 5) + (thread & 31) // 4 + 8 * (i // 2 % 2)
    columns = 8 * (i // 4) + 2 * (thread & 3) + i % 2
    return np.broadcast_to(rows, (32 * WARPS, n // 2)), columns


@instruction("encode.wgmma_descriptor")
def encode_wgmma_descriptor(
    g: Group, place: Place, dst: Any, addr: Any, leading: Any, stride: Any, swizzle: Any
) -> None:
    """TVM's helper: write the 64-bit matrix descriptor of wgmma for `addr` to the register buffer at `dst`.

    `leading` and `stride` are in units of 16 bytes; `swizzle` is TVM's code 0-3 (none, 32, 64, 128 bytes).
    """
    fixed = (leading & 0x3FFF) << 16 | (stride & 0x3FFF) << 32
    fixed |= _TVM_SWIZZLE_CODES[int(swizzle)] << 62
    write_descriptor(g, place, dst, addr, fixed)
