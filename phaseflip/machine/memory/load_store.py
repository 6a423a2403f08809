"""Global, shared and register memory: addresses, typed loads and stores of all lanes at once.

A generic address is an int: global buffer k starts at `global_base(k)`; the shared window of the CTA with rank r in its
cluster at SHARED_BASE + (r << 24), as the hardware's shared::cluster window has it, where clearing bit 24 leads from a
CTA to the even one of its pair; a thread's registers (local buffers)
at LOCAL_BASE. The low 32 bits of a shared address are what `cvta.to.shared` gives; they stand for it too.

Source: PTX ISA 9.1, ld, st, cvt, cvta.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import KernelFault, located
from ...findings import Finding, agree
from ...ir.arithmetic import from_memory, rounded, to_memory
from ...ir.instruction import instruction
from ..threads.registers import check_registers, write_registers

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...races.shadow import Shadow
    from ..threads.warp import Group

SHARED_BASE = 1 << 32
RANK_SHIFT = 24
MBARRIER_BYTES = 8
LOCAL_BASE = 2 << 32
GLOBAL_SHIFT = 40


def global_base(index: int) -> int:
    """Address of global buffer `index`: in the middle of its range, so that a small negative offset stays in it."""
    return (index + 1 << GLOBAL_SHIFT) + (1 << GLOBAL_SHIFT - 1)


POISON_BYTE = 0xFF
"""Fills memory that nothing has written: NaN in every float format."""

RAW: dict[int, np.dtype] = {
    1: np.dtype("u1"),
    2: np.dtype("u2"),
    4: np.dtype("u4"),
    8: np.dtype("u8"),
    16: np.dtype("c16"),
    32: np.dtype("V32"),
}
"""Item type that moves n bytes at once. complex128 for 16: NumPy gathers it eight times faster than rows of bytes."""


class Memory:
    """`size` bytes that start at generic address `base`.

    `kind` is "global" or "shared", which is of the CTA of a `rank`; `name_at(offset)` names the buffer at a byte offset;
    `shadow` belongs to the race detector, and is None without one; `overlapping` names the buffers, if they are several,
    that have all bytes from a first to a last.
    """

    __slots__ = (
        "overlapping",
        "kind",
        "name_at",
        "base",
        "size",
        "rank",
        "data",
        "views",
        "shadow",
    )

    def __init__(
        self, kind: str, name_at: Callable[[int], str], base: int, size: int, rank: int = 0
    ) -> None:
        self.kind, self.name_at, self.base, self.size = kind, name_at, base, size
        self.rank = rank
        self.overlapping: Callable[[int, int], list[str]] = lambda first, last: []
        self.data = np.full(-(-size // 32) * 32, POISON_BYTE, np.uint8)
        self.views: dict[np.dtype, np.ndarray] = {}
        self.shadow: Shadow | None = None

    def describe(self, first: int, last: int) -> str:
        """ "Asmem (shared bytes 2048-18431)"."""
        return f"{self.name_at(first)} ({self.kind} bytes {first}-{last})"

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
        where = f"{self.name_at(min(max(bad, 0), self.size - 1))}, whose {self.kind} memory has {self.size} bytes"
        fix = (
            "correct the index, or guard the access where it reaches past the end"
            if what == "out-of-bounds"
            else f"start the access at a multiple of {itemsize} bytes: align the buffer, or access fewer bytes at once"
        )
        return KernelFault(what, f"{itemsize} bytes at byte {bad} of {where}", fix)


def memory_of(g: Group, address: Any) -> tuple[Memory, Any]:
    """The memory that an address (or the first of several) lies in, and the offsets in it; not for registers."""
    first = address if address.__class__ is int else int(address[0])
    cta = g.cta
    if first >> GLOBAL_SHIFT > 0:
        index = (first >> GLOBAL_SHIFT) - 1
        if index < len(cta.globals):
            found = cta.globals[index]
            return found, address - found.base
    elif first >> 32 <= 1:
        found = cta.cluster.owner(first).shared
        return found, (address | SHARED_BASE) - found.base
    raise KernelFault(
        "out-of-bounds",
        f"address {first:#x} lies in no global or shared memory",
        "pass the address of a tensor of the kernel or of a shared buffer, and correct the offset",
    )


def write_descriptor(g: Group, place: Place, dst: Any, address: Any, fixed: int) -> None:
    """Write the 64-bit matrix descriptor of a shared address, with these fields beside its start, to registers at `dst`.

    Start is matrix-descriptor-encode(x) = (x & 0x3FFFF) >> 4, which loses a remainder.
    """
    offset = address - SHARED_BASE
    if np.any(offset & 15):
        misaligned = [byte for byte in np.atleast_1d(offset).tolist() if byte % 16]
        g.cta.report(
            Finding(
                "misaligned-access",
                "the descriptor counts in units of 16 bytes, and the product reads from the unit that the address lies in",
                place=place,
                memory="shared",
                what=f"{g} {agree(g, 'encodes', 'encode')} a matrix descriptor for byte {misaligned[0]} of shared memory",
                fix="align the operand to 16 bytes, one with a swizzle of 32, 64 or 128 bytes to 256, 512 or 1024",
            )
        )
    start = (offset & 0x3FFFF) >> 4
    value = (
        (start | fixed) if start.__class__ is int else start.astype(np.uint64) | np.uint64(fixed)
    )
    column = register_columns(g, dst, 8)
    write_registers(g, column * 8, 8)
    g.cta.frame(RAW[8])[g.sel, column] = value


def observe(
    g: Group,
    place: Place,
    memory: Memory,
    offset: Any,
    nbytes: int,
    writes: bool,
    lanes: Any = None,
    strong: str = "",
    equal: Callable[[], Any] | None = None,
) -> None:
    """Tell the race detector of an access; `lanes` are those of the offsets, where these are not one for each lane.

    strong: the scope of a strong access; equal: whether what is stored is there already, for each lane or for all.
    """
    if g.cta.detector is not None:
        if memory.kind == "shared" and memory is not g.cta.shared:
            g.cta.detector.peer_access(g, place, memory.rank)
        g.cta.detector.thread_access(g, place, memory, offset, nbytes, writes, lanes, strong, equal)


def _same_bits(one: Any, other: Any, dtype: np.dtype) -> Any:
    """Whether items of a dtype have the same bits, each; the value may be one for several items."""
    a = np.atleast_1d(np.asarray(one, dtype))
    b = np.broadcast_to(np.asarray(other, dtype), a.shape)
    bits = (np.ascontiguousarray(x).view(np.uint8).reshape(len(a), -1) for x in (a, b))
    return np.equal(*bits).all(axis=1)


@located
def load(g: Group, place: Place, address: Any, dtype: np.dtype) -> Any:
    """The element of `dtype` at each lane's address (global or shared); one scalar when the address is one."""
    memory, offset = memory_of(g, address)
    items = memory.items(offset, dtype.itemsize)
    g.cta.bytes[f"{memory.kind}_loaded"] += dtype.itemsize * g.n
    observe(g, place, memory, offset, dtype.itemsize, False)
    return from_memory(memory.view(dtype)[items])


