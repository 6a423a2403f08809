"""Reads that a later one replaced in the shadow without standing for them: they stay known beside it until a write comes.

Each unit of memory has the set of them. Sets are shared and numbered, so an access looks at what is at its own units
only, and a set stays small: what a later read stands for leaves it. Of an instruction that threads (or the operations of
a queue) execute again and again, the last time is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..ordering.happens_before import Actor
from .shadow import Event, Region, Shadow, numbers
from .tmem_shadow import TensorMemoryJudge

ALL = -1
"""All threads of a read."""


class Hidden(NamedTuple):
    """A read that another one hides; `left`: a bit for each of its threads that no later read stands for, or ALL."""

    hider: int
    number: int
    left: int = ALL


class HiddenReadJudge(TensorMemoryJudge):
    """Keeps the hidden reads of the shadows of one cluster, and judges them against writes."""

    def _hide_unordered(
        self, shadow: Shadow, before: np.ndarray, event: Event, actor: Actor, where: Region
    ) -> None:
        """A read replaces earlier ones (`before`); those that it does not stand for stay known beside it."""
        there = shadow.hidden_at(where)
        if there is None:
            old = [self.launch.events[n] for n in numbers(before)]
            if all(o is None or (_alike(o, event) and self._ordered(o, actor)) for o in old):
                return
            there = np.zeros(len(before), np.int32)
        both = there.astype(np.int64) << 32 | before
        for pair, rows in _rows_of_each(both):
            known, replaced = shadow.sets[pair >> 32], pair & 0xFFFFFFFF
            members = [h for h in known if h.number != replaced]
            if self.launch.events[replaced] is not None:
                members.append(Hidden(event.number, replaced))
            there[rows] = self._kept(shadow, members, rows, event, actor, where)
        shadow.hide(where, there)

    def _kept(
        self, shadow: Shadow, members: list[Hidden], rows: np.ndarray, event: Event, actor: Actor, where: Region
    ) -> Any:  # fmt: skip
        """Numbers of the sets that are left of `members` at some units: one, or one for each."""
        left = [self._left(h, rows, event, actor, where) for h in members]
        if all(isinstance(bits, int) for bits in left):
            return shadow.set_of(self._few(_with(members, left)))
        columns = [[bits] * len(rows) if isinstance(bits, int) else bits for bits in left]
        at_each = list(zip(*columns, strict=True))
        numbered = {
            bits: shadow.set_of(self._few(_with(members, bits))) for bits in dict.fromkeys(at_each)
        }
        return [numbered[bits] for bits in at_each]

    def _left(
        self, hidden: Hidden, rows: np.ndarray, event: Event, actor: Actor, where: Region
    ) -> int | list[int]:
        """Threads of a hidden read that a new read does not stand for, as bits: at all of the units alike, or at each.

        It stands for what lies before it, and for what the same threads have read: of one instruction each for itself,
        of two instructions, both of which are to be told of, all or none.
        """
        old = self.launch.events[hidden.number]
        assert old is not None
        if not _alike(old, event):
            return hidden.left
        if self._ordered(old, actor):
            return 0
        if old.owner is not self:
            return hidden.left
        if actor.lanes is None or not isinstance(old.agents, np.ndarray):
            again = old.place is event.place and actor.lanes is None
            one = isinstance(old.agents, int) and old.agents == event.agents
            return 0 if again and one else hidden.left
        if old.units is None and event.units is None:
            late = old.agents[actor.clock.seen[old.agents] < old.epochs]
            others = late[~np.isin(late, actor.lanes)]
            if not len(others) or old.place is event.place:
                return hidden.left & _bits(others)
            return hidden.left
        if old.place is not event.place:
            return hidden.left
        if _same_units(old, event):
            return 0
        if not np.isin(old.agents, actor.lanes).any():
            return hidden.left
        return self._left_at_each(old, hidden.left, rows, actor, where)

    def _left_at_each(
        self, old: Event, left: int, rows: np.ndarray, actor: Actor, where: Region
    ) -> list[int]:
        """As `_left`, where threads have read different units."""
        units = where.indices[rows]
        if old.units is None:
            of, agents = np.repeat(np.arange(len(units)), len(old.agents)), np.tile(old.agents, len(units))  # fmt: skip
        else:
            found, agents = old.agents_of(units * where.unit_bytes)
            of = np.arange(len(units)) if isinstance(found, slice) else found
        late = actor.clock.seen[agents] < old.epoch_of(agents)
        if where.agents is None:
            assert actor.lanes is not None
            late &= ~np.isin(agents, actor.lanes)
        else:
            size = self.threads
            mine = where.indices * size + where.agents
            late &= ~np.isin(units[of] * size + agents, mine)
        kept, all_of_them = (np.bincount(x, minlength=len(units)) for x in (of[late], of))
        pairs = zip(kept.tolist(), all_of_them.tolist(), strict=True)
        bits = [left if own == every else 0 for own, every in pairs]
        for unit in np.flatnonzero((kept > 0) & (kept < all_of_them)).tolist():
            bits[unit] = left & _bits(agents[late & (of == unit)])
        return bits

    def _few(self, members: Iterable[Hidden]) -> tuple[Hidden, ...]:
        """Reads of other clusters, which nothing orders: of one instruction those of two, since one collides with any write."""
        owners: dict[Any, list[Any]] = {}
        kept = []
        for hidden in members:
            old = self.launch.events[hidden.number]
            assert old is not None
            if old.owner is not self:
                known = owners.setdefault(old.place, [])
                if old.owner not in known:
                    if len(known) == 2:
                        continue
                    known.append(old.owner)
            kept.append(hidden)
        return tuple(kept)

    def _judge_hidden(self, shadow: Shadow, event: Event, actor: Actor, where: Region) -> None:
        """A write comes to where reads are hidden."""
        there = shadow.hidden_at(where)
        if there is None:
            return
        masks: dict[tuple[int, int], np.ndarray] = {}
        for number, rows in _rows_of_each(there):
            for hidden in shadow.sets[number]:
                mask = masks.setdefault(hidden[:2], np.zeros(len(there), bool))
                mask[rows] = True
        for (_, number), mask in sorted(masks.items(), key=lambda item: item[0]):
            old = self.launch.events[number]
            assert old is not None
            self._judge_event(old, mask, event, actor, where)


def _alike(old: Event, event: Event) -> bool:
    """Whether a write that does not collide with one of two reads does not collide with the other, if it is ordered so."""
    return (old.proxy, old.strong) == (event.proxy, event.strong)


def _rows_of_each(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Each distinct value, ascending, and where it stands."""
    first = int(values[0])
    if (values == first).all():
        yield first, np.arange(len(values))
        return
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    yield from zip(distinct.tolist(), np.split(order, starts[1:]), strict=True)


def _with(members: list[Hidden], left: Iterable[Any]) -> Iterator[Hidden]:
    """The members of which threads are left."""
    return (h._replace(left=bits) for h, bits in zip(members, left, strict=True) if bits)


def _bits(agents: np.ndarray) -> int:
    return sum(1 << agent for agent in agents.tolist())


def _same_units(old: Event, event: Event) -> bool:
    """Whether each thread reads what it read before."""
    pairs = ((old.units, event.units), (old.unit_agents, event.unit_agents))
    return old.unit_bytes == event.unit_bytes and all(
        a is not None and b is not None and np.array_equal(a, b) for a, b in pairs
    )
