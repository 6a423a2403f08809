"""The result does not depend on the schedule."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phaseflip.gemm.kernel import Kernel
from properties.strategies import (
    input_kinds,
    random_schedules,
    require_same_bits,
    run,
    seeds,
    shapes,
)


@given(data=st.data())
def test_same_bits_under_every_schedule(kernel: Kernel, data: st.DataObject) -> None:
    """In-order, eager, lazy and a random schedule write the same bits, NaN payloads included."""
    shape = data.draw(shapes(kernel), "shape")
    inputs = data.draw(input_kinds(), "inputs")
    seed = data.draw(seeds(), "seed")
    first = run(kernel, shape, inputs=inputs, seed=seed, schedule="in-order")
    for schedule in ("eager", "lazy", data.draw(random_schedules(), "schedule")):
        other = run(kernel, shape, inputs=inputs, seed=seed, schedule=schedule)
        require_same_bits(first.D, other.D, first, other)
