"""Who knows what: releases, acquires and fences of threads, issue and completion of asynchronous operations.

The machine's units call these where their instructions synchronise; the race detector asks what an agent knows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..races.cta_lifetime import PeerAccesses
from .copy_order import Copies
from .fences import FENCE_SCOPES, ProxyFences, ReleasedByFences
from .knowledge import PAST, SEEN, TCGEN05, Clock, Part, join, meet

COPIES = "tcgen05.cp"
"""Pipeline of the copies of a thread to Tensor Memory: with the MMAs that come after them, not with one another."""


@dataclass(eq=False)
class Ticket:
    """An asynchronous operation: what its issuer knew, and its number in its queue's component."""

    clock: Clock
    proxy_fence: Clock
    after_fence: Clock
    component: int
    number: int
    issuer: int
    place: Any
    who: Any
    position: tuple[tuple[int, ...], int]

    def done(self, size: int) -> Clock:
        """What its completion tells: all that its issuer knew, and that it is done."""
        return self.arrived(self.clock, size)

    def arrived(self, clock: Clock, size: int) -> Clock:
        """A clock that also knows that this operation is done."""
        return clock.with_entries(size, (SEEN, self.component, self.number))


class FreshWait(NamedTuple):
    """A wait that passed at once, by the parity of the phase before the first of a fresh barrier."""

    place: Any
    consumed: np.ndarray
    """Thread -> last phase of the barrier that it has waited for."""
    results: frozenset[str]
    """Mnemonics of the operations whose completion the barrier tells."""

    def meant(self, thread: int, mnemonic: str) -> bool:
        """Whether such an operation's result may have been meant: the thread has not waited for a real phase since."""
        return mnemonic in self.results and bool(self.consumed[thread] < 0)


def all_done(tickets: list[Ticket], size: int) -> Clock:
    """What the completion of all these operations of one thread tells; the newest is the last."""
    done = [(SEEN, t.component, t.number) for t in tickets]
    return tickets[-1].clock.with_entries(size, *done)


@dataclass(eq=False)
class Actor:
    """Whoever makes an access now: threads (`lanes`, components ascending) or an operation (`ticket`)."""

    clock: Clock
    proxy_fence: Clock
    after_fence: Clock
    lanes: np.ndarray | None = None
    ticket: Ticket | None = None


