"""The tensor core of a CTA: tcgen05.mma on shared-memory operands and a TMEM accumulator, commit, fences.

Products of fp16 and bf16 are exact in fp32; they are summed in fp32, in an order that hardware does not specify. MMAs on
one accumulator that a thread issues back to back become one larger product: nothing can observe the steps between them.

Source: PTX ISA 9.1, tcgen05.mma, tcgen05.commit, tcgen05.fence, fence.proxy.async.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from ..errors import BadInput, KernelFault
from ..instructions import instruction
from .instruction_descriptor import InstructionDescriptor
from .matrix_descriptors import SharedMatrixDescriptor, operand_units
from .mbarrier import barrier_at
from .memory import RAW, SHARED_BASE, register_columns
from .tensor_memory import split_address
from .tensor_memory_layout import accumulator_columns, accumulator_slices, check_accumulator_address

if TYPE_CHECKING:
    from ..device_ir import Site
    from .cta import CTA
    from .warp import Group

_FORMATS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_SWIZZLE_CODES = {0: 0, 1: 6, 2: 4, 3: 2, 4: 1}


class Product:
    """Back-to-back MMAs of one thread on one accumulator; an asynchronous operation once the batch is closed."""

    __slots__ = (
        "cta",
        "site",
        "thread",
        "d_tmem",
        "idesc",
        "kind",
        "accumulate",
        "descriptors",
        "done",
    )

    def __init__(
        self,
        cta: CTA,
        site: Site,
        thread: int,
        d_tmem: int,
        idesc: int,
        kind: str,
        accumulate: bool,
    ) -> None:
        self.cta, self.site, self.thread = cta, site, thread
        self.d_tmem, self.idesc, self.kind, self.accumulate = d_tmem, idesc, kind, accumulate
        self.descriptors: list[tuple[int, int]] = []
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words."""
        return thread_name(self.cta, self.thread)

    def land(self) -> None:
        """D (+)= A B^T for all steps of the batch."""
        core, d = self.cta.tensor_core, InstructionDescriptor.decode(self.idesc, self.kind)
        key = (self.idesc, self.kind, tuple(self.descriptors))
        units = core.units.get(key)
        if units is None:
            units = core.units[key] = _operands(d, self.descriptors)
        shared = self.cta.shared
        a = _matrix(shared.view(RAW[16]), units[0], shared.size, _FORMATS[d.a_format], d.a_mn_major)
        b = _matrix(shared.view(RAW[16]), units[1], shared.size, _FORMATS[d.b_format], d.b_mn_major)
        product = a @ b.T
        if d.negate_a != d.negate_b:
            product = -product
        lane, column = split_address(self.d_tmem)
        for piece in accumulator_slices(d.m, d.n, 1):
            where = piece.memory_index(lane, column)
            part = product[piece.matrix_index]
            if d.d_format == "float16":
                _store_half(self.cta.tmem.words, where, part, self.accumulate)
            elif self.accumulate:
                self.cta.tmem.floats[where] += part
            else:
                self.cta.tmem.floats[where] = part
        self.done = True


def thread_name(cta: CTA, thread: int) -> str:
    """ "CTA 3 warp 0 lane 5"."""
    return f"CTA {cta.rank_in_grid} warp {thread >> 5} lane {thread & 31}"


