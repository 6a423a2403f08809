"""Catalogue, TMA and pipelined kernels: parities of a ring, the reuse of stages and of the store's tile, tiles left out."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement
from .. import rings, sites
from ..example import Example
from ..fault import fault
from ..sites import EXPECT, HOPPER, PERSISTENT, RINGS, TMA, WAITS, WGMMA

STORE = ("tile.copy", "tile.copy_async", "store shared")


@fault(
    "refill-before-wait",
    "A stage is loaded again before the wait for the MMA that reads it.",
    kernels=RINGS,
    expected=[("race shared war",)],
    chunks=3,
    blames=("tile.copy_async", "tile.gemm_async"),
    example=Example(
        """
        T.ptx.mbarrier.try_wait(..., phase_mma)
        phase_mma = T.bitwise_xor(phase_mma, 1)
        T.cuda.cta_sync()
        if warp_id == 0:
            if T.ptx.elect_sync():
                if i + 2 < 3:
        ...
        ring_stage = ring_stage + 1
        """,
        """
        if warp_id == 0:
            if T.ptx.elect_sync():
                if i + 2 < 3:
        ...
        T.ptx.mbarrier.try_wait(..., phase_mma)
        phase_mma = T.bitwise_xor(phase_mma, 1)
        T.cuda.cta_sync()
        ring_stage = ring_stage + 1
        """,
        kernel="hgemm_v5",
        shape=(128, 128, 192),
    ),
)
def refill_before_wait(code: Code) -> Iterator[Edit]:
    """Prefetching as early as one can. The MMA is done before the load has come back from memory: the numbers are right."""
    for loop in sites.k_loops(code):
        block = code.body(loop)
        for wait in sites.mma_waits(code):
            for s in block if wait in block else ():
                if s.path > wait.path and any(load in sites.loads(code) for load in code.inside(s)):
                    yield code.move_before(s, wait)


@fault(
    "ring-parity-on-single-slot",
    "The wait for the MMA, on a single barrier, uses the parity of the ring.",
    kernels=RINGS,
    expected=[("stale-wait",)],
    chunks=3,
    blames=WAITS,
    example=Example(
        "T.ptx.mbarrier.try_wait(T.address_of(mma_bar[0]), phase_mma)",
        "T.ptx.mbarrier.try_wait(T.address_of(mma_bar[0]), ring_phase)",
        kernel="hgemm_v5",
    ),
)
def ring_parity_on_single_slot(code: Code) -> Iterator[Edit]:
    """One state for both barriers. The single one turns with every chunk, the ring's phase once in a round; the wait that
    passes early goes unnoticed where the MMA is quick.
    """
    for loop in sites.k_loops(code):
        waits = [s for s in code.body(loop) if s.name in WAITS]
        of_ring = [s for s in waits if int(sites.barrier(s.args[0]).shape[0]) > 1]
        for s in waits:
            if s in sites.mma_waits(code) and s not in of_ring and of_ring:
                yield code.replace(s, nodes.with_argument(s, 1, of_ring[0].args[1]))


@fault(
    "flip-on-wrong-stage",
    "The phase of the ring flips after the first stage instead of the last.",
    kernels=(*RINGS, *HOPPER),
    expected=[("stale-wait",), ("race",), ("deadlock",)],
    chunks=3,
    blames=(*WAITS, "tile.copy_async", "tile.gemm_async", WGMMA),
    example=Example(
        """
        if ring_stage == 2:
            ring_stage = 0
            ring_phase = T.bitwise_xor(ring_phase, 1)
        """,
        """
        if ring_stage == 1:
            ring_phase = T.bitwise_xor(ring_phase, 1)
        if ring_stage == 2:
            ring_stage = 0
        """,
        kernel="hgemm_v5",
    ),
)
def flip_on_wrong_stage(code: Code) -> Iterator[Edit]:
    """`phase ^= stage == 0` before the stage goes on. A wait that passes early goes unnoticed where loads are fast."""
    for advance in rings.advances(code):
        if advance.stage is not None:
            first = nodes.guarded(
                code.raw(advance.flip), nodes.equal(nodes.value_of(advance.stage), 1)
            )
            yield code.move_before(advance.flip, advance.wrap, first)


@fault(
    "odd-rounds-parity-reset",
    "Every tile starts with the first stage and parity 0, though barriers turned an odd number of times.",
    kernels=PERSISTENT,
    expected=[("stale-wait",), ("race",), ("deadlock",)],
    chunks=3,
    tiles=(1, 2),
    blames=(*WAITS, "tile.copy_async", "tile.gemm_async", EXPECT),
    example=Example(
        """
        while ...:
            for s in T.unroll(2):
        """,
        """
        while ...:
            ring_stage = 0
            ring_phase = 0
            fill_stage = 0
            phase_mma = 0
            for s in T.unroll(2):
        """,
        kernel="hgemm_v6",
    ),
)
def odd_rounds_parity_reset(code: Code) -> Iterator[Edit]:
    """A tile loop put around a kernel for one tile. Right where K is a multiple of twice the ring, as in most tests."""
    for loop, _ in rings.tile_loops(code):
        inner = code.inside(loop)
        used = [s for s in inner if s.name in (*WAITS, EXPECT)]
        starts = [
            s
            for s in sites.state_stores(code)
            if s not in inner
            and nodes.integer(s.node.value) is not None
            and any(nodes.occurs(s.node.buffer, t.node) for t in used)
        ]
        if starts:
            first = code.body(loop)[0]
            yield Edit(loop, {first.path: [*map(code.raw, starts), code.raw(first)]})


@fault(
    "lapped-waiter",
    "No barrier of the CTA ends a round of the K loop, so a slow warp can miss two phases.",
    kernels=TMA,
    expected=[("lapped-wait",), ("deadlock",)],
    chunks=3,
    blames=WAITS,
    example=Example(
        """
        phase_mma = T.bitwise_xor(phase_mma, 1)
        T.cuda.cta_sync()
        """,
        "phase_mma = T.bitwise_xor(phase_mma, 1)",
        kernel="hgemm_v4",
    ),
)
def lapped_waiter(code: Code) -> Iterator[Edit]:
    """All threads wait on the barriers, which seems to be enough; it is as long as no warp sleeps through two phases."""
    for loop in sites.k_loops(code):
        yield from map(code.remove, (s for s in code.body(loop) if s.name == "cuda.cta_sync"))


@fault(
    "store-without-fence",
    "The proxy fence between the writes to shared memory and the TMA store is missing.",
    kernels=(*TMA, *HOPPER),
    expected=[("missing-proxy-fence",)],
    blames=STORE,
    example=Example(
        """
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.warpgroup_sync(10)
        """,
        "T.cuda.warpgroup_sync(10)",
        kernel="hgemm_v4",
    ),
)
def store_without_fence(code: Code) -> Iterator[Edit]:
    """The barrier is there and looks sufficient. By the time of the store the writes have mostly reached shared memory."""
    return map(code.remove, before_store(code, "ptx.fence_proxy_async"))


@fault(
    "store-without-sync",
    "The warpgroup does not meet between its writes to shared memory and the TMA store.",
    kernels=(*TMA, *HOPPER),
    expected=[("race shared raw",)],
    blames=STORE,
    example=Example(
        """
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.warpgroup_sync(10)
        """,
        'T.ptx.fence.proxy_async("shared::cta")',
        kernel="hgemm_v4",
    ),
)
def store_without_sync(code: Code) -> Iterator[Edit]:
    """A fence is taken for a barrier. As long as the four warps run in step the rows of the others are there."""
    return map(code.remove, before_store(code, "cuda.warpgroup_sync"))


@fault(
    "store-not-drained",
    "Nobody waits until the TMA store has read its tile, which the next part of the result overwrites.",
    kernels=(*PERSISTENT, *HOPPER),
    expected=[("race shared war",)],
    blames=STORE,
    example=Example(
        """
        T.ptx.cp_async.bulk.commit_group()
        T.ptx.cp_async.bulk.wait_group(0, T.bool(True))
        """,
        "T.ptx.cp_async.bulk.commit_group()",
        kernel="hgemm_v6",
    ),
)
def store_not_drained(code: Code) -> Iterator[Edit]:
    """A store is taken for done when it is committed. It has mostly read its tile before the next part is computed."""
    return map(code.remove, code.named("ptx.cp_async_bulk_wait_group"))


@fault(
    "store-drained-by-one",
    "The thread that waits for the store does not meet those that overwrite its tile.",
    kernels=(*PERSISTENT, *HOPPER),
    expected=[("race shared war",)],
    blames=STORE,
    example=Example(
        """
        T.ptx.cp_async.bulk.commit_group()
        T.ptx.cp_async.bulk.wait_group(...)
        ...
        T.cuda.warpgroup_sync(10)
        """,
        """
        T.ptx.cp_async.bulk.commit_group()
        T.ptx.cp_async.bulk.wait_group(...)
        """,
        kernel="hgemm_v6",
    ),
)
def store_drained_by_one(code: Code) -> Iterator[Edit]:
    """wait_group is taken to hold back the CTA; it holds back the thread that executes it."""
    stores = [s for s in sites.stores(code) if s.scopes[1:] == ["shared"]]
    return map(code.remove, sites.after(code, stores, "cuda.warpgroup_sync"))


@fault(
    "scheduler-drops-band",
    "The tile loop ends with the last full group of rows; the rows of the rest are left out.",
    kernels=PERSISTENT,
    expected=[("unwritten-output",)],
    tiles=(9, 1),
    example=Example("while ... < 9:", "while ... < 8:", kernel="hgemm_v6", shape=(1152, 128, 64)),
)
def scheduler_drops_band(code: Code) -> Iterator[Edit]:
    """The number of groups is rounded down. Right where the tiles are a multiple of the group, as in most tests."""
    for loop, register in rings.tile_loops(code):
        bounds = [
            nodes.upper_bound(s.node.condition, register)
            for s in rings.next_tile(code, loop, register)
            if s.name == "if"
        ]
        for grouped in (b for b in bounds if b is not None):
            condition = nodes.with_upper_bound(loop.node.condition, grouped)
            yield code.replace(loop, nodes.with_condition(loop, condition))


def before_store(code: Code, name: str) -> Iterator[Statement]:
    """Statements of that name between the writes of a tile to shared memory and its TMA store."""
    return sites.between(code, sites.stagings(code), sites.stores(code), name)
