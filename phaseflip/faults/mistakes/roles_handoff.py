"""Catalogue, warp-specialised kernels: barriers between roles, who initialises, arrives and waits, and who frees TMEM."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement, together
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import ACCUMULATOR, HOPPER, ROLES, WAITS

ARRIVE = "ptx.mbarrier_arrive"
COMMIT = "ptx.tcgen05_commit"


@fault(
    "arrive-by-one-thread",
    "One thread arrives for the writeback warpgroup, where the barrier counts all 128.",
    kernels=ROLES,
    expected=[("deadlock",)],
    tiles=(1, 2),
    blames=WAITS,
    example=Example(
        "T.ptx.mbarrier.arrive(...)",
        """
        if warp_id == 0 and lane_id == 0:
            T.ptx.mbarrier.arrive(...)
        """,
        kernel="hgemm_v7",
    ),
)
def arrive_by_one_thread(code: Code) -> Iterator[Edit]:
    """TMA and commits arrive once for all; a warpgroup arrives thread by thread. In a CTA's first tile nobody waits for it."""
    warp, lane = code.indices["warp"][0], code.indices["lane"][0]
    one = nodes.both(nodes.equal(warp, 0), nodes.equal(lane, 0))
    for s in releases(code):
        yield code.guard([s], one)


@fault(
    "arrive-before-wait-ld",
    "TMEM is released before tcgen05.wait::ld has seen the loads from it complete.",
    kernels=ROLES,
    expected=[("race tmem war",)],
    tiles=(1, 2),
    blames=ACCUMULATOR,
    example=Example(
        """
        T.ptx.tcgen05.wait.ld()
        T.ptx.tcgen05.fence.before_thread_sync()
        T.ptx.mbarrier.arrive(...)
        """,
        """
        T.ptx.tcgen05.fence.before_thread_sync()
        T.ptx.mbarrier.arrive(...)
        T.ptx.tcgen05.wait.ld()
        """,
        kernel="hgemm_v7",
    ),
)
def arrive_before_wait_ld(code: Code) -> Iterator[Edit]:
    """Releasing as early as one can. The loads have mostly read by the time that the next tile's MMA writes."""
    for s in releases(code):
        for above in [s, *code.around(s)]:
            block = code.block(above)
            waits = [t for t in block if t.name == "ptx.tcgen05_wait_ld" and t.path < above.path]
            if waits:
                yield code.move_after(waits[-1], above)
                break


@fault(
    "release-not-awaited",
    "The MMA role does not wait until the writeback has read the accumulator of the tile before.",
    kernels=ROLES,
    expected=[("race tmem war",)],
    tiles=(1, 2),
    blames=ACCUMULATOR,
    example=Example(
        """
        T.ptx.mbarrier.try_wait(..., T.bitwise_xor(accumulator_phase, 0))
        accumulator_phase = T.bitwise_xor(accumulator_phase, 1)
        """,
        "accumulator_phase = T.bitwise_xor(accumulator_phase, 1)",
        kernel="hgemm_v7",
    ),
)
def release_not_awaited(code: Code) -> Iterator[Edit]:
    """One tile per CTA does not need the barrier, so a kernel for one tile has none."""
    return map(code.remove, sites.on_barrier_of(code, WAITS, code.named(ARRIVE)))


@fault(
    "init-in-role-branch",
    "The barriers are initialised by thread 0 of the CTA inside the branch of another warpgroup.",
    kernels=(*ROLES, *HOPPER),
    expected=[("barrier-not-initialised",)],
    blames=(*WAITS, COMMIT, ARRIVE, sites.EXPECT, "tile.copy_async"),
    example=Example(
        """
        if T.cuda.thread_rank() == 0:
        ...
        if wg_id == 0:
        """,
        """
        if wg_id == 1:
            if T.cuda.thread_rank() == 0:
        ...
        if wg_id == 0:
        """,
        kernel="hgemm_v7",
    ),
)
def init_in_role_branch(code: Code) -> Iterator[Edit]:
    """init() of TVM's barriers picks thread 0 of the CTA by itself; within another warpgroup's branch it picks nobody."""
    guards = init_guards(code)
    warpgroups = code.indices.get("warpgroup", [])
    if guards and warpgroups:
        yield code.guard(guards, nodes.equal(warpgroups[0], 1))


@fault(
    "init-per-warpgroup",
    "The barriers are initialised by thread 0 of every warpgroup.",
    kernels=(*ROLES, *HOPPER),
    expected=[("barrier-reinitialised",)],
    blames=("ptx.mbarrier_init",),
    example=Example(
        """
        if T.cuda.thread_rank() == 0:
        ...
        T.ptx.mbarrier.init(T.address_of(ld2mma_buf[i]), 128)
        """,
        """
        if warp_id == 0 and lane_id == 0:
        ...
        T.ptx.mbarrier.init(T.address_of(ld2mma_buf[i]), 128)
        """,
        kernel="hgemm_v7",
    ),
)
def init_per_warpgroup(code: Code) -> Iterator[Edit]:
    """A guard from a kernel of one warpgroup. Both threads write the same before the CTA meets: the numbers are right."""
    warp, lane = code.indices["warp"][0], code.indices["lane"][0]
    first = nodes.both(nodes.equal(warp, 0), nodes.equal(lane, 0))
    return together(code.replace(s, nodes.with_condition(s, first)) for s in init_guards(code))


@fault(
    "cta-sync-in-role",
    "The writeback warpgroup meets at a barrier of the whole CTA.",
    kernels=ROLES,
    expected=[("deadlock",), ("divergent-collective",)],
    blames=("cuda.cta_sync", *WAITS),
    example=Example("T.cuda.warpgroup_sync(10)", "T.cuda.cta_sync()", kernel="hgemm_v7"),
)
def cta_sync_in_role(code: Code) -> Iterator[Edit]:
    """The epilogue of a kernel without roles. It seems to work where the other roles have ended: exited threads, and
    those at the closing barrier, are counted as present.
    """
    for s in code.named("cuda.warpgroup_sync"):
        yield code.replace(s, nodes.with_name(s, "cuda.cta_sync"))


@fault(
    "dealloc-per-warpgroup",
    "The warp that frees TMEM is picked by its number in the warpgroup alone, so one of each frees it.",
    kernels=ROLES,
    expected=[("tmem-double-free",)],
    blames=("ptx.tcgen05_dealloc",),
    example=Example(
        """
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.relinquish_alloc_permit(1)
                T.ptx.tcgen05.dealloc(...)
        """,
        """
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(1)
            T.ptx.tcgen05.dealloc(...)
        """,
        kernel="hgemm_v7",
    ),
)
def dealloc_per_warpgroup(code: Code) -> Iterator[Edit]:
    """The published form. The result is written by then, so no test of numbers can notice."""
    for s in code.named("ptx.tcgen05_dealloc"):
        yield from map(code.unwrap, sites.guards(code, s, "warpgroup")[:1])


# --- parts ---------------------------------------------------------------------------------------


def releases(code: Code) -> list[Statement]:
    """Arrivals of whole warps on an mbarrier."""
    return [s for s in code.named(ARRIVE) if not sites.guards(code, s, "elect")]


def init_guards(code: Code) -> list[Statement]:
    """The branches that pick thread 0 of the CTA to initialise barriers."""
    around = [g for s in code.named("ptx.mbarrier_init") for g in code.enclosing(s, "if")]
    return [g for g in dict.fromkeys(around) if nodes.calls(g.node.condition, "cuda.thread_rank")]
