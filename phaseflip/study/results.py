"""What a study knows: a file of outcomes that survives an interruption, and what they add up to.

`results.jsonl` holds one JSON object per run. While the study runs, each is appended and flushed as it is known, in the
order in which runs end; when all are known, the file is replaced by one in the order of the plan.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..errors import BadInput
from ..system.json_files import bad_line, cut_unfinished, read_lines
from .mutant_run import (
    AS_EXPECTED,
    CONTROL,
    EQUIVALENT,
    FATES,
    HARNESS_ERROR,
    INVALID,
    KILLED,
    NOTICES,
    ORACLES,
    OTHERWISE,
    SURVIVED,
    TIME_OUT,
    Item,
    Outcome,
    blank_outcome,
)

RESULTS, ABOUT = "results.jsonl", "study.json"
_NO_RUN: Item = {"kernel": "", "fault": "", "site": 0, "shape": (), "schedule": "", "seed": 0}
OUTCOME_KEYS, OUTCOME = tuple(blank_outcome(_NO_RUN)), "outcome of a study"
Key = tuple[str, str, int, tuple[int, ...], str, int]


def key_of(run: Item | Outcome) -> Key:
    """What makes a run the same run: kernel, fault, site, shape, schedule and seed."""
    site = run["site_index"] if "site_index" in run else run["site"]
    return run["kernel"], run["fault"], site, tuple(run["shape"]), run["schedule"], run["seed"]


class Results:
    """The outcomes in one directory, which belongs to one study; a context manager that locks it.

    BadInput if the directory belongs to another study, or if a study is writing to it.
    """

    def __init__(self, directory: Path, about: dict[str, Any]) -> None:
        self.directory, self.about = Path(directory), about
        self.path = self.directory / RESULTS
        self.known: dict[Key, Outcome] = {}
        self._lock: IO[str] | None = None
        self._file: IO[str] | None = None

    def __enter__(self) -> Results:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.directory / ABOUT, "a+")
        except OSError as error:
            raise BadInput(f"cannot write to {self.directory}: {error.strerror}") from error
        try:
            self._claim(self._lock)
            self._load()
            self._file = open(self.path, "a")
        except BaseException as error:
            self._lock.close()
            if isinstance(error, OSError):
                raise BadInput(f"cannot write to {self.path}: {error.strerror}") from error
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in (self._file, self._lock):
            if file is not None:
                file.close()

    def append(self, outcome: Outcome) -> None:
        """Write one outcome so that it outlives this process."""
        assert self._file is not None
        self.known[key_of(outcome)] = outcome
        self._file.write(_line(outcome))
        self._file.flush()

    def finish(self, items: Iterable[Item]) -> list[Outcome]:
        """Settle the fates, write all outcomes in the order of the plan, and return them."""
        outcomes = settle([self.known[key_of(item)] for item in items])
        replacement = self.path.with_suffix(".tmp")
        replacement.write_text("".join(map(_line, outcomes)))
        os.replace(replacement, self.path)
        return outcomes

    def _claim(self, lock: IO[str]) -> None:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"another study is writing to {self.directory}") from None
        if os.path.getsize(self.directory / ABOUT) == 0:
            if self.path.exists():
                raise BadInput(f"{self.path} is not this study's; give another directory with -o")
            lock.write(json.dumps(self.about, indent=2) + "\n")
            lock.flush()
            return
        try:
            lock.seek(0)
            there = json.loads(lock.read())
            changed = [name for name in self.about if there.get(name) != self.about[name]]
        except (ValueError, AttributeError):
            raise BadInput(_damaged(self.directory / ABOUT, self.path)) from None
        if changed:
            raise BadInput(
                f"{self.directory} holds another study (other {' and '.join(changed)}); "
                "give another directory with -o, or remove that one"
            )

    def _load(self) -> None:
        """Read what an earlier run has left; a last line that it did not finish is cut off."""
        self.known = _read(self.path)
        cut_unfinished(self.path)
        # What the harness failed at, or had no time for, is worth another try.
        self.known = {
            key: outcome
            for key, outcome in self.known.items()
            if outcome["fate"] != HARNESS_ERROR and TIME_OUT not in outcome["codes"]
        }


def _damaged(about: Path, results: Path) -> str:
    """What to do: without `about` the results are nobody's, and only where there are none may the study begin anew."""
    if not results.exists():
        return f"{about} is damaged; remove that file"
    return (
        f"{about} is damaged, and it said whose outcomes {results} holds: the study cannot go on there; "
        f"give another directory with -o ({results.name} can still be read)"
    )


