"""Catalogue, warp-specialised kernels: phases, stages and loops of roles that go out of step."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit
from .. import rings, sites
from ..example import Example
from ..fault import fault
from ..sites import HOPPER, ROLES, WAITS

ACCESSES = ("tile.copy_async", sites.MMA)


@fault(
    "both-phases-zero",
    "A producer's first wait uses parity 0, as its consumer's, though nothing has been filled yet.",
    kernels=(*ROLES, *HOPPER),
    expected=[("deadlock",)],
    blames=WAITS,
    example=Example("fill_phase = 1", "fill_phase = 0", kernel="hgemm_v7"),
)
def both_phases_zero(code: Code) -> Iterator[Edit]:
    """Both states are declared alike. The kernel hangs at once, at every shape."""
    for s in sites.initial_phases(code):
        if nodes.integer(s.node.value) == 1:
            yield code.replace(s, nodes.with_value(s, nodes.number(s.node.value, 0)))


@fault(
    "consumer-not-advanced",
    "A consumer does not go on to the next stage and phase after it has used one.",
    kernels=ROLES,
    expected=[("stale-wait",), ("deadlock",)],
    chunks=3,
    tiles=(1, 2),
    blames=WAITS,
    example=Example(
        """
        T.ptx.tcgen05.commit(...)
        ring_stage = ring_stage + 1
        if ring_stage == 4:
            ring_stage = 0
            ring_phase = T.bitwise_xor(ring_phase, 1)
        """,
        "T.ptx.tcgen05.commit(...)",
        kernel="hgemm_v7",
    ),
)
def consumer_not_advanced(code: Code) -> Iterator[Edit]:
    """A call that is easily lost in an edit. The state between MMA and writeback first matters in a CTA's second tile."""
    for advance in rings.advances(code):
        if rings.initial_value(code, advance.phase) == 0:
            yield rings.without(code, advance)


@fault(
    "producer-advanced-twice",
    "The producer goes on by two stages after each that it fills.",
    kernels=(*ROLES, *HOPPER),
    expected=[("deadlock",), ("race",)],
    chunks=3,
    tiles=(1, 2),
    blames=(*WAITS, *ACCESSES),
    example=Example(
        """
        fill_stage = fill_stage + 1
        if fill_stage == 4:
            fill_stage = 0
            fill_phase = T.bitwise_xor(fill_phase, 1)
        """,
        """
        fill_stage = fill_stage + 1
        if fill_stage == 4:
            fill_stage = 0
            fill_phase = T.bitwise_xor(fill_phase, 1)
        fill_stage = fill_stage + 1
        if fill_stage == 4:
            fill_stage = 0
            fill_phase = T.bitwise_xor(fill_phase, 1)
        """,
        kernel="hgemm_v7",
    ),
)
def producer_advanced_twice(code: Code) -> Iterator[Edit]:
    """One advance in the loop, and one in a helper that it calls. The first stage is the right one all the same."""
    loads = sites.loads(code)
    for advance in rings.advances(code):
        first = advance.steps[0]
        if any(s in loads for s in code.block(first)) and advance.stage is not None:
            yield rings.twice(code, advance)


@fault(
    "next-tile-skipped",
    "Only one lane of each warp goes on to the next tile; the others stay at theirs.",
    kernels=ROLES,
    expected=[("deadlock",)],
    tiles=(1, 2),
    blames=(*WAITS, "cuda.warpgroup_sync"),
    example=Example(
        """
        T.ptx.cp_async.bulk.wait_group(...)
        ...
        scheduler_tile_count = scheduler_tile_count + 1
        ...
        T.cuda.cta_sync()
        """,
        """
        T.ptx.cp_async.bulk.wait_group(...)
        ...
        if lane_id == 0:
        ...
        scheduler_tile_count = scheduler_tile_count + 1
        ...
        T.cuda.cta_sync()
        """,
        kernel="hgemm_v7:ctas=1",
    ),
)
def next_tile_skipped(code: Code) -> Iterator[Edit]:
    """next_tile() inside the branch of the store's issuer. The scheduler's state is a register of each thread."""
    for loop, register in rings.tile_loops(code):
        steps = rings.next_tile(code, loop, register)
        if steps and not sites.guards(code, loop, "elect"):
            yield code.guard(steps, nodes.equal(code.indices["lane"][0], 0))


@fault(
    "k-count-differs",
    "The MMA role runs through one K tile less than the producer loads.",
    kernels=ROLES,
    expected=[("deadlock",), ("wrong-result",)],
    chunks=3,
    tiles=(1, 2),
    blames=WAITS,
    example=Example(
        """
        for i in range(2):
            T.ptx.mbarrier.try_wait(...)
            T.tile.gemm_async(...)
        """,
        """
        for i in range(1):
            T.ptx.mbarrier.try_wait(...)
            T.tile.gemm_async(...)
        """,
        kernel="hgemm_v7",
    ),
)
def k_count_differs(code: Code) -> Iterator[Edit]:
    """Each role has a loop of its own, and a change of one bound is not made in the other."""
    loads = sites.loads(code)
    for s in sites.k_loops(code):
        if not any(t in loads for t in code.inside(s)):
            fewer = nodes.number(s.node.extent, int(s.node.extent) - 1)
            yield code.replace(s, nodes.with_range(s, s.node.min, fewer))
