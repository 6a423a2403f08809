"""What is known of a race only once its cluster has ended: which commits, groups and waits came, and what they lack."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ..findings.finding import Finding, Place
from ..ir.place import Position, Step, comes_first
from .remedies import BIT, COMMIT, act, between, meeting_after_copy
from .shadow import Event


class GroupWait(NamedTuple):
    """A cp.async.bulk.wait_group of the thread that issued a bulk store.

    It leaves `newest` groups pending; `newer` have been committed after that of the store.
    """

    place: Place
    position: Position
    newest: int
    newer: int
    reads_only: bool

    @property
    def covers(self) -> bool:
        """Whether the store has read its source, and without `reads_only` also written, when the thread goes on."""
        return self.newer >= self.newest


def without_commit(race: Finding, mma: Event) -> Finding:
    """A race with an MMA that no tcgen05.commit tracks."""
    line = mma.place.line
    return replace(
        race,
        why=f"no tcgen05.commit of the issuing thread follows the {act(mma)} at line {line}, so nothing tells that it is done",
        fix=f"T.ptx.tcgen05.commit after the {act(mma)}, by the thread that issues it, to the mbarrier that is waited for",
    )


def without_bit(race: Finding) -> Finding:
    """A race with an MMA whose commit arrives in other CTAs only than the one that has to wait."""
    return replace(race, fix=race.fix + BIT) if race.fix == COMMIT else race


def of_group(
    race: Finding, copy: Event, later: Event, commit: Step | None, waits: list[GroupWait]
) -> Finding:
    """A race with a bulk store, by its commit_group and the waits of its thread after that: the first that comes too late,
    does too little, or is not there.
    """
    line, (one, there) = copy.place.line, between(copy, later)
    if copy.place == later.place and copy.position[0] == later.position[0]:
        return race  # of two threads that copy to the same bytes at once: no wait of either tells the other
    if commit is None or not comes_first(commit, later):
        return replace(
            race,
            why=f"no commit_group comes between the copy at {one} and {there}: no wait_group there covers it",
            fix=f"T.ptx.cp_async.bulk.commit_group() after the copy at line {line}, then wait_group(0), both by the thread "
            "that issues it, then a barrier",
        )
    before = [wait for wait in waits if comes_first(wait, later)]
    if not before:
        return replace(
            race,
            why=f"no wait_group of the thread that issues the copy at line {line} comes before {there}",
        )
    wait = before[-1]
    at, meet = wait.place.line, meeting_after_copy(copy, later)
    if not wait.covers:
        return replace(
            race,
            why=f"the wait_group({wait.newest}) at line {at} leaves the copy at line {line} pending",
            fix=f"T.ptx.cp_async.bulk.wait_group({wait.newer}) at line {at}, then {meet} before {there}",
        )
    if wait.reads_only:
        return replace(
            race,
            why=f"the wait_group.read at line {at} waits until the copy at line {line} has read its source, not longer",
            fix=f"T.ptx.cp_async.bulk.wait_group({wait.newer}, read=False) at line {at}, then {meet} before {there}",
        )
    return replace(
        race,
        why=f"no barrier orders line {at}, which waits for the copy at line {line}, before {there}",
        fix=f"put {meet} between line {at} and {there}",
    )
