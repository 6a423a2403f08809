"""Hypothesis strategies for what a kernel run depends on, and the step from a run to an assertion.

Everything drawn here is a plain number or name, so that a run is repeated by one command line.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from phaseflip.gemm.inputs import kinds
from phaseflip.gemm.kernel import Kernel, ShapeRule
from phaseflip.gemm.verify import Verdict, replay_line, verify

# For each profile: the largest number of tiles of D, and of K chunks. Each new shape costs a
# lowering (up to a second), each tile and chunk about 0.3 ms of simulation.
_SIZES = {"dev": (4, 4), "ci": (4, 4), "deep": (12, 16)}

Shape = tuple[int, int, int]


def sizes() -> tuple[int, int]:
    """(largest number of output tiles, largest number of K chunks) of the current profile."""
    return _SIZES.get(hypothesis.settings.get_current_profile_name(), _SIZES["dev"])


def _steps(multiple: int, low: int, high: int | None, most: int) -> list[int]:
    """The first `most` multiples of `multiple` from `low` up to `high`."""
    first = -(-low // multiple)
    last = first + most - 1 if high is None else min(first + most - 1, high // multiple)
    return [multiple * step for step in range(first, last + 1)]


@functools.lru_cache(maxsize=64)
def _legal_shapes(rule: ShapeRule, tiles: int, chunks: int) -> list[Shape]:
    """Shapes under `rule`, smallest first (Hypothesis shrinks towards the first)."""
    ms = _steps(rule.m_multiple, 1, rule.m_max, tiles)
    ns = _steps(rule.n_multiple, 1, rule.n_max, tiles)
    ks = _steps(rule.k_multiple, rule.k_min, rule.k_max, chunks)
    shapes = [
        (m, n, k)
        for m in ms
        for n in ns
        for k in ks
        if (m // rule.m_multiple) * (n // rule.n_multiple) <= tiles
    ]
    return sorted(shapes, key=lambda shape: (shape[0] * shape[1] * shape[2], shape))


def shapes(kernel: Kernel, spare_chunks: int = 0) -> st.SearchStrategy[Shape]:
    """Shapes (M, N, K) that `kernel` takes even with `spare_chunks` more K chunks.

    Skips the test if the kernel has none. A kernel without a rule is given the default one.
    """
    rule = kernel.shape_rule or ShapeRule()
    tiles, chunks = sizes()
    found = [
        (m, n, k)
        for m, n, k in _legal_shapes(rule, tiles, chunks)
        if rule.is_legal(m, n, k + spare_chunks * rule.k_multiple)
    ]
    if not found:
        pytest.skip(f"{kernel.name} takes one K only")
    return st.sampled_from(found)


def input_kinds() -> st.SearchStrategy[str]:
    """Kinds of matrices, see `phaseflip.gemm.inputs`."""
    return st.sampled_from(kinds())


def seeds() -> st.SearchStrategy[int]:
    """Seeds of the input matrices."""
    return st.integers(0, 2**16 - 1)


def random_schedules() -> st.SearchStrategy[str]:
    """Schedules "random:SEED"."""
    return st.integers(0, 2**16 - 1).map("random:{}".format)


def schedules(only: Sequence[str] | None = None) -> st.SearchStrategy[str]:
    """Names of schedules: those of `only` (the option --schedule), or all kinds of them."""
    if only:
        return st.sampled_from(list(only))
    return st.sampled_from(["in-order", "eager", "lazy"]) | random_schedules()


def chosen_schedules(config: pytest.Config) -> list[str] | None:
    """The names given by the option --schedule, or None."""
    return config.getoption("--schedule", default=None)


def run(kernel: Kernel, shape: Shape, **choices: Any) -> Verdict:
    """Run `kernel` (keywords as `phaseflip.gemm.verify.verify`) and require that it passes.

    A failure's message ends with the line that repeats the run.
    """
    try:
        verdict = verify(kernel, *shape, **choices)
    except Exception:
        of_line = {key: choices[key] for key in ("seed", "schedule", "inputs")}
        hypothesis.note(f"replay: {replay_line(kernel.name, *shape, **of_line)}")
        raise
    assert verdict.passed, verdict.message
    return verdict


def require_same_bits(first: np.ndarray, second: np.ndarray, *verdicts: Verdict) -> None:
    """Assert that two matrices of 16-bit elements are equal bit for bit.

    `verdicts` are the runs they came from, for the message.
    """
    different = np.argwhere(first.view(np.uint16) != second.view(np.uint16))
    replays = " && ".join(dict.fromkeys(verdict.replay for verdict in verdicts))
    if len(different):
        row, column = map(int, different[0])
        raise AssertionError(
            f"{len(different)} elements differ, the first at [{row}, {column}]: "
            f"{float(first[row, column])!r} and {float(second[row, column])!r}; replay: {replays}"
        )
