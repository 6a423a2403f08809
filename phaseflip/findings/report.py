"""What a run has found: collected under a profile and a choice of checks, in the order in which to read it; and rendered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..errors import BadInput, check_text
from ..ir.place import Place
from .finding import Finding
from .rules import KINDS, PRECEDENCE, PROFILES, RULES, parse_checks


def render(finding: Finding) -> str:
    """The report of a finding: what, where, why, what would fix it, one line each; then its details."""
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    lines = [
        f"{finding.severity}: {finding.title}{times}"
        + (f": {finding.what}" if finding.what else "")
    ]
    where = f"  at {_in_words(finding.place)}"
    if finding.other is not None:
        where += f", against {_in_words(finding.other)}"
    lines.append(where)
    lines.append(f"  why: {finding.why}")
    if finding.fix:
        lines.append(f"  fix: {finding.fix}")
    lines += [f"    {line}" for line in finding.details]
    return "\n".join(lines)


def _in_words(place: Place) -> str:
    """ "kernel.py:9 (mbarrier.init), called at kernel.py:30"."""
    text = f"{place} ({place.mnemonic})" if place.mnemonic else str(place)
    return text + "".join(f", called at {file}:{line}" for file, line in place.callers)


class Findings:
    """Collects findings under a profile and a choice of checks; the same fault at the same lines is counted."""

    def __init__(self, checks: str = "all", profile: str = "ptx") -> None:
        check_text("checks", checks, "races,protocol")
        check_text("profile", profile, "ptx")
        if profile not in PROFILES:
            raise BadInput(
                f"unknown profile {profile!r}; the profiles are {' and '.join(PROFILES)}"
            )
        self.profile = profile
        self.categories = parse_checks(checks)
        self._found: dict[Any, Finding] = {}

    @property
    def wants_races(self) -> bool:
        """Whether accesses have to be ordered at all: for races, and for protocols, which are judged by order too."""
        return not self.categories.isdisjoint(("races", "protocol"))

    @property
    def wants_memory(self) -> bool:
        """Whether it has to be known what has been written."""
        return "memory" in self.categories

    def add(self, finding: Finding, rule: str = "", always: bool = False) -> None:
        """Record a finding; its severity comes from the table.

        `rule` is the variant ("read"), if any; `always` records it whatever checks are chosen: it stopped the run.
        """
        judged = RULES[f"{finding.code}:{rule}" if rule else finding.code]
        if judged.category not in self.categories and not always:
            return
        severity = judged.ptx if self.profile == "ptx" else judged.practice
        key = (finding.code, severity, finding.memory, finding.kind, finding.place, finding.other)
        known = self._found.get(key)
        if known is None:
            self._found[key] = replace(finding, severity=severity)
        else:
            follows = known.follows and finding.follows
            self._found[key] = replace(known, count=known.count + finding.count, follows=follows)

    def errors(self) -> int:
        """How many of them fail a run."""
        return sum(finding.severity == "error" for finding in self._found.values())

    def all(self) -> list[Finding]:
        """Errors first, causes before what follows from them, then by line."""
        races = {(f.place, f.other) for f in self._found.values() if f.code == "race"}
        wrong = any(f.wrong_phase or f.code == "stale-wait" for f in self._found.values())
        return sorted(
            self._found.values(),
            key=lambda f: (
                f.severity != "error", *_turn(f, races, wrong), f.file, f.line, f.code, f.other.line if f.other else 0
            ),
        )  # fmt: skip


def _turn(
    finding: Finding, races: set[tuple[Place, Place | None]], wrong_phase: bool
) -> tuple[int, int]:
    """Where accesses race that are elsewhere ordered but not fenced, what orders them for good brings the fence with it.

    Where a thread waits for the wrong phase (`wrong_phase`), others arrive and send bytes out of turn.
    """
    unfenced = finding.code.startswith("missing-") and (finding.place, finding.other) in races
    out_of_turn = wrong_phase and finding.code in ("over-arrival", "tx-count-mismatch")
    turn = 5 if finding.follows or unfenced or out_of_turn else PRECEDENCE.get(finding.code, 3)
    return turn, KINDS.index(finding.kind) if finding.kind in KINDS else 0


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that fail a run."""
    return [f for f in findings if f.severity == "error"]
