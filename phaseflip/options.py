"""Numbers that several commands take: each is checked before anything is done, by a sentence that names the option."""

from __future__ import annotations

import os

from phaseflip.errors import BadInput

MOST_JOBS = 512


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
