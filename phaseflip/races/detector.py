"""Happens-before race detection over threads and asynchronous operations, with proxies and tcgen05 fences.

One detector serves one cluster; global memory's shadows are shared by all clusters of a launch. The machine tells it of
every access and of every release, acquire and fence; it never looks at values. Each pair of conflicting accesses is
judged when the later one is told, by what its agent knows (its clock), so the schedule does not matter.

Names of races follow the program, not the schedule: of the two accesses the one earlier in program order, by iteration
of the enclosing loops and then by position, counts as first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..ordering.happens_before import Actor, Ticket
from ..ordering.knowledge import Clock, among
from .collision import Launch
from .explanation import private_load_report
from .hidden_reads import HiddenReadJudge
from .shadow import Event, Region, Shadow, numbers
from .tmem_shadow import TMEM_BANDS

__all__ = ["TMEM_BANDS", "Launch", "RaceDetector"]

Commit = tuple[np.ndarray, np.ndarray, Event, Region]
"""A write that has been judged and is to be entered: write and read shadow, event, region."""


class RaceDetector(HiddenReadJudge):
    """Keeps the shadows of the memories of one cluster, and puts every access before the judge."""

    def __init__(
        self, launch: Launch, threads: int, cta_threads: int, copies: bool = False
    ) -> None:
        super().__init__(launch, threads, cta_threads, copies)
        self.nothing_known = Clock.zero(threads)

    # -- accesses ---------------------------------------------------------------------------------------------------
    def thread_access(
        self,
        g: Any,
        place: Any,
        memory: Any,
        offset: Any,
        nbytes: int,
        writes: bool,
        lanes: Any = None,
        strong: str = "",
        equal: Callable[[], np.ndarray] | None = None,
    ) -> None:
        """Each thread of a group reads or writes nbytes at its byte offset of a memory (all at one, if it is an int).

        `lanes`: accessing lane of each offset, where offsets are not one per lane; strong: the scope of a strong access;
        equal: whether what is stored at each offset (or at the one) is there already.
        """
        shadow: Shadow = memory.shadow
        self.step_start = len(self.launch.events)
        if not writes and shadow.deferred is not None and not shadow.initialised:
            shadow.deferred = None
        later: list[Commit] | None = None
        parts = g.knowledge
        if len(parts) > 1 and self._all_alike(g, place, memory, offset, nbytes, writes):
            parts = [self.weakest(g, None)]
        elif len(parts) > 1 and writes:
            shadow.locate(offset, nbytes)  # settles the granularity for all parts
            later = []
        for part in parts:
            mine, who_lanes, unchanged = offset, part.lanes, equal
            accessing = lanes
            if offset.__class__ is not int:
                accessing = g.lanes if lanes is None else lanes
                if len(parts) > 1:
                    keep = among(accessing, part.lanes)
                    mine, accessing = offset[keep], accessing[keep]
                    unchanged = None if equal is None else partial(_some, equal, keep)
            own = who_lanes + g.cta.first_component
            event = Event(
                0, writes, "generic", place, g.agents(who_lanes), self, own, self.epochs[own],
                g.position(place), int(own[0]), strong=strong, equal=unchanged,
            )  # fmt: skip
            actor = Actor(part.clock, part.proxy_fence, part.after_fence, own)
            agents = (
                None
                if accessing is None or mine.__class__ is int
                else accessing + g.cta.first_component
            )
            self._access(memory, mine, nbytes, event, actor, agents, later)
        if later:
            self._judge_among_warps(later)
        for commit in later or ():
            self._write(shadow, *commit)

    def _all_alike(
        self, g: Any, place: Any, memory: Any, offset: Any, nbytes: int, writes: bool
    ) -> bool:
        """Whether what all threads of a group know is enough to find nothing wrong: then they need not be told apart."""
        shadow: Shadow = memory.shadow
        if shadow.deferred is not None:
            return False
        written, read, indices, unit_bytes = shadow.locate(offset, nbytes)
        before = written[indices]
        if not writes and not shadow.initialised and not before.all():
            return False
        part, own = self.weakest(g, None), g.lanes + g.cta.first_component
        actor = Actor(part.clock, part.proxy_fence, part.after_fence, own)
        event = Event(0, writes, "generic", place, None, self, own, None, ((), 0), int(own[0]))
        where = Region(memory, indices, unit_bytes, None)
        if shadow.hidden_at(where) is not None:
            return False
        old = [self.launch.events[n] for n in numbers(before) + numbers(read[indices])]
        return all(o is None or self.in_order(o, None, event, actor, where) for o in old)

    def operation_access(
        self, ticket: Ticket, memory: Any, units: np.ndarray, writes: bool, fenced: bool = False
    ) -> None:
        """An asynchronous operation reads or writes 16-byte units (numbers, any shape) of shared or global memory.

        `fenced`: its completion implies a proxy fence (bulk copies; not tcgen05).
        """
        if not units.size:  # a box that lies outside its tensor
            return
        event = Event(
            0, writes, "async", ticket.place, ticket.who, self, ticket.component, ticket.number, ticket.position,
            ticket.issuer, fenced, issued=int(ticket.clock.seen[ticket.issuer]),
        )  # fmt: skip
        actor = Actor(ticket.clock, ticket.proxy_fence, ticket.after_fence, None, ticket)
        self._access(memory, units.reshape(-1) << 4, 16, event, actor, None)

    def begin(self, memory: Any, writes: bool) -> None:
        """An instruction or operation is about to tell of its accesses to a memory."""
        self.step_start = len(self.launch.events)
        if writes and memory.shadow.deferred is not None:
            self._replay(memory)

    def told(
        self, memory: Any, offset: np.ndarray, nbytes: int, event: Event, actor: Actor
    ) -> None:
        """An access of agents, one for each offset."""
        self._access(memory, offset, nbytes, event, actor, event.agents)

    def late_write(self, ticket: Ticket, memory: Any, units: np.ndarray, end: int) -> None:
        """A write that comes after the end of its phase, which has been reported: it is judged as if it had not.

        It collides only with what was told before the end (an event number), and is known to all that comes later.
        Units as in `operation_access`.
        """
        shadow: Shadow = memory.shadow
        if shadow.deferred is not None:
            self._replay(memory)
        writes, reads, indices, unit_bytes = shadow.locate(units.reshape(-1) << 4, 16)
        event = Event(
            0, True, "async", ticket.place, ticket.who, self, ticket.component, 0, ticket.position, ticket.issuer, True
        )  # fmt: skip
        self._number(event)
        actor = Actor(ticket.clock, ticket.proxy_fence, ticket.after_fence, None, ticket)
        where = Region(memory, indices, unit_bytes, None)
        for before in (writes[indices], reads[indices]):
            self._judge(np.where(before < end, before, 0), event, actor, where)
        self._explain(numbers(reads[indices]))
        self._write(shadow, writes, reads, event, where)

    def _access(
        self,
        memory: Any,
        offset: Any,
        nbytes: int,
        event: Event,
        actor: Actor,
        agents: Any,
        later: list[Commit] | None = None,
    ) -> None:
        """Judge an access and enter it into the shadow; a write only once it is its turn, if `later` is given.

        Threads that know different things but write in one step must not see each other's writes first.
        """
        shadow: Shadow = memory.shadow
        if shadow.deferred is not None:
            if not event.writes:
                event.unit_agents = agents
                if not (
                    shadow.deferred and _same_read(shadow.deferred[-1][:3], (event, offset, nbytes))
                ):
                    shadow.deferred.append((event, offset, nbytes, actor))
                return
            self._replay(memory)
        writes, reads, indices, unit_bytes = shadow.locate(offset, nbytes)
        if agents is not None:
            repeat = len(indices) // len(agents)
            agents = agents if repeat == 1 else np.repeat(agents, repeat)
            event.units, event.unit_agents, event.unit_bytes = indices, agents, unit_bytes
        if not event.writes and self._repeats(reads[indices], event):
            return
        self._number(event)
        event.clock = actor.clock
        self.silent = True
        where = Region(memory, indices, unit_bytes, agents)
        before = writes[indices]
        if not event.writes and not shadow.initialised and not before.all():
            self._uninitialised(event, where, before)
        self._judge(before, event, actor, where)
        if event.place.private:
            self._judge_private(before, event, actor, where)
        event.clean = self.silent
        if event.writes:
            self._judge(reads[indices], event, actor, where)
            self._judge_hidden(shadow, event, actor, where)
            commit = (writes, reads, event, where)
            if later is not None:
                later.append(commit)
                return
            if actor.lanes is not None and actor.lanes[0] >> 5 != actor.lanes[-1] >> 5:
                self._judge_among_warps([commit])
            self._write(shadow, *commit)
        else:
            if self.unwritten:
                self._replace_unwritten(reads[indices], event)
            self._hide_unordered(shadow, reads[indices], event, actor, where)
            reads[indices] = event.number

    def _write(
        self, shadow: Shadow, writes: np.ndarray, reads: np.ndarray, event: Event, where: Region
    ) -> None:
        """Enter a write: it takes the place of what was there."""
        writes[where.indices] = event.number
        reads[where.indices] = 0
        if shadow.hidden_at(where) is not None:
            shadow.hide(where, 0)  # they have been judged

    def _judge_among_warps(self, commits: list[Commit]) -> None:
        """Warps that write the same in one step collide. Lanes of one warp do not: one of them wins, as PTX has it.

        Each commit is of threads that know the same.
        """
        writes, warps = commits[0][0], []
        for _, _, event, where in commits:
            if where.agents is not None:
                warps.append(where.agents >> 5)
                continue
            if event.agents[0] >> 5 != event.agents[-1] >> 5:
                self._report(event, event, where.at(None))
            warps.append(np.full(len(where.indices), event.issuer >> 5))
        units = np.concatenate([where.indices for _, _, _, where in commits])
        writers, of = np.concatenate(warps), np.repeat(np.arange(len(warps)), list(map(len, warps)))
        writes[units] = writers  # of several, one stays
        if (writes[units] == writers).all():
            return
        for (_, _, event, where), mine in zip(commits, warps, strict=True):
            bad = writes[where.indices] != mine
            if bad.any():
                unit = where.indices[bad][0]
                (first, *_) = np.flatnonzero((units == unit) & (writers == writes[unit]))
                self._report(commits[of[first]][2], event, where.at(bad))

    def _judge_private(self, before: np.ndarray, event: Event, actor: Actor, where: Region) -> None:
        """A plain load through a pointer under which nvcc takes memory for unchanged but by the thread itself.

        Whoever else has written collides with it, ordered or not; where not, that is a race already.
        """
        for number in numbers(before):
            old, mask = self.launch.events[number], before == number
            if old is None:
                continue
            others = self._unordered(
                old, mask, event, replace(actor, clock=self.nothing_known), where
            )
            if others is not None and not self._ordered(old, actor):
                raced = self._unordered(old, mask, event, actor, where)
                others = others if raced is None else others & ~raced
            if others is not None and others.any():
                self.silent = False
                report = private_load_report(old, event, where.at(others))
                self.launch.findings.add(report, event.place.private)

    def _replace_unwritten(self, before: np.ndarray, event: Event) -> None:
        """A read of what nothing has written takes the place of earlier ones: what is said of it goes for them."""
        earlier = [n for n in numbers(before) if n in self.unwritten]
        if earlier and event.number in self.unwritten:
            self.superseded[event.number] = earlier

    def _repeats(self, before: np.ndarray, event: Event) -> bool:
        """Whether the same threads have read all of this before, and nothing new can be said.

        In the same epoch nothing has changed. Later they know more than then: what was in order still is, and the old read
        becomes the new one.
        """
        first = int(before[0])
        old = self.launch.events[first]
        if (
            old is None
            or event.units is not None
            or old.units is not None
            or not (before == first).all()
        ):
            return False
        if old.owner is not self or not np.array_equal(old.agents, event.agents):
            return False
        if old.strong != event.strong:
            return False
        if old.clean:
            old.epochs, old.position, old.place = event.epochs, event.position, event.place
            return True
        return np.array_equal(old.epochs, event.epochs)

    def _replay(self, memory: Any) -> None:
        """The first write of a memory: enter the reads that were put off."""
        shadow: Shadow = memory.shadow
        deferred, shadow.deferred = shadow.deferred or [], None
        for event, offset, nbytes, actor in deferred:
            _, reads, indices, unit_bytes = shadow.locate(offset, nbytes)
            agents = event.unit_agents
            if agents is not None:
                event.units, event.unit_bytes = indices, unit_bytes
                agents = event.unit_agents = np.repeat(agents, len(indices) // len(agents))
            self._number(event)
            where = Region(memory, indices, unit_bytes, agents)
            self._hide_unordered(shadow, reads[indices], event, actor, where)
            reads[indices] = event.number


def _some(equal: Callable[[], np.ndarray], keep: np.ndarray) -> np.ndarray:
    return np.asarray(equal()[keep])


def _same_read(a: tuple[Event, Any, int], b: tuple[Event, Any, int]) -> bool:
    """Whether two reads are by the same threads, in the same epoch, of the same bytes: a loop that polls."""
    (one, offset, nbytes), (other, offset2, nbytes2) = a, b
    if one.place is not other.place or nbytes != nbytes2 or np.ndim(offset) != np.ndim(offset2):
        return False
    if np.ndim(offset) and offset[0] != offset2[0]:
        return False
    same = np.array_equal(offset, offset2) and np.array_equal(one.agents, other.agents)
    return same and np.array_equal(one.epochs, other.epochs)