def read_results(path: Path) -> list[Outcome]:
    """The outcomes of a finished or unfinished study, settled; BadInput if the file cannot be read."""
    if not path.exists():
        raise BadInput(f"there is no file {path}, and so no results of a study")
    return settle(list(_read(path).values()))


def _read(path: Path) -> dict[Key, Outcome]:
    """The outcomes in a file, by run; of one that was repeated the last."""
    known = {}
    for number, outcome in enumerate(read_lines(path, OUTCOME_KEYS, OUTCOME), 1):
        try:
            known[key_of(outcome)] = outcome
        except TypeError:
            raise bad_line(path, number, OUTCOME) from None
    return known


def _line(outcome: Outcome) -> str:
    return json.dumps(outcome, allow_nan=False) + "\n"


# --- what the runs of a mutant add up to ---------------------------------------------------------


@dataclass(frozen=True)
class MutantResult:
    """One mutant over all its shapes and schedules; `runs` are its outcomes."""

    kernel: str
    fault: str
    site_index: int
    fate: str
    runs: tuple[Outcome, ...]

    @property
    def first(self) -> Outcome:
        """The run that shows the fate: the first whose own fate it is."""
        return next((run for run in self.runs if run["fate"] == self.fate), self.runs[0])

    @property
    def label(self) -> str:
        """As the lists name it: "hgemm_v2 missing-phase-flip at kernels/hgemm_v2.py:108"."""
        return f"{self.kernel} {self.fault} at {self.runs[0]['site'] or 'no line'}"

    @property
    def where(self) -> str:
        """The label, the first run that shows the fate, and in how many runs it is so."""
        shape = "x".join(map(str, self.first["shape"]))
        same = sum(run["fate"] == self.fate for run in self.runs)
        return f"{self.label}, at {shape} under {self.first['schedule']} ({same} of {len(self.runs)} runs)"

    @property
    def valid_runs(self) -> int:
        """Runs that took place."""
        return sum(run["fate"] not in (INVALID, HARNESS_ERROR) for run in self.runs)

    @property
    def timed_out(self) -> bool:
        """Whether a run did not end within the limit."""
        return any(TIME_OUT in run["codes"] for run in self.runs)

    def noticed_by(self, oracle: str) -> bool:
        """Whether the oracle alone notices the mutant in some run."""
        return any(run["oracles"][oracle] == NOTICES for run in self.runs)


def settle(outcomes: list[Outcome]) -> list[Outcome]:
    """A run that shows no difference is "equivalent" only if no run of its mutant shows one, else "survived"."""
    fates = {(m.kernel, m.fault, m.site_index): m.fate for m in mutants(outcomes)}
    return [
        o | {"fate": EQUIVALENT if fates[_mutant_key(o)] == EQUIVALENT else SURVIVED}
        if _shows_nothing(o)
        else o
        for o in outcomes
    ]


def mutants(outcomes: Sequence[Outcome]) -> list[MutantResult]:
    """Group runs by mutant, in the order of their first run."""
    grouped: dict[tuple[str, str, int], list[Outcome]] = {}
    for outcome in outcomes:
        grouped.setdefault(_mutant_key(outcome), []).append(outcome)
    return [MutantResult(*key, _fate(runs), tuple(runs)) for key, runs in grouped.items()]


def faults_in_order(results: Sequence[MutantResult]) -> list[str]:
    """The names of the faults in an order that agrees with each kernel's."""
    position: dict[str, int] = {}
    for kernel in dict.fromkeys(m.kernel for m in results):
        for i, fault in enumerate(dict.fromkeys(m.fault for m in results if m.kernel == kernel)):
            position[fault] = max(i, position.get(fault, 0))
    return sorted(position, key=lambda fault: position[fault])


