"""Catalogue, seed kernels: who issues MMAs and commits, and how often a barrier is arrived at."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit.code import Code, Edit
from ...frontend.tirx.edit.expressions import integer, with_argument
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import ACCUMULATOR, HOPPER, SEED


@fault(
    "commit-by-whole-warp",
    "The commit stands after the branch of the elected thread, so every lane commits.",
    kernels=SEED,
    expected=[("over-arrival",)],
    example=Example(
        """
        if T.ptx.elect_sync():
            T.tile.gemm_async(...)
            T.ptx.tcgen05.commit(...)
        """,
        """
        if T.ptx.elect_sync():
            T.tile.gemm_async(...)
        T.ptx.tcgen05.commit(...)
        """,
    ),
)
def commit_by_whole_warp(code: Code) -> Iterator[Edit]:
    for s in sites.commits(code):
        for guard in sites.guards(code, s, "elect")[:1]:
            yield code.move_after(s, guard)


@fault(
    "mma-by-whole-warp",
    "The guard that elects one thread is missing, so every lane issues the MMA.",
    kernels=SEED,
    expected=[("duplicate-issue",)],
    blames=("tile.gemm_async",),
    example=Example(
        """
        if T.ptx.elect_sync():
            T.tile.gemm_async(...)
            T.ptx.tcgen05.commit(...)
        """,
        """
        T.tile.gemm_async(...)
        T.ptx.tcgen05.commit(...)
        """,
    ),
)
def mma_by_whole_warp(code: Code) -> Iterator[Edit]:
    for mma in code.named(sites.MMA):
        for guard in sites.guards(code, mma, "elect")[:1]:
            yield code.unwrap(guard)


@fault(
    "mma-by-four-warps",
    "The guard that picks one warp is missing, so one thread of each warp issues the MMA.",
    kernels=SEED,
    expected=[("duplicate-issue",)],
    blames=("tile.gemm_async",),
    example=Example(
        """
        if warp_id == 0:
            if T.ptx.elect_sync():
                T.tile.gemm_async(...)
                T.ptx.tcgen05.commit(...)
        """,
        """
        if T.ptx.elect_sync():
            T.tile.gemm_async(...)
            T.ptx.tcgen05.commit(...)
        """,
    ),
)
def mma_by_four_warps(code: Code) -> Iterator[Edit]:
    for mma in code.named(sites.MMA):
        for guard in sites.guards(code, mma, "warp")[:1]:
            yield code.unwrap(guard)


@fault(
    "commit-before-mma",
    "The commit comes before the MMA that it should tell of.",
    kernels=SEED,
    expected=[("race tmem raw",)],
    blames=ACCUMULATOR,
    example=Example(
        """
        T.tile.gemm_async(...)
        T.ptx.tcgen05.commit(...)
        """,
        """
        T.ptx.tcgen05.commit(...)
        T.tile.gemm_async(...)
        """,
    ),
)
def commit_before_mma(code: Code) -> Iterator[Edit]:
    for s in sites.commits(code):
        mma = code.previous(s)
        if mma is not None and mma.name == sites.MMA:
            yield code.swap(s, mma)


@fault(
    "missing-commit",
    "Nothing arrives on the barrier when the MMA completes.",
    kernels=SEED,
    expected=[("deadlock",)],
    blames=("ptx.mbarrier_try_wait",),
    example=Example(
        """
        T.tile.gemm_async(...)
        T.ptx.tcgen05.commit(...)
        """,
        "T.tile.gemm_async(...)",
    ),
)
def missing_commit(code: Code) -> Iterator[Edit]:
    return map(code.remove, sites.commits(code))


@fault(
    "barrier-count-two",
    "The barrier expects two arrivals and gets one.",
    kernels=(*SEED, *HOPPER),
    expected=[("deadlock",)],
    blames=("ptx.mbarrier_try_wait",),
    example=Example("T.ptx.mbarrier.init(..., 1)", "T.ptx.mbarrier.init(..., 2)"),
)
def barrier_count_two(code: Code) -> Iterator[Edit]:
    for s in code.named("ptx.mbarrier_init"):
        if integer(s.args[1]) == 1:
            yield code.replace(s, with_argument(s, 1, 2))


@fault(
    "missing-barrier-init",
    "The barrier is used without mbarrier.init.",
    kernels=(*SEED, *HOPPER),
    expected=[("barrier-not-initialised",)],
    blames=("ptx.mbarrier_try_wait", "ptx.tcgen05_commit"),
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        """,
        """
        if lane_id == 0:
            T.evaluate(0)
        """,
    ),
)
def missing_barrier_init(code: Code) -> Iterator[Edit]:
    return map(code.remove, code.named("ptx.mbarrier_init"))
