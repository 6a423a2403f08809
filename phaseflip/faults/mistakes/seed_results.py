"""Catalogue, seed kernels: wrong tiles, chunks and operands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Changes, Code, Edit, together
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import ACCUMULATE, HOPPER, LOOPING, SEED

OVERLAP_BYTES = 1024


@fault(
    "accumulate-always",
    "The first MMA adds to what TMEM held before.",
    kernels=SEED,
    expected=[("uninitialised-read tmem",)],
    blames=("tile.gemm_async",),
    example=Example(
        "T.tile.gemm_async(..., i != 0, ...)", "T.tile.gemm_async(..., T.bool(True), ...)"
    ),
)
def accumulate_always(code: Code) -> Iterator[Edit]:
    for s in code.named(sites.MMA):
        yield code.replace(s, nodes.with_operands(s, {ACCUMULATE: nodes.truth(True)}))


@fault(
    "accumulate-never",
    "Every MMA overwrites the accumulator, so only the last chunk counts.",
    kernels=LOOPING,
    expected=[("wrong-result",)],
    chunks=2,
    example=Example(
        "T.tile.gemm_async(..., i != 0, ...)", "T.tile.gemm_async(..., T.bool(False), ...)"
    ),
)
def accumulate_never(code: Code) -> Iterator[Edit]:
    for s in code.named(sites.MMA):
        if nodes.integer(s.args[ACCUMULATE]) is None:
            yield code.replace(s, nodes.with_operands(s, {ACCUMULATE: nodes.truth(False)}))


@fault(
    "short-k-loop",
    "The loop over K leaves out the last chunk.",
    kernels=LOOPING,
    expected=[("wrong-result",)],
    chunks=2,
    example=Example("for i in range(2):", "for i in range(1):"),
)
def short_k_loop(code: Code) -> Iterator[Edit]:
    for s in sites.k_loops(code):
        extent = nodes.number(s.node.extent, int(s.node.extent) - 1)
        yield code.replace(s, nodes.with_range(s, s.node.min, extent))


@fault(
    "repeated-k-chunk",
    "B's slice of K does not advance with the loop.",
    kernels=LOOPING,
    expected=[("wrong-result",)],
    chunks=2,
    example=Example(
        "T.cta.copy(Bsmem[...], B[..., i * 64:i * 64 + 64])",
        "T.cta.copy(Bsmem[...], B[..., T.Mul(0, 64):T.Mul(0, 64) + 64])",
    ),
)
def repeated_k_chunk(code: Code) -> Iterator[Edit]:
    for loop in sites.k_loops(code):
        multiplied = [m.regions[2].buffer for m in code.inside(loop) if m.name == sites.MMA]
        for s in code.inside(loop):
            if s in sites.loads(code) and any(b.same_as(s.regions[0].buffer) for b in multiplied):
                slice_of = {loop.node.loop_var: loop.node.min}
                yield code.replace(s, nodes.exchanged(code.raw(s), slice_of))


@fault(
    "swapped-tile-index",
    "The columns of the tile come from the CTA's first index instead of its second.",
    kernels=("hgemm_v3", *HOPPER),
    expected=[
        ("wrong-result",),
        ("output-overwritten",),
        ("unwritten-output",),
        ("out-of-bounds",),
    ],
    tiles=(1, 2),
    blames=("tile.copy",),
    example=Example(
        """
        T.cta.copy(Bsmem[...], B[by * 128:by * 128 + 128, ...])
        ...
        T.tile.copy(D[..., by * 128:by * 128 + 128], ...)
        """,
        """
        T.cta.copy(Bsmem[...], B[bx * 128:bx * 128 + 128, ...])
        ...
        T.tile.copy(D[..., bx * 128:bx * 128 + 128], ...)
        """,
        kernel="hgemm_v3",
    ),
)
def swapped_tile_index(code: Code) -> Iterator[Edit]:
    indices = code.indices.get("cta", [])
    if len(indices) == 2:
        definition = next(
            s for s in code.named("scope") if indices[1] in list(getattr(s.node, "def").def_ids)
        )
        yield Edit(definition, substituted(code, {indices[1]: indices[0]}))


@fault(
    "row-stripe-swap",
    "The epilogue exchanges the rows of warps 1 and 2.",
    kernels=SEED,
    expected=[("wrong-result",)],
    example=Example(
        "T.tile.copy(D[... + warp_id * 32 + lane_id, ...], ...)",
        "T.tile.copy(D[... + T.Select(warp_id == 1, 2, T.Select(warp_id == 2, 1, warp_id)) * 32 + lane_id, ...], ...)",
    ),
)
def row_stripe_swap(code: Code) -> Iterator[Edit]:
    for s in sites.stores(code):
        for warp in code.indices.get("warp", []):
            if s.mentions(warp):
                one, two = nodes.equal(warp, 1), nodes.equal(warp, 2)
                other = nodes.chosen(
                    [(one, nodes.number(warp, 2)), (two, nodes.number(warp, 1))], warp
                )
                yield code.replace(s, nodes.exchanged(code.raw(s), {warp: other}))


@fault(
    "wrong-swizzle",
    "The MMA reads an operand with 64-byte swizzle that was stored with 128-byte swizzle.",
    kernels=SEED,
    expected=[("wrong-result",)],
    example=Example(
        """
        Asmem = T.decl_buffer(...)
        ...
        T.tile.gemm_async(tmem[...], Asmem[...], ...)
        """,
        """
        Asmem = T.decl_buffer(...)
        Asmem_swizzle_64B = T.decl_buffer(..., elem_offset=512, ...ComposeLayout(3, 2, 3, ...
        ...
        T.tile.gemm_async(tmem[...], Asmem_swizzle_64B[...], ...)
        """,
    ),
)
def wrong_swizzle(code: Code) -> Iterator[Edit]:
    for s in code.named(sites.MMA):
        for i in (1, 2):
            operand = s.args[i]
            declaration = sites.declaration_of(code, operand.buffer)
            if declaration is None:
                continue
            layout = nodes.swizzled_layout(operand.buffer, 64)
            view = nodes.redeclared(
                declaration.node, layout=layout, name=f"{operand.buffer.name}_swizzle_64B"
            )
            changed = nodes.with_operands(s, {i: nodes.region_of(operand, view.buffer)})
            redeclared = code.replace(declaration, declaration.node, view)
            yield from together([code.replace(s, changed), redeclared])


@fault(
    "operand-overlap",
    "The second operand's tile begins in the last 1024 bytes of the first one's.",
    kernels=SEED,
    expected=[("race shared waw",)],
    blames=("tile.copy",),
    example=Example(
        "Bsmem = T.decl_buffer(..., elem_offset=8704, ...)",
        "Bsmem = T.decl_buffer(..., elem_offset=8192, ...)",
    ),
)
def operand_overlap(code: Code) -> Iterator[Edit]:
    for s in code.named(sites.MMA):
        first, second = (sites.declaration_of(code, r.buffer) for r in s.regions[1:3])
        if first is None or second is None:
            continue
        a = first.node.buffer
        elements = nodes.elements(a) - OVERLAP_BYTES // nodes.element_bytes(a)
        moved = nodes.redeclared(second.node, elem_offset=int(a.elem_offset) + elements)
        changes = substituted(code, {second.node.buffer: moved.buffer})
        yield Edit(second, {**changes, second.path: [moved]})


def substituted(code: Code, variables: dict[Any, Any]) -> Changes:
    """Every statement that mentions one of the variables, with the others in their place."""
    changes = {}
    for s in code.block(code.statements[1]):
        if s.name != "scope" and any(nodes.occurs(v, s.node) for v in variables):
            changes[s.path] = [nodes.exchanged(code.raw(s), variables)]
    return changes