def _mutant_key(outcome: Outcome) -> tuple[str, str, int]:
    return outcome["kernel"], outcome["fault"], outcome["site_index"]


def _shows_nothing(outcome: Outcome) -> bool:
    return outcome["fate"] in (SURVIVED, EQUIVALENT) and not outcome["reason"]


def _fate(runs: Sequence[Outcome]) -> str:
    """The harness's own failure first, then how it was noticed; runs that do not build say nothing.

    What the catalogue lists for the kernel is to be reported under its name by every run that notices it; of anything
    else it says enough if one run does.
    """
    fates = {run["fate"] for run in runs}
    noticed = (OTHERWISE, AS_EXPECTED) if _is_catalogued(runs) else (AS_EXPECTED, OTHERWISE)
    for fate in (HARNESS_ERROR, *noticed):
        if fate in fates:
            return fate
    valid = [run for run in runs if run["fate"] != INVALID]
    if not valid:
        return INVALID
    return EQUIVALENT if all(map(_shows_nothing, valid)) else SURVIVED


def _is_catalogued(runs: Sequence[Outcome]) -> bool:
    """Whether the catalogue lists the fault for the kernel; a run that did not end does not know."""
    return any(run["kind"] == "catalogue" and run["catalogued"] for run in runs)


def problems(results: Sequence[MutantResult]) -> list[str]:
    """Why the study fails, one line each: harness errors, survivors, faults reported under another name
    in any run, the control.
    """
    found = []
    for mutant in results:
        reason = mutant.first["reason"]
        if mutant.fate == HARNESS_ERROR:
            found.append(f"harness error: {mutant.label}: {reason}")
        elif mutant.fault == CONTROL:
            if mutant.fate != EQUIVALENT:
                said = ", ".join(mutant.first["codes"]) or reason
                found.append(f"the control is {mutant.fate}: {mutant.label}: {said}")
        elif mutant.fate == SURVIVED:
            found.append(f"survived: {mutant.label}: {reason}")
        elif _is_catalogued(mutant.runs):
            if mutant.fate == OTHERWISE:
                said = ", ".join(mutant.first["codes"]) or "a numeric oracle alone"
                found.append(f"not reported as the catalogue says: {mutant.where}: {said}")
            elif mutant.fate == INVALID:
                found.append(f"does not build: {mutant.label}: {reason}")
    return found


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Counts for the table and --json: mutants by kernel and fate, and by oracle how many of the killed it notices."""
    results = mutants(outcomes)
    faults = [m for m in results if m.fault != CONTROL]
    killed = [m for m in faults if m.fate in KILLED]
    names = list(dict.fromkeys(m.kernel for m in results))
    by_kernel = {name: Counter(m.fate for m in faults if m.kernel == name) for name in names}
    return {
        "mutants": len(faults),
        "runs": len(outcomes),
        "kernels": {
            name: {fate: counts[fate] for fate in FATES} for name, counts in by_kernel.items()
        },
        "control": {m.kernel: m.fate for m in results if m.fault == CONTROL},
        "oracles": {
            oracle: {
                "notices": sum(m.noticed_by(oracle) for m in killed),
                "misses": sum(not m.noticed_by(oracle) for m in killed),
            }
            for oracle in ORACLES
        },
        "numbers_pass": sum(map(numbers_pass, outcomes)),
        "equivalent": [
            {"mutant": m.label, "text": m.first["site_text"], "runs": m.valid_runs}
            for m in faults
            if m.fate == EQUIVALENT
        ],
        "timed_out": [m.label for m in results if m.timed_out],
        "problems": problems(results),
    }


def numbers_pass(outcome: Outcome) -> bool:
    """The interesting case: the kernel is wrong, and the tolerance test of the chapter passes."""
    return outcome["fate"] in KILLED and outcome["oracles"]["tolerance"] == "passes"
