"""Run one mutant once: a kernel with one fault at one site, on one shape under one schedule; what each oracle says alone.

An item names the run: `{"kernel": str, "fault": str, "site": int, "shape": [M, N, K], "schedule": str, "seed": int}`.
Items and outcomes are plain JSON values, so that they travel to worker processes and to other machines.
"""

from __future__ import annotations

import difflib
import functools
import linecache
import os
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import BadInput, BadSchedule
from ..findings import RULES, Finding, errors
from ..gemm.kernel import Kernel, find_kernel
from ..gemm.oracle import OracleResult
from ..gemm.verify import Verdict, lowered, verify
from ..grammar import counted
from ..ir.instruction import traits_of

if TYPE_CHECKING:
    from ..faults import Fault, Site

Item = dict[str, Any]
Outcome = dict[str, Any]

AS_EXPECTED, OTHERWISE = "killed as expected", "killed otherwise"
SURVIVED, EQUIVALENT = "survived", "equivalent"
INVALID, HARNESS_ERROR = "invalid", "harness error"
FATES = (AS_EXPECTED, OTHERWISE, SURVIVED, EQUIVALENT, INVALID, HARNESS_ERROR)
KILLED = (AS_EXPECTED, OTHERWISE)
CONTROL = "no-op"
TIME_OUT = "time-out"
"""In place of a finding's title: the run did not end within the limit, as it would not have on a GPU."""

NOTICES, PASSES, NOT_APPLICABLE = "notices", "passes", "not applicable"
NUMERIC_ORACLES = ("tolerance", "bound", "exact", "unwritten-output")
PLAIN_INPUTS = {"normal": ("tolerance", "bound", "unwritten-output"), "integers": ("exact",)}
"""The runs without checks, by their inputs, and which oracles judge them."""

CHECKS = {
    "ordering": ("races",),
    "protocol": ("protocol",),
    "lifecycle": ("memory", "lifecycle"),
    "deadlock": ("deadlock",),
}
"""The oracles that read findings, and the categories of findings that each answers for."""
ORACLES = (*NUMERIC_ORACLES, *CHECKS)

NUMERIC_CODES = ("wrong-result", "unwritten-output")
"""Findings that repeat what a numeric oracle said."""

MUTANTS_KEPT = 2
ORIGINALS_KEPT = 32
MOST_CHANGED_LINES = 16


@dataclass(frozen=True)
class Mutant:
    """A kernel whose factory yields the mutant, where it was changed and how its TVMScript differs."""

    kernel: Kernel
    fault: Fault
    site: Site
    sites: int
    change: tuple[str, ...]


@functools.lru_cache(maxsize=MUTANTS_KEPT)
def make_mutant(
    kernel_name: str, fault_name: str, site: int, shape: tuple[int, int, int]
) -> Mutant:
    """Inject a fault. BadInput if there is no such kernel, fault, shape or site."""
    from ..faults import find_fault

    fault = find_fault(fault_name)
    kernel = find_kernel(kernel_name)
    original = kernel.build(*shape)
    sites = fault.sites(original)
    if not sites:
        raise BadInput(f"{fault.name} has no site in {kernel.name} at {_text(shape)}")
    if not 0 <= site < len(sites):
        raise BadInput(
            f"{fault.name} has {counted(len(sites), 'site')} in {kernel.name}, numbered from 0; there is no site {site}"
        )
    changed = fault.apply(original, sites[site])

    @functools.wraps(kernel.factory)
    def factory(M: int, N: int, K: int) -> Any:
        return changed

    return Mutant(
        replace(kernel, factory=factory), fault, sites[site], len(sites), _change(original, changed)
    )


