"""The command `list`: the kernels with their shapes, or the faults that can be injected. Exit codes: 0, 2 bad input."""

from __future__ import annotations

import argparse
from typing import Any

from phaseflip.cli.main import CLEAN, Outcome


def add_commands(commands: Any, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "list",
        parents=[common],
        allow_abbrev=False,
        help="name the kernels and their shapes, or the faults",
    )
    parser.add_argument(
        "--faults",
        action="store_true",
        help="name the faults that `fault`, `study` and `silicon` inject, and the kernels they are for",
    )
    parser.set_defaults(handler=_list)


def _list(args: argparse.Namespace) -> Outcome:
    return _faults() if args.faults else _kernels()


def _kernels() -> Outcome:
    from phaseflip.gemm.kernel import list_kernels

    kernels: list[dict[str, Any]] = [
        {
            "name": kernel.name,
            "shapes": kernel.shape_rule.describe() if kernel.shape_rule else "any",
            "needs": f"compute capability {'.'.join(map(str, kernel.needs or ('any',)))}",
            "dtype": kernel.dtype,
            "summary": kernel.summary,
        }
        for kernel in list_kernels()
    ]
    entries = [
        (k["name"], k["summary"], f"{k['shapes']}; {k['dtype']}; {k['needs']}") for k in kernels
    ]
    return Outcome(CLEAN, {"kernels": kernels}, _rows(entries))


def _faults() -> Outcome:
    from phaseflip.faults import catalogue, mutations, no_op

    faults: list[dict[str, Any]] = [
        {
            "name": fault.name,
            "kind": fault.kind,
            "kernels": list(fault.kernels),
            "sentence": fault.sentence,
        }
        for fault in (*catalogue(), *mutations(), no_op())
    ]
    entries = [
        (
            f["name"],
            f["sentence"],
            f"{f['kind']}: {', '.join(f['kernels']) or 'any kernel that has a site'}",
        )
        for f in faults
    ]
    return Outcome(CLEAN, {"faults": faults}, _rows(entries))


def _rows(entries: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Two rows for each (name, sentence, details)."""
    width = max((len(name) for name, _, _ in entries), default=0) + 2
    return [
        row
        for name, sentence, details in entries
        for row in ((f"{name:<{width}}", sentence), (" " * width, details))
    ]
