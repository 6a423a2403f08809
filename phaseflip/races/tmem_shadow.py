"""Accesses to Tensor Memory put before the judge, and its deallocation.

Its shadow is kept by bands of 16 lanes and columns; the reads of each warpgroup apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ordering.happens_before import Actor, Ticket
from .collision import Judge
from .shadow import Event, Region, numbers

TMEM_BANDS = 8
"""TMEM is tracked by bands of 16 lanes: no instruction reaches less of a column, but tcgen05.cp.4x256b, whose rows count
as bands, except against each other."""


class TensorMemoryJudge(Judge):
    """Judges what tcgen05 operations do to the Tensor Memories of a cluster."""

    def tmem_access(
        self,
        ticket: Ticket,
        tmem: Any,
        lanes: slice,
        columns: slice,
        writes: bool,
        reads: bool = False,
        lane: int | None = None,
    ) -> None:
        """A tcgen05 operation reads or writes a rectangle of Tensor Memory; lanes in multiples of 16, or one `lane`.

        `reads`: a write that accumulates onto what is there.
        """
        bands = slice(lanes.start >> 4, -(-lanes.stop // 16))
        event = Event(
            0, writes, "tmem", ticket.place, ticket.who, self, ticket.component, ticket.number, ticket.position,
            ticket.issuer, issued=int(ticket.clock.seen[ticket.issuer]), lane=lane,
        )  # fmt: skip
        self._number(event)
        event.clock = ticket.clock
        actor = Actor(ticket.clock, ticket.proxy_fence, ticket.after_fence, None, ticket)
        index = (bands, columns)
        where = Region(tmem, np.arange(columns.start, columns.stop), 1, None)
        before = tmem.writes[index]
        if (reads or not writes) and not before.all():
            self._uninitialised(event, where, before.all(axis=0))
        self._judge(before, event, actor, where)
        for freed, held in tmem.pair_frees:
            if held.start < columns.stop and columns.start < held.stop:
                self._report(freed, event, where.at(None), "tmem-freed-in-use")
        self._judge_forgotten(tmem, (bands, columns), event, actor, where)
        if writes:
            self._judge(tmem.reads[:, bands, columns], event, actor, where)
            tmem.writes[index] = event.number
            tmem.reads[:, bands, columns] = 0
        else:
            warpgroup = (ticket.issuer >> 7) % len(tmem.reads)
            tmem.reads[warpgroup, bands, columns] = event.number

    def _judge_forgotten(
        self, tmem: Any, index: tuple[slice, slice], event: Event, actor: Actor, where: Region
    ) -> None:
        """Accesses before a deallocation, for one that does not know of it: an operation that was in flight meanwhile."""
        bands, columns = index
        for free, freed, writes, reads in tmem.forgotten:
            first, last = max(freed.start, columns.start), min(freed.stop, columns.stop)
            if first < last and not self._ordered(free, actor):
                held = slice(first - freed.start, last - freed.start)
                self._judge(writes[bands, held], event, actor, where)
                if event.writes:
                    self._judge(reads[:, bands, held], event, actor, where)

    def tmem_free(self, g: Any, place: Any, tmem: Any, columns: slice) -> None:
        """tcgen05.dealloc: every access to the columns must have ended, as far as the deallocating warp knows."""
        before = (tmem.writes[:, columns].copy(), tmem.reads[..., columns].copy())
        event = self._free(g, place, tmem, columns)
        tmem.forgotten.append((event, columns, *before))
        tmem.writes[:, columns] = (
            event.number
        )  # what comes later and is not ordered after it collides with it
        tmem.reads[..., columns] = 0

    def tmem_free_in_peer(self, g: Any, place: Any, tmem: Any, columns: slice) -> None:
        """tcgen05.dealloc with cta_group::2: accesses in the other CTA of the pair must have ended too.

        That CTA frees its columns itself, so what was accessed there stays known.
        """
        tmem.pair_frees.append((self._free(g, place, tmem, columns), columns))

    def _free(self, g: Any, place: Any, tmem: Any, columns: slice) -> Event:
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
                if old is None or self._ordered(old, actor):
                    continue
                if old.place.mnemonic != "tcgen05.dealloc":  # that of the other CTA of the pair
                    self._report(old, event, where.at(None), "tmem-freed-in-use")
        return event
