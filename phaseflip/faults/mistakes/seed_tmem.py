"""Catalogue, seed kernels: the life of tensor memory, from tcgen05.alloc to tcgen05.dealloc."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import SEED


@fault(
    "missing-final-sync",
    "The CTA barrier before TMEM is freed is missing.",
    kernels=SEED,
    expected=[("tmem-freed-in-use",)],
    blames=("tile.copy_async", "ptx.tcgen05_dealloc"),
    example=Example(
        """
        T.tile.copy(D[...], ...)
        T.cuda.cta_sync()
        """,
        "T.tile.copy(D[...], ...)",
    ),
)
def missing_final_sync(code: Code) -> Iterator[Edit]:
    found = [sites.last_sync_before(code, s) for s in code.named("ptx.tcgen05_dealloc")]
    return map(code.remove, dict.fromkeys(t for t in found if t is not None))


@fault(
    "missing-dealloc",
    "TMEM is not freed.",
    kernels=SEED,
    expected=[("tmem-leak",)],
    blames=("ptx.tcgen05_alloc",),
    example=Example(
        """
        T.ptx.tcgen05.relinquish_alloc_permit(1)
        T.ptx.tcgen05.dealloc(tmem_addr, 512, 1)
        """,
        "T.ptx.tcgen05.relinquish_alloc_permit(1)",
    ),
)
def missing_dealloc(code: Code) -> Iterator[Edit]:
    return map(code.remove, code.named("ptx.tcgen05_dealloc"))


@fault(
    "dealloc-half",
    "Half of the columns that were allocated are freed.",
    kernels=SEED,
    expected=[("tmem-bad-allocation",)],
    example=Example(
        "T.ptx.tcgen05.dealloc(tmem_addr, 512, 1)", "T.ptx.tcgen05.dealloc(tmem_addr, 256, 1)"
    ),
)
def dealloc_half(code: Code) -> Iterator[Edit]:
    for s in code.named("ptx.tcgen05_dealloc"):
        columns = nodes.integer(s.args[1])
        if columns is not None:
            yield code.replace(s, nodes.with_argument(s, 1, columns // 2))


@fault(
    "alloc-by-one-lane",
    "One lane allocates TMEM, where the whole warp must.",
    kernels=SEED,
    expected=[("divergent-collective",)],
    example=Example(
        "T.ptx.tcgen05.alloc(..., 512, 1)",
        """
        if lane_id == 0:
            T.ptx.tcgen05.alloc(..., 512, 1)
        """,
    ),
)
def alloc_by_one_lane(code: Code) -> Iterator[Edit]:
    for s in code.named("ptx.tcgen05_alloc"):
        for lane in code.indices.get("lane", [])[:1]:
            yield code.guard([s], nodes.equal(lane, 0))


@fault(
    "alloc-odd-columns",
    "48 columns are allocated, where TMEM comes in powers of two from 32.",
    kernels=SEED,
    expected=[("tmem-bad-allocation",)],
    example=Example("T.ptx.tcgen05.alloc(..., 512, 1)", "T.ptx.tcgen05.alloc(..., 48, 1)"),
)
def alloc_odd_columns(code: Code) -> Iterator[Edit]:
    for s in code.named("ptx.tcgen05_alloc"):
        yield code.replace(s, nodes.with_argument(s, 1, 48))
