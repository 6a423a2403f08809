"""What the command `study` prints: tables of fates, faults and oracles, and the lists of what deserves a look."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phaseflip.grammar import counted

if TYPE_CHECKING:
    from rich.table import Table

    from phaseflip.study.results import MutantResult

Rows = list[tuple[str, str]]
TABLE_COLUMNS = 118
BETWEEN_COLUMNS = 3
SHORT = {
    "killed as expected": "as expected",
    "killed otherwise": "otherwise",
}


def study_rows(report: dict[str, Any], results: Sequence[MutantResult]) -> Rows:
    """Tables and lists for people. They hold no times, so that an interrupted study ends with the same."""
    tables = {
        "Mutants by fate (killed as expected, killed otherwise, ...)": _fates(report),
        "Faults by kernel": _matrix(results),
        "Killed mutants by oracle, each on its own": _oracles(report),
    }
    lines = [line for title, table in tables.items() for line in (title, *_lines(table), "")]
    lines.append(
        f"In {report['numbers_pass']} of {counted(report['runs'], 'run')} the kernel is wrong and the chapter's tolerance"
        " test passes."
    )
    lists = {
        "Equivalent (no run differs from the original)": [
            f"{entry['mutant']}, on {counted(entry['runs'], 'run')}: {entry['text']}"
            for entry in report["equivalent"]
        ],
        "No site in these kernels": report["without_site"],
        "Did not end within the time limit": report["timed_out"],
        "Problems": report["problems"],
    }
    for title, entries in lists.items():
        if entries:
            lines += ["", f"{title}:", *(f"  {entry}" for entry in entries)]
    lines.append("")
    rows = [("", line) for line in lines]
    rows += [("results   ", report["results"]), ("page      ", report["report"])]
    return [*rows, ("verdict   ", "PASSED" if not report["problems"] else "FAILED")]


def _fates(report: dict[str, Any]) -> Table:
    table = _table("kernel")
    counts = report["kernels"]
    for name in ("mutants", *next(iter(counts.values()))):
        table.add_column(SHORT.get(name, name), justify="right")
    table.add_column("control")
    for kernel, by_fate in counts.items():
        numbers = [sum(by_fate.values()), *by_fate.values()]
        table.add_row(kernel, *map(str, numbers), report["control"].get(kernel, ""))
    return table


def _matrix(results: Sequence[MutantResult]) -> Table:
    from phaseflip.study.results import faults_in_order

    table = _table("fault")
    kernels = list(dict.fromkeys(m.kernel for m in results))
    for kernel in kernels:
        table.add_column(kernel)
    for fault in faults_in_order(results):
        cells = []
        for kernel in kernels:
            fates = Counter(m.fate for m in results if (m.kernel, m.fault) == (kernel, fault))
            counted = [
                f"{n if n > 1 else ''} {SHORT.get(fate, fate)}".strip() for fate, n in fates.items()
            ]
            cells.append(", ".join(counted))
        table.add_row(fault, *cells)
    return table


def _oracles(report: dict[str, Any]) -> Table:
    table = _table("oracle")
    table.add_column("notices", justify="right")
    table.add_column("misses", justify="right")
    for oracle, counts in report["oracles"].items():
        table.add_row(oracle, str(counts["notices"]), str(counts["misses"]))
    return table


def _table(first_column: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first_column, no_wrap=True)
    return table


def _lines(table: Table) -> list[str]:
    """As text; a table whose words need more room than there should be is wider, so that none is cut."""
    from rich.console import Console

    for column in table.columns:
        cells = [str(column.header), *map(str, column.cells)]
        column.min_width = max(len(word) for cell in cells for word in (cell.split() or [""]))
    needed = sum((column.min_width or 0) + BETWEEN_COLUMNS for column in table.columns)
    kept = io.StringIO()
    width = max(TABLE_COLUMNS, needed)
    console = Console(file=kept, width=width, color_system=None, force_terminal=False)
    console.print(table, crop=False)
    return [line.rstrip() for line in kept.getvalue().splitlines()]
