"""Schedules: which agent runs next. Deterministic by name and seed; a schedule's `name` replays it.

in-order    the default: what is in flight lands, oldest first, before any thread goes on; then the first runnable group
eager       asynchronous work completes at once, when issued
lazy        asynchronous work lands only when no thread can run: stale data becomes visible
random:S    warps run apart; a generator seeded with S picks the next warp or landing at every step
explore     all orders that can make a difference, each in a run of its own; see `explore.py`
choices:... the run of `explore` in which step N took what stands at position P: "choices:12=1,40=3"; "lane31" in front has
            elect.sync elect the highest of the active lanes. Other steps take the default: mostly the first that can

The first four may be followed by delays: "in-order+delay:cta1", "lazy+delay:warps4-7", "random:7+delay:cta0.warp3". The
threads that a delay names, by rank in the cluster and by warp of the CTA, run only when nothing else can happen.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Protocol

from ..errors import BadSchedule, check_text

NAMES = ("in-order", "eager", "lazy", "random:SEED", "explore", "choices:STEP=POSITION,...")
EXPLORE = "explore"


@dataclass(frozen=True)
class Delay:
    """Threads held back: those of the CTA with this rank (None: of every CTA), warps first to last (None: all)."""

    rank: int | None
    warps: tuple[int, int] | None

    def holds(self, rank: int, warp: int) -> bool:
        """Whether threads of that warp of that CTA are meant."""
        if self.rank is not None and rank != self.rank:
            return False
        return self.warps is None or self.warps[0] <= warp <= self.warps[1]


class Schedule(Protocol):
    """A policy. `by_warp`: each warp is a group of its own; `eager`: asynchronous work lands when issued; `lazy`: only
    when no thread can run; `delays`: threads that run only when nothing else can happen; `polls_end`: a wait for an
    mbarrier that gives a value may end in vain at any time, not only when nothing else can happen."""

    name: str
    delays: tuple[Delay, ...]
    by_warp: bool
    eager: bool
    lazy: bool
    polls_end: bool

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
    delays: tuple[Delay, ...] = ()
    polls_end: bool = False

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
    polls_end = True
    delays: tuple[Delay, ...] = ()

    def __init__(self, seed: int) -> None:
        self.name = f"random:{seed}"
        self._generator = random.Random(seed)

    def pick(self, groups: int, landings: int) -> int:
        """Any."""
        return self._generator.randrange(groups + landings)


class Choices(InOrder):
    """Warps run apart, in the smallest steps; the first that can run, but now and then another, so that all get on.

    `deviations`: step -> what is picked there instead. `leader`: the active lane that elect.sync elects, from the lowest.
    """

    TURN = 50
    """After so many steps somebody else gets one."""

    def __init__(self, deviations: dict[int, int], leader: int = 0) -> None:
        super().__init__("", by_warp=True)
        self.deviations, self.leader, self.steps = deviations, leader, 0
        self._name()

    def _name(self) -> None:
        words = [f"lane{self.leader}"] if self.leader else []
        words += [f"{step}={position}" for step, position in self.deviations.items()]
        self.name = f"choices:{','.join(words)}"

    def pick(self, groups: int, landings: int) -> int:
        """As `deviations` has it, if it has that many to choose from."""
        step, self.steps = self.steps, self.steps + 1
        turn = step // self.TURN if step % self.TURN == self.TURN - 1 else 0
        return self.deviations.get(step, turn) % (groups + landings)

    def note(self, choice: int, default: int) -> None:
        """The last step took something else than the default."""
        if choice != default:
            self.deviations[self.steps - 1] = choice
            self._name()


def _parse_choices(text: str) -> Choices:
    match = re.fullmatch(r"(?:lane([0-9]{1,2}),?)?((?:[0-9]{1,9}=[0-9]{1,6},?)*)", text)
    if match is None:
        raise BadSchedule(
            f"unknown choices {text!r}; they are steps and positions such as choices:12=1,40=3, as `explore` prints them"
        )
    pairs = [part.split("=") for part in match[2].split(",") if part]
    return Choices({int(step): int(position) for step, position in pairs}, int(match[1] or 0))


def parse_schedule(text: str) -> Schedule:
    """A fresh schedule of that name; BadSchedule names the legal ones, and BadInput says that a name is text."""
    check_text("schedule", text, "in-order")
    if text.startswith("choices:"):
        return _parse_choices(text.removeprefix("choices:"))
    base, *rest = text.split("+")
    schedule = _parse_base(base, text)
    if rest:
        schedule.delays = tuple(_parse_delay(part, text) for part in rest)
        schedule.by_warp = True
        schedule.name = text
    return schedule


def _parse_base(base: str, text: str) -> Schedule:
    simple = {"in-order": InOrder, "eager": Eager, "lazy": Lazy}
    if base == text == EXPLORE:
        return Choices({})
    if base in simple:
        return simple[base]()
    kind, _, seed = base.partition(":")
    if kind == "random" and re.fullmatch(r"[0-9]+", seed):
        if len(seed) > LONGEST_SEED:
            raise BadSchedule(
                f"the seed of random: has {len(seed)} digits; {LONGEST_SEED} are the most, as in random:7"
            )
        return Random(int(seed))
    raise BadSchedule(
        f"unknown schedule {text!r}; the schedules are {', '.join(NAMES)} (for example random:7)"
    )


DEFAULT_LIMIT = 1_000
"""Runs of schedule explore, where no limit is given."""

LONGEST_SEED = 100
"""Digits of the seed of a random schedule."""

_CTA, _WARPS = r"cta([0-9]{1,4})", r"warps?([0-9]{1,4})(?:-([0-9]{1,4}))?"


def _parse_delay(part: str, text: str) -> Delay:
    match = re.fullmatch(rf"delay:(?:{_CTA}|(?:{_CTA}\.)?{_WARPS})", part, re.ASCII)
    if match is None:
        raise BadSchedule(
            f"unknown delay {part!r} in schedule {text!r}; a delay is delay:cta1, delay:warp3, delay:warps4-7 or "
            "delay:cta1.warps4-7"
        )
    alone, rank, first, last = match.groups()
    rank = alone or rank
    warps = (int(first), int(last or first)) if first else None
    if warps and warps[0] > warps[1]:
        raise BadSchedule(
            f"{part!r} in schedule {text!r} names no warp; the first of a range comes first, as in"
            f" warps{warps[1]}-{warps[0]}"
        )
    return Delay(int(rank) if rank else None, warps)


def check_delays(schedule: Schedule, ctas: int, warps: int) -> None:
    """BadSchedule where a delay names what a kernel with so many CTAs in a cluster, and warps in a CTA, does not have."""
    for delay in schedule.delays:
        rank, (first, last) = delay.rank or 0, delay.warps or (0, 0)
        if rank >= ctas:
            named, whole, there = f"CTA {rank}", "cluster", _numbered("CTA", 0, ctas - 1)
        elif last >= warps:
            named, whole, there = (
                _numbered("warp", first, last),
                "CTA",
                _numbered("warp", 0, warps - 1),
            )
        else:
            continue
        raise BadSchedule(
            f"schedule {schedule.name!r} delays {named}, but a {whole} of the kernel has {there}"
        )


def _numbered(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first}-{last}"
