"""The commands `fault` and `study`: inject faults into kernels, and say who notices.

Exit codes of `fault`: 0 reported as expected (a catalogued fault under its name, a mutation in any way, the control not
at all), 1 not so or not ended in time, 2 bad input, 3 harness error. Of `study`: 0 all of that in every run that
notices the mutant, for every mutant that is not equivalent on all its runs, 1 not so, 2 bad input, 3 harness error in any run.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phaseflip.cli.main import CLEAN, FAILED, HARNESS_ERROR, Outcome
from phaseflip.cli.options import Several, check_seed, worker_processes
from phaseflip.errors import BadInput
from phaseflip.study.tables import study_rows
from phaseflip.system.folders import check_output
from phaseflip.system.output import on_terminal

Rows = list[tuple[str, str]]
DEFAULT_DIRECTORY = "build/study"
PAGE = "report.html"
LONGEST_LIMIT_S = 86400.0


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare both commands; `extent` parses a whole number."""
    fault = commands.add_parser(
        "fault",
        parents=[common],
        allow_abbrev=False,
        help="inject one fault into a kernel and see whether it is reported",
        epilog="exit codes: 0 reported as expected, 1 not, 2 bad input, 3 harness error",
    )
    fault.add_argument(
        "kernel",
        metavar="KERNEL",
        help="a name, or path/to/file.py:NAME of a factory or Kernel; then :ctas=2 or the like",
    )
    fault.add_argument(
        "fault",
        metavar="FAULT",
        help="of the catalogue, a mutation operator, or no-op: `python -m phaseflip list --faults` names them",
    )
    for name in "MNK":
        fault.add_argument(name, type=extent, metavar=name)
    fault.add_argument("--site", type=extent, default=0, help="which of its sites (default: 0)")
    fault.add_argument(
        "--schedule",
        default="in-order",
        metavar="NAME",
        help="in-order, eager, lazy or random:SEED (default: in-order)",
    )
    study = commands.add_parser(
        "study",
        parents=[common],
        allow_abbrev=False,
        help="inject many faults into many kernels and tabulate which oracle notices what",
        description="Run mutants, each in a worker process under a time limit. An interrupted study goes on where it "
        "was when the same command is given again.",
        epilog="exit codes: 0 every mutant is reported as expected or equivalent, 1 not so, 2 bad input, "
        "3 harness error",
    )
    study.add_argument(
        "--kernels",
        action=Several,
        default=[],
        metavar="KERNEL",
        help="names, or path/to/file.py:NAME, with blanks or commas between them (default: all)",
    )
    study.add_argument(
        "--faults",
        action=Several,
        default=["catalogue"],
        metavar="FAULT",
        help="catalogue, mutations, and names that `list --faults` shows (default: catalogue)",
    )
    study.add_argument(
        "--shapes",
        action=Several,
        each=_shape,
        default=[],
        metavar="MxNxK",
        help="used where a kernel takes them (default: up to three that suit the fault)",
    )
    study.add_argument(
        "--schedules",
        type=extent,
        default=3,
        metavar="N",
        help="the first N of in-order, eager, lazy, random:1, random:2 ... (default: 3)",
    )
    study.add_argument(
        "--jobs",
        type=extent,
        default=None,
        metavar="N",
        help="worker processes (default: one per core)",
    )
    study.add_argument(
        "--dask",
        default="",
        metavar="ADDRESS",
        help="of a dask.distributed scheduler, instead of --jobs",
    )
    study.add_argument(
        "-o",
        dest="directory",
        metavar="DIR",
        help="for results.jsonl and report.html; it belongs to one study "
        f"(default: a directory under {DEFAULT_DIRECTORY} for each study)",
    )
    for command in (fault, study):
        command.add_argument("--seed", type=extent, default=0, help="of the inputs (default: 0)")
        command.add_argument(
            "--time-limit",
            type=_seconds,
            default=None,
            metavar="SECONDS",
            help="of one run, after which the mutant counts as killed (default: 120)",
        )
    fault.set_defaults(handler=run_fault_command)
    study.set_defaults(handler=run_study_command)


def _shape(text: str) -> tuple[int, int, int]:
    match = re.fullmatch(r"([0-9]{1,9})[xX]([0-9]{1,9})[xX]([0-9]{1,9})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 128x256x64")
    m, n, k = map(int, match.groups())
    return m, n, k


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LONGEST_LIMIT_S:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds such as 60")
    return value


# --- fault ---------------------------------------------------------------------------------------


def run_fault_command(args: argparse.Namespace) -> Outcome:
    """`python -m phaseflip fault`: one run, in a process of its own."""
    from phaseflip.run.schedule import parse_schedule
    from phaseflip.study.plan import LIMIT_S, outcome_of
    from phaseflip.system.worker_pool import RAISED, TIMED_OUT, WorkerPool

    check_seed(args.seed)
    parse_schedule(args.schedule)
    item = {
        "kernel": args.kernel,
        "fault": args.fault,
        "site": args.site,
        "shape": [args.M, args.N, args.K],
        "schedule": args.schedule,
        "seed": args.seed,
        "time_limit": args.time_limit,
    }
    with WorkerPool(
        "phaseflip.study.mutant_run:run_fault", limit_s=args.time_limit or LIMIT_S
    ) as pool:
        ended = pool.call(item)
    refusals = ("BadInput", "BadSchedule", "UnsupportedInstruction")
    if ended.how == RAISED and ended.value[0] in refusals:
        raise BadInput(ended.value[1])
    outcome = outcome_of(item, ended)
    if ended.how == TIMED_OUT:
        from phaseflip.faults import find_fault

        fault = find_fault(args.fault)
        outcome |= {"kind": fault.kind, "sentence": fault.sentence}
    if outcome["fate"] == "harness error":
        raise RuntimeError(outcome["reason"]) from RuntimeError(ended.detail)
    reported = ended.how != TIMED_OUT and _as_expected(outcome)
    return Outcome(CLEAN if reported else FAILED, outcome, fault_rows(outcome))


