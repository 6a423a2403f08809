"""The barrier of a cluster: barrier.cluster.arrive and barrier.cluster.wait; addresses in other CTAs: mapa.

Ordering: what all threads did before they arrived comes before what follows a wait, asynchronous operations excluded. A
relaxed arrival releases only what a fence of its thread has released before: fence.acq_rel, or fence.mbarrier_init.

Source: PTX ISA 9.1, barrier.cluster, mapa, fence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import KernelFault
from ...findings import Finding, agree
from ...ir.instruction import instruction
from ...ordering.knowledge import join
from ..memory.load_store import RANK_SHIFT, SHARED_BASE
from ..threads.warp import begun
from .named_barrier import Round

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.knowledge import Clock
    from ..cta import Cluster
    from ..threads.warp import Group


class ClusterRound(Round):
    """One use of the barrier; `near` is what relaxed arrivals of a CTA (by rank) release to threads of that CTA only."""

    __slots__ = ("near",)

    def __init__(self, number: int = 0) -> None:
        super().__init__(number)
        self.near: dict[int, list[Clock]] = {}


class ClusterBarrier:
    """The one barrier of a cluster. `entered[t]` is the round that thread t has arrived in and not yet waited for."""

    def __init__(self, cluster: Cluster, threads: int) -> None:
        self.cluster = cluster
        self.entered = np.full(threads, None, object)
        self.arrived = 0
        self.round = ClusterRound()

    def arrive(self, g: Group, place: Place, clock: Any, near: Any = None) -> None:
        """The threads of a group arrive in the current round, which releases `clock`, and `near` within their CTA."""
        threads = g.lanes + g.cta.first_component
        again = np.array([entered is not None for entered in self.entered[threads]])
        if again.any():
            who = g.agents(g.lanes[again])
            g.cta.report(
                Finding(
                    "barrier-mismatch",
                    "a thread arrives once a round, and waits before it arrives again",
                    place=place,
                    what=f"{who} {agree(who, 'arrives', 'arrive')} at the cluster barrier again",
                    fix="pair each barrier.cluster.arrive with one barrier.cluster.wait",
                )
            )
        fresh = threads[~again]  # an extra arrival does not count
        if not len(fresh):
            return
        how = "fault" if again.any() else "arrive"
        self.cluster.touch(("cluster",), how, self.round.number)
        self.entered[fresh] = self.round
        if clock is not None:
            self.round.clocks.append(clock)
        if near is not None:
            self.round.near.setdefault(g.cta.rank, []).append(near)
        self.arrived += len(fresh)
        self.settle()

    def exited(self, g: Group) -> None:
        """The threads of a group have exited: nobody waits for them, and what they had arrived for counts no more."""
        self.cluster.touch(("cluster",), "exit")
        threads = g.lanes + g.cta.first_component
        self.arrived -= sum(entered is self.round for entered in self.entered[threads])
        self.settle()

    def settle(self) -> None:
        """Complete the round when all threads that have not exited are there."""
        if self.arrived and self.arrived >= self.cluster.live_threads():
            self.arrived = 0
            self.round.complete = True
            self.round = ClusterRound(self.round.number + 1)


class ClusterWait:
    """A group that waits for the rounds it has arrived in."""

    def __init__(self, barrier: ClusterBarrier, group: Group) -> None:
        self.barrier, self.threads = barrier, group.lanes + group.cta.first_component
        self.rounds = list({id(r): r for r in barrier.entered[self.threads]}.values())

    def ready(self) -> bool:
        """The rounds are complete."""
        return all(entered.complete for entered in self.rounds)

    def finish(self, group: Group) -> None:
        """The threads learn what the round's threads knew; they may arrive again."""
        for entered in self.rounds:
            group.cta.cluster.touch(("cluster",), "finish", entered.number)
        self.barrier.entered[self.threads] = None
        if group.cta.detector is not None:
            for entered in self.rounds:
                near = entered.near.get(group.cta.rank, [])
                group.cta.detector.acquire(group, join([entered.clock(), *near]))

    def describe(self) -> str:
        """How many threads have come."""
        b = self.barrier
        return f"barrier.cluster: {b.arrived} of {b.cluster.live_threads()} threads have arrived"