def run_item(item: Item) -> Outcome:
    """Run one item and say what became of it.

    Keys: those that scripts rely on (kernel, fault, site as file:line, shape, schedule, fate, codes, oracles, seconds),
    then kind, sentence, catalogued, site_index, site_text, source (the line of the file), change (a diff of the TVMScript),
    seed, first_finding, messages, reason, same_outputs, counter_changes, replay. Raises BadInput for an item that names
    nothing; any other exception is a fault of the harness.
    """
    started = time.perf_counter()
    shape = (item["shape"][0], item["shape"][1], item["shape"][2])
    mutant = make_mutant(item["kernel"], item["fault"], item["site"], shape)
    outcome = blank_outcome(item) | {
        "site": place_text(mutant.site.file, mutant.site.line),
        "kind": mutant.fault.kind,
        "sentence": mutant.fault.sentence,
        "catalogued": mutant.fault.applies_to(item["kernel"]),
        "site_text": mutant.site.text,
        "source": source_line(mutant.site.file, mutant.site.line),
        "change": list(mutant.change),
    }
    try:
        lowered(mutant.kernel, *shape).program  # noqa: B018 - translates, which may refuse the mutant
        result = _judge(item, mutant, shape)
    except BadSchedule:
        raise
    except BadInput as refusal:
        result = {"fate": INVALID, "reason": str(refusal)}
        if str(refusal).startswith("resource-limit: "):  # it builds, and a GPU refuses to launch it
            result = _killed(mutant, [Finding("resource-limit", str(refusal)[16:])], [])
    return outcome | result | {"seconds": round(time.perf_counter() - started, 4)}


def run_fault(item: Item) -> Outcome:
    """As `run_item`, with what a person asks next: what the fault is expected to give, and how many sites it has."""
    outcome = run_item(item)
    mutant = make_mutant(item["kernel"], item["fault"], item["site"], tuple(item["shape"]))
    return outcome | {
        "expected": [list(titles) for titles in mutant.fault.expected],
        "sites": mutant.sites,
    }


def blank_outcome(item: Item) -> Outcome:
    """The outcome of a run about which nothing is known yet: every oracle is "not applicable"."""
    return {
        "kernel": item["kernel"],
        "fault": item["fault"],
        "site": item.get("place", ""),
        "shape": list(item["shape"]),
        "schedule": item["schedule"],
        "fate": HARNESS_ERROR,
        "codes": [],
        "oracles": dict.fromkeys(ORACLES, NOT_APPLICABLE),
        "seconds": 0.0,
        "kind": item.get("kind", ""),
        "sentence": "",
        "catalogued": False,
        "site_index": item["site"],
        "site_text": item.get("text", ""),
        "source": "",
        "change": [],
        "seed": item["seed"],
        "first_finding": None,
        "messages": {},
        "reason": "",
        "same_outputs": None,
        "counter_changes": {},
        "replay": replay_line(item),
    }


def replay_line(item: Item) -> str:
    """The shell command that repeats the run of an item."""
    words = ["python", "-m", "phaseflip", "fault", item["kernel"], item["fault"], *item["shape"]]
    words += ["--site", item["site"], "--schedule", item["schedule"], "--seed", item["seed"]]
    if item.get("time_limit"):
        words += ["--time-limit", item["time_limit"]]
    return shlex.join(map(str, words))


def place_text(file: str, line: int) -> str:
    """file:line, with the file relative to the working directory where it lies below it."""
    if not file:
        return ""
    relative = os.path.relpath(file)
    return f"{file if relative.startswith('..') else relative}:{line}"


def source_line(file: str, line: int) -> str:
    """The text of a line of a file, without indentation; empty if it cannot be read."""
    return linecache.getline(file, line).strip()


# --- parts ---------------------------------------------------------------------------------------


def _judge(item: Item, mutant: Mutant, shape: tuple[int, int, int]) -> Outcome:
    """Run once under the checks and once without for each kind of inputs; a survivor also against the original.

    A check may let a run go on where a GPU would hang, so what the numeric oracles say alone is taken without checks.
    """
    checked = _verdict(mutant.kernel, shape, item, "normal", "all")
    plain = [_verdict(mutant.kernel, shape, item, kind, "none") for kind in PLAIN_INPUTS]
    numeric = [
        result
        for verdict, names in zip(plain, PLAIN_INPUTS.values(), strict=True)
        for result in verdict.oracles
        if result.name in names and not verdict.run.stopped
    ]
    findings = list(checked.findings)
    for verdict in plain:
        findings += [f for f in verdict.findings if f.title not in {g.title for g in findings}]
    if errors(findings) or any(r.passed is False for r in numeric):
        return _killed(mutant, findings, numeric)
    original = [
        _original(item["kernel"], shape, item["schedule"], item["seed"], k) for k in PLAIN_INPUTS
    ]
    same = all(
        np.array_equal(_bits(ours.D), theirs[0])
        for ours, theirs in zip(plain, original, strict=True)
    )
    changes = _counter_changes(original[0][1], plain[0].run.counters)
    work = [c for c in changes if not traits_of(c).synchronises and c != "barrier_waits"]
    return {
        "fate": EQUIVALENT if same and not work else SURVIVED,
        "codes": [],
        "oracles": oracles_alone(findings, numeric),
        "same_outputs": bool(same),
        "counter_changes": changes,
        "reason": _difference(same, work),
    }


