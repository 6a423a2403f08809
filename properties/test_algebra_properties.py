"""What the product does when its operands change: relations between two runs of one kernel.

Changed operands are named by the kind of inputs ("integers+permute-a:3", see `phaseflip.gemm.inputs`),
so each of the two runs has a command line of its own. Where a relation is exact only if no sum
needs rounding, the inputs are integers.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.gemm.inputs import permutation_of
from phaseflip.gemm.kernel import Kernel
from phaseflip.gemm.verify import Verdict
from properties.strategies import (
    chosen_schedules,
    require_same_bits,
    run,
    schedules,
    seeds,
    shapes,
)

SMALLEST_NORMAL_HALF = 2.0**-14
LARGEST_HALF = 65504.0


def _require_nan_exactly(expected: np.ndarray, verdict: Verdict) -> None:
    """Assert that D is NaN where `expected` (bool, shaped as D) says so, and nowhere else."""
    wrong = np.argwhere(np.isnan(verdict.D.astype(np.float32)) != expected)
    assert not len(wrong), (
        f"{len(wrong)} elements are NaN and should not be, or the other way round; "
        f"the first is D{wrong[0].tolist()}; replay: {verdict.replay}"
    )


@given(data=st.data())
def test_nan_in_a_reaches_its_row(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """A NaN in row m of A makes row m of D NaN, and leaves every other element its bits."""
    shape = data.draw(shapes(kernel), "shape")
    row = data.draw(st.integers(0, shape[0] - 1), "row")
    seed = data.draw(seeds(), "seed")
    schedule = data.draw(schedules(chosen_schedules(pytestconfig)), "schedule")
    clean = run(kernel, shape, inputs="integers", seed=seed, schedule=schedule)
    spoilt = run(kernel, shape, inputs=f"integers+nan-a:{row}", seed=seed, schedule=schedule)
    expected = np.zeros(spoilt.D.shape, bool)
    expected[row, :] = True
    _require_nan_exactly(expected, spoilt)
    others = np.where(expected, clean.D, spoilt.D)
    require_same_bits(others, clean.D, spoilt, clean)


@given(data=st.data())
def test_nan_in_b_reaches_its_column(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """A NaN in row n of B makes column n of D NaN, and leaves every other element its bits."""
    shape = data.draw(shapes(kernel), "shape")
    column = data.draw(st.integers(0, shape[1] - 1), "column")
    seed = data.draw(seeds(), "seed")
    schedule = data.draw(schedules(chosen_schedules(pytestconfig)), "schedule")
    clean = run(kernel, shape, inputs="integers", seed=seed, schedule=schedule)
    spoilt = run(kernel, shape, inputs=f"integers+nan-b:{column}", seed=seed, schedule=schedule)
    expected = np.zeros(spoilt.D.shape, bool)
    expected[:, column] = True
    _require_nan_exactly(expected, spoilt)
    others = np.where(expected, clean.D, spoilt.D)
    require_same_bits(others, clean.D, spoilt, clean)


@given(data=st.data())
def test_permuting_rows_of_a_permutes_rows_of_d(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """Row i of the second A is row p[i] of the first, so the rows of D move in the same way."""
    shape = data.draw(shapes(kernel), "shape")
    order_seed = data.draw(seeds(), "order_seed")
    seed = data.draw(seeds(), "seed")
    schedule = data.draw(schedules(chosen_schedules(pytestconfig)), "schedule")
    straight = run(kernel, shape, inputs="integers", seed=seed, schedule=schedule)
    moved = run(
        kernel, shape, inputs=f"integers+permute-a:{order_seed}", seed=seed, schedule=schedule
    )
    order = permutation_of(shape[0], order_seed)
    require_same_bits(_positive_zero(straight.D[order]), _positive_zero(moved.D), straight, moved)


@given(data=st.data())
def test_scaling_by_a_power_of_two_scales_d(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """A times 2^p gives D times 2^p exactly: float32 and half only change their exponents.

    Not so where either result is subnormal or overflows; those elements are the bound's business.
    """
    shape = data.draw(shapes(kernel), "shape")
    power = data.draw(st.integers(1, 6), "power")
    seed = data.draw(seeds(), "seed")
    schedule = data.draw(schedules(chosen_schedules(pytestconfig)), "schedule")
    base = run(kernel, shape, inputs="normal", seed=seed, schedule=schedule)
    scaled = run(kernel, shape, inputs=f"normal+scale-a:{power}", seed=seed, schedule=schedule)
    expected = np.ldexp(base.D.astype(np.float64), power)
    comparable = (np.abs(base.D.astype(np.float64)) >= SMALLEST_NORMAL_HALF) & (
        np.abs(expected) <= LARGEST_HALF
    )
    value = np.where(comparable, scaled.D, 0).astype(base.D.dtype)
    wanted = np.where(comparable, expected, 0).astype(base.D.dtype)
    require_same_bits(value, wanted, base, scaled)


@given(data=st.data())
def test_zero_chunks_of_k_change_nothing(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """64 columns of zeros inserted into A and B, between two K chunks or at an end, add nothing."""
    M, N, K = data.draw(shapes(kernel, spare_chunks=1), "shape")
    index = data.draw(st.integers(0, K // 64), "chunk")
    seed = data.draw(seeds(), "seed")
    schedule = data.draw(schedules(chosen_schedules(pytestconfig)), "schedule")
    short = run(kernel, (M, N, K), inputs="integers", seed=seed, schedule=schedule)
    long = run(
        kernel,
        (M, N, K + 64),
        inputs=f"integers+zero-chunk:{index}",
        seed=seed,
        schedule=schedule,
    )
    require_same_bits(_positive_zero(short.D), _positive_zero(long.D), short, long)


def _positive_zero(D: np.ndarray) -> np.ndarray:
    """D with -0 replaced by 0: which of them a sum of zeros gives is not specified."""
    return np.where(D == 0, np.zeros((), D.dtype), D)
