"""Two-CTA clusters, and every role of a specialised kernel held back: right and silent all the same.

As in `test_pipelined_kernels`: K tiles around the number of stages, grids that are no multiple of the scheduler's group,
long and wide matrices, one cluster for many tiles.
"""

from __future__ import annotations

import pytest

from phaseflip.gemm.kernel import find_kernel
from regression.test_pipelined_kernels import Shape, require_right

STAGES = 4
TILE = {"hgemm_v7": (128, 128), "hgemm_v8": (256, 256), "hgemm_v9": (512, 256)}
CLUSTER = ("hgemm_v8", "hgemm_v9")
ROLES = {
    "hgemm_v4": {"issuer": "warp0", "others": "warps1-3"},
    "hgemm_v5": {"issuer": "warp0", "others": "warps1-3"},
    "hgemm_v6": {"issuer": "warp0", "others": "warps1-3"},
    "hgemm_v7": {"producer": "warp7", "MMA": "warp4", "writeback": "warps0-3", "one of it": "warp2"},
    "hgemm_v8": {
        "producer": "warp7", "MMA": "warp4", "writeback": "warps0-3", "leader": "cta0", "peer": "cta1",
        "peer's producer": "cta1.warp7", "peer's writeback": "cta1.warps0-3",
    },
    "hgemm_v9": {
        "producer": "warp11", "first MMA": "warp8", "second MMA": "warp9", "first writeback": "warps0-3",
        "second writeback": "warps4-7", "leader": "cta0", "peer": "cta1", "peer's producer": "cta1.warp11",
    },
}  # fmt: skip
"""Kernel -> role -> the threads that play it, as a delay names them."""


def on(kernels: object) -> list[object]:
    """The kernels as parameters; tests of one kernel share a worker."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in kernels]  # type: ignore[attr-defined]


@pytest.mark.parametrize("k_tiles", [1, STAGES - 1, STAGES, STAGES + 1, 2 * STAGES + 1])
@pytest.mark.parametrize("name", on(CLUSTER))
def test_k_tiles_around_the_number_of_stages(name: str, k_tiles: int) -> None:
    """One cluster computes two tiles: the second starts with whatever parity the first left."""
    rows, columns = TILE[name]
    shape = (rows, 2 * columns, 64 * k_tiles)
    schedules = ("in-order", "lazy", "random:1")
    outputs = {
        require_right(find_kernel(f"{name}:ctas=2"), shape, s).D.tobytes() for s in schedules
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("tiles", "ctas", "schedule"),
    [
        pytest.param((3, 1), 2, "random:2", id="long, by one cluster"),
        pytest.param((1, 5), 5, "eager", id="wide, by two clusters and a CTA to spare"),
        pytest.param((3, 3), 148, "in-order", id="one cluster each"),
    ],
)
@pytest.mark.parametrize("name", on(CLUSTER))
def test_clusters_cover_every_tile_once(
    name: str, tiles: tuple[int, int], ctas: int, schedule: str
) -> None:
    rows, columns = TILE[name]
    shape: Shape = (rows * tiles[0], columns * tiles[1], 64)
    verdict = require_right(find_kernel(f"{name}:ctas={ctas}"), shape, schedule)
    assert verdict.run.counters["bytes_shared_to_global"] == 2 * shape[0] * shape[1]


@pytest.mark.parametrize("base", ["in-order", "lazy"])
@pytest.mark.parametrize(
    ("name", "role"),
    [
        pytest.param(name, role, id=f"{name}-{role}", marks=pytest.mark.xdist_group(name))
        for name, roles in ROLES.items()
        for role in roles
    ],
)
def test_any_role_may_be_late(name: str, role: str, base: str) -> None:
    """Five K tiles and, where a CTA computes more than one, two tiles."""
    rows, columns = TILE.get(name, (128, 128))
    persistent = name not in ("hgemm_v4", "hgemm_v5")
    ctas = f":ctas={2 if name in CLUSTER else 1}" if persistent else ""
    kernel = find_kernel(name + ctas)
    shape = (rows, 2 * columns, 64 * (STAGES + 1))
    require_right(kernel, shape, f"{base}+delay:{ROLES[name][role]}")


def test_clusters_write_the_same_bits_as_the_kernels_before() -> None:
    shape = (512, 256, 192)
    names = ("hgemm_v3", "hgemm_v7", *CLUSTER)
    outputs = {
        name: require_right(find_kernel(name), shape, "in-order", "practice").D.tobytes()
        for name in names
    }
    assert len(set(outputs.values())) == 1
