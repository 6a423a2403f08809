"""Kernels with TMA, stages, persistent CTAs and roles, where their phases and schedulers could slip.

K tiles around the number of stages, tile grids that are no multiple of the scheduler's group, long and wide matrices,
one CTA for many tiles: right under all oracles and silent in both profiles, under several schedules.
"""

from __future__ import annotations

import pytest

from phaseflip.gemm.kernel import Kernel, find_kernel
from phaseflip.gemm.verify import Verdict, verify

STAGES = {"hgemm_v4": 1, "hgemm_v5": 2, "hgemm_v6": 2, "hgemm_v7": 4, "hgemm_sm90": 4}
PERSISTENT = ("hgemm_v6", "hgemm_v7")
SCHEDULES = ("in-order", "eager", "lazy", "random:1")
ORDER = ("hgemm_v3", *STAGES)
Shape = tuple[int, int, int]


def require_right(kernel: Kernel, shape: Shape, schedule: str, profile: str = "ptx") -> Verdict:
    """Right under all oracles, with no error found, and no note either."""
    verdict = verify(
        kernel, *shape, inputs="integers", schedule=schedule, gate="all", profile=profile
    )
    assert verdict.passed and verdict.findings == [], verdict.message
    assert [r.passed for r in verdict.oracles] == [True] * 4
    return verdict


def stage_cases() -> list[object]:
    """(kernel, number of K tiles): one, and around once and twice the ring."""
    cases = []
    for name, stages in STAGES.items():
        around = sorted({1, stages - 1, stages, stages + 1, 2 * stages + 1} - {0})
        for tiles in around:
            mark = pytest.mark.xdist_group(name)
            cases.append(pytest.param(name, tiles, id=f"{name}-{tiles}", marks=mark))
    return cases


@pytest.mark.parametrize(("name", "k_tiles"), stage_cases())
def test_k_tiles_around_the_number_of_stages(name: str, k_tiles: int) -> None:
    """A persistent kernel computes two tiles in one CTA: the second starts with whatever parity the first left."""
    persistent = name in PERSISTENT
    kernel = find_kernel(f"{name}:ctas=1" if persistent else name)
    shape = (128, 256 if persistent else 128, 64 * k_tiles)
    outputs = {require_right(kernel, shape, s).D.tobytes() for s in SCHEDULES}
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("tiles", "ctas", "schedule"),
    [
        pytest.param((9, 1), 1, "lazy", id="long, by one CTA"),
        pytest.param((1, 9), 2, "eager", id="wide, by two CTAs"),
        pytest.param((5, 2), 3, "random:4", id="by three CTAs"),
        pytest.param((9, 1), 148, "in-order", id="one CTA each"),
    ],
)
@pytest.mark.parametrize("name", PERSISTENT)
def test_persistent_ctas_cover_every_tile_once(
    name: str, tiles: tuple[int, int], ctas: int, schedule: str
) -> None:
    """Grids that are no multiple of the scheduler's group of eight rows."""
    shape = (128 * tiles[0], 128 * tiles[1], 64)
    verdict = require_right(find_kernel(f"{name}:ctas={ctas}"), shape, schedule)
    assert verdict.run.counters["bytes_shared_to_global"] == 2 * shape[0] * shape[1]


@pytest.mark.parametrize("tiles", [(7, 1), (1, 7)], ids=["long", "wide"])
@pytest.mark.parametrize("name", ["hgemm_v4", "hgemm_v5", "hgemm_sm90"])
def test_long_and_wide_grids(name: str, tiles: tuple[int, int]) -> None:
    """One CTA for each tile."""
    require_right(find_kernel(name), (128 * tiles[0], 128 * tiles[1], 64), "random:5")


def test_every_version_writes_the_same_bits() -> None:
    """In profile practice: it judges what is found less strictly, so the tests above speak for it as well."""
    shape, profile = (256, 256, 192), "practice"
    outputs = {
        n: require_right(find_kernel(n), shape, "in-order", profile).D.tobytes() for n in ORDER
    }
    assert len(set(outputs.values())) == 1
