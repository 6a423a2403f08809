"""Happens-before race detection over threads and asynchronous operations, with proxies and tcgen05 fences.

One detector serves one cluster; global memory's shadows are shared by all clusters of a launch. The machine tells it of
every access and of every release, acquire and fence; it never looks at values. Each pair of conflicting accesses is
judged when the later one is told, by what its agent knows (its clock), so the schedule does not matter.

Names of races follow the program, not the schedule: of the two accesses the one earlier in program order, by iteration
of the enclosing loops and then by position, counts as first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .judge import Judge, Launch
from .ordering import Actor, Ticket
from .shadow_memory import Event, HiddenRead, Region, Shadow, numbers, rescaled

__all__ = ["TMEM_BANDS", "Launch", "RaceDetector"]

TMEM_BANDS = 8
"""TMEM is tracked by bands of 16 lanes: no instruction reaches less of a column."""


Commit = tuple[np.ndarray, np.ndarray, Event, Region]
"""A write that has been judged and is to be entered: write and read shadow, event, region."""


class RaceDetector(Judge):
    """Keeps the shadows of the memories of one cluster, and puts every access before the judge."""

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
    ) -> None:
        """Each thread of a group reads or writes nbytes at its byte offset of a memory (all at one, if it is an int).

        `lanes`: accessing lane of each offset, where offsets are not one per lane.
        """
        shadow: Shadow = memory.shadow
        self.step_start = len(self.launch.events)
        if not writes and shadow.deferred is not None and not shadow.initialised:
            shadow.deferred = None
        later: list[Commit] | None = None
        if len(g.knowledge) > 1 and writes:
            shadow.locate(offset, nbytes)  # settles the granularity for all parts
            later = []
        for part in g.knowledge:
            mine, who_lanes = offset, part.lanes
            accessing = lanes
            if offset.__class__ is not int:
                accessing = g.lanes if lanes is None else lanes
                if len(g.knowledge) > 1:
                    keep = np.isin(accessing, part.lanes)
                    mine, accessing = offset[keep], accessing[keep]
            own = who_lanes + g.cta.first_component
            event = Event(
                0, writes, "generic", place, g.agents(who_lanes), self, own, self.epochs[own],
                g.position(place), int(own[0]),
            )  # fmt: skip
            actor = Actor(part.clock, part.proxy_fence, part.after_fence, own)
            agents = (
                None
                if accessing is None or mine.__class__ is int
                else accessing + g.cta.first_component
            )
            self._access(memory, mine, nbytes, event, actor, agents, later)
        for commit in later or ():
            self._write(shadow, *commit)

    def operation_access(
        self, ticket: Ticket, memory: Any, units: np.ndarray, writes: bool, fenced: bool = False
    ) -> None:
        """An asynchronous operation reads or writes 16-byte units (numbers, any shape) of shared or global memory.

        `fenced`: its completion implies a proxy fence (bulk copies; not tcgen05).
        """
        event = Event(
            0, writes, "async", ticket.place, ticket.who, self, ticket.component, ticket.number, ticket.position,
            ticket.issuer, fenced,
        )  # fmt: skip
        actor = Actor(ticket.clock, ticket.proxy_fence, ticket.after_fence, None, ticket)
        self._access(memory, units.reshape(-1) << 4, 16, event, actor, None)

    def late_write(self, ticket: Ticket, memory: Any, units: np.ndarray, end: int) -> None:
        """A write that comes after the end of its phase, which has been reported: it is judged as if it had not.

        It collides only with what was told before the end (an event number), and is known to all that comes later.
        Units as in `operation_access`.
        """
        shadow: Shadow = memory.shadow
        if shadow.deferred is not None:
            self._replay(shadow)
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
                    shadow.deferred and _same_read(shadow.deferred[-1], (event, offset, nbytes))
                ):
                    shadow.deferred.append((event, offset, nbytes))
                return
            self._replay(shadow)
        writes, reads, indices, unit_bytes = shadow.locate(offset, nbytes)
        if agents is not None:
            repeat = len(indices) // len(agents)
            agents = agents if repeat == 1 else np.repeat(agents, repeat)
            event.units, event.unit_agents, event.unit_bytes = indices, agents, unit_bytes
        if not event.writes and self._repeats(reads[indices], event):
            return
        self._number(event)
        where = Region(memory, indices, unit_bytes, agents)
        before = writes[indices]
        if not event.writes and not shadow.initialised and not before.all():
            self._uninitialised(event, where, before)
        self._judge(before, event, actor, where)
        if event.writes:
            self._judge(reads[indices], event, actor, where)
            if shadow.hidden_reads:
                self._judge_hidden(shadow, event, actor, where)
            commit = (writes, reads, event, where)
            if later is not None:
                later.append(commit)
                return
            if actor.lanes is not None and actor.lanes[0] >> 5 != actor.lanes[-1] >> 5:
                self._judge_among_warps(writes, event, where)
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
        if shadow.hidden_reads:
            self._drop_hidden(shadow, where)

    def _judge_among_warps(self, writes: np.ndarray, event: Event, where: Region) -> None:
        """Warps that write the same in one step collide. Lanes of one warp do not: one of them wins, as PTX has it."""
        bad = None
        if where.agents is not None:
            writes[where.indices] = where.agents  # of several, one stays
            bad = writes[where.indices] >> 5 != where.agents >> 5
            if not bad.any():
                return
        self._report(event, event, where.at(bad))

    def _replace_unwritten(self, before: np.ndarray, event: Event) -> None:
        """A read of what nothing has written takes the place of earlier ones: what is said of it goes for them."""
        earlier = [n for n in numbers(before) if n in self.unwritten]
        if earlier and event.number in self.unwritten:
            self.superseded[event.number] = earlier

    def _repeats(self, before: np.ndarray, event: Event) -> bool:
        """Whether the same threads have read all of this in the same epoch: then nothing new can be said."""
        first = int(before[0])
        old = self.launch.events[first]
        if (
            old is None
            or event.units is not None
            or old.units is not None
            or not (before == first).all()
        ):
            return False
        same_agents = old.owner is self and np.array_equal(old.agents, event.agents)
        return same_agents and np.array_equal(old.epochs, event.epochs)

    def _replay(self, shadow: Shadow) -> None:
        """The first write of a memory: enter the reads that were put off."""
        deferred, shadow.deferred = shadow.deferred or [], None
        for event, offset, nbytes in deferred:
            _, reads, indices, unit_bytes = shadow.locate(offset, nbytes)
            agents = event.unit_agents
            if agents is not None:
                event.units, event.unit_bytes = indices, unit_bytes
                event.unit_agents = np.repeat(agents, len(indices) // len(agents))
            self._number(event)
            earlier = reads[indices]
            for number in numbers(earlier):
                known = self.launch.events[number]
                if known is not None:
                    shadow.hidden_reads.append(
                        HiddenRead(known, indices[earlier == number], unit_bytes)
                    )
            reads[indices] = event.number

    def _number(self, event: Event) -> None:
        event.number = len(self.launch.events)
        self.launch.events.append(event)

    def _hide_unordered(
        self, shadow: Shadow, before: np.ndarray, event: Event, actor: Actor, where: Region
    ) -> None:
        """A read replaces earlier ones; those that it does not stand for stay known beside it."""
        for number in numbers(before):
            old = self.launch.events[number]
            if old is None or (old.proxy == event.proxy and self._stands_for(old, event, actor)):
                continue
            kept = []
            for hidden in shadow.hidden_reads:
                gone = hidden.event.number == number or (
                    hidden.event.proxy == event.proxy
                    and self._stands_for(hidden.event, event, actor)
                    and where.covers(hidden)
                )
                if not gone:
                    kept.append(hidden)
            kept.append(HiddenRead(old, where.indices[before == number], where.unit_bytes))
            shadow.hidden_reads = kept

    def _stands_for(self, old: Event, event: Event, actor: Actor) -> bool:
        """Whether what is ordered after a new read is ordered after an old one too."""
        if self._ordered(old, actor):
            return True
        if (
            old.owner is not self
            or actor.lanes is None
            or old.units is not None
            or event.units is not None
        ):
            return False
        if not isinstance(old.agents, np.ndarray):
            return False
        late = old.agents[actor.clock.seen[old.agents] < old.epochs]
        return bool(np.isin(late, actor.lanes).all())  # the same threads: ordered by their programs

    def _judge_hidden(self, shadow: Shadow, event: Event, actor: Actor, where: Region) -> None:
        low, high = where.extent()
        for hidden in shadow.hidden_reads:
            if hidden.low <= high and low <= hidden.high:
                there = rescaled(hidden.indices, hidden.unit_bytes, where.unit_bytes)
                both = np.isin(where.indices, there)
                if both.any():
                    self._judge_event(hidden.event, both, event, actor, where)

    @staticmethod
    def _drop_hidden(shadow: Shadow, where: Region) -> None:
        """Forget hidden reads where they have been judged against a write."""
        low, high = where.extent()
        kept = []
        for hidden in shadow.hidden_reads:
            if hidden.high < low or high < hidden.low:
                kept.append(hidden)
                continue
            there = rescaled(hidden.indices, hidden.unit_bytes, where.unit_bytes)
            rest = np.setdiff1d(there, where.indices)
            if len(rest):
                kept.append(HiddenRead(hidden.event, rest, where.unit_bytes))
        shadow.hidden_reads = kept

    def tmem_access(
        self,
        ticket: Ticket,
        tmem: Any,
        lanes: slice,
        columns: slice,
        writes: bool,
        reads: bool = False,
    ) -> None:
        """A tcgen05 operation reads or writes a rectangle of Tensor Memory; lanes in multiples of 16.

        `reads`: a write that accumulates onto what is there.
        """
        bands = slice(lanes.start >> 4, -(-lanes.stop // 16))
        event = Event(
            0, writes, "tmem", ticket.place, ticket.who, self, ticket.component, ticket.number, ticket.position,
            ticket.issuer, issued=int(ticket.clock.seen[ticket.issuer]),
        )  # fmt: skip
        self._number(event)
        actor = Actor(ticket.clock, ticket.proxy_fence, ticket.after_fence, None, ticket)
        index = (bands, columns)
        where = Region(tmem, np.arange(columns.start, columns.stop), 1, None)
        before = tmem.writes[index]
        if (reads or not writes) and not before.all():
            self._uninitialised(event, where, before.all(axis=0))
        self._judge(before, event, actor, where)
        if writes:
            self._judge(tmem.reads[:, bands, columns], event, actor, where)
            tmem.writes[index] = event.number
            tmem.reads[:, bands, columns] = 0
        else:
            warpgroup = (ticket.issuer >> 7) % len(tmem.reads)
            tmem.reads[warpgroup, bands, columns] = event.number

    def tmem_free(self, g: Any, place: Any, tmem: Any, columns: slice) -> None:
        """tcgen05.dealloc: every access to the columns must have ended, as far as the deallocating warp knows."""
        own = g.lanes + g.cta.first_component
        part = self.weakest(g, int(g.lanes[0]) >> 5)
        actor = Actor(part.clock, part.proxy_fence, part.after_fence, own)
        one = own[:1]  # as for other collective operations, the warp's first lane stands for it
        event = Event(
            0, True, "tmem", place, g.agents(g.lanes), self, one, self.epochs[one], g.position(place), int(own[0]),
            clock=part.clock,
        )  # fmt: skip
        self._number(event)
        where = Region(tmem, np.arange(columns.start, columns.stop), 1, None)
        for state in (tmem.writes, tmem.reads):
            for number in numbers(state[..., columns]):
                old = self.launch.events[number]
                if old is not None and not self._ordered(old, actor):
                    self._report(old, event, where.at(None), "tmem-freed-in-use")
        tmem.writes[:, columns] = (
            event.number
        )  # what comes later and is not ordered after it collides with it
        tmem.reads[..., columns] = 0


def _same_read(a: tuple[Event, Any, int], b: tuple[Event, Any, int]) -> bool:
    """Whether two reads are by the same threads, in the same epoch, of the same bytes: a loop that polls."""
    (one, offset, nbytes), (other, offset2, nbytes2) = a, b
    if one.place is not other.place or nbytes != nbytes2 or np.ndim(offset) != np.ndim(offset2):
        return False
    if np.ndim(offset) and offset[0] != offset2[0]:
        return False
    same = np.array_equal(offset, offset2) and np.array_equal(one.agents, other.agents)
    return same and np.array_equal(one.epochs, other.epochs)
