"""Whether two accesses to the same bytes collide, and what a collision is called.

Each pair is judged when the later of the two is told, by what its agent knows (its clock).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..findings import Finding, Findings
from ..ir.place import Step, comes_first
from ..ir.traits import MBARRIER
from ..ordering.happens_before import COPIES, Actor, Ordering, Ticket
from ..ordering.knowledge import ASYNC, PAST, SCOPED, SEEN, TCGEN05
from ..ordering.strong_order import Flags, includes_both
from .completion import GroupWait, of_group, without_bit, without_commit
from .explanation import Cause, race_report
from .fence_rules import missing_fence
from .known_order import COLLECTIVE, different_threads, known_first, stores_the_same
from .remedies import BULK_GROUP, COMMIT_ARRIVAL, completes, same_cta
from .shadow import Event, Region, numbers


class Launch:
    """What the detectors of one launch share: event numbers and findings."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.events: list[Event | None] = [None]


class Judge(Ordering):
    """Judges pairs of accesses of one cluster by what its `Ordering` says that their agents know."""

    def __init__(
        self, launch: Launch, threads: int, cta_threads: int, copies: bool = False
    ) -> None:
        super().__init__(threads, cta_threads, copies)
        self.launch = launch
        self.flags = Flags()
        self.silent = True
        """Nothing has been reported of the access that is being judged."""
        self.step_start = 0
        """Number of the first event of the instruction that is being told of."""
        self.unwritten: dict[int, Finding] = {}
        self.superseded: dict[int, list[int]] = {}
        """Number of a read in `unwritten` -> those of reads before it, of the same bytes."""
        self.of_mmas: list[tuple[Finding, Event, Event]] = []
        """Races with an MMA: it, and the other access."""
        self.reached: dict[tuple[int, int], set[int]] = {}
        """(component, number) of the newest MMA that a commit tracks -> the CTAs on whose barriers it arrives."""
        self.relaxed_arrivals: dict[Any, np.ndarray] = {}
        """Place of an arrival with .relaxed -> by thread, the epoch of its last."""
        self.of_copies: list[tuple[Finding, Event, Event]] = []
        """Races with a bulk store: it, and the later access."""
        self.bulk_commits: dict[tuple[int, int], Step] = {}
        """(component, number) of a bulk store -> the commit_group that it belongs to."""
        self.bulk_waits: dict[tuple[int, int], list[GroupWait]] = {}
        """As there -> the waits of its thread after that, up to the first that covers it."""
        self.homes: dict[int, int] = {}
        """Component of a bulk load -> rank of the CTA of the mbarrier that it completes on."""
        self.issues: dict[tuple[int, tuple[int, ...]], dict[int, Any]] = {}
        """(instruction, iterations) of an MMA or copy -> thread that has issued it there -> accumulator, shape and kind."""

    def issue(
        self, g: Any, lane: int, queue: Any, place: Any, who: Any, *, pipelined: bool = False, pipeline: Any = None,
        collective: bool = False,
    ) -> Ticket:  # fmt: skip
        """As `Ordering.issue`; notes who has issued what."""
        ticket = super().issue(
            g,
            lane,
            queue,
            place,
            who,
            pipelined=pipelined,
            pipeline=pipeline,
            collective=collective,
        )
        if not collective:
            there = (place.order, ticket.position[0])
            self.issues.setdefault(there, {})[ticket.issuer] = pipeline
        return ticket

    def _number(self, event: Event) -> None:
        event.number = len(self.launch.events)
        self.launch.events.append(event)

    def _judge(self, before: np.ndarray, event: Event, actor: Actor, where: Region) -> None:
        for number in numbers(before):
            old = self.launch.events[number]
            if old is not None:
                mask = before == number if before.ndim == 1 else None  # TMEM is judged as a whole
                self._judge_event(old, mask, event, actor, where)

    def _judge_event(
        self, old: Event, mask: Any, event: Event, actor: Actor, where: Region
    ) -> None:
        if old.lane is not None and event.lane not in (None, old.lane):
            return
        if old.strong and event.strong:
            near = old.owner is event.owner and same_cta(old, event)
            if includes_both(old, event, near):
                return
            if not self._ordered(old, actor) and old.owner is event.owner:
                self._report(old, event, where.at(mask), "scope-too-narrow", "flag")
                return
        if old.place is event.place and old.writes and event.writes and old.issuer == event.issuer:
            event.replaces = old
        if not self._ordered(old, actor):
            if self._same_pipeline(old, event, actor):
                return
            bad = self._unordered(old, mask, event, actor, where)
            if bad is not None:
                freed = "tcgen05.dealloc" in (old.place.mnemonic, event.place.mnemonic)
                code, cause = "tmem-freed-in-use" if freed else "", self._cause(old, actor)
                self._report(
                    old,
                    event,
                    where.at(bad),
                    code,
                    "equal" if stores_the_same(old, event, bad, where) else "",
                    cause,
                    known_first(old, event, actor),
                    whole=bool(np.all(bad)),
                )
                return
        code, rule = self._misordered(old, mask, event, actor, where) or ("", "")
        if code:
            self._report(old, event, where.at(mask), code, rule)

    def _misordered(
        self, old: Event, mask: Any, event: Event, actor: Actor, where: Region
    ) -> tuple[str, str] | None:
        """(code, rule variant) of what is wrong with an access although it is ordered after the old one."""
        if old.place.mnemonic == "tcgen05.dealloc":
            return "tmem-unallocated", ""
        if old.place.mnemonic == "mbarrier.init" and event.writes:
            return "barrier-reinitialised", ""
        narrow = self._missing_scope(old, mask, actor, where)
        if narrow is not None or old.proxy == event.proxy == "generic":
            return narrow
        memory = self._seen_by_writer(old, where.memory)

        def covered(agents: Any, epochs: Any) -> bool:
            if memory == "own":
                return actor.clock.covers(ASYNC, agents, epochs)
            return self.proxy_fences.cover(memory, agents, epochs, actor.clock)

        late = memory != "peer" and old.owner is self and same_cta(old, event)
        return missing_fence(old, mask, event, actor, where, covered, late)

    def _seen_by_writer(self, old: Event, memory: Any) -> str:
        """What a memory is to the threads of an access: "own" shared memory, that of a "peer" CTA, "global", or "tmem"."""
        if memory.kind != "shared":
            return str(memory.kind)
        own = self.threads == self.cta_threads or memory.rank == old.issuer // self.cta_threads
        return "own" if own else "peer"

    def in_order(self, old: Event, mask: Any, event: Event, actor: Actor, where: Region) -> bool:
        """Whether nothing is wrong with an access after an old one, by order and fences alone."""
        return self._ordered(old, actor) and not self._misordered(old, mask, event, actor, where)

    def _missing_scope(
        self, old: Event, mask: Any, actor: Actor, where: Region
    ) -> tuple[str, str] | None:
        """Ordered through another CTA, but by a release or an acquire whose scope is one CTA."""
        if self.threads == self.cta_threads or old.owner is not self:
            return None
        clock, agents, epochs = actor.clock, old.agents, old.epochs
        if clock.covers(SCOPED, agents, epochs):
            return None
        if not isinstance(agents, np.ndarray):
            return ("scope-too-narrow", "") if clock.covers(SEEN, agents, epochs) else None
        if old.units is not None and mask is not None:
            agents = np.unique(old.agents_of(where.indices[mask] * where.unit_bytes)[1])
            epochs = old.epoch_of(agents)
        narrow = (clock.rows[SEEN, agents] >= epochs) & (clock.rows[SCOPED, agents] < epochs)
        return ("scope-too-narrow", "") if narrow.any() else None

    def _ordered(self, old: Event, actor: Actor) -> bool:
        return old.owner is self and actor.clock.covers(SEEN, old.agents, old.epochs)

    def _cause(self, old: Event, actor: Actor) -> Cause:
        """Why arrivals of the threads of an access tell the actor nothing of it, if they do come before.

        A relaxed arrival (its place), or an arrival for the whole warp ("lanes"): the actor knows the access of some lanes
        of each of its warps.
        """
        agents, epochs = old.agents, old.epochs
        if old.owner is not self or not isinstance(agents, np.ndarray):
            return None
        for place, arrived in sorted(self.relaxed_arrivals.items(), key=lambda item: item[0].order):
            past = actor.clock.rows[PAST, agents]
            if ((past >= epochs) & (arrived[agents] >= epochs)).any():
                return place
        known = actor.clock.seen[agents] >= epochs
        others_known = np.isin(agents[~known] >> 5, agents[known] >> 5).all()
        return "lanes" if others_known and old.place.mnemonic != COLLECTIVE else None

    def _same_pipeline(self, old: Event, event: Event, actor: Actor) -> bool:
        """A copy and an MMA, or two MMAs on one accumulator, of one shape: ordered without a wait.

        By their thread's program, or by the tcgen05 fences of their threads.
        """
        if old.owner is not self or old.proxy != "tmem" or event.proxy != "tmem":
            return False
        key = self.pipelines.get(old.agents) if isinstance(old.agents, int) else None
        mine = self.pipelines.get(event.agents)
        if key is None or mine is None or mine[0] == COPIES or key[0] not in (COPIES, mine[0]):
            return False
        same_thread = key[1] == mine[1]  # whose operations land in the order of their issue
        return same_thread or actor.after_fence.covers(TCGEN05, old.agents, old.epochs)

    def _unordered(self, old: Event, mask: Any, event: Event, actor: Actor, where: Region) -> Any:
        """Which of the masked accesses really collide: a mask (None: all), or None here where none does.

        A thread's own accesses are ordered by its program; only other threads' count. Of what one instruction does at
        once, only other warps' count: lanes of one warp that write the same do not collide, one of them wins.
        """
        everything = mask if mask is not None else np.ones(len(where.indices), bool)
        if old.owner is not self or not isinstance(old.agents, np.ndarray):
            return everything
        if actor.lanes is None and old.units is None:
            return everything
        seen, at = actor.clock.seen, where.indices[everything] * where.unit_bytes
        at_once = old.number >= self.step_start and old.place is event.place
        same = 5 if at_once else 0  # bits of a thread's number that do not count
        if old.units is None:  # all of these threads touched every unit
            late = old.agents[seen[old.agents] < old.epochs]
            if where.agents is None:
                return (
                    everything if different_threads(old, late, event, actor.lanes, same) else None
                )
            one = len(late) == 1
            collides = (
                (where.agents[everything] >> same != late[0] >> same)
                if one
                else np.ones(len(at), bool)
            )
        else:
            rows, agents = old.agents_of(at)
            late = seen[agents] < old.epoch_of(agents)
            if self.copies is not None and old.place.mnemonic == "cp.async":
                late &= ~self._own_copies(
                    agents, old.epoch_of(agents), rows, everything, actor, where
                )
            if where.agents is not None and (actor.lanes is not None or at_once):
                late &= agents >> same != where.agents[everything][rows] >> same
            elif actor.lanes is not None and (at_once or len(actor.lanes) == 1):
                late &= agents >> same != actor.lanes[0] >> same
            collides = np.zeros(len(at), bool)
            collides[rows] = late
            if not isinstance(rows, slice):
                collides[rows[late]] = True
        bad = everything.copy()
        bad[everything] = collides
        return bad if bad.any() else None

    def _own_copies(
        self, agents: Any, numbers: Any, rows: Any, everything: Any, actor: Actor, where: Region
    ) -> Any:
        """Which copies by cp.async are the accessing thread's own, and known to it to be complete."""
        if actor.lanes is None or self.copies is None:
            return np.zeros(len(agents), bool)
        if where.agents is not None:
            return self.copies.own(agents, numbers, where.agents[everything][rows])
        one = actor.lanes[0] if len(actor.lanes) == 1 else -1
        return self.copies.own(agents, numbers, one)

    def _uninitialised(self, event: Event, where: Region, before: np.ndarray) -> None:
        """A read of what nothing has written. Told at the end: a write that races with it may be the missing one."""
        self.silent = False
        self.unwritten[event.number] = race_report(None, event, where.at(before == 0))

    def relaxed_arrival(self, g: Any, place: Any) -> None:
        """Threads arrive relaxed at a barrier."""
        own = g.lanes + g.cta.first_component
        arrived = self.relaxed_arrivals.setdefault(place, np.zeros(self.threads, np.int32))
        arrived[own] = self.epochs[own]

    def commit_group(self, g: Any, place: Any, tickets: Iterable[Ticket | None]) -> None:
        """A cp.async.bulk.commit_group makes these bulk stores a group."""
        at = Step(place, g.position(place))
        self.bulk_commits.update({(t.component, t.number): at for t in tickets if t is not None})

    def wait_group(
        self,
        g: Any,
        place: Any,
        newest: int,
        groups: Iterable[tuple[int, Ticket | None]],
        reads_only: bool,
    ) -> None:
        """A cp.async.bulk.wait_group; groups: (how many groups are newer, bulk store of a committed group), newest first."""
        at = g.position(place)
        for newer, ticket in groups:
            if ticket is not None:
                waits = self.bulk_waits.setdefault((ticket.component, ticket.number), [])
                if waits and waits[-1].covers and (reads_only or not waits[-1].reads_only):
                    break  # and so has it covered the older ones
                waits.append(GroupWait(place, at, newest, newer, reads_only))

    def commit_reaches(self, tickets: Iterable[Ticket], ranks: set[int]) -> None:
        """A tcgen05.commit that tracks these MMAs arrives on barriers of these CTAs."""
        for ticket in tickets:
            self.reached.setdefault((ticket.component, ticket.number), set()).update(ranks)

    def _reaches(self, mma: Event, rank: int) -> bool:
        """Whether the first commit after an MMA arrives on a barrier of that CTA."""
        _, ranks = min(
            (number, ranks)
            for (component, number), ranks in self.reached.items()
            if component == mma.agents and number >= mma.epochs
        )
        return rank in ranks

    def finish(self) -> None:
        """The cluster has ended."""
        for race, mma, other in self.of_mmas:
            if self.committed.get(mma.agents, 0) < mma.epochs:
                race = without_commit(race, mma)
            elif other.owner is self and not self._reaches(mma, other.issuer // self.cta_threads):
                race = without_bit(race)
            self.launch.findings.add(race)
        self.of_mmas.clear()
        for race, copy, later in self.of_copies:
            key = (copy.agents, copy.epochs)
            commit, waits = self.bulk_commits.get(key), self.bulk_waits.get(key, [])
            self.launch.findings.add(of_group(race, copy, later, commit, waits))
        self.of_copies.clear()
        for finding in self.unwritten.values():
            self.launch.findings.add(finding)
        self.unwritten.clear()

    def _explain(self, events: list[int]) -> None:
        """Another finding says why these reads found nothing written."""
        while events and self.unwritten:
            number = events.pop()
            self.unwritten.pop(number, None)
            events += self.superseded.pop(number, ())

    def _issued_twice(self, a: Event, b: Event, whole: bool) -> bool:
        """Whether two threads issue one MMA or copy: the same instruction, iteration, accumulator and shape.

        Or did so in the earlier of two iterations: what is still known when the later thread's operation lands depends on
        the schedule. whole: the earlier access has touched all that the later one does, as it must where a copy is the same.
        """
        if a.place != b.place or a.owner is not b.owner or a.issuer == b.issuer:
            return False
        if completes(a) == COMMIT_ARRIVAL:
            early = min(a, b, key=lambda e: e.position[0])
            issued = self.issues.get((early.place.order, early.position[0]), {})
            return issued.get(a.issuer, a) == issued.get(b.issuer, b)
        copies = completes(a) in (BULK_GROUP, MBARRIER) and a.writes and b.writes
        return copies and whole and a.position[0] == b.position[0] and same_cta(a, b)

    def _report(
        self,
        old: Event,
        event: Event,
        where: Any,
        code: str = "",
        rule: str = "",
        cause: Cause = None,
        first: Event | None = None,
        whole: bool = False,
    ) -> None:
        self.silent = False
        self._explain([old.number, event.number])
        if not code and self._issued_twice(old, event, whole):
            code = "duplicate-issue"
        finding = race_report(
            old,
            event,
            where,
            code,
            rule,
            self.stale_waits,
            self.fresh_waits,
            cause,
            first,
            self.homes,
        )
        mma = next((e for e in (old, event) if completes(e) == COMMIT_ARRIVAL), None)
        if code in ("", "tmem-freed-in-use") and mma is not None and mma.owner is self:
            self.of_mmas.append(
                (finding, mma, event if mma is old else old)
            )  # a commit may still follow
            return
        if first is None:
            first = old if comes_first(old, event) else event
        second = event if first is old else old
        if finding.code == "race" and completes(first) == BULK_GROUP and first.owner is self:
            self.of_copies.append((finding, first, second))
        else:
            self.launch.findings.add(finding, rule)
