"""What several commands take: a kernel with its shape, and numbers.

A number is checked before anything is done, by a sentence that names the option.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

from phaseflip.errors import BadInput

MOST_JOBS = 512


def add_kernel_and_shape(command: argparse.ArgumentParser, extent: Callable[[str], int]) -> None:
    """Declare KERNEL M N K; `extent` parses a whole number."""
    command.add_argument(
        "kernel", metavar="KERNEL", help="a name, or path/to/file.py:NAME of a factory or Kernel"
    )
    for name in "MNK":
        command.add_argument(name, type=extent, metavar=name)


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
