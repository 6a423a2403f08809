"""Numbers in sentences."""

from __future__ import annotations

import re

LONGEST_NUMBER = 20
"""Digits of a number that are quoted."""


def counted(count: int, thing: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"


def shortened(sentence: str) -> str:
    """The sentence with the beginning of each very long number in it, and how long that is."""
    return re.sub(
        rf"\d{{{LONGEST_NUMBER + 1},}}",
        lambda number: f"{number[0][:LONGEST_NUMBER]}... ({len(number[0])} digits)",
        sentence,
    )