def _whole_warps(g: Group, place: Place, aligned: bool) -> None:
    if aligned and not g.whole_warps():
        g.cta.report(
            Finding(
                "divergent-collective",
                "with .aligned it is executed by whole warps, all lanes together",
                place=place,
                what=f"only {g} {agree(g, 'reaches', 'reach')} {place.mnemonic}",
                fix="move the barrier out of the branch that separates the lanes",
            )
        )


@instruction("barrier.cluster.arrive", synchronises=True, supplies=ClusterWait)
def barrier_cluster_arrive(g: Group, place: Place, sem: str, aligned: bool) -> None:
    """barrier.cluster.arrive{.release, .relaxed}{.aligned}: arrive at the cluster's barrier, without waiting."""
    _whole_warps(g, place, aligned)
    detector, clock, near = g.cta.detector, None, None
    if detector is not None and sem == "relaxed":
        detector.relaxed_arrival(g, place)
        near = detector.released_by_fences(g, "cta")
        fenced = detector.released_by_fences(g, "cluster")
        clock = fenced.with_past(detector.release(g))
    elif detector is not None:
        clock = detector.release(g)
    g.cta.cluster.barrier.arrive(g, place, clock, near)


@instruction("barrier.cluster.wait", waits=True, synchronises=True, measure="cluster barriers")
def barrier_cluster_wait(g: Group, place: Place, aligned: bool) -> ClusterWait | None:
    """barrier.cluster.wait{.acquire}{.aligned}: wait until all threads of the cluster that have not exited arrived."""
    _whole_warps(g, place, aligned)
    g.cta.bytes["waits"] += g.warps
    barrier = g.cta.cluster.barrier
    if any(entered is None for entered in barrier.entered[g.lanes + g.cta.first_component]):
        raise KernelFault(
            "barrier-mismatch",
            "barrier.cluster.wait without a barrier.cluster.arrive before it",
            "let every thread that waits arrive first, once for each wait",
        )
    wait = ClusterWait(barrier, g)
    return begun(g, wait)


@instruction(
    "barrier.cluster.sync",
    waits=True,
    synchronises=True,
    supplies=ClusterWait,
    measure="cluster barriers",
)
def barrier_cluster_sync(g: Group, place: Place) -> ClusterWait | None:
    """barrier.cluster.arrive.aligned, then barrier.cluster.wait.aligned (TVM's cluster_sync emits the two together)."""
    barrier_cluster_arrive(g, place, "release", True)
    return barrier_cluster_wait(g, place, False)


@instruction("mapa", uniform=("cta",))
def mapa(g: Group, place: Place, addr: Any, cta: int) -> Any:
    """mapa{.shared::cluster}.type d, a, b: the address, in CTA b of the cluster, that corresponds to a in its own CTA."""
    return peer_address(g, addr, cta)


def peer_address(g: Group, address: Any, rank: Any) -> Any:
    """The generic address in CTA `rank` (an int, or one per lane) that corresponds to a shared address."""
    ctas = len(g.cta.cluster.ctas)
    low, high = int(np.min(rank)), int(np.max(rank))
    if low < 0 or high >= ctas:
        bad = low if low < 0 else high
        raise KernelFault(
            "out-of-bounds",
            f"mapa to CTA {bad} of a cluster of {ctas}, whose CTAs are 0 to {ctas - 1}",
            "give mapa a rank within the cluster (T.cta_id_in_cluster), not within the grid",
        )
    return SHARED_BASE + (address & (1 << RANK_SHIFT) - 1) + (rank << RANK_SHIFT)