def _operands(
    d: InstructionDescriptor, descriptors: list[tuple[int, int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the 16-byte units of A and B, the K steps of the batch side by side."""
    k_bytes = d.k * d.element_bytes
    sides = []
    for side, rows, mn_major in ((0, d.m, d.a_mn_major), (1, d.n, d.b_mn_major)):
        parts = [
            operand_units(
                SharedMatrixDescriptor.decode(pair[side]), rows, k_bytes, mn_major, d.element_bytes
            )
            for pair in descriptors
        ]
        sides.append(np.concatenate(parts, axis=0 if mn_major else 1))
    return sides[0], sides[1]


def _matrix(
    memory: np.ndarray, units: np.ndarray, size: int, dtype: np.dtype, mn_major: bool
) -> np.ndarray:
    """(rows, K) float32 matrix of the operand whose units lie at these positions of shared memory."""
    if (int(units[-1, -1]) << 4) >= size or int(units.max()) << 4 >= size:
        raise KernelFault("out-of-bounds", f"tcgen05.mma reads shared memory past its {size} bytes")
    values = memory[units].view(dtype).astype(np.float32)
    return values.T if mn_major else values


def _store_half(words: np.ndarray, where: Any, part: np.ndarray, accumulate: bool) -> None:
    """A 16-bit accumulator: the low half of each word."""
    if accumulate:
        part = part + (words[where] & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
    words[where] = (words[where] & 0xFFFF0000) | part.astype(np.float16).view(np.uint16)


class TensorCore:
    """Issue side of one CTA: the batch that is still open, and operand positions already computed."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.open: Product | None = None
        self.units: dict[Any, tuple[np.ndarray, np.ndarray]] = cta.program_cache

    def issue(
        self,
        site: Site,
        thread: int,
        d_tmem: int,
        a: int,
        b: int,
        idesc: int,
        kind: str,
        accumulate: bool,
    ) -> None:
        """One MMA by one thread: append it to the open batch, or open a new one."""
        batch = self.open
        if not (
            batch is not None
            and accumulate
            and (batch.thread, batch.d_tmem, batch.idesc, batch.kind)
            == (thread, d_tmem, idesc, kind)
        ):
            self.close_batch()
            batch = self.open = Product(self.cta, site, thread, d_tmem, idesc, kind, accumulate)
        batch.descriptors.append((a, b))

    def close_batch(self) -> None:
        """Hand the open batch to the machine as one asynchronous operation."""
        if self.open is not None:
            batch, self.open = self.open, None
            self.cta.cluster.issue(("tcgen05", self.cta.rank, batch.thread), batch)


def _per_lane(g: Group, value: Any) -> list[Any]:
    return value.tolist() if value.__class__ is np.ndarray else [value] * g.n


@instruction("tcgen05.mma")
def tcgen05_mma(
    g: Group,
    site: Site,
    d_tmem: Any,
    a_desc: Any,
    b_desc: Any,
    idesc: Any,
    kind: str,
    enable_input_d: Any,
    cta_group: int,
) -> None:
    """tcgen05.mma.cta_group.kind [d_tmem], a_desc, b_desc, idesc, enable_input_d: D = A B^T (+ D), asynchronously.

    One thread issues one MMA; here every lane of the group issues its own. kind::f16 (fp16, bf16) only.
    """
    if cta_group != 1:
        raise KernelFault(
            "resource-limit", "tcgen05.mma.cta_group::2 needs a cluster, which is not simulated yet"
        )
    lanes = zip(
        g.lanes.tolist(),
        *(_per_lane(g, v) for v in (d_tmem, a_desc, b_desc, idesc, enable_input_d)),
        strict=True,
    )
    for thread, d, a, b, i, accumulate in lanes:
        try:
            fields = InstructionDescriptor.decode(i, kind)
            fields.check_shape(cta_group)
            SharedMatrixDescriptor.decode(a), SharedMatrixDescriptor.decode(b)
            check_accumulator_address(*split_address(d), fields.m, fields.n, cta_group)
        except BadInput as error:
            raise KernelFault("out-of-bounds", str(error)) from None
        columns = accumulator_columns(fields.m, fields.n, cta_group)
        g.cta.tmem.check(split_address(d)[1], columns, "tcgen05.mma")
        g.cta.tensor_core.issue(site, thread, d, a, b, i, kind, bool(accumulate))


class Commit:
    """tcgen05.commit in flight: lands after all MMAs that its thread issued before, and arrives on the barrier."""

    __slots__ = ("cta", "site", "thread", "mbar", "done")

    def __init__(self, cta: CTA, site: Site, thread: int, mbar: int) -> None:
        self.cta, self.site, self.thread, self.mbar = cta, site, thread, mbar
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words."""
        return thread_name(self.cta, self.thread)

    def land(self) -> None:
        """One arrival."""
        barrier_at(self.cta, self.mbar, "tcgen05.commit").arrive(1)
        self.done = True


@instruction("tcgen05.commit", uniform=("mbar", "cta_mask"))
def tcgen05_commit(g: Group, site: Site, mbar: int, cta_group: int, cta_mask: int) -> None:
    """tcgen05.commit.cta_group.mbarrier::arrive::one.b64 [mbar]: one arrival when the thread's earlier MMAs are done."""
    if cta_group != 1 or cta_mask:
        raise KernelFault(
            "resource-limit",
            "tcgen05.commit to other CTAs needs a cluster, which is not simulated yet",
        )
    barrier_at(g.cta, mbar, "tcgen05.commit")
    g.cta.tensor_core.close_batch()
    for thread in g.lanes.tolist():
        g.cta.cluster.issue(("tcgen05", g.cta.rank, thread), Commit(g.cta, site, thread, mbar))


@instruction("tcgen05.fence::before_thread_sync")
def tcgen05_fence_before_thread_sync(g: Group, site: Site) -> None:
    """tcgen05.fence::before_thread_sync: orders earlier tcgen05 operations before later synchronisation; no value changes."""


@instruction("tcgen05.fence::after_thread_sync")
def tcgen05_fence_after_thread_sync(g: Group, site: Site) -> None:
    """tcgen05.fence::after_thread_sync: orders later tcgen05 operations after earlier synchronisation; no value changes."""


@instruction("fence.proxy.async")
def fence_proxy_async(g: Group, site: Site, space: str) -> None:
    """fence.proxy.async{.space}: orders generic-proxy and async-proxy accesses of this thread; no value changes."""


@instruction("encode.matrix_descriptor")
def encode_matrix_descriptor(
    g: Group, site: Site, dst: Any, addr: Any, leading: Any, stride: Any, swizzle: Any
) -> None:
    """TVM's helper: write the 64-bit shared-memory descriptor of `addr` to the register buffer at `dst`.

    `leading` and `stride` are in units of 16 bytes; `swizzle` is TVM's code 0-4 (none, 32, 64, 128 bytes, 128 by 32).
    """
    value = (
        (((addr - SHARED_BASE) & 0x3FFFF) >> 4)
        | (leading & 0x3FFF) << 16
        | (stride & 0x3FFF) << 32
        | 1 << 46
        | _SWIZZLE_CODES[int(swizzle)] << 61
    )
    g.cta.frame(RAW[8])[g.sel, register_columns(g, dst, 8)] = value


def add_low_half(desc: Any, offset: Any) -> Any:
    """Add to the low 32 bits of a 64-bit descriptor, as TVM's helper does; the upper half stays."""
    if desc.__class__ is np.ndarray:
        low = (desc + np.uint64(offset)) & np.uint64(0xFFFFFFFF)
        return desc & np.uint64(0xFFFFFFFF00000000) | low
    return desc & 0xFFFFFFFF00000000 | (desc + offset) & 0xFFFFFFFF
