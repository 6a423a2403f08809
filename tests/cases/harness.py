"""Run a case kernel, by file name and shape, under 23 schedules, and give what is found under each."""

import functools
import importlib

import numpy as np

from phaseflip import lower, simulate

SCHEDULES = ("in-order", "eager", "lazy", *(f"random:{seed}" for seed in range(20)))


@functools.lru_cache(maxsize=4)
def lowered(name, *shape, factory="k"):
    """The kernel `factory` of the file `name` at a shape, lowered."""
    return lower(getattr(importlib.import_module(f"tests.cases.{name}"), factory)(*shape))


def run(name, *shape, schedule="in-order", profile="ptx", factory="k"):
    """One simulation on small integers by a fixed seed; outputs start as zeros."""
    kernel = lowered(name, *shape, factory=factory)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, s).astype(dtype) for _, dtype, s in kernel.parameters]
    arrays[-1][:] = 0
    return simulate(kernel, arrays, schedule, profile=profile)


def errors(name, *shape, **options):
    """The findings of one run that are errors."""
    return [f for f in run(name, *shape, **options).findings if f.severity == "error"]
