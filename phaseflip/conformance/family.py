"""What a family of generated kernels gives: kernels, their arrays, and how many cases each holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Generate = Callable[[np.random.Generator], "Program"]


@dataclass
class Program:
    """One generated kernel.

    `function` is its PrimFunc; `arrays` what it is called with, in order, one for each parameter; `outputs` the positions
    of those that are compared; `cases` how many cases its CTAs are; `text` says in words what was drawn.
    """

    function: Any
    arrays: list[np.ndarray]
    outputs: list[int]
    cases: int
    text: str


@dataclass(frozen=True)
class Family:
    """A kind of kernels: `generate` draws one from a random generator; `programs` is how many a full run draws."""

    name: str
    generate: Generate
    programs: int
    summary: str = field(default="", compare=False)


FAMILIES: dict[str, Family] = {}


def family(name: str, programs: int) -> Callable[[Generate], Generate]:
    """Register the decorated generator; the first line of its docstring is the summary."""

    def register(generate: Generate) -> Generate:
        summary = (generate.__doc__ or "").strip().splitlines()[0]
        FAMILIES[name] = Family(name, generate, programs, summary)
        return generate

    return register


POISON_WORD = 0xDEADBEEF
"""Fills outputs before a run, so that what is not written agrees too."""


def poisoned(*shape: int) -> np.ndarray:
    """An output of 32-bit words that nothing has written."""
    return np.full(shape, POISON_WORD, np.uint32)
