"""Generic operators on who does what: guards, scopes, loops, tiles and operands."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import PRODUCTS


@fault(
    "narrow-fence",
    "A proxy fence covers another state space.",
    kind="mutation",
    example=Example(
        """
        T.ptx.fence.proxy_async("shared::cta")
        T.ptx.fence.mbarrier_init()
        """,
        """
        T.ptx.fence.proxy_async("global")
        T.ptx.fence.mbarrier_init()
        """,
    ),
)
def narrow_fence(code: Code) -> Iterator[Edit]:
    for s in code.named("ptx.fence_proxy_async"):
        space = str(s.args[0].value)
        other = "global" if space.startswith("shared") else "shared::cta"
        yield code.replace(s, nodes.with_argument(s, 0, nodes.text(other)))


@fault(
    "narrow-collective",
    "A barrier of the CTA becomes one of each warpgroup, or of each warp; one of a warpgroup one of each warp.",
    kind="mutation",
    example=Example(
        """
        T.cuda.cta_sync()
        tmem = ...
        """,
        """
        T.cuda.warpgroup_sync(1)
        tmem = ...
        """,
    ),
)
def narrow_collective(code: Code) -> Iterator[Edit]:
    for s in code.named("cuda.cta_sync", "cuda.warpgroup_sync"):
        if s.name == "cuda.cta_sync":
            yield code.replace(s, nodes.with_name(s, "cuda.warpgroup_sync", [nodes.int32(1)]))
        yield code.replace(s, nodes.with_name(s, "cuda.warp_sync"))


@fault(
    "narrow-tile-scope",
    "A tile operation is shared by the threads of each warpgroup, or of each warp, instead of all.",
    kind="mutation",
    example=Example("T.cta.copy(Asmem[...], ...)", "T.wg.copy(Asmem[...], ...)"),
)
def narrow_tile_scope(code: Code) -> Iterator[Edit]:
    for s in tiles(code):
        wider = {"cta": ("warpgroup", "warp"), "warpgroup": ("warp",)}
        for scope in wider.get(s.node.scope.name, ()):
            yield code.replace(s, nodes.with_scope(s, scope))


@fault(
    "drop-iteration",
    "A loop leaves out its first or its last iteration.",
    kind="mutation",
    example=Example("for i in range(2):", "for i in range(1, 2):"),
)
def drop_iteration(code: Code) -> Iterator[Edit]:
    for s in code.named("for"):
        start, extent = nodes.integer(s.node.min), nodes.integer(s.node.extent)
        if start is None or extent is None:
            continue
        fewer = nodes.number(s.node.extent, extent - 1)
        second = nodes.number(s.node.min, start + 1)
        yield code.replace(s, nodes.with_range(s, second, fewer))
        yield code.replace(s, nodes.with_range(s, s.node.min, fewer))


@fault(
    "exchange-tile-indices",
    "A tile operation takes the CTA's two indices in the other order.",
    kind="mutation",
    example=Example(
        "T.cta.copy(..., A[bx * 128:bx * 128 + 128, ...])",
        "T.cta.copy(..., A[by * 128:by * 128 + 128, ...])",
    ),
)
def exchange_tile_indices(code: Code) -> Iterator[Edit]:
    indices = code.indices.get("cta", [])
    if len(indices) == 2:
        x, y = indices
        for s in tiles(code):
            if s.mentions(x) or s.mentions(y):
                yield code.replace(s, nodes.exchanged(code.raw(s), {x: y, y: x}))


@fault(
    "exchange-operands",
    "The MMA multiplies its two operands in the other order.",
    kind="mutation",
    example=Example(
        "T.tile.gemm_async(tmem[...], Asmem[...], Bsmem[...], False, ...)",
        "T.tile.gemm_async(tmem[...], Bsmem[...], Asmem[...], False, ...)",
    ),
)
def exchange_operands(code: Code) -> Iterator[Edit]:
    for s in code.named(*PRODUCTS):
        a, b, _ = PRODUCTS[s.name]
        exchanged = nodes.with_operands(s, {a: s.args[b], b: s.args[a]})
        yield code.replace(s, exchanged)


@fault(
    "negate-accumulate",
    "The MMA adds where it should overwrite, and the reverse.",
    kind="mutation",
    example=Example("T.tile.gemm_async(..., i != 0, ...)", "T.tile.gemm_async(..., i == 0, ...)"),
)
def negate_accumulate(code: Code) -> Iterator[Edit]:
    for s in code.named(*PRODUCTS):
        accumulate = s.args[PRODUCTS[s.name][2]]
        value = nodes.integer(accumulate)
        other = nodes.negated(accumulate) if value is None else nodes.truth(not value)
        yield code.replace(s, nodes.with_operands(s, {PRODUCTS[s.name][2]: other}))


@fault(
    "drop-tile-operation",
    "A tile operation is left out.",
    kind="mutation",
    example=Example(
        """
        for i in range(2):
            T.cta.copy(Asmem[...], ...)
        """,
        "for i in range(2):",
    ),
)
def drop_tile_operation(code: Code) -> Iterator[Edit]:
    return map(code.remove, tiles(code))


@fault(
    "drop-guard",
    "A branch is taken by every thread.",
    kind="mutation",
    example=Example(
        """
        if warp_id == 0:
            if lane_id == 0:
                T.ptx.mbarrier.init(..., 1)
            T.ptx.tcgen05.alloc(..., 512, 1)
        """,
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        T.ptx.tcgen05.alloc(..., 512, 1)
        """,
    ),
)
def drop_guard(code: Code) -> Iterator[Edit]:
    for s in guards(code):
        yield code.unwrap(s)


@fault(
    "negate-guard",
    "A branch is taken by the other threads.",
    kind="mutation",
    example=Example(
        """
        if warp_id == 0:
            if lane_id == 0:
        """,
        """
        if warp_id != 0:
            if lane_id == 0:
        """,
    ),
)
def negate_guard(code: Code) -> Iterator[Edit]:
    for s in guards(code):
        condition = nodes.negated(s.node.condition)
        yield code.replace(s, nodes.with_condition(s, condition))


def tiles(code: Code) -> list[Statement]:
    """Tile primitives."""
    return [s for s in code.statements if s.name.startswith("tile.")]


def guards(code: Code) -> list[Statement]:
    """Branches that elect a thread, a lane, a warp, a warpgroup or a CTA."""
    return [s for s in code.named("if") if sites.guard_kind(code, s)]