class Ordering:
    """Happens-before of one cluster of `threads` threads (all CTAs), `cta_threads` in each CTA.

    Thread t of CTA r is component r * cta_threads + t; queues of asynchronous operations follow as they appear.
    """

    def __init__(self, threads: int, cta_threads: int, copies: bool = False) -> None:
        self.threads, self.cta_threads = threads, cta_threads
        self.peers = PeerAccesses()
        self.copies = Copies(threads) if copies else None
        self.first_queue = 2 * threads if copies else threads
        self.size = self.first_queue + 16
        self.epochs = np.ones(threads, np.int32)
        self.fenced = np.zeros(threads, np.int32)
        """Thread -> epoch up to which its own generic accesses are fenced for the async proxy."""
        self.zero = Clock.zero(self.size)
        self.proxy_fences = ProxyFences()
        self.queues: dict[Any, int] = {}
        self.issued: dict[int, int] = {}
        self.pipelines: dict[int, tuple[Any, int]] = {}
        """Component of a queue of MMAs -> (accumulator, shape and kind; the issuing thread)."""
        self.fences = {scope: ReleasedByFences(threads, self.zero) for scope in FENCE_SCOPES}
        """Scope -> what releasing fences of at least that scope have released, for relaxed arrivals after them."""
        self.stale_waits: dict[int, tuple[Any, int, str]] = {}
        """Thread -> (place, phase, barrier) of a wait that was satisfied by a phase it had consumed already."""
        self.fresh_waits: dict[int, FreshWait] = {}
        self.committed: dict[int, int] = {}
        """Component of a queue of MMAs -> the newest of them that a commit tracks."""

    # -- knowledge --------------------------------------------------------------------------------------------------
    def start(self, lanes: np.ndarray) -> list[Part]:
        """Threads that begin know nothing."""
        return [Part(lanes, self.zero, self.zero, self.zero)]

    def components(self, g: Any, lanes: np.ndarray) -> Any:
        """Components of lanes of a group: a slice where they are contiguous."""
        first = int(lanes[0]) + g.cta.first_component
        if int(lanes[-1]) - int(lanes[0]) + 1 == len(lanes):
            return slice(first, first + len(lanes))
        return lanes + g.cta.first_component

    def release(self, g: Any, parts: list[Part] | None = None) -> Clock:
        """What the threads know (or those of some parts), themselves included; they begin a new epoch."""
        clocks = []
        for part in g.knowledge if parts is None else parts:
            own = self.components(g, part.lanes)
            clocks.append(self._with_own(part.clock, own))
            self.epochs[own] += 1
        return join(clocks)

    def fence_release(self, g: Any, scope: str) -> None:
        """A fence that releases what each thread knows to whoever observes its later relaxed arrivals.

        `scope` "cta", or "cluster" for that and all that hold it.
        """
        for part in g.knowledge:
            own = self.components(g, part.lanes)
            for held in FENCE_SCOPES[: FENCE_SCOPES.index(scope) + 1]:
                known = self.fences[held]
                known.clocks[own] = part.clock
                known.epochs[own], known.fenced[own] = self.epochs[own], self.fenced[own]
            self.epochs[own] += 1

    def released_by_fences(self, g: Any, scope: str) -> Clock:
        """What relaxed arrivals release to threads of a "cta" or a "cluster": what the last fences of their threads did."""
        own = g.lanes + g.cta.first_component
        near = self.fences["cta"].clock(own, self.size)
        if scope == "cta":
            return near
        return join([self.fences["cluster"].clock(own, self.size), near.out_of_scope()])

    def initialises(self, g: Any, lanes: list[int]) -> dict[int, tuple[int, int]]:
        """Threads initialise an mbarrier, each: lane -> the event's component and number.

        It counts apart from what else the thread does, since fence.mbarrier_init releases nothing else.
        """
        events = {lane: self._next(("init", g.cta.rank, lane)) for lane in lanes}
        self._learn(g, events)
        return events

    def fence_inits(self, g: Any) -> dict[int, int]:
        """fence.mbarrier_init.release.cluster: as a fence, but of the inits that its thread has executed alone.

        It counts as an event beside them: component -> its number there.
        """
        have = [lane for lane in g.lanes.tolist() if ("init", g.cta.rank, lane) in self.queues]
        events = self.initialises(g, have)
        for lane, event in events.items():
            clock = self.zero.with_entries(self.size, (SEEN, *event))
            for released in self.fences.values():
                released.add(lane + g.cta.first_component, clock)
        return dict(events.values())

    def _with_own(self, clock: Clock, own: Any) -> Clock:
        """A clock and what its threads know of themselves (kept apart, so that threads can share a clock)."""
        mine = clock.owned_by(self.size, own, self.epochs[own], self.fenced[own])
        return mine if self.copies is None else self.copies.known_to(mine, own, self.size)

    def snapshot(self, g: Any, lane: int) -> Clock:
        """What one thread of the group knows now."""
        return self._with_own(self.part_of(g, lane).clock, lane + g.cta.first_component)

    @staticmethod
    def part_of(g: Any, lane: int) -> Part:
        """The part of the group's knowledge that a lane holds."""
        return next(p for p in g.knowledge if len(g.knowledge) == 1 or lane in p.lanes)

    @staticmethod
    def weakest(g: Any, warp: int | None) -> Part:
        """What every lane of the warp (None: of the group) knows: a collective operation is only ordered after that.

        The same object until the knowledge of the group changes.
        """
        if g.common is None or g.common[0] is not g.knowledge:
            g.common = (g.knowledge, {})
        met: dict[int | None, Part] = g.common[1]
        if warp not in met:
            parts = g.knowledge
            if warp is not None and len(parts) > 1:
                parts = [p for p in parts if (p.lanes >> 5 == warp).any()]
            clocks = zip(*((p.clock, p.proxy_fence, p.after_fence) for p in parts), strict=True)
            met[warp] = parts[0] if len(parts) == 1 else Part(g.lanes, *map(meet, clocks))
        return met[warp]

    def tick(self, g: Any) -> None:
        """The threads begin a new epoch: what they do from here on is not part of what they did before."""
        for part in g.knowledge:
            self.epochs[self.components(g, part.lanes)] += 1

    def acquire(self, g: Any, clock: Clock, everything: bool = False) -> None:
        """The threads learn a clock. `everything`: it holds all that they know already (a barrier's does)."""
        parts: list[Part] = []
        for part in g.knowledge:
            known = clock if everything else join([part.clock, clock])
            new = Part(part.lanes, known, part.proxy_fence, part.after_fence)
            same = next((i for i, p in enumerate(parts) if p.same_as(new)), None)
            if same is None:
                parts.append(new)
            else:
                lanes = np.sort(np.concatenate([parts[same].lanes, new.lanes]))
                parts[same] = Part(lanes, known, part.proxy_fence, part.after_fence)
        g.knowledge = parts

    def synchronise_warps(self, g: Any) -> None:
        """bar.warp.sync: the lanes of each warp learn what any of them knows."""
        parts = []
        for warp in np.unique(g.lanes >> 5):
            inside = g.view(g.lanes >> 5 == warp)
            self.acquire(inside, self.release(inside), everything=True)
            parts += inside.knowledge
        g.knowledge = parts

    def fence_proxy_async(self, g: Any, space: str) -> None:
        """fence.proxy.async: the threads' own accesses so far are ordered for the async proxy, and all they observed.

        As far as they are to memory of a state space: "" (any), shared::cta, shared::cluster, global.
        """
        parts = []
        for part in g.knowledge:
            own = self.components(g, part.lanes)
            self.proxy_fences.execute(
                space, part.lanes + g.cta.first_component, self.epochs[own].copy()
            )
            near = space != "global"
            if near and self.copies is not None:
                self.copies.fence(own, part.clock)
            if near:
                self.fenced[own] = self.epochs[own]
            self.epochs[own] += 1
            fence = part.clock if near else part.proxy_fence
            parts.append(Part(part.lanes, part.clock, fence, part.after_fence))
        g.knowledge = parts

    def fence_before(self, g: Any) -> None:
        """tcgen05.fence::before_thread_sync: completed tcgen05.ld/st of the threads' warps are ordered for what follows."""

        def fenced(part: Part, warp: int) -> Clock:
            clock = part.clock
            for queue, (_, thread) in self.pipelines.items():  # MMAs need not be complete
                lane = thread - g.cta.first_component
                if lane >> 5 == warp and lane in part.lanes:
                    entry = (TCGEN05, queue, self.issued[queue])
                    clock = clock.with_entries(self.size, entry)
            for kind in ("ld", "st"):
                component = self.queues.get((kind, g.cta.rank, warp))
                if component is not None and component < clock.seen.size:
                    clock = clock.with_entries(
                        self.size, (TCGEN05, component, clock.seen[component])
                    )
            return clock

        self._by_warp(g, fenced)

    @staticmethod
    def _by_warp(g: Any, change: Callable[[Part, int], Clock]) -> None:
        """Give every warp a clock of its own: what one warp learns of itself, others do not know."""
        parts = []
        for part in g.knowledge:
            warps = part.lanes >> 5
            for warp in np.unique(warps).tolist():
                clock = change(part, warp)
                parts.append(
                    Part(part.lanes[warps == warp], clock, part.proxy_fence, part.after_fence)
                )
        g.knowledge = parts

    def fence_after(self, g: Any) -> None:
        """tcgen05.fence::after_thread_sync: later tcgen05 operations come after all that the threads have observed."""
        g.knowledge = [Part(p.lanes, p.clock, p.proxy_fence, p.clock) for p in g.knowledge]

    def peer_access(self, g: Any, place: Any, rank: int) -> None:
        """The threads access memory of another CTA of the cluster."""
        own = g.lanes + g.cta.first_component
        self.peers.threads(rank, own, self.epochs[own], place, g.agents(g.lanes))

    def operation_reaches(self, cta: Any, ticket: Ticket) -> None:
        """An asynchronous operation accesses memory of a CTA of the cluster."""
        own = ticket.issuer // self.cta_threads == cta.rank
        self.peers.operation(cta.rank, ticket, own)

    # -- asynchronous operations ------------------------------------------------------------------------------------
    def issue(
        self, g: Any, lane: int, queue: Any, place: Any, who: Any, *, pipelined: bool = False, pipeline: Any = None,
        collective: bool = False,
    ) -> Ticket:  # fmt: skip
        """A thread, or (`collective`) its whole warp, issues an operation into a queue.

        `pipelined`: ordered after the queue's earlier operations; `pipeline`: accumulator, shape and kind of an MMA.
        """
        component, number = self._next(queue)
        part = self.weakest(g, lane >> 5) if collective else self.part_of(g, lane)
        me = lane + g.cta.first_component
        clock = self._with_own(part.clock, me)
        if pipelined:
            clock = clock.with_entries(self.size, (SEEN, component, number - 1))
        if pipeline is not None:
            self.pipelines[component] = (pipeline, me)
        self.epochs[me] += 1
        return Ticket(
            clock, part.proxy_fence, part.after_fence, component, number, me, place, who, g.position(place)
        )  # fmt: skip

    def _next(self, queue: Any) -> tuple[int, int]:
        """Component of a queue, and the number of its next event there."""
        component = self.queues.get(queue)
        if component is None:
            component = self.queues[queue] = self.first_queue + len(self.queues)
            self.size = max(self.size, component + 1)
        number = self.issued[component] = self.issued.get(component, 0) + 1
        return component, number

    def commit(self, tickets: list[Ticket]) -> None:
        """A tcgen05.commit tracks these MMAs, and those before them in their queues."""
        self.committed.update((t.component, t.number) for t in tickets)

    def learn(self, g: Any, lane: int, ticket: Ticket) -> None:
        """One thread learns that an operation is done."""
        self._learn(g, {lane: (ticket.component, ticket.number)})

    def _learn(self, g: Any, events: dict[int, tuple[int, int]]) -> None:
        """Each of these threads learns of an event of its own (lane -> component, number)."""
        parts = []
        for part in g.knowledge:
            others = []
            for lane in part.lanes.tolist():
                if lane in events:
                    clock = part.clock.with_entries(self.size, (SEEN, *events[lane]))
                    own = np.array([lane])
                    parts.append(Part(own, clock, part.proxy_fence, part.after_fence))
                else:
                    others.append(lane)
            if others:
                rest = np.array(others)
                parts.append(Part(rest, part.clock, part.proxy_fence, part.after_fence))
        g.knowledge = parts

    def operations_done(self, g: Any, tickets: list[Ticket]) -> None:
        """All threads of the group learn that these operations are done."""
        entries = [(SEEN, ticket.component, ticket.number) for ticket in tickets]
        g.knowledge = [
            Part(p.lanes, p.clock.with_entries(self.size, *entries), p.proxy_fence, p.after_fence)
            for p in g.knowledge
        ]

    def transfers_done(self, g: Any, kind: str) -> None:
        """tcgen05.wait::ld or ::st: every warp of the group knows that its loads or stores are done."""

        def done(part: Part, warp: int) -> Clock:
            component = self.queues.get((kind, g.cta.rank, warp))
            if component is None:
                return part.clock
            return part.clock.with_entries(self.size, (SEEN, component, self.issued[component]))

        self._by_warp(g, done)

    # -- barriers ---------------------------------------------------------------------------------------------------
    def knows(self, g: Any, agents: Any, epochs: Any) -> bool:
        """Whether all threads of the group know an event of a thread (or made it themselves)."""
        for part in g.knowledge:
            if part.clock.covers(SEEN, agents, epochs):
                continue
            own = part.lanes + g.cta.first_component
            if not (isinstance(agents, int) and len(own) == 1 and own[0] == agents):
                return False
        return True

    def knows_clock(self, g: Any, clock: Clock) -> bool:
        """Whether every thread of the group knows that what released a clock has happened."""
        theirs = clock.rows[PAST]
        for part in g.knowledge:
            mine = part.clock.rows[PAST]
            size = min(mine.size, theirs.size)
            late = np.flatnonzero(theirs[:size] > mine[:size])
            late = late if self.copies is None else self.copies.as_threads(late)
            own = part.lanes + g.cta.first_component
            if theirs[size:].any() or len(late) > 1:
                return False
            if len(late) == 1 and not (len(own) == 1 and own[0] == late[0]):
                return False
        return True