def _as_expected(outcome: dict[str, Any]) -> bool:
    if outcome["kind"] == "control":
        return outcome["fate"] == "equivalent"
    if outcome["kind"] == "catalogue":
        return outcome["fate"] == "killed as expected"
    return outcome["fate"] in ("killed as expected", "killed otherwise")


def fault_rows(outcome: dict[str, Any]) -> Rows:
    """The outcome of one run for people."""
    groups: list[tuple[str, list[str]]] = [
        ("kernel", [outcome["kernel"]]),
        ("fault", [f"{outcome['fault']}: {outcome.get('sentence', '')}".rstrip(": ")]),
        ("site", [_site(outcome)]),
        ("change", outcome["change"]),
        ("shape", ["  ".join(f"{a} {n}" for a, n in zip("MNK", outcome["shape"], strict=True))]),
        ("schedule", [outcome["schedule"]]),
        ("verdict", [outcome["fate"].upper()]),
        ("expected", [" or ".join(" + ".join(titles) for titles in outcome.get("expected", []))]),
        ("reported", [", ".join(outcome["codes"]) or outcome["reason"] or "nothing"]),
        ("note", _note(outcome)),
        ("first", _finding_lines(outcome["first_finding"])),
        ("oracles", [f"{name:<18}{said}" for name, said in outcome["oracles"].items()]),
        ("seconds", [f"{outcome['seconds']:.3f}"]),
        ("replay", [outcome["replay"]]),
    ]
    return [
        (f"{'' if i else label:<10}", text)
        for label, group in groups
        for i, text in enumerate(line for line in group if line)
    ]


def _note(outcome: dict[str, Any]) -> list[str]:
    """What may be tried where a fault shows nothing."""
    if outcome["fate"] != "equivalent" or outcome["kind"] == "control":
        return []
    return [
        "nothing differs from the original at this shape and schedule; a larger K, more tiles or another schedule may show it"
    ]


def _site(outcome: dict[str, Any]) -> str:
    number = f"number {outcome['site_index']}"
    if "sites" not in outcome:  # the run did not end, and nobody has looked
        return number
    return f"{outcome['site'] or 'no line'}, {number} of {outcome['sites']}"


def _finding_lines(finding: dict[str, Any] | None) -> list[str]:
    if finding is None:
        return []
    lines = [f"{finding['title']} at {finding['file']}:{finding['line']}", f"  {finding['source']}"]
    other = finding["other"]
    if other:
        lines += [f"against {other['file']}:{other['line']}", f"  {other['source']}"]
    lines.append(finding["message"])
    return lines + ([f"fix: {finding['fix']}"] if finding["fix"] else [])


# --- study ---------------------------------------------------------------------------------------


def run_study_command(args: argparse.Namespace) -> Outcome:
    """`python -m phaseflip study`: plan, run what is missing, write the page, tabulate."""
    check_seed(args.seed)
    jobs = worker_processes(args.jobs)
    from phaseflip.study.page import write_report
    from phaseflip.study.plan import LIMIT_S, make_plan, run_study
    from phaseflip.study.results import ABOUT, RESULTS, mutants, summary

    own = {"names": (ABOUT, RESULTS), "files": (ABOUT, RESULTS, PAGE)}
    if args.directory is not None:
        check_output(args.directory, "study", **own)
    plan = make_plan(
        args.kernels, args.faults, args.shapes, n_schedules=args.schedules, seed=args.seed
    )
    directory = Path(args.directory or Path(DEFAULT_DIRECTORY, _digest(plan.about)))
    check_output(directory, "study", **own)
    with _progress_bar() as progress:
        outcomes = run_study(
            plan,
            directory,
            jobs=jobs,
            limit_s=args.time_limit or LIMIT_S,
            dask=args.dask,
            progress=progress,
        )
    page = directory / PAGE
    write_report(outcomes, page)
    report = summary(outcomes) | {
        "without_site": list(plan.without_site),
        "results": str(directory / RESULTS),
        "report": str(page),
    }
    code = FAILED if report["problems"] else CLEAN
    if any(counts["harness error"] for counts in report["kernels"].values()) or (
        "harness error" in report["control"].values()
    ):
        code = HARNESS_ERROR
    return Outcome(code, report, study_rows(report, mutants(outcomes)))


@contextlib.contextmanager
def _progress_bar() -> Iterator[Callable[[int, int, dict[str, Any] | None], None] | None]:
    """A bar on standard error if that is a terminal."""
    if not on_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed
    from rich.progress import TimeRemainingColumn as Remaining

    text = TextColumn("{task.description}", markup=False)
    columns = (text, BarColumn(), MofNCompleteColumn(), TextColumn("runs"), Elapsed(), Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def update(done: int, total: int, outcome: dict[str, Any] | None) -> None:
            what = "starting" if outcome is None else f"{outcome['kernel']} {outcome['fault']}"
            bar.update(task, completed=done, total=total, description=what)

        yield update


def _digest(about: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
