"""``python -m phaseflip``: list the kernels, run one and report its verdict, study its faults, compile it for a GPU.

Exit codes: 0 clean, 1 wrong result or a finding of severity error (a deadlock is one), 2 bad input, 3 a fault of the
harness itself, a package that is missing, or a report that cannot be written. With ``--json`` standard output holds one
JSON object and nothing else, whatever happens; an error is ``{"error": "one sentence"}``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from phaseflip import __version__
from phaseflip.cli.options import Joined, add_outputs_and_scalars, check_seed, once
from phaseflip.errors import BadInput
from phaseflip.gpu.devices import DEVICE_CHOICES
from phaseflip.system.interrupts import interrupts_heard
from phaseflip.system.output import (
    OutputLost,
    on_terminal,
    output_kept_clean,
    write_error,
    write_output,
)

if TYPE_CHECKING:
    from rich.progress import Progress

CLEAN, FAILED, BAD_INPUT, HARNESS_ERROR, INTERRUPTED = 0, 1, 2, 3, 130
PROGRESS_AFTER_SECONDS = 2.0
LARGEST_EXTENT = 2**31 - 1
"""TVM's index type in these kernels is a 32-bit int."""


class Outcome(NamedTuple):
    """What a command has to say: exit code, the object of --json, (label, text) rows for people."""

    code: int
    report: dict[str, Any]
    rows: list[tuple[str, str]]


