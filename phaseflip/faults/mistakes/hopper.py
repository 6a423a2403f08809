"""Catalogue, wgmma: fences and groups of asynchronous products, and the stages of shared memory that they read."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import HOPPER, WAITS, WGMMA

KERNEL = "hgemm_sm90"
WAIT_GROUP = "ptx.wgmma_wait_group"
LOAD = "tile.copy_async"


@fault(
    "missing-wgmma-fence",
    "No wgmma.fence orders the accumulator's registers before the first product.",
    kernels=HOPPER,
    expected=[("missing-wgmma-fence",)],
    blames=(WGMMA,),
    example=Example("T.ptx.wgmma.fence()", "", kernel=KERNEL),
)
def missing_wgmma_fence(code: Code) -> Iterator[Edit]:
    """The first product overwrites the accumulator, so nothing seems to need ordering; the text asks for the fence."""
    return map(code.remove, code.named("ptx.wgmma_fence"))


@fault(
    "missing-wgmma-commit",
    "The products are not committed to a group, so that the waits for groups wait for none of them.",
    kernels=HOPPER,
    expected=[("uninitialised-read register",), ("race register",)],
    blames=("tile.cast", LOAD, WGMMA),
    example=Example(
        """
        T.ptx.wgmma.commit_group()
        T.ptx.wgmma.wait_group(1)
        """,
        "T.ptx.wgmma.wait_group(1)",
        kernel=KERNEL,
    ),
)
def missing_wgmma_commit(code: Code) -> Iterator[Edit]:
    """wait_group alone is taken for a wait for all products."""
    return map(code.remove, code.named("ptx.wgmma_commit_group"))


@fault(
    "missing-wgmma-wait",
    "The accumulator is read while the last group of products may still write it.",
    kernels=HOPPER,
    expected=[("uninitialised-read register",), ("race register",)],
    blames=("tile.cast", WGMMA),
    example=Example("T.ptx.wgmma.wait_group(0)", "", kernel=KERNEL),
)
def missing_wgmma_wait(code: Code) -> Iterator[Edit]:
    """The wait in the loop leaves one group in flight; behind the loop nobody waits for it."""
    for s in code.named(WAIT_GROUP):
        if nodes.integer(s.args[0]) == 0:
            yield code.remove(s)


@fault(
    "group-wait-too-loose",
    "Two groups of products may be in flight where the stage that the older one reads is released.",
    kernels=HOPPER,
    expected=[("race shared war",)],
    chunks=6,
    blames=(LOAD, WGMMA),
    example=Example("T.ptx.wgmma.wait_group(1)", "T.ptx.wgmma.wait_group(2)", kernel=KERNEL),
)
def group_wait_too_loose(code: Code) -> Iterator[Edit]:
    """Off by one in how many groups may pend. The producer has other stages to fill first, which hides it."""
    for s in code.named(WAIT_GROUP):
        pending = nodes.integer(s.args[0])
        if pending:
            yield code.replace(s, nodes.with_argument(s, 0, nodes.int32(pending + 1)))


@fault(
    "release-before-wait",
    "The consumers release the stage of the group before last ahead of the wait for that group.",
    kernels=HOPPER,
    expected=[("race shared war",)],
    chunks=6,
    blames=(LOAD, WGMMA),
    example=Example(
        """
        T.ptx.wgmma.wait_group(1)
        if i > 0:
            T.cuda.warp_sync()
            if lane_id == 0:
                T.ptx.mbarrier.arrive(...)
        """,
        """
        if i > 0:
            T.cuda.warp_sync()
            if lane_id == 0:
                T.ptx.mbarrier.arrive(...)
        T.ptx.wgmma.wait_group(1)
        """,
        kernel=KERNEL,
    ),
)
def release_before_wait(code: Code) -> Iterator[Edit]:
    """The stage belongs to the group before, which seems to be long complete."""
    for s in releases(code):
        for above in code.around(s):
            waits = [t for t in code.block(above) if t.name == WAIT_GROUP and t.path < above.path]
            if waits:
                yield code.move_after(waits[-1], above)
                break


@fault(
    "missing-release",
    "The consumers never release a stage.",
    kernels=HOPPER,
    expected=[("deadlock",)],
    chunks=6,
    blames=WAITS,
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.arrive(...)
        """,
        """
        if lane_id == 0:
            T.evaluate(0)
        """,
        kernel=KERNEL,
    ),
)
def missing_release(code: Code) -> Iterator[Edit]:
    """As long as there are no more chunks than stages nobody waits for a release."""
    return map(code.remove, releases(code))


@fault(
    "release-by-every-lane",
    "All 32 lanes of a warp release the stage, where the barrier counts one arrival for each warp.",
    kernels=HOPPER,
    expected=[("over-arrival",), ("race shared war",)],
    chunks=6,
    blames=(LOAD, WGMMA, "ptx.mbarrier_arrive", *WAITS),
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.arrive(...)
        """,
        "T.ptx.mbarrier.arrive(...)",
        kernel=KERNEL,
    ),
)
def release_by_every_lane(code: Code) -> Iterator[Edit]:
    """One warp alone completes four phases: the stage counts as read before the other warpgroup has read it."""
    for s in releases(code):
        yield from map(code.unwrap, sites.guards(code, s, "lane")[:1])


# --- parts ---------------------------------------------------------------------------------------


def releases(code: Code) -> list[Statement]:
    """Arrivals on an mbarrier that tell of finished products: those in a loop around a product."""
    loops = [loop for s in code.named(WGMMA) for loop in code.enclosing(s, "for")]
    inside = [t for loop in dict.fromkeys(loops) for t in code.inside(loop)]
    return [s for s in code.named("ptx.mbarrier_arrive") if s in inside]