@located
def store(g: Group, place: Place, address: Any, dtype: np.dtype, value: Any) -> None:
    """Write each lane's value (global or shared); of several lanes at one address the highest wins."""
    memory, offset = memory_of(g, address)
    items = memory.items(offset, dtype.itemsize)
    g.cta.bytes[f"{memory.kind}_stored"] += dtype.itemsize * g.n
    value = to_memory(value, dtype)
    if items.__class__ is int and value.__class__ is np.ndarray and value.ndim:
        value = value[-1]
    there = memory.view(dtype)
    observe(
        g, place, memory, offset, dtype.itemsize, True,
        equal=lambda: _same_bits(there[items], value, dtype),
    )  # fmt: skip
    there[items] = value


@located
def local_index(g: Group, place: Place, name: str, first: int, elements: int, index: Any) -> Any:
    """Position in the frame of element `index` of a local array of `elements` that starts at `first`."""
    if index.__class__ is np.ndarray:
        low, high = int(index.min()), int(index.max())
    else:
        low = high = int(index)
    if low < 0 or high >= elements:
        bad = low if low < 0 else high
        raise KernelFault(
            "out-of-bounds",
            f"element {bad} of the local array {name}, which has {elements} elements",
            f"correct the index, or give {name} more elements",
        )
    return index + first


@located
def load_local(g: Group, place: Place, dtype: np.dtype, index: Any) -> Any:
    """Element `index` (in units of `dtype`, from the start of the frame) of each lane's registers."""
    frame = g.cta.frame(dtype)
    check_registers(g, place, index * dtype.itemsize, dtype.itemsize)
    if g.n == 1:
        return from_memory(
            frame[g.lanes[0], index if index.__class__ is int else int(np.max(index))]
        )
    if index.__class__ is int:
        return from_memory(frame[g.sel, index].copy())
    return from_memory(frame[g.lanes, index])


@instruction("cvta.to.shared")
def cvta_to_shared(g: Group, place: Place, addr: Any) -> Any:
    """cvta.to.shared.u64, then cvt.u32.u64: the 32-bit address in the shared window."""
    return addr & 0xFFFFFFFF


