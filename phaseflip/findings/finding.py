"""Findings are values: what is wrong, where, why, and what would fix it. One table of severities, one renderer.

Source of the rules: PTX ISA 9.1; the section or mnemonic stands beside each rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BadInput, check_text

PROFILES = ("ptx", "practice")
CATEGORIES = ("races", "protocol", "memory", "lifecycle", "deadlock")


@dataclass(frozen=True)
class Rule:
    """How one kind of finding is judged: category for --checks, severity by profile, and the PTX text behind it."""

    category: str
    ptx: str
    practice: str
    source: str


RULES = {
    "race": Rule("races", "error", "error", "8.9 causality order; rules of each instruction"),
    "race:equal": Rule("races", "error", "note", "8.9 causality order; stores of equal values"),
    "race:read-only": Rule("races", "error", "error", "ld.global.nc; 9.7.9.9"),
    "race:restrict": Rule("races", "error", "note", "CUDA C++, __restrict__"),
    "missing-proxy-fence": Rule("races", "error", "error", "fence.proxy.async; 8.6, 9.7.16.6.5"),
    "missing-proxy-fence:read": Rule("races", "error", "note", "fence.proxy.async; 8.6, 9.7.16.6.5"),
    "missing-proxy-fence:late": Rule("races", "note", "note", "fence.proxy.async after the rendezvous; 9.7.16.6.5"),
    "missing-proxy-fence:init": Rule("races", "note", "note", "mbarrier.init, fence.mbarrier_init; 9.7.13.15.9, 9.7.13.4"),
    "missing-tcgen05-fence": Rule("races", "error", "note", "tcgen05.fence; 9.7.16.6.4.4"),
    "missing-wgmma-fence": Rule("races", "error", "error", "wgmma.fence; 9.7.15.7.1"),
    "scope-too-narrow": Rule("races", "error", "note", "mbarrier.arrive .cta; 9.7.13.15.13, 8.7"),
    "scope-too-narrow:flag": Rule("races", "error", "error", "ld, st .cta; 8.7"),
    "stale-wait": Rule("protocol", "error", "error", "mbarrier.test_wait.parity; 9.7.13.15.16"),
    "lapped-wait": Rule("protocol", "error", "error", "mbarrier.test_wait.parity; 9.7.13.15.16"),
    "over-arrival": Rule("protocol", "error", "error", "mbarrier.arrive; 9.7.13.15.13"),
    "tx-count-mismatch": Rule("protocol", "error", "error", "mbarrier.expect_tx; 9.7.13.15.5"),
    "barrier-not-initialised": Rule("protocol", "error", "error", "mbarrier.init; 9.7.13.15.9"),
    "barrier-reinitialised": Rule("protocol", "error", "error", "mbarrier.init; 9.7.13.15.9"),
    "deadlock": Rule("deadlock", "error", "error", "forward progress"),
    "divergent-collective": Rule("protocol", "error", "error", ".sync.aligned; 9.7.13.1, 9.7.16.7"),
    "divergent-collective:exited": Rule("protocol", "note", "note", "bar.sync .aligned, against exit; 9.7.13.1"),
    "cancel-after-failure": Rule("protocol", "error", "error", "clusterlaunchcontrol.try_cancel"),
    "divergent-collective:parted": Rule("protocol", "error", "note", "bar.sync .aligned, with a count; 9.7.13.1"),
    "divergent-collective:parted-few": Rule("protocol", "note", "note", "bar.sync .aligned, of fewer threads; 9.7.13.1"),
    "barrier-mismatch": Rule("protocol", "error", "error", "bar.sync; 9.7.13.1"),
    "tmem-unallocated": Rule("lifecycle", "error", "error", "tcgen05.alloc; 9.7.16.7"),
    "tmem-leak": Rule("lifecycle", "error", "error", "tcgen05.dealloc; 9.7.16.7"),
    "tmem-double-free": Rule("lifecycle", "error", "error", "tcgen05.dealloc; 9.7.16.7"),
    "tmem-bad-allocation": Rule("lifecycle", "error", "error", "tcgen05.alloc; 9.7.16.7"),
    "tmem-lane-access": Rule("lifecycle", "error", "error", "tcgen05.ld; 9.7.16.8"),
    "tmem-freed-in-use": Rule("lifecycle", "error", "error", "tcgen05.dealloc; 9.7.16.7"),
    "uninitialised-read": Rule("memory", "error", "error", "ld; tcgen05.wait::ld"),
    "out-of-bounds": Rule("memory", "error", "error", "ld, st, tcgen05.mma"),
    "out-of-bounds:parity": Rule("memory", "error", "note", "mbarrier.test_wait.parity; 9.7.13.15.16"),
    "out-of-bounds:array": Rule("memory", "note", "note", "the kernel's index; PTX knows no arrays of mbarriers"),
    "misaligned-access": Rule("memory", "error", "error", "ld, st; 6.4.1"),
    "peer-not-launched": Rule("lifecycle", "error", "note", "tcgen05.alloc .cta_group::2; 9.7.16.7.1"),
    "peer-exited": Rule("lifecycle", "error", "error", "mapa, barrier.cluster"),
    "peer-exited:commit": Rule("lifecycle", "error", "note", "tcgen05.commit; 9.7.16.6"),
    "duplicate-issue": Rule("protocol", "error", "error", "tcgen05.mma is issued by one thread; 9.7.16.10"),
    "unwritten-output": Rule("memory", "error", "error", "every element of the output is written"),
    "output-overwritten": Rule("races", "error", "error", "every element of the output is written by one CTA"),
    "output-overwritten:equal": Rule("races", "error", "note", "8.9 causality order; stores of equal values"),
    "wrong-result": Rule("memory", "error", "error", "the numeric oracle"),
    "launch-failure": Rule("memory", "error", "error", "CUDA's error of a launch"),
    "resource-limit": Rule("memory", "error", "error", "limits of sm_100a"),
}  # fmt: skip
"""Code, or code:variant, of every finding. "Silent" means that no finding is an error."""

PRECEDENCE = {
    "duplicate-issue": 1,
    "barrier-not-initialised": 2,
    "barrier-reinitialised": 2,
    "over-arrival": 2,
    "tx-count-mismatch": 2,
    "stale-wait": 2,
    "peer-exited": 4,
    "tmem-freed-in-use": 4,
    "tmem-leak": 5,
    "deadlock": 6,
    "lapped-wait": 7,
}
"""Which findings to read first; 3 for all others, 5 for those that follow. A product issued twice commits twice; a barrier that
counts wrongly, or is asked for the wrong phase, orders nothing, so that races follow; and where threads race, a CTA may also
leave or free too early, and threads arrive too often, wait for ever, or be a lap behind."""

KINDS = ("raw", "war", "waw")
"""Of races, in the order in which to read them: who does not wait for what it reads, lets others overwrite it too early."""


@dataclass(frozen=True)
class Place:
    """An instruction of the kernel: mnemonic and line, and its place in the program.

    `order` counts instructions in program order, `loops` are the register slots that hold the iteration numbers of the
    enclosing loops, outermost first, `extents` their numbers of iterations (0: not constant), `branches` the blocks of the
    enclosing branches. Two instructions of one mnemonic on one line are the same place to a reader.

    private: what nvcc takes for granted of the global memory under a plain load. "read-only": nothing changes it while the
    kernel runs, so the load is ld.global.nc. "restrict": only the thread's own plain stores do, so the value of an earlier
    load or store may serve, and the load may move across barriers. "": nothing, or it is no plain load.
    """

    mnemonic: str = ""
    file: str = ""
    line: int = 0
    order: int = field(default=0, compare=False)
    loops: tuple[int, ...] = field(default=(), compare=False)
    private: str = field(default="", compare=False)
    branches: tuple[int, ...] = field(default=(), compare=False)
    extents: tuple[int, ...] = field(default=(), compare=False)
    callers: tuple[tuple[str, int], ...] = ()
    """Of an instruction in a @T.inline function, file and line of its call, and of the calls around that."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


