"""The result is right: within the derived bound for all inputs, bit for bit on integers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.gemm.kernel import Kernel
from properties.strategies import chosen_schedules, input_kinds, run, schedules, seeds, shapes


@given(data=st.data())
def test_right_within_bound(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """Normal, integer, one-hot, permutation, overflowing, subnormal and NaN/infinity inputs."""
    run(
        kernel,
        data.draw(shapes(kernel), "shape"),
        inputs=data.draw(input_kinds(), "inputs"),
        seed=data.draw(seeds(), "seed"),
        schedule=data.draw(schedules(chosen_schedules(pytestconfig)), "schedule"),
    )


@given(data=st.data())
def test_exact_sums_are_bit_equal(
    kernel: Kernel, pytestconfig: pytest.Config, data: st.DataObject
) -> None:
    """Where no partial sum needs rounding, every accumulation order gives the same bits."""
    run(
        kernel,
        data.draw(shapes(kernel), "shape"),
        inputs=data.draw(st.sampled_from(["integers", "one-hot", "permutation"]), "inputs"),
        seed=data.draw(seeds(), "seed"),
        schedule=data.draw(schedules(chosen_schedules(pytestconfig)), "schedule"),
        gate="exact",
    )
