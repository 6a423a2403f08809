"""Catalogue, several MMA consumers: the columns of each accumulator, and the barrier of each writeback warpgroup."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement, together
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import ACCUMULATOR, CONSUMERS, HOPPER

PAIRS = (512, 256, 128)


@fault(
    "named-barrier-clash",
    "Both writeback warpgroups use the named barrier of the first.",
    kernels=(*CONSUMERS, *HOPPER),
    expected=[("barrier-mismatch",), ("race",)],
    blames=("cuda.warpgroup_sync", "tile.copy", "tile.copy_async"),
    example=Example(
        """
        T.cuda.warpgroup_sync(wg_id + 10)
        ...
        T.cuda.warpgroup_sync(wg_id + 10)
        """,
        """
        T.cuda.warpgroup_sync(10)
        ...
        T.cuda.warpgroup_sync(10)
        """,
        kernel="hgemm_v9",
        shape=PAIRS,
    ),
)
def named_barrier_clash(code: Code) -> Iterator[Edit]:
    """The epilogue of one warpgroup, used for two. Right as long as the warpgroups do not meet there at the same time."""
    for index in code.indices.get("warpgroup", []):
        yield from together(
            code.replace(s, nodes.with_argument(s, 0, nodes.evaluated(s.args[0], {index: 0})))
            for s in code.named("cuda.warpgroup_sync")
            if s.mentions(index)
        )


@fault(
    "consumers-share-columns",
    "The accumulators of the two consumers overlap by 64 columns.",
    kernels=CONSUMERS,
    expected=[("race tmem waw",)],
    blames=ACCUMULATOR,
    example=Example(
        """
        T.tile.gemm_async(tmem[0:128, warp_id * 256:...], ...)
        ...
        T.wg.copy_async(Dreg_wg[...], tmem[0:128, wg_id * 256 + part * 64:...])
        """,
        """
        T.tile.gemm_async(tmem[0:128, warp_id * 256 + warp_id * -64:...], ...)
        ...
        T.wg.copy_async(Dreg_wg[...], tmem[0:128, wg_id * 256 + part * 64 + wg_id * -64:...])
        """,
        kernel="hgemm_v9",
        shape=PAIRS,
    ),
)
def consumers_share_columns(code: Code) -> Iterator[Edit]:
    """Columns counted for a narrower tile, in one constant that all places share."""
    return together(shifted(code, s, -64) for s in of_a_consumer(code))


@fault(
    "consumer-reads-other-half",
    "The writeback of the second consumer reads the accumulator of the first.",
    kernels=CONSUMERS,
    expected=[("race",), ("wrong-result",)],
    blames=ACCUMULATOR,
    example=Example(
        "T.wg.copy_async(Dreg_wg[...], tmem[0:128, wg_id * 256 + part * 64:...])",
        "T.wg.copy_async(Dreg_wg[...], tmem[0:128, wg_id * 256 + part * 64 + wg_id * -256:...])",
        kernel="hgemm_v9",
        shape=PAIRS,
    ),
)
def consumer_reads_other_half(code: Code) -> Iterator[Edit]:
    """The epilogue of one consumer, used for two. Numbers show it at once."""
    columns = [int(s.regions[0].region[-1].extent) for s in code.named(sites.MMA)]
    for s in of_a_consumer(code):
        if s.name != sites.MMA and columns:
            yield shifted(code, s, -columns[0])


@fault(
    "columns-past-512",
    "The second accumulator begins at column 384 and ends behind the last column of TMEM.",
    kernels=CONSUMERS,
    expected=[("out-of-bounds",)],
    blames=ACCUMULATOR,
    example=Example(
        """
        T.tile.gemm_async(tmem[0:128, warp_id * 256:...], ...)
        ...
        T.wg.copy_async(Dreg_wg[...], tmem[0:128, wg_id * 256 + part * 64:...])
        """,
        """
        T.tile.gemm_async(tmem[0:128, warp_id * 256 + warp_id * 128:...], ...)
        ...
        T.wg.copy_async(Dreg_wg[...], tmem[0:128, wg_id * 256 + part * 64 + wg_id * 128:...])
        """,
        kernel="hgemm_v9",
        shape=PAIRS,
    ),
)
def columns_past_512(code: Code) -> Iterator[Edit]:
    """Columns counted for a wider tile. The compiler does not know where TMEM ends."""
    return together(shifted(code, s, 128) for s in of_a_consumer(code))


# --- parts ---------------------------------------------------------------------------------------


def of_a_consumer(code: Code) -> list[Statement]:
    """MMAs and TMEM loads whose first column depends on the warp or the warpgroup."""
    return [s for s in code.named(*ACCUMULATOR) if consumer(code, s) is not None]


def consumer(code: Code, s: Statement) -> Any:
    """The index of the warp or warpgroup that the first column of a TMEM operand depends on; None if none."""
    indices = [*code.indices.get("warp", []), *code.indices.get("warpgroup", [])]
    starts = [r.region[-1].min for r in s.regions if nodes.memory(r.buffer) == "tmem"]
    return next((i for i in indices for start in starts if nodes.occurs(i, start)), None)


def shifted(code: Code, s: Statement, columns: int) -> Edit:
    """The TMEM operand of each consumer that many columns further than that of the one before."""
    index, i = consumer(code, s), 0 if s.name == sites.MMA else 1
    return code.replace(
        s, nodes.with_operands(s, {i: nodes.with_column(s.args[i], index * columns)})
    )