CLUSTER_BARRIER = "a cluster barrier (T.ptx.barrier.cluster.arrive and wait)"
"""In advice: where all threads of a cluster can meet."""


@dataclass(frozen=True)
class Finding:
    """One defect of a kernel.

    `code` is from `RULES`; `memory` (global, shared, tmem, register) and `kind` (raw, war, waw) go with a race; `place`
    is the access that is reported, `other` the one it collides with; `what` names them and their agents, `why` the
    reason, `fix` what would mend it; `count` how often the same fault was met at the same lines; `details` more lines.
    `follows`: it comes of a missing wait, and what collides for want of that wait is told before it. `wrong_phase`: a race
    that comes of a wait for the wrong phase.
    """

    code: str
    why: str
    severity: str = "error"
    place: Place = Place()
    other: Place | None = None
    what: str = ""
    fix: str = ""
    memory: str = ""
    kind: str = ""
    count: int = 1
    details: tuple[str, ...] = ()
    data: Any = None
    follows: bool = False
    wrong_phase: bool = False

    @property
    def file(self) -> str:
        """File of the reported access."""
        return self.place.file

    @property
    def line(self) -> int:
        """Line of the reported access."""
        return self.place.line

    @property
    def message(self) -> str:
        """What and why, in one line."""
        return ": ".join(part for part in (self.what, self.why) if part)

    @property
    def title(self) -> str:
        """Code with memory and kind: "race shared raw"."""
        return " ".join(part for part in (self.code, self.memory, self.kind) if part)

    def __str__(self) -> str:
        return f"{self.severity}: {self.title} at {self.place}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Keys that scripts rely on."""
        other = None if self.other is None else _where(self.other)
        found = {
            "code": self.code,
            "severity": self.severity,
            "memory": self.memory or None,
            "kind": self.kind or None,
            "file": self.file,
            "line": self.line,
            "mnemonic": self.place.mnemonic or None,
            "callers": callers(self.place),
            "other": other,
            "message": self.message,
            "fix": self.fix or None,
            "count": self.count,
        }
        return found if self.data is None else found | {"details": self.data}