def _killed(mutant: Mutant, findings: list[Finding], numeric: list[OracleResult]) -> Outcome:
    from ..faults import as_expected

    failed = [r.name for r in numeric if r.passed is False]
    found = errors(findings)
    expected = bool(mutant.fault.expected) and as_expected(mutant.fault, found, failed)
    return {
        "fate": AS_EXPECTED if expected else OTHERWISE,
        "codes": list(dict.fromkeys(f.title for f in found)),
        "oracles": oracles_alone(found, numeric),
        "first_finding": _finding_json(found[0]) if found else None,
        "messages": {r.name: r.message for r in numeric if r.passed is False},
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    """The finding's own keys, with title and source line, and files as `place_text` gives them."""
    place, other = finding.place, finding.other
    found = finding.to_json() | {
        "title": finding.title,
        "source": source_line(place.file, place.line),
    }
    found["file"] = place_text(place.file, place.line).rpartition(":")[0]
    if other is not None:
        found["other"] = {
            "file": place_text(other.file, other.line).rpartition(":")[0],
            "line": other.line,
            "source": source_line(other.file, other.line),
        }
    return found


def oracles_alone(findings: Iterable[Finding], numeric: Iterable[OracleResult]) -> dict[str, str]:
    """What each oracle says on its own. A run that hangs or stops has no result for the numeric ones to judge."""
    found = [f for f in errors(findings) if f.code not in NUMERIC_CODES]
    categories = {RULES[f.code].category for f in found}
    words = {None: NOT_APPLICABLE, True: PASSES, False: NOTICES}
    said = dict.fromkeys(ORACLES, NOT_APPLICABLE) | {r.name: words[r.passed] for r in numeric}
    for oracle, answers_for in CHECKS.items():
        said[oracle] = NOTICES if categories & set(answers_for) else PASSES
    return said


def _verdict(
    kernel: Kernel, shape: tuple[int, int, int], item: Item, inputs: str, checks: str
) -> Verdict:
    return verify(
        kernel,
        *shape,
        seed=item["seed"],
        inputs=inputs,
        schedule=item["schedule"],
        checks=checks,
        gate="all",
    )


@functools.lru_cache(maxsize=ORIGINALS_KEPT)
def _original(
    kernel: str, shape: tuple[int, int, int], schedule: str, seed: int, inputs: str
) -> tuple[np.ndarray, dict[str, int]]:
    """Bits of D and counters of the kernel as it is."""
    item = {"schedule": schedule, "seed": seed}
    verdict = _verdict(find_kernel(kernel), shape, item, inputs, "none")
    return _bits(verdict.D), verdict.run.counters


def _bits(D: np.ndarray) -> np.ndarray:
    return D.view(np.uint16)


def _counter_changes(before: dict[str, int], after: dict[str, int]) -> dict[str, list[int]]:
    names = [*before, *(name for name in after if name not in before)]
    pairs = {name: [int(before.get(name, 0)), int(after.get(name, 0))] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _difference(same: bool, work: list[str]) -> str:
    reasons = [] if same else ["other outputs"]
    if work:
        reasons.append(f"other counts of {', '.join(work)}")
    return " and ".join(reasons)


def _change(before: Any, after: Any) -> tuple[str, ...]:
    """A diff of the two TVMScripts with one line of context: "- " went, "+ " came."""
    old, new = (str(f.script()).splitlines() for f in (before, after))
    diff = list(difflib.unified_diff(old, new, n=1, lineterm=""))[2:]
    lines = ["  ..." if line.startswith("@@") else f"{line[:1]} {line[1:]}" for line in diff][1:]
    if len(lines) > MOST_CHANGED_LINES:
        rest = len(lines) - MOST_CHANGED_LINES
        lines = [*lines[:MOST_CHANGED_LINES], f"  ... {rest} more lines"]
    indent = min((len(x[2:]) - len(x[2:].lstrip()) for x in lines if x[:5] != "  ..."), default=0)
    return tuple(x if x[:5] == "  ..." else x[:2] + x[2 + indent :] for x in lines)


def _text(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))
