"""The command `compare`: counters of several kernels side by side. Exit codes: 0 all right, 1 a wrong result, 2 bad input."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

from phaseflip.cli.main import CLEAN, FAILED, Outcome, progress_bar
from phaseflip.cli.options import Several
from phaseflip.errors import BadInput

DEFAULT = 512


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare the command; `extent` parses a whole number."""
    parser = commands.add_parser(
        "compare",
        parents=[common],
        allow_abbrev=False,
        help="show side by side what kernels do for the same work",
        epilog="exit codes: 0 every result right, 1 one is wrong, 2 bad input, 3 harness error",
    )
    for name in "MNK":
        parser.add_argument(
            name, type=extent, nargs="?", metavar=name, help=f"(default: {DEFAULT})"
        )
    parser.add_argument(
        "--kernels",
        action=Several,
        default=[],
        metavar="KERNEL",
        help="names, or path/to/file.py:NAME, with blanks or commas between them (default: all of kernels/)",
    )
    parser.set_defaults(handler=_compare, extent=extent)


def _shape_and_names(args: argparse.Namespace) -> tuple[tuple[int, int, int], list[str]]:
    """M, N, K and the names. The shape may follow after the names: no kernel is called by a number."""
    numbers = [number for number in (args.M, args.N, args.K) if number is not None]
    names = args.kernels
    if not numbers:
        names = list(itertools.takewhile(lambda word: not word.isdecimal(), args.kernels))
        try:
            numbers = [args.extent(word) for word in args.kernels[len(names) :]]
        except argparse.ArgumentTypeError as error:
            raise BadInput(str(error)) from None
    if len(numbers) > 3 or (args.kernels and not names):
        raise BadInput("compare takes M N K and, after --kernels, at least one name of a kernel")
    M, N, K = (numbers + [DEFAULT] * 3)[:3]
    return (M, N, K), names


def _compare(args: argparse.Namespace) -> Outcome:
    from phaseflip.gemm.compare import BLOCK, MEASURES, compare
    from phaseflip.gemm.kernel import find_kernel, list_kernels

    shape, names = _shape_and_names(args)
    wrong = [
        f"{axis} is {extent}" for axis, extent, unit in zip("MNK", shape, BLOCK, strict=True)
        if extent <= 0 or extent % unit
    ]  # fmt: skip
    if wrong:
        raise BadInput(
            f"compare needs M and N that are multiples of 128 and K that is one of 64, but {wrong[0]}"
        )
    kernels = [find_kernel(name) for name in names] or list_kernels()
    with progress_bar("compare", "kernels") as progress:
        columns = compare(kernels, shape, progress)
    report = {
        "shape": list(shape),
        "block": list(BLOCK),
        "kernels": [
            {
                "kernel": c.kernel,
                "shape": list(c.shape),
                "passed": c.passed,
                "counters": c.counters,
                "per_block": {measure: c.per_block(measure) for measure in MEASURES},
            }
            for c in columns
        ],
    }
    rows = [
        ("", "counts per 128 x 128 x 64 block of the product; instructions are counted by warp"),
        ("", ""),
    ]
    width = max(len(c.kernel) for c in columns) + 2
    label = max(len(measure) for measure in MEASURES) + 2

    def line(name: str, cells: list[str]) -> tuple[str, str]:
        return f"{name:<{label}}", "".join(f"{cell:>{width}}" for cell in cells)

    rows.append(line("", [c.kernel for c in columns]))
    rows += [
        line(measure, [_short(c.per_block(measure)) for c in columns])
        for measure in MEASURES
        if any(c.per_block(measure) for c in columns)
    ]
    rows.append(line("result", ["right" if c.passed else "WRONG" for c in columns]))
    elsewhere = [c for c in columns if c.shape != shape]
    if elsewhere:
        rows.append(("", ""))
    for c in elsewhere:
        at = "x".join(map(str, c.shape))
        rows.append(("", f"{c.kernel} does not take {'x'.join(map(str, shape))}: run at {at}"))
    code = CLEAN if all(c.passed for c in columns) else FAILED
    return Outcome(code, report, rows)


def _short(value: float) -> str:
    """A count per block: whole where it is, else two digits after the point."""
    if value == 0:
        return "-"
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:,.2f}"