def callers(place: Place) -> list[dict[str, Any]]:
    """Where the inlined functions around a place are called, innermost first: file and line of each."""
    return [{"file": file, "line": line} for file, line in place.callers]


def _where(place: Place) -> dict[str, Any]:
    return {
        "file": place.file,
        "line": place.line,
        "mnemonic": place.mnemonic or None,
        "callers": callers(place),
    }


def flip(name: str) -> str:
    """In advice: what mends a wait for a consumed phase of a barrier of this name."""
    ring = ", in a ring once a round; if it is flipped, wait on the barrier of the stage that is used next"
    return "flip the phase after each wait (phase ^= 1)" + (ring if "[" in name else "")


ONLY_THEN = "; a pass of the loop without that wait must not flip it"
"""More advice to `flip`, where the wait may have been passed over."""


def phase_name(phase: int) -> str:
    """A phase of an mbarrier in words; a fresh one has a complete phase of parity 1 before its first."""
    return "the phase before the first" if phase < 0 else f"phase {phase}"


def agree(who: Any, singular: str, plural: str) -> str:
    """The form of a verb that goes with threads in words: "CTA 0 warp 2 waits", but "CTA 0 warps 0-3 wait"."""
    several = any(word in str(who) for word in ("warps", "lanes", "threads", " and "))
    return plural if several else singular


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


def parse_checks(text: str) -> frozenset[str]:
    """ "all", "none" or a comma-separated list of categories; BadInput names the categories."""
    if text == "all":
        return frozenset(CATEGORIES)
    if text == "none":
        return frozenset()
    names = [name.strip() for name in text.split(",")]
    legal = f"all, none, or some of {', '.join(CATEGORIES)}"
    for name in names:
        if not name:
            raise BadInput(f"the list of checks {text!r} has an empty name; choose {legal}")
        if name in ("all", "none"):
            raise BadInput(
                f"{name!r} stands alone, and {text!r} has more than that; choose {legal}"
            )
        if name not in CATEGORIES:
            raise BadInput(f"unknown check {name!r}; choose {legal}")
    return frozenset(names)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """Those that fail a run."""
    return [f for f in findings if f.severity == "error"]
