"""Reports as text for people, and as what JSON can hold."""

from __future__ import annotations

import io
import sys
from typing import Any

from phaseflip.system.output import on_terminal


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
        ("explored", [str(report["explored"]["text"])] if report.get("explored") else []),
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


def text(rows: list[tuple[str, str]], passed: bool) -> str:
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
