"""What a command has to say, and its exit codes."""

from __future__ import annotations

from typing import Any, NamedTuple

CLEAN, FAILED, BAD_INPUT, HARNESS_ERROR, INTERRUPTED = 0, 1, 2, 3, 130


class Outcome(NamedTuple):
    """What a command has to say: exit code, the object of --json, (label, text) rows for people."""

    code: int
    report: dict[str, Any]
    rows: list[tuple[str, str]]
