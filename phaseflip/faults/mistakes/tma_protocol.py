"""Catalogue, TMA and pipelined kernels: how many bytes and arrivals a barrier expects, and what comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement, together
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import EXPECT, HOPPER, RINGS, TMA

EXPECT_TX_SOURCE = """
__device__ __forceinline__ void ptx_mbarrier_expect_tx(void* barrier, int bytes) {
  unsigned int address = __cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(address), "r"(bytes) : "memory");
}
"""
"""TVM 0.26 has no intrinsic of mbarrier.expect_tx, so whoever wants it writes this."""


@fault(
    "expect-too-few",
    "The barrier is told the bytes of the first operand only.",
    kernels=(*TMA, *HOPPER),
    expected=[("tx-count-mismatch",)],
    chunks=3,
    blames=(EXPECT,),
    example=Example(
        "T.ptx.mbarrier.arrive.expect_tx(..., 32768, ...)",
        "T.ptx.mbarrier.arrive.expect_tx(..., 16384, ...)",
        kernel="hgemm_v4",
    ),
)
def expect_too_few(code: Code) -> Iterator[Edit]:
    """Left as it was when a second operand joined the load. Where its box lands in time the numbers are right."""
    return together(
        code.replace(s, nodes.with_argument(s, 1, nodes.region_bytes(loads[0].regions[0])))
        for s, loads in expectations(code)
    )


@fault(
    "expect-too-many",
    "The barrier is told twice the bytes that come.",
    kernels=(*TMA, *HOPPER),
    expected=[("deadlock",)],
    chunks=3,
    blames=sites.WAITS,
    example=Example(
        "T.ptx.mbarrier.arrive.expect_tx(..., 32768, ...)",
        "T.ptx.mbarrier.arrive.expect_tx(..., 65536, ...)",
        kernel="hgemm_v4",
    ),
)
def expect_too_many(code: Code) -> Iterator[Edit]:
    """The bytes of a float32 tile, or of two CTAs. The kernel hangs: there are no numbers to test."""
    return together(
        code.replace(s, nodes.with_argument(s, 1, 2 * int(s.args[1])))
        for s, _ in expectations(code)
    )


@fault(
    "expect-without-arrive",
    "The bytes are announced with expect_tx, and nobody arrives.",
    kernels=(*TMA, *HOPPER),
    expected=[("deadlock",)],
    chunks=3,
    blames=sites.WAITS,
    example=Example(
        "T.ptx.mbarrier.arrive.expect_tx(..., 32768, ...)",
        'T.cuda.func_call("ptx_mbarrier_expect_tx", ..., 32768, ...)',
        kernel="hgemm_v4",
    ),
)
def expect_without_arrive(code: Code) -> Iterator[Edit]:
    """expect_tx is taken for an arrival by those who know it from arrive.expect_tx. The kernel hangs."""
    name, source = nodes.text("ptx_mbarrier_expect_tx"), nodes.text(EXPECT_TX_SOURCE)
    return together(
        code.replace(s, nodes.with_name(s, "cuda.func_call", [name, *s.args[:2], source]))
        for s, _ in expectations(code)
    )


@fault(
    "load-by-every-warp",
    "The loads are guarded by elect.sync alone, so one thread of each warp issues them.",
    kernels=(*TMA, *HOPPER),
    expected=[("over-arrival",), ("duplicate-issue",)],
    chunks=3,
    blames=("tile.copy_async", EXPECT),
    example=Example(
        """
        if warp_id == 0:
            if T.ptx.elect_sync():
                T.tile.copy_async(Asmem[...], ...)
                T.tile.copy_async(Bsmem[...], ...)
                T.ptx.mbarrier.arrive.expect_tx(...)
        """,
        """
        if T.ptx.elect_sync():
            T.tile.copy_async(Asmem[...], ...)
            T.tile.copy_async(Bsmem[...], ...)
            T.ptx.mbarrier.arrive.expect_tx(...)
        """,
        kernel="hgemm_v4",
    ),
)
def load_by_every_warp(code: Code) -> Iterator[Edit]:
    """elect.sync elects one thread of each warp, not of the CTA."""
    guards = (g for s in sites.tma_loads(code) for g in sites.guards(code, s, "warp")[:1])
    return together(map(code.unwrap, dict.fromkeys(guards)))


@fault(
    "shared-stage-barrier",
    "All stages of the ring use the barrier of the first one.",
    kernels=(*RINGS, *HOPPER),
    expected=[("over-arrival",), ("tx-count-mismatch",)],
    chunks=3,
    blames=(EXPECT, "tile.copy_async", *sites.WAITS),
    example=Example(
        """
        T.tile.copy_async(Asmem[...], ..., mbar=T.address_of(tma_bar[s]))
        ...
        T.ptx.mbarrier.try_wait(T.address_of(tma_bar[ring_stage]), ring_phase)
        ...
        ring_stage = ring_stage + 1
        """,
        """
        T.tile.copy_async(Asmem[...], ..., mbar=T.address_of(tma_bar[0]))
        ...
        T.ptx.mbarrier.try_wait(T.address_of(tma_bar[0]), ring_phase)
        ...
        ring_stage = ring_stage + 1
        """,
        kernel="hgemm_v5",
    ),
)
def shared_stage_barrier(code: Code) -> Iterator[Edit]:
    """The barrier is not made an array when its tile becomes a ring. Where all loads land in time the numbers are right."""
    rings = [sites.barrier(s.args[0]) for s in code.named(EXPECT)]
    rings = [b for b in rings if int(b.shape[0]) > 1]
    loads = sites.tma_loads(code)

    def edits() -> Iterator[Edit]:
        for s in code.statements:
            if s in loads:
                address = s.node.config["mbar"]
            elif s.name in (EXPECT, *sites.WAITS):
                address = s.args[0]
            else:
                continue
            if not any(sites.barrier(address).same_as(b) for b in rings):
                continue
            first = nodes.at_element(address, 0)
            if s in loads:
                yield code.replace(s, nodes.with_barrier(s, first))
            else:
                yield code.replace(s, nodes.with_argument(s, 0, first))

    return together(edits())


@fault(
    "box-too-wide",
    "The box of a tensor map has 128 columns, and its tile in shared memory 64.",
    kernels=(*TMA, *HOPPER),
    expected=[("tx-count-mismatch",), ("out-of-bounds",)],
    chunks=3,
    blames=("tile.copy_async", EXPECT),
    example=Example(
        """
        Bsmem = T.decl_buffer(...)
        ...
        T.tile.copy_async(Bsmem[0:128, 0:64], B[..., i * 64:i * 64 + 64], ...)
        """,
        """
        Bsmem = T.decl_buffer(...)
        Bsmem_wide = T.decl_buffer((128, 128), ...)
        ...
        T.tile.copy_async(Bsmem_wide[0:128, 0:128], B[..., i * 64:i * 64 + 128], ...)
        """,
        kernel="hgemm_v4",
        site=1,
    ),
)
def box_too_wide(code: Code) -> Iterator[Edit]:
    """A box as wide as the tile of D. It lands over what lies behind the operand's tile, and brings twice the bytes."""
    for operand, loads in by_operand(code):
        declaration = sites.declaration_of(code, operand)
        if declaration is None:
            continue
        *rows, columns = (int(n) for n in operand.shape)
        shape = [*rows, 2 * columns]
        layout = nodes.plain_layout(shape, rows[-1] * columns)
        view = nodes.redeclared(
            declaration.node, shape=shape, layout=layout, name=f"{operand.name}_wide"
        )
        edits = [code.replace(declaration, declaration.node, view)]
        for s in loads:
            inside, outside = s.regions
            wide = [
                nodes.with_last_extent(nodes.region_of(inside, view.buffer), 2 * columns),
                nodes.with_last_extent(outside, 2 * columns),
            ]
            edits.append(code.replace(s, s.node.replace(args=[*wide, *s.args[2:]])))
        yield Edit(loads[0], next(together(edits)).changes)


# --- parts ---------------------------------------------------------------------------------------


def expectations(code: Code) -> list[tuple[Statement, list[Statement]]]:
    """(arrive.expect_tx, the TMA loads before it in its block) where there are any."""
    found = []
    for s in code.named(EXPECT):
        block = code.block(s)
        loads = [load for load in sites.tma_loads(code) if load in block]
        if loads:
            found.append((s, loads))
    return found


def by_operand(code: Code) -> list[tuple[Any, list[Statement]]]:
    """(buffer, the TMA loads into it) of every operand in shared memory."""
    found: list[tuple[Any, list[Statement]]] = []
    for s in sites.tma_loads(code):
        buffer = s.regions[0].buffer
        known = next((loads for b, loads in found if b.same_as(buffer)), None)
        if known is None:
            found.append((buffer, [s]))
        else:
            known.append(s)
    return found
