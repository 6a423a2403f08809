"""Schedules: which agent runs next. Deterministic by name and seed; a schedule's `name` replays it.

in-order    the default: what is in flight lands, oldest first, before any thread goes on; then the first runnable group
eager       asynchronous work completes at once, when issued
lazy        asynchronous work lands only when no thread can run: stale data becomes visible
random:S    warps run apart; a generator seeded with S picks the next warp or landing at every step
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol

from .errors import BadInput

NAMES = ("in-order", "eager", "lazy", "random:SEED")


class Schedule(Protocol):
    """A policy. `by_warp`: each warp is a group of its own; `eager`: asynchronous work lands when issued; `lazy`: only
    when no thread can run."""

    name: str
    by_warp: bool
    eager: bool
    lazy: bool

    def pick(self, groups: int, landings: int) -> int:
        """Choose among `groups` runnable groups (0 ...) and `landings` operations that may land (groups ...).

        At least one of the two is positive. Groups and pipes are offered oldest first.
        """


@dataclass
class InOrder:
    """Land first, then run the first group."""

    name: str = "in-order"
    by_warp: bool = False
    eager: bool = False
    lazy: bool = False

    def pick(self, groups: int, landings: int) -> int:
        """The oldest landing if there is one."""
        return groups if landings else 0


@dataclass
class Eager(InOrder):
    """Nothing is ever in flight."""

    name: str = "eager"
    eager: bool = True


@dataclass
class Lazy(InOrder):
    """Run threads while any can run."""

    name: str = "lazy"
    lazy: bool = True

    def pick(self, groups: int, landings: int) -> int:
        """The first group if there is one."""
        return 0


class Random:
    """Uniform choice among all that can happen, by a seeded generator."""

    by_warp = True
    eager = False
    lazy = False

    def __init__(self, seed: int) -> None:
        self.name = f"random:{seed}"
        self._generator = random.Random(seed)

    def pick(self, groups: int, landings: int) -> int:
        """Any."""
        return self._generator.randrange(groups + landings)


def parse_schedule(text: str) -> Schedule:
    """A fresh schedule of that name; BadInput names the legal ones."""
    simple = {"in-order": InOrder, "eager": Eager, "lazy": Lazy}
    if text in simple:
        return simple[text]()
    kind, _, seed = text.partition(":")
    if kind == "random" and seed.isascii() and seed.isdigit():
        return Random(int(seed))
    raise BadInput(
        f"unknown schedule {text!r}; the schedules are {', '.join(NAMES)} (for example random:7)"
    )
