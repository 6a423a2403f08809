"""Numbers in sentences."""

from __future__ import annotations

LONGEST_NUMBER = 20
"""Digits of a number that are quoted."""


def counted(count: int, thing: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def quoted(number: str) -> str:
    """A number as somebody wrote it; of a very long one its beginning, and how long it is."""
    if len(number) <= LONGEST_NUMBER:
        return number
    return f"{number[:LONGEST_NUMBER]}... ({len(number)} characters)"
