"""Catalogue, clusters of two CTAs: what crosses from one CTA to the other, and how long both stay."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement, together
from .. import sites
from ..example import Example
from ..fault import fault
from ..sites import CLUSTERS, EXPECT, WAITS

ALLOC = "ptx.tcgen05_alloc"
ARRIVE = "ptx.mbarrier_arrive"
PAIR = (256, 256, 128)


@fault(
    "no-cluster-sync-after-init",
    "The CTA meets after the initialisation of its barriers, and not the cluster.",
    kernels=CLUSTERS,
    expected=[("barrier-not-initialised",)],
    blames=("tile.copy_async", EXPECT, ARRIVE, "ptx.tcgen05_commit", *WAITS),
    example=Example(
        """
        T.ptx.fence.mbarrier_init()
        T.ptx.barrier.cluster.arrive(...)
        T.ptx.barrier.cluster.wait(...)
        """,
        """
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        """,
        kernel="hgemm_v8",
        shape=PAIR,
    ),
)
def no_cluster_sync_after_init(code: Code) -> Iterator[Edit]:
    """The published form. Both CTAs start at about the same time, and the peer arrives only after its first tile."""
    inits = code.named("ptx.mbarrier_init")
    for arrive, wait in cluster_syncs(code):
        if inits and arrive == next(
            (a for a, _ in cluster_syncs(code) if a.path > inits[-1].path), None
        ):
            in_cta = code.replace(arrive, nodes.with_name(arrive, "cuda.cta_sync"))
            yield from together([in_cta, code.remove(wait)])


@fault(
    "no-cluster-sync-before-alloc",
    "A CTA allocates TMEM for the pair without having met the other, which may not have been launched.",
    kernels=CLUSTERS,
    expected=[("peer-not-launched",)],
    blames=(ALLOC,),
    example=Example(
        """
        T.ptx.barrier.cluster.arrive(...)
        T.ptx.barrier.cluster.wait(...)
        if T.cuda.thread_rank() == 0:
        """,
        "if T.cuda.thread_rank() == 0:",
        kernel="hgemm_v8",
        shape=PAIR,
    ),
)
def no_cluster_sync_before_alloc(code: Code) -> Iterator[Edit]:
    """The rendezvous after the initialisation seems to be enough. Both CTAs of a pair start at about the same time."""
    allocs = [s for s in code.named(ALLOC) if nodes.integer(s.args[-1]) == 2]
    for arrive, wait in cluster_syncs(code):
        if allocs and wait.path < allocs[0].path:
            yield from together([code.remove(arrive), code.remove(wait)])


@fault(
    "cta-scope-on-cluster",
    "The arrivals on the other CTA's barrier release to their own CTA only, as they do by default.",
    kernels=CLUSTERS,
    expected=[("scope-too-narrow",)],
    tiles=(1, 2),
    blames=(sites.MMA, "tile.copy_async", *WAITS),
    example=Example(
        'T.ptx.mbarrier.arrive(..., "release", "cluster", "shared::cluster", ...)',
        'T.ptx.mbarrier.arrive(..., "", "", "shared::cluster", ...)',
        kernel="hgemm_v8",
        shape=PAIR,
    ),
)
def cta_scope_on_cluster(code: Code) -> Iterator[Edit]:
    """The published form. Scopes are promises of the text; the hardware that is sold keeps more than they say."""
    for s in remote_arrivals(code):
        args = list(s.args)
        args[-6:-4] = [nodes.text(""), nodes.text("")]
        yield code.replace(s, nodes.with_name(s, ARRIVE, args))


@fault(
    "exit-before-peer",
    "No cluster barrier ends the kernel, so a CTA may leave while the other still reaches into it.",
    kernels=CLUSTERS,
    expected=[("peer-exited",)],
    blames=("tile.copy_async", sites.MMA, ARRIVE, "ptx.tcgen05_commit", "ptx.tcgen05_dealloc"),
    example=Example(
        """
        T.ptx.barrier.cluster.arrive(...)
        T.ptx.barrier.cluster.wait(...)
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.relinquish_alloc_permit(2)
        """,
        """
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.relinquish_alloc_permit(2)
        """,
        kernel="hgemm_v8",
        shape=PAIR,
    ),
)
def exit_before_peer(code: Code) -> Iterator[Edit]:
    """A kernel of one CTA needs no such barrier. Both CTAs of a pair end at about the same time."""
    for arrive, wait in cluster_syncs(code)[-1:]:
        yield from together([code.remove(arrive), code.remove(wait)])


@fault(
    "local-instead-of-remote",
    "Each CTA arrives on its own barrier, where the leader's counts the arrivals of both.",
    kernels=CLUSTERS,
    expected=[("deadlock",)],
    tiles=(1, 2),
    blames=WAITS,
    example=Example(
        'T.ptx.mbarrier.arrive(..., 0, "release", "cluster", "shared::cluster", 0, 1, 0)',
        'T.ptx.mbarrier.arrive(..., "", "", "shared", 0, 0, 0)',
        kernel="hgemm_v8",
        shape=PAIR,
    ),
)
def local_instead_of_remote(code: Code) -> Iterator[Edit]:
    """arrive() of TVM's barriers is local unless told otherwise. In a CTA's first tile nobody waits for it."""
    local = [*map(nodes.text, ("", "", "shared")), *map(nodes.int32, (0, 0, 0))]
    for s in remote_arrivals(code):
        yield code.replace(s, nodes.with_name(s, ARRIVE, [s.args[0], *local]))


@fault(
    "bytes-not-times-two",
    "The leader's barrier is told the bytes of one CTA, and both load.",
    kernels=CLUSTERS,
    expected=[("tx-count-mismatch",)],
    blames=(EXPECT,),
    example=Example(
        "T.ptx.mbarrier.arrive.expect_tx(..., 65536, ...)",
        "T.ptx.mbarrier.arrive.expect_tx(..., 32768, ...)",
        kernel="hgemm_v8",
        shape=PAIR,
    ),
)
def bytes_not_times_two(code: Code) -> Iterator[Edit]:
    """CTA_GROUP is forgotten in one of the places that need it. Where the peer's boxes land in time the numbers are right."""
    pairs = [
        s for s in sites.tma_loads(code) if nodes.integer(s.node.config.get("cta_group", 1)) == 2
    ]
    for s in code.named(EXPECT) if pairs else ():
        yield code.replace(s, nodes.with_argument(s, 1, int(s.args[1]) // 2))


# --- parts ---------------------------------------------------------------------------------------


def cluster_syncs(code: Code) -> list[tuple[Statement, Statement]]:
    """(barrier.cluster.arrive, barrier.cluster.wait) wherever one follows the other."""
    found = ((s, code.next(s)) for s in code.named("ptx.barrier_cluster_arrive"))
    return [(s, t) for s, t in found if t is not None and t.name == "ptx.barrier_cluster_wait"]


def remote_arrivals(code: Code) -> list[Statement]:
    """Arrivals on the barrier of another CTA."""
    return [s for s in code.named(ARRIVE) if nodes.integer(s.args[-2]) == 1]
