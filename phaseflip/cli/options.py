"""What several commands take: a kernel with its shape, lists, and numbers.

A number is checked before anything is done, by a sentence that names the option.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import Any

from phaseflip.errors import BadInput

MOST_JOBS = 512


def add_kernel_and_shape(command: argparse.ArgumentParser, extent: Callable[[str], int]) -> None:
    """Declare KERNEL M N K; `extent` parses a whole number."""
    command.add_argument(
        "kernel", metavar="KERNEL", help="a name, or path/to/file.py:NAME of a factory or Kernel"
    )
    for name in "MNK":
        command.add_argument(name, type=extent, metavar=name)


def words_of(text: str) -> list[str]:
    """What commas separate; those of a file's name, or of a factory's arguments as in hgemm_v6:ctas=2,x=1, do not."""
    file = re.match(r"(.+\.py)(?::|$)", text)
    if os.path.exists(file[1] if file else text):
        return [text]
    words = [word.strip() for word in re.split(r",(?!\s*\w+=)", text)]
    if not all(words):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty name; write one,two or the like")
    return words


class Separated(argparse.Action):
    """A list with commas between its words; the option may be repeated. `each` makes a value of a word."""

    def __init__(self, each: Callable[[str], Any] = str, **settings: Any) -> None:
        super().__init__(**settings)
        self.each = each

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        texts = [values] if isinstance(values, str) else values
        try:
            new = [self.each(word) for text in texts for word in words_of(text)]
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, new if before is self.default else before + new)


class Several(Separated):
    """The same, and blanks may separate too: for commands where nothing else follows it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs="+", **settings)


class Joined(argparse.Action):
    """Text that commas separate, and so do repetitions of the option."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        before = getattr(namespace, self.dest)
        joined = values if before is self.default else f"{before},{values}"
        setattr(namespace, self.dest, joined)


def add_outputs_and_scalars(command: argparse.ArgumentParser) -> None:
    """Declare --out and --scalar, of kernels with other parameters than A, B and D."""
    command.add_argument(
        "--out",
        action=Separated,
        default=[],
        metavar="NAME",
        help="a buffer to judge, where the kernel is no GEMM; several with commas, or repeated (default: what it writes)",
    )
    command.add_argument(
        "--scalar",
        action="append",
        type=_scalar,
        default=[],
        metavar="NAME=VALUE",
        help="a number that the kernel takes by value; repeated for others",
    )


def _scalar(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, as in alpha=0.5")
    return name, value


def once(scalars: list[tuple[str, str]]) -> dict[str, str | int | float]:
    """The values of --scalar by name; BadInput for a name that is given twice."""
    names = [name for name, _ in scalars]
    for name in names:
        if names.count(name) > 1:
            raise BadInput(f"argument --scalar: {name} is given twice; give it once")
    return dict(scalars)


def check_seed(seed: int) -> None:
    """BadInput unless it is 0 or more."""
    if seed < 0:
        raise BadInput(f"argument --seed: {seed} is negative; a seed is 0 or more")


def check_between(option: str, value: int, lowest: int, highest: int) -> None:
    """BadInput unless `value` is one of `lowest` to `highest`."""
    if not lowest <= value <= highest:
        raise BadInput(f"argument {option}: {value} is not between {lowest} and {highest}")


def worker_processes(jobs: int | None) -> int:
    """What --jobs stands for: one process per core that this one may use where it is not given (None)."""
    if jobs is None:
        return min(len(os.sched_getaffinity(0)), MOST_JOBS)
    check_between("--jobs", jobs, 1, MOST_JOBS)
    return jobs
