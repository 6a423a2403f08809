"""``python -m phaseflip``: list the kernels, run one and report its verdict, study its faults, compile it for a GPU.

Exit codes: 0 clean, 1 wrong result or a finding of severity error (a deadlock is one), 2 bad input, 3 a fault of the
harness itself, a package that is missing, or a report that cannot be written. With ``--json`` standard output holds one
JSON object and nothing else, whatever happens; an error is ``{"error": "one sentence"}``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from phaseflip import __version__
from phaseflip.cli.options import Joined, add_outputs_and_scalars, check_seed, once
from phaseflip.cli.outcome import BAD_INPUT, CLEAN, FAILED, HARNESS_ERROR, INTERRUPTED, Outcome
from phaseflip.cli.progress import progress_bar
from phaseflip.cli.text import plain, report_rows, text
from phaseflip.errors import BadInput
from phaseflip.gpu.devices import DEVICE_CHOICES
from phaseflip.run.schedule import DEFAULT_LIMIT
from phaseflip.system.interrupts import interrupts_heard
from phaseflip.system.output import (
    OutputLost,
    output_kept_clean,
    write_error,
    write_output,
)

if TYPE_CHECKING:
    pass

LARGEST_EXTENT = 2**31 - 1
"""TVM's index type in these kernels is a 32-bit int."""


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
        help="explore (all orders that can make a difference), choices:... as it prints them, or in-order, eager, lazy,"
        " random:SEED (default: in-order), then any of +delay:cta1 +delay:warps4-7"
        " +delay:cta0.warp3, which hold threads back as long as anything else can happen",
    )
    run.add_argument(
        "--limit",
        type=_extent,
        default=DEFAULT_LIMIT,
        metavar="N",
        help=f"runs of --schedule explore at most (default: {DEFAULT_LIMIT})",
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


def _run(args: argparse.Namespace) -> Outcome:
    check_seed(args.seed)
    from phaseflip.cli.gpu import chosen
    from phaseflip.findings import render
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
                limit=args.limit,
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
            write_output(text(outcome.rows, passed=outcome.code == CLEAN))
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
