"""Each kernel extends the one before it: where both apply, they write the same bits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phaseflip.gemm.kernel import find_kernel
from properties.strategies import input_kinds, require_same_bits, run, schedules, seeds, sizes


@pytest.mark.xdist_group("hgemm_v3")
@given(data=st.data())
def test_v3_at_one_tile_equals_v2(data: st.DataObject) -> None:
    """hgemm_v3 at 128x128 is hgemm_v2, for any K."""
    shape = (128, 128, 64 * data.draw(st.integers(1, sizes()[1]), "chunks"))
    _require_agreement("hgemm_v3", "hgemm_v2", shape, data)


@pytest.mark.xdist_group("hgemm_v2")
@given(data=st.data())
def test_v2_at_one_chunk_equals_v1(data: st.DataObject) -> None:
    """hgemm_v2 at K = 64 is hgemm_v1."""
    _require_agreement("hgemm_v2", "hgemm_v1", (128, 128, 64), data)


def _require_agreement(
    first: str, second: str, shape: tuple[int, int, int], data: st.DataObject
) -> None:
    inputs = data.draw(input_kinds(), "inputs")
    seed = data.draw(seeds(), "seed")
    schedule = data.draw(schedules(), "schedule")
    one, other = (
        run(find_kernel(name), shape, inputs=inputs, seed=seed, schedule=schedule)
        for name in (first, second)
    )
    require_same_bits(one.D, other.D, one, other)
