"""The steps of one run, what orders them, and which pairs of them could have come in the other order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .dependence import Footprint, Touch, commute, enables

Agent = tuple[Any, ...]
"""("group", rank, lanes as bits), ("queue", name, rank, ...) or ("load", number)."""


@dataclass
class Event:
    """A step: who did it, what it touched, which event issued it (-1: none, it is of threads), whether it stopped the run."""

    agent: Agent
    footprint: Footprint
    issued_by: int = -1
    stopped: bool = False


Race = tuple[int, int, list[int]]
"""Two events, and for every event before the second the bits of those that come before it for certain."""


def races(events: list[Event], first_new: int) -> list[Race]:
    """Pairs of events of different agents that depend on each other with nothing between, the later one from `first_new` on."""
    found: list[Race] = []
    past: list[int] = []  # of every event: bits of the events ordered before it
    objects: dict[Any, list[tuple[int, Touch]]] = {}
    memory: dict[Any, list[tuple[int, int, int]]] = {}
    for number, event in enumerate(events):
        known = _program_order(events, number, past)
        for earlier, enabling in _dependent(event, objects, memory, known):
            if known >> earlier & 1:
                continue
            if not enabling and number >= first_new:
                found.append((earlier, number, past))
            known |= past[earlier] | 1 << earlier
        past.append(known)
        for touch in event.footprint.touches:
            objects.setdefault(touch[0], []).append((number, touch))
        for key, (reads, writes) in event.footprint.memory.items():
            memory.setdefault(key, []).append((number, reads, writes))
    return found


def _program_order(events: list[Event], number: int, past: list[int]) -> int:
    """What comes before an event in its own threads or queue, or issued it."""
    event, known = events[number], 0
    if event.issued_by >= 0:
        known = past[event.issued_by] | 1 << event.issued_by
    for earlier in range(number - 1, -1, -1):
        if not known >> earlier & 1 and same_agent(events[earlier].agent, event.agent):
            known |= past[earlier] | 1 << earlier
            if events[earlier].agent == event.agent:
                break
    return known


def same_agent(a: Agent, b: Agent) -> bool:
    """Whether the order of their steps is that of the program: the same queue, or groups with a thread in common."""
    if a[0] == b[0] == "group":
        return bool(a[1] == b[1] and a[2] & b[2])
    return a == b


def _dependent(
    event: Event,
    objects: dict[Any, list[tuple[int, Touch]]],
    memory: dict[Any, list[tuple[int, int, int]]],
    known: int,
) -> list[tuple[int, bool]]:
    """Earlier events that an event depends on, latest first, without those that are known to come before it; and whether
    it could not have come before them."""
    found: dict[int, bool] = {}
    for touch in event.footprint.touches:
        for number, earlier in objects.get(touch[0], ()):
            if not known >> number & 1 and not commute(earlier, touch):
                found[number] = found.get(number, False) or enables(earlier, touch)
    for key, (reads, writes) in event.footprint.memory.items():
        for number, read, written in memory.get(key, ()):
            if not known >> number & 1 and (writes & (read | written) or reads & written):
                found.setdefault(number, False)
    return sorted(found.items(), reverse=True)


def tries(events: list[Event], first: int, second: int, past: list[int]) -> list[Agent]:
    """Who may run in place of `first` so that `second` can come before it: agents of what is not ordered after it.

    Of these the first steps: those that need none of the others. The agent of `second` comes first, if it is one.
    """
    free = [n for n in range(first + 1, second) if not past[n] >> first & 1]
    chosen: list[Agent] = []
    before = 0
    for number in [*free, second]:
        mask = past[number] if number < second else _without(past[number], first)
        if not mask & before:
            chosen.insert(0, events[number].agent)
        before |= 1 << number
    return chosen


def _without(mask: int, number: int) -> int:
    return mask & ~(1 << number)