class _Parser(argparse.ArgumentParser):
    """Reports what is wrong through BadInput, so that every error leaves by the same door."""

    def error(self, message: str) -> NoReturn:
        raise BadInput(f"{message} (see python -m phaseflip --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        write_output(message)  # of --help and --version; errors leave by BadInput


def _extent(text: str) -> int:
    """A whole number in decimal digits; whether a kernel takes it, the kernel's rule says."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number such as 512")
    if len(text.lstrip("+-0")) > len(str(LARGEST_EXTENT)) or abs(int(text)) > LARGEST_EXTENT:
        raise argparse.ArgumentTypeError(f"{text} is too large; {LARGEST_EXTENT} is the limit")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    common = _Parser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    common.add_argument(
        "--traceback",
        action="store_true",
        help="show where a fault of the harness happened (also: PHASEFLIP_TRACEBACK=1)",
    )
    parser = _Parser(
        prog="python -m phaseflip",
        allow_abbrev=False,
        description="Run TIRx GEMM kernels for Blackwell and Hopper, simulated or on a GPU.",
        epilog="exit codes: 0 clean, 1 wrong result or finding, 2 bad input, 3 harness error",
    )
    parser.add_argument("--version", action="version", version=f"phaseflip {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    from phaseflip.cli import benchmark as cli_benchmark
    from phaseflip.cli import compare as cli_compare
    from phaseflip.cli import conformance as cli_conformance
    from phaseflip.cli import gpu as cli_gpu
    from phaseflip.cli import list as cli_list
    from phaseflip.cli import silicon as cli_silicon
    from phaseflip.cli import study as cli_study

    cli_list.add_commands(commands, common)
    run = commands.add_parser(
        "run", parents=[common], allow_abbrev=False, help="run one kernel and judge its result"
    )
    run.add_argument(
        "kernel",
        metavar="KERNEL",
        help="a name, or path/to/file.py:NAME of a factory or Kernel; then :ctas=2 or the like",
    )
    for extent, meaning in (("M", "rows of A and D"), ("N", "rows of B"), ("K", "columns of A, B")):
        run.add_argument(extent, type=_extent, metavar=extent, help=meaning)
    run.add_argument("--seed", type=_extent, default=0, help="of the inputs (default: 0)")
    run.add_argument(
        "--schedule",
        default="in-order",
        metavar="NAME",
        help="in-order, eager, lazy or random:SEED (default: in-order), then any of +delay:cta1 +delay:warps4-7"
        " +delay:cta0.warp3, which hold threads back as long as anything else can happen",
    )
    run.add_argument(
        "--inputs",
        default="normal",
        metavar="KIND",
        help="normal, integers, one-hot, permutation, large, subnormal or special (default: normal),"
        " then any of +nan-a:ROW +nan-b:ROW +permute-a:SEED +scale-a:POWER +zero-chunk:INDEX,"
        " as in integers+nan-a:5",
    )
    run.add_argument(
        "--checks",
        action=Joined,
        default="all",
        metavar="LIST",
        help="all, none, or some of races,protocol,memory,lifecycle,deadlock (default: all)",
    )
    run.add_argument(
        "--profile",
        default="ptx",
        metavar="NAME",
        help="ptx judges by the text of the PTX ISA; practice makes notes of rules that are widely"
        " bent (default: ptx)",
    )
    run.add_argument(
        "--device",
        choices=DEVICE_CHOICES,
        default="auto",
        help="sim, cuda, or auto: a GPU whose compute capability fits the kernel, else the simulator",
    )
    run.add_argument(
        "--prebuilt", metavar="DIR", help="run what `build` made there, on a GPU; needs no compiler"
    )
    add_outputs_and_scalars(run)
    run.set_defaults(handler=_run)
    modules = (cli_compare, cli_study, cli_gpu, cli_conformance, cli_silicon, cli_benchmark)
    for module in modules:
        module.add_commands(commands, common, _extent)
    commands.metavar = f"{{{','.join(commands.choices)}}}"
    return parser


class _ProgressBar:
    """Calls ``(done, total)`` drive a bar on standard error, shown once two seconds have passed."""

    def __init__(
        self, label: str, unit: str = "CTAs", delay_seconds: float = PROGRESS_AFTER_SECONDS
    ) -> None:
        self._label, self._unit = label, unit
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._closed = False
        self._done: tuple[int, int | None] = (0, None)
        self._timer = threading.Timer(delay_seconds, self._show)
        self._timer.daemon = True

    def __enter__(self) -> _ProgressBar:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._done = (done, total)
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        with self._lock:
            if self._closed:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._progress = Progress(
                *columns,
                TextColumn(self._unit),
                Elapsed(),
                console=Console(stderr=True),
                transient=True,
            )
            done, total = self._done
            self._progress.add_task(self._label, completed=done, total=total)
            self._progress.start()


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "CTAs") -> Iterator[Callable[[int, int], None] | None]:
    """A progress callback (done, total) on a terminal, None elsewhere."""
    if not on_terminal(sys.stderr):
        yield None
        return
    with _ProgressBar(label, unit) as bar:
        yield bar


def _run(args: argparse.Namespace) -> Outcome:
    check_seed(args.seed)
    from phaseflip.cli.gpu import chosen
    from phaseflip.findings.finding import render
    from phaseflip.gemm.verify import verify

    shape = (args.M, args.N, args.K)
    kernel, device, gpu = chosen(args.kernel, shape, args.device, args.prebuilt)
    try:
        with gpu or contextlib.nullcontext(), progress_bar(kernel.name) as progress:
            verdict = verify(
                kernel,
                *shape,
                seed=args.seed,
                inputs=args.inputs,
                schedule=args.schedule,
                progress=progress,
                checks=args.checks,
                profile=args.profile,
                gpu=gpu,
                outputs=args.out,
                scalars=once(args.scalar),
            )
    except MemoryError:
        raise BadInput(
            f"the matrices of shape {args.M}x{args.N}x{args.K} do not fit into memory;"
            " choose smaller M, N and K"
        ) from None
    report = plain({**verdict.to_json(), "device": device.name})
    if device.note:
        report["note"] = device.note
    findings = [line for finding in verdict.findings for line in render(finding).splitlines()]
    rows = report_rows(report, findings, f"{args.inputs}, seed {args.seed}")
    return Outcome(CLEAN if verdict.passed else FAILED, report, rows)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NumPy scalars as Python's, NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, str):
        return plain(value.tolist())
    if isinstance(value, float) and not (float("-inf") < value < float("inf")):
        return None
    return value


def _oracle_line(oracle: dict[str, Any]) -> str:
    state = {True: "passed", False: "FAILED", None: "not applicable"}[oracle.get("passed")]
    message = (oracle.get("message") or "").removeprefix("not applicable: ")
    return f"{oracle.get('name', '?'):<18}{state:<16}{message}".rstrip()


def report_rows(report: dict[str, Any], findings: list[str], inputs: str) -> list[tuple[str, str]]:
    """A report for people: (label, text) rows; one without label continues the row above."""
    error = report["max_abs_error"]
    error_text = "max abs error not finite" if error is None else f"max abs error {error:.3g}"
    judged = {o["name"]: o["passed"] for o in report.get("oracles", [])}
    if error is None and judged.get("bound", False) is None:
        error_text = "no reference"
    extents = zip("MNK", report["shape"], strict=True)
    seconds = "  ".join(f"{k} {v:.3f}" for k, v in report["seconds"].items() if v is not None)
    groups: list[tuple[str, list[str]]] = [
        ("kernel", [str(report["kernel"])]),
        ("shape", ["  ".join(f"{axis} {extent}" for axis, extent in extents)]),
        ("inputs", [inputs]),
        ("device", [" - ".join(str(report[k]) for k in ("device", "note") if report.get(k))]),
        ("schedule", [str(report["schedule"])]),
        ("verdict", [f"{'PASSED' if report['passed'] else 'FAILED'}   {error_text}"]),
        ("findings", findings or ["none"]),
        ("oracles", [_oracle_line(oracle) for oracle in report.get("oracles", [])]),
        ("counters", [f"{name:<34}{value:>14,}" for name, value in report["counters"].items()]),
        ("seconds", [seconds] if seconds else []),
        ("replay", [str(report["replay"])]),
    ]
    return [
        (f"{'' if i else label:<10}", text)
        for label, group in groups
        for i, text in enumerate(group)
    ]


def _text(rows: list[tuple[str, str]], passed: bool) -> str:
    """Aligned lines; the verdict is coloured on a terminal, and nothing else differs there."""
    from rich.console import Console
    from rich.text import Text

    kept = io.StringIO()  # not written by rich, which exits 1 if the reader has gone
    terminal = True if on_terminal(sys.stdout) else None
    console = Console(
        file=kept,
        force_terminal=terminal,
        highlight=False,
        soft_wrap=True,
        markup=False,
        emoji=False,
    )
    for label, text in rows:
        style = ("bold green" if passed else "bold red") if label.startswith("verdict") else ""
        console.print(Text.assemble((label, "dim"), (text, style)))
    return kept.getvalue()


def _fail(sentence: str, as_json: bool) -> None:
    if as_json:
        with contextlib.suppress(OutputLost):
            write_output(json.dumps({"error": sentence}) + "\n")
            return
    write_error(f"phaseflip: {sentence}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    with_traceback = "--traceback" in words or os.environ.get("PHASEFLIP_TRACEBACK") == "1"
    start = time.perf_counter()
    try:
        with interrupts_heard():
            args = _parser().parse_args(words)
            with output_kept_clean():
                outcome = args.handler(args)
        if as_json:
            write_output(json.dumps(outcome.report, allow_nan=False) + "\n")
        else:
            write_output(_text(outcome.rows, passed=outcome.code == CLEAN))
    except BadInput as error:
        if with_traceback:
            write_error(traceback.format_exc())
        _fail(str(error), as_json)
        return BAD_INPUT
    except KeyboardInterrupt:
        exec(
            ""
        )  # Python notes an interrupt inside of exec(text), and would end by SIGINT instead of by our code
        _fail(f"interrupted after {time.perf_counter() - start:.1f} s", as_json)
        return INTERRUPTED
    except ModuleNotFoundError as error:
        if with_traceback:
            write_error(traceback.format_exc())
        _fail(
            f"this Python ({sys.executable}) has no {error.name}; `make run` installs the packages of requirements.txt"
            " into .venv, whose Python `. .venv/bin/activate` chooses",
            as_json,
        )
        return HARNESS_ERROR
    except OutputLost as error:
        _fail(str(error), as_json=False)
        return HARNESS_ERROR
    except Exception as error:
        if with_traceback:
            write_error(traceback.format_exc())
        what = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        hint = "" if with_traceback else "; --traceback shows where"
        _fail(f"fault of the harness, not a verdict on the kernel ({what}){hint}", as_json)
        return HARNESS_ERROR
    return outcome.code
