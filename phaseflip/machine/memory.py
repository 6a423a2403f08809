"""Global, shared and register memory: addresses, typed loads and stores of all lanes at once.

A generic address is an int: global buffer k starts at (k + 1) << 40; the shared window of the CTA with rank r in its
cluster at SHARED_BASE + (r << 24), as the hardware's shared::cluster window has it; a thread's registers (local buffers)
at LOCAL_BASE. The low 32 bits of a shared address are what `cvta.to.shared` gives.

Source: PTX ISA 9.1, ld, st, cvt, cvta.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import KernelFault, located
from ..instructions import instruction
from ..operators import from_memory, to_memory

if TYPE_CHECKING:
    from ..device_ir import Site
    from .warp import Group

SHARED_BASE = 1 << 32
LOCAL_BASE = 2 << 32
GLOBAL_SHIFT = 40
POISON_BYTE = 0xFF
"""Fills memory that nothing has written: NaN in every float format."""

RAW: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
}
"""Item type that moves n bytes at once. complex128 for 16: NumPy gathers it eight times faster than rows of bytes."""


class Memory:
    """`size` bytes that start at generic address `base`; `name` is the buffer's, for messages."""

    __slots__ = ("name", "space", "base", "size", "data", "views")

    def __init__(self, name: str, space: str, base: int, size: int) -> None:
        self.name, self.space, self.base, self.size = name, space, base, size
        self.data = np.full(-(-size // 16) * 16, POISON_BYTE, np.uint8)
        self.views: dict[np.dtype, np.ndarray] = {}

    def view(self, dtype: np.dtype) -> np.ndarray:
        """The whole memory as items of `dtype`."""
        found = self.views.get(dtype)
        if found is None:
            found = self.views[dtype] = self.data.view(dtype)
        return found

    def items(self, offset: Any, itemsize: int) -> Any:
        """Item numbers of byte offsets, bounds and alignment checked."""
        if offset.__class__ is int:
            if 0 <= offset <= self.size - itemsize and not offset & (itemsize - 1):
                return offset // itemsize
        else:
            every = int(np.bitwise_or.reduce(offset))
            if (
                every >= 0
                and not every & (itemsize - 1)
                and int(offset.max()) <= self.size - itemsize
            ):
                return offset >> (itemsize.bit_length() - 1)
        raise self.fault(offset, itemsize)

    def fault(self, offset: Any, itemsize: int) -> KernelFault:
        """The error for the first bad offset."""
        offsets = np.atleast_1d(np.asarray(offset))
        outside = (offsets < 0) | (offsets > self.size - itemsize)
        what = "out-of-bounds" if outside.any() else "misaligned-access"
        bad = (
            int(offsets[outside][0]) if outside.any() else int(offsets[offsets % itemsize != 0][0])
        )
        return KernelFault(
            what,
            f"{itemsize} bytes at byte {bad} of {self.space} {self.name}, which has {self.size} bytes",
        )


def memory_of(g: Group, address: Any) -> tuple[Memory, Any]:
    """The memory that an address (or the first of several) lies in, and the offsets in it; not for registers."""
    first = address if address.__class__ is int else int(address[0])
    cta = g.cta
    if first >> GLOBAL_SHIFT > 0:
        index = (first >> GLOBAL_SHIFT) - 1
        if index < len(cta.globals):
            found = cta.globals[index]
            return found, address - found.base
    elif first >> 32 == 1:
        rank = (first >> 24) & 0xFF
        if rank < len(cta.cluster.ctas):
            found = cta.cluster.ctas[rank].shared
            return found, address - found.base
    raise KernelFault("out-of-bounds", f"address {first:#x} lies in no global or shared memory")


@located
def load(g: Group, site: Site, address: Any, dtype: np.dtype) -> Any:
    """The element of `dtype` at each lane's address (global or shared); one scalar when the address is one."""
    memory, offset = memory_of(g, address)
    return from_memory(memory.view(dtype)[memory.items(offset, dtype.itemsize)])


@located
def store(g: Group, site: Site, address: Any, dtype: np.dtype, value: Any) -> None:
    """Write each lane's value (global or shared); of several lanes at one address the highest wins."""
    memory, offset = memory_of(g, address)
    memory.view(dtype)[memory.items(offset, dtype.itemsize)] = to_memory(value, dtype)


def load_local(g: Group, dtype: np.dtype, index: Any) -> Any:
    """Element `index` (in units of `dtype`, from the start of the frame) of each lane's registers."""
    frame = g.cta.frame(dtype)
    if g.n == 1:
        return from_memory(frame[g.lanes[0], index if index.__class__ is int else int(index)])
    if index.__class__ is int:
        return from_memory(frame[g.sel, index].copy())
    return from_memory(frame[g.lanes, index])


def store_local(g: Group, dtype: np.dtype, index: Any, value: Any) -> None:
    """Write element `index` of each lane's registers."""
    rows = g.sel if index.__class__ is int else g.lanes
    g.cta.frame(dtype)[rows, index] = to_memory(value, dtype)


def register_columns(g: Group, address: Any, itemsize: int) -> Any:
    """Item number in the frame of a register address."""
    offset = address - LOCAL_BASE
    if offset.__class__ is not int:
        first = int(offset[0])
        if (offset == first).all():
            offset = first
    if offset.__class__ is int:
        if not 0 <= offset <= g.cta.frame_bytes - itemsize or offset % itemsize:
            raise KernelFault(
                "out-of-bounds",
                f"register access at {address:#x} outside the thread's local buffers",
            )
        return offset // itemsize
    return offset // itemsize


def _ld(g: Group, dst: Any, addr: Any, nbytes: int, dtype: str) -> Any:
    if dst is None:
        memory, offset = memory_of(g, addr)
        kind = np.dtype(dtype)
        return from_memory(memory.view(kind)[memory.items(offset, kind.itemsize)])
    raw = RAW[nbytes]
    memory, offset = memory_of(g, addr)
    column = register_columns(g, dst, nbytes)
    rows = g.sel if column.__class__ is int else g.lanes
    g.cta.frame(raw)[rows, column] = memory.view(raw)[memory.items(offset, nbytes)]
    return None


def _st(g: Group, addr: Any, src: Any, nbytes: int) -> None:
    raw = RAW[nbytes]
    memory, offset = memory_of(g, addr)
    column = register_columns(g, src, nbytes)
    rows = g.sel if column.__class__ is int else g.lanes
    memory.view(raw)[memory.items(offset, nbytes)] = g.cta.frame(raw)[rows, column]


@instruction("ld.global")
def ld_global(g: Group, site: Site, dst: Any, addr: Any, nbytes: int, dtype: str = "") -> Any:
    """ld.global{.vec}.type d, [a]: `nbytes` (1-16) per lane into the register buffer at `dst`, or as a value."""
    g.cta.bytes["global_loaded"] += nbytes * g.n
    return _ld(g, dst, addr, nbytes, dtype)


@instruction("ld.shared")
def ld_shared(g: Group, site: Site, dst: Any, addr: Any, nbytes: int, dtype: str = "") -> Any:
    """ld.shared{.vec}.type d, [a]: `nbytes` (1-16) per lane into the register buffer at `dst`, or as a value."""
    g.cta.bytes["shared_loaded"] += nbytes * g.n
    return _ld(g, dst, addr, nbytes, dtype)


@instruction("st.global")
def st_global(g: Group, site: Site, addr: Any, src: Any, nbytes: int) -> None:
    """st.global{.vec}.type [a], b: `nbytes` (1-16) per lane from the register buffer at `src`."""
    g.cta.bytes["global_stored"] += nbytes * g.n
    _st(g, addr, src, nbytes)


@instruction("st.shared")
def st_shared(
    g: Group, site: Site, addr: Any, src: Any, nbytes: int, from_global: bool = False
) -> None:
    """st.shared{.vec}.type [a], b: `nbytes` (1-16) per lane from the register buffer at `src`.

    `from_global` marks the second half of a copy whose first half was an ld.global into the same registers.
    """
    g.cta.bytes["shared_stored"] += nbytes * g.n
    if from_global:
        g.cta.bytes["global_to_shared"] += nbytes * g.n
    _st(g, addr, src, nbytes)


@instruction("cvt.x2")
def cvt_x2(g: Group, site: Site, dst: Any, src: Any, source: str, target: str) -> None:
    """cvt.rn.target.source of two neighbouring registers (TVM's packed casts): round to nearest even."""
    a, b = g.cta.dtype(source), g.cta.dtype(target)
    from_column, to_column = (
        register_columns(g, src, a.itemsize),
        register_columns(g, dst, b.itemsize),
    )
    if from_column.__class__ is int and to_column.__class__ is int:
        pair = g.cta.frame(a)[g.sel, from_column : from_column + 2]
        g.cta.frame(b)[g.sel, to_column : to_column + 2] = pair
        return
    for i in range(2):
        g.cta.frame(b)[g.lanes, to_column + i] = g.cta.frame(a)[g.lanes, from_column + i].astype(b)