def store_local(g: Group, dtype: np.dtype, index: Any, value: Any) -> None:
    """Write element `index` of each lane's registers."""
    rows = g.sel if index.__class__ is int else g.lanes
    write_registers(g, index * dtype.itemsize, dtype.itemsize)
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
                "correct the offset from the local buffer, or give the buffer more elements",
            )
        return offset // itemsize
    return offset // itemsize


def _ld(g: Group, place: Place, dst: Any, addr: Any, nbytes: int, dtype: str) -> Any:
    if dst is None:
        return load(g, place, addr, np.dtype(dtype))
    raw = RAW[nbytes]
    memory, offset = memory_of(g, addr)
    items = memory.items(offset, nbytes)
    column = register_columns(g, dst, nbytes)
    observe(g, place, memory, offset, nbytes, False)
    rows = g.sel if column.__class__ is int else g.lanes
    write_registers(g, column * nbytes, nbytes)
    g.cta.frame(raw)[rows, column] = memory.view(raw)[items]
    return None


def _st(g: Group, place: Place, addr: Any, src: Any, nbytes: int) -> None:
    raw = RAW[nbytes]
    memory, offset = memory_of(g, addr)
    items = memory.items(offset, nbytes)
    column = register_columns(g, src, nbytes)
    check_registers(g, place, column * nbytes, nbytes)
    rows = g.sel if column.__class__ is int else g.lanes
    values = g.cta.frame(raw)[rows, column]
    value, there = values[-1] if items.__class__ is int else values, memory.view(raw)
    observe(
        g, place, memory, offset, nbytes, True,
        equal=lambda: _same_bits(there[items], value, raw),
    )  # fmt: skip
    there[items] = value


@instruction("ld.global")
def ld_global(g: Group, place: Place, dst: Any, addr: Any, nbytes: int, dtype: str = "") -> Any:
    """ld.global{.vec}.type d, [a]: `nbytes` (1-32) per lane into the register buffer at `dst`, or as a value."""
    g.cta.bytes["global_loaded"] += nbytes * g.n if dst is not None else 0
    return _ld(g, place, dst, addr, nbytes, dtype)


@instruction("ld.shared")
def ld_shared(g: Group, place: Place, dst: Any, addr: Any, nbytes: int, dtype: str = "") -> Any:
    """ld.shared{.vec}.type d, [a]: `nbytes` (1-16) per lane into the register buffer at `dst`, or as a value."""
    g.cta.bytes["shared_loaded"] += nbytes * g.n if dst is not None else 0
    return _ld(g, place, dst, addr, nbytes, dtype)


@instruction("st.global", stores_global=True, alone=True)
def st_global(g: Group, place: Place, addr: Any, src: Any, nbytes: int) -> None:
    """st.global{.vec}.type [a], b: `nbytes` (1-32) per lane from the register buffer at `src`."""
    g.cta.bytes["global_stored"] += nbytes * g.n
    _st(g, place, addr, src, nbytes)


@instruction("st.shared")
def st_shared(
    g: Group, place: Place, addr: Any, src: Any, nbytes: int, from_global: bool = False
) -> None:
    """st.shared{.vec}.type [a], b: `nbytes` (1-16) per lane from the register buffer at `src`.

    `from_global` marks the second half of a copy whose first half was an ld.global into the same registers.
    """
    g.cta.bytes["shared_stored"] += nbytes * g.n
    if from_global:
        g.cta.bytes["global_to_shared"] += nbytes * g.n
    _st(g, place, addr, src, nbytes)


@instruction("cvt.x2", alone=True)
def cvt_x2(g: Group, place: Place, dst: Any, src: Any, source: str, target: str) -> None:
    """cvt.rn.target.source of two neighbouring registers (TVM's packed casts): round to nearest even."""
    a, b = g.cta.dtype(source), g.cta.dtype(target)
    from_column, to_column = (
        register_columns(g, src, a.itemsize),
        register_columns(g, dst, b.itemsize),
    )
    check_registers(g, place, from_column * a.itemsize, 2 * a.itemsize)
    write_registers(g, to_column * b.itemsize, 2 * b.itemsize)
    if from_column.__class__ is int and to_column.__class__ is int:
        pair = g.cta.frame(a)[g.sel, from_column : from_column + 2]
        g.cta.frame(b)[g.sel, to_column : to_column + 2] = rounded(pair, b)
        return
    for i in range(2):
        found = g.cta.frame(a)[g.lanes, from_column + i]
        g.cta.frame(b)[g.lanes, to_column + i] = rounded(found, b)
