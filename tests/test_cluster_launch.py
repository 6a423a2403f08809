"""Clusters of a launch: their geometry, what special registers say of it, and launches that CUDA would refuse."""

import itertools

import numpy as np
import pytest

from phaseflip import BadInput, lower, simulate
from phaseflip.errors import UnsupportedInstruction
from phaseflip.spelling import T

VECTORS = ("ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")
REGISTERS = [f"{name}.{axis}" for name in VECTORS for axis in "xyz"]
REGISTERS += ["cluster_ctarank", "cluster_nctarank"]
COLUMNS = len(REGISTERS)


def record(D, row):
    """For use in a kernel: store every special register to a row of D."""
    for i, name in enumerate(REGISTERS):
        T.buffer_store(D, T.ptx.fetch_register(32, name), [row, i])


def one_dimension(grid, ctas):
    @T.prim_func
    def kernel(D: T.Buffer((grid[0], COLUMNS), "int32")):
        T.device_entry()
        x = T.cta_id(grid)
        rx = T.cta_id_in_cluster(ctas)
        tid = T.thread_id([32])
        if tid == 0:
            record(D, x)

    return kernel


def two_dimensions(grid, ctas):
    @T.prim_func
    def kernel(D: T.Buffer((grid[0] * grid[1], COLUMNS), "int32")):
        T.device_entry()
        x, y = T.cta_id(grid)
        rx, ry = T.cta_id_in_cluster(ctas)
        tid = T.thread_id([32])
        if tid == 0:
            record(D, x + grid[0] * y)

    return kernel


def three_dimensions(grid, ctas):
    @T.prim_func
    def kernel(D: T.Buffer((grid[0] * grid[1] * grid[2], COLUMNS), "int32")):
        T.device_entry()
        x, y, z = T.cta_id(grid)
        rx, ry, rz = T.cta_id_in_cluster(ctas)
        tid = T.thread_id([32])
        if tid == 0:
            record(D, x + grid[0] * (y + grid[1] * z))

    return kernel


FACTORIES = {1: one_dimension, 2: two_dimensions, 3: three_dimensions}


def registers(grid, ctas, schedule="in-order"):
    """Row by CTA, x fastest: register -> value."""
    kernel = lower(FACTORIES[len(grid)](grid, ctas))
    D = np.full((int(np.prod(grid)), COLUMNS), -1, np.int32)
    run = simulate(kernel, [D], schedule)
    assert run.findings == []
    return [dict(zip(REGISTERS, row, strict=True)) for row in run.outputs["D"].tolist()]


def expected(position, grid, ctas):
    """The registers of the CTA at a position of the grid, from their definitions in PTX."""
    inside = [p % n for p, n in zip(position, ctas, strict=True)]
    values = {
        "ctaid": position,
        "nctaid": grid,
        "clusterid": [p // n for p, n in zip(position, ctas, strict=True)],
        "nclusterid": [g // n for g, n in zip(grid, ctas, strict=True)],
        "cluster_ctaid": inside,
        "cluster_nctaid": ctas,
    }
    found = {f"{n}.{axis}": v["xyz".index(axis)] for n, v in values.items() for axis in "xyz"}
    found["cluster_ctarank"] = inside[0] + ctas[0] * (inside[1] + ctas[1] * inside[2])
    found["cluster_nctarank"] = ctas[0] * ctas[1] * ctas[2]
    return found


@pytest.mark.parametrize("schedule", ["in-order", "random:1"])
@pytest.mark.parametrize(
    ("grid", "ctas"),
    [([6], [2]), ([8], [8]), ([4, 6], [2, 2]), ([6, 2], [3, 1]), ([2, 3, 4], [2, 1, 2])],
)
def test_special_registers_say_where_a_cta_is(grid, ctas, schedule):
    found = registers(grid, ctas, schedule)
    grid, ctas = grid + [1] * (3 - len(grid)), ctas + [1] * (3 - len(ctas))
    positions = itertools.product(*(range(n) for n in reversed(grid)))
    for values, position in zip(found, positions, strict=True):
        assert values == expected(list(reversed(position)), grid, ctas)


@pytest.mark.parametrize(
    ("grid", "ctas", "sentence"),
    [
        ([4, 3], [1, 2], "clusters of 1 x 2 x 1 CTAs do not divide the grid: it has 3 along y"),
        ([2, 2, 3], [1, 1, 2], "clusters of 1 x 1 x 2 CTAs do not divide the grid: it has 3 along z"),
        ([9], [9], "the kernel asks for clusters of 9 CTAs; 8 is the most"),
        ([4, 4], [4, 4], "the kernel asks for clusters of 16 CTAs; 8 is the most"),
    ],
)  # fmt: skip
def test_a_launch_that_cuda_refuses_is_one_sentence(grid, ctas, sentence):
    with pytest.raises(BadInput) as error:
        registers(grid, ctas)
    text = str(error.value)
    assert sentence in text and text.startswith("resource-limit: ") and "\n" not in text


def test_a_grid_without_ctas_is_one_sentence():
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx, by = T.cta_id([4, 0])
        tid = T.thread_id([32])
        D[tid] = bx + by

    with pytest.raises(BadInput, match="a grid of 4 x 0 x 1 CTAs has none"):
        simulate(kernel, [np.zeros(32, np.int32)])


def test_clusters_that_the_grid_has_in_one_dimension_only_are_one_sentence():
    """TVM 0.26 lays the CTAs of T.cluster_id along x, whatever the shape of a cluster; CUDA then refuses the launch."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cx, cy = T.cluster_id([2, 3])
        rx, ry = T.cta_id_in_cluster([2, 2])
        tid = T.thread_id([32])
        D[tid] = 1

    with pytest.raises(BadInput, match=r"clusters of 2 x 2 x 1 .* grid: it has 1 along y"):
        simulate(kernel, [np.zeros(32, np.int32)])


def test_an_unknown_special_register_is_an_error_that_names_it():
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([32])
        D[tid] = T.ptx.fetch_register(32, "smid")

    with pytest.raises(UnsupportedInstruction, match=r"test_cluster_launch.py:\d+.*smid"):
        simulate(kernel, [np.zeros(32, np.int32)])


# -- mapa -----------------------------------------------------------------------------------------------------------------
def mapped(rank):
    """Each lane of CTA 0 maps a shared address to a CTA of its own, and says where that is, in bytes after CTA 0's."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        cta = T.cta_id_in_cluster([4])
        tid = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((4,), "int32")
        pool.commit()
        address: T.uint32 = T.cuda.cvta_generic_to_shared(s.ptr_to([1]))
        if cta == 0:
            there: T.uint32 = T.ptx.mapa(
                address,
                tid % 4 + rank,
                space="shared::cluster",
                ptx_type="u32",
                return_type="uint32",
            )
            D[tid] = T.cast(there - address, "int32")

    return kernel


def test_mapa_gives_the_corresponding_address_in_each_cta():
    run = simulate(mapped(0), [np.zeros(32, np.int32)])
    assert run.outputs["D"].tolist() == [(lane % 4) << 24 for lane in range(32)]


@pytest.mark.parametrize(("rank", "bad"), [(1, 4), (-1, -1)])
def test_mapa_to_a_rank_outside_the_cluster_is_a_finding(rank, bad):
    run = simulate(mapped(rank), [np.zeros(32, np.int32)])
    (finding,) = run.findings
    assert (run.stopped, finding.code) == (True, "out-of-bounds")
    assert f"mapa to CTA {bad} of a cluster of 4, whose CTAs are 0 to 3" in finding.message
