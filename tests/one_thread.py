"""Kernels of one CTA in which thread t reads A and writes D[t], against a plain Python model that gives D[t] for one t."""

import functools

import numpy as np

from phaseflip import lower, simulate

N = 128
SCHEDULES = ["in-order", "eager", "lazy", "random:1"]


lowered = functools.cache(lower)


def run(kernel, *arrays, schedule="in-order"):
    result = simulate(lowered(kernel), arrays, schedule)
    assert result.findings == []
    return result


def inputs():
    rng = np.random.default_rng(5)
    return rng.integers(-20, 20, N, dtype=np.int32), np.full(N, -1, np.int32)


def check(kernel, model, schedule):
    a, d = inputs()
    expected = [model(t, a.tolist()) for t in range(N)]
    assert run(kernel, a, d, schedule=schedule).outputs["D"].tolist() == expected
