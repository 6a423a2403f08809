"""Bulk tensor copies through real TIRx kernels: swizzles, types, tiles that reach outside, groups of stores."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip import lower, simulate
from phaseflip.spelling import T

SCHEDULES = ("in-order", "eager", "lazy", "random:3")
TYPES = {
    "float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "uint8": np.uint8, "int32": np.int32,
}  # fmt: skip
SWIZZLES = {
    "none": SwizzleMode.SWIZZLE_NONE,
    "32B": SwizzleMode.SWIZZLE_32B_ATOM,
    "64B": SwizzleMode.SWIZZLE_64B_ATOM,
    "128B": SwizzleMode.SWIZZLE_128B_ATOM,
}


def numbered(shape, dtype):
    """Different elements, as far as the type holds them."""
    return (np.arange(np.prod(shape)) % 251 + 1).reshape(shape).astype(TYPES[dtype])


@functools.cache
def tile_copier(dtype, mode, rows, columns, tile, oob=None, dispatch="tma_explicit"):
    """D = A, tile by tile through swizzled shared memory; P is each tile as a thread finds it there.

    Tiles cover the matrix; the last ones reach outside.
    """
    kind = tvm.DataType(dtype)
    height, width = tile
    grid = (-(-rows // height), -(-columns // width))
    nbytes = height * width * np.dtype(TYPES[dtype]).itemsize
    if mode == "none":
        layout = TileLayout(S[(height, width) : (width, 1)])
    else:
        layout = mma_shared_layout(kind, SWIZZLES[mode], (height, width))
    config = {} if oob is None else {"oob": oob}

    @T.prim_func
    def kernel(
        A: T.Buffer((rows, columns), kind),
        D: T.Buffer((rows, columns), kind),
        P: T.Buffer((grid[0] * height, grid[1] * width), kind),
    ):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((height, width), kind, layout=layout)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        for i in T.serial(grid[0]):
            for j in T.serial(grid[1]):
                if lane == 0:
                    Tx.copy_async(
                        s[:, :],
                        A[i * height : i * height + height, j * width : j * width + width],
                        dispatch=dispatch,
                        mbar=bar.ptr_to([0]),
                        **config,
                    )
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), (i * grid[1] + j) & 1)
                for r in T.serial(height):
                    for c in T.serial(-(-width // 32)):
                        if c * 32 + lane < width:
                            P[i * height + r, j * width + c * 32 + lane] = s[r, c * 32 + lane]
                if lane == 0:
                    Tx.copy_async(
                        D[i * height : i * height + height, j * width : j * width + width],
                        s[:, :],
                        dispatch=dispatch,
                    )
                    T.ptx.cp_async.bulk.commit_group()
                    T.ptx.cp_async.bulk.wait_group(0)
                    T.ptx.fence.proxy_async("shared::cta")
                T.ptx.fence.proxy_async("shared::cta")
                T.cuda.cta_sync()

    return lower(kernel)


def check_copy(schedule="in-order", fill=0, **options):
    copier = tile_copier(**options)
    rows, columns, (height, width) = options["rows"], options["columns"], options["tile"]
    grid = (-(-rows // height), -(-columns // width))
    A = numbered((rows, columns), options["dtype"])
    padded = (grid[0] * height, grid[1] * width)
    run = simulate(copier, [A, np.zeros_like(A), np.zeros(padded, A.dtype)], schedule)
    assert [str(f) for f in run.findings] == []
    expected = np.full(padded, fill, A.dtype)
    expected[:rows, :columns] = A
    assert run.outputs["D"].tobytes() == A.tobytes()
    assert np.array_equal(
        run.outputs["P"].astype(np.float64), expected.astype(np.float64), equal_nan=True
    )
    whole = grid[0] * grid[1] * height * width * A.itemsize
    assert run.counters["bytes_global_to_shared"] == whole  # boxes count in full
    assert run.counters["bytes_shared_to_global"] == whole


@pytest.mark.parametrize("mode", SWIZZLES)
@pytest.mark.parametrize("dispatch", ["tma_auto", "tma_explicit"])
def test_whole_tiles_of_each_swizzle(mode, dispatch):
    width = {"none": 64, "32B": 16, "64B": 32, "128B": 64}[mode]
    check_copy(
        dtype="float16", mode=mode, rows=32, columns=2 * width, tile=(16, width), dispatch=dispatch
    )


@pytest.mark.parametrize("mode", SWIZZLES)
def test_tiles_that_reach_outside_are_filled_with_zero_and_clipped(mode):
    width = {"none": 64, "32B": 16, "64B": 32, "128B": 64}[mode]
    check_copy(dtype="float16", mode=mode, rows=21, columns=width + 8, tile=(16, width))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(schedule):
    check_copy(schedule, dtype="float16", mode="128B", rows=21, columns=72, tile=(16, 64))


@pytest.mark.parametrize("dtype", TYPES)
def test_types(dtype):
    width = 64 // np.dtype(TYPES[dtype]).itemsize
    part = 16 // np.dtype(TYPES[dtype]).itemsize
    check_copy(dtype=dtype, mode="none", rows=9, columns=width + part, tile=(8, width))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_fill_with_nan(dtype):
    width = 64 // np.dtype(TYPES[dtype]).itemsize
    part = 16 // np.dtype(TYPES[dtype]).itemsize
    options = {"rows": 9, "columns": width + part, "tile": (8, width), "oob": "nan"}
    check_copy(dtype=dtype, mode="none", fill=np.nan, **options)


# -- groups of stores ------------------------------------------------------------------------------------------------------
@functools.cache
def grouped_stores(newest, groups=3, reads_only=False):
    """One thread stores `groups` blocks, each a group, waits for all but the `newest`, and overwrites all sources."""
    rows, columns = 8, 8

    @T.prim_func
    def kernel(D: T.Buffer((groups * rows, columns), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc(
            (groups, rows, columns), "float16",
            layout=TileLayout(S[(groups, rows, columns) : (rows * columns, columns, 1)]),
        )  # fmt: skip
        pool.commit()
        if lane == 0:
            for i in T.serial(groups):
                for r in T.serial(rows):
                    for c in T.serial(columns):
                        s[i, r, c] = T.cast(i + 1, "float16")
            T.ptx.fence.proxy_async("shared::cta")
            for i in T.serial(groups):
                Tx.copy_async(D[i * rows : i * rows + rows, :], s[i, :, :], dispatch="tma_auto")
                T.ptx.cp_async.bulk.commit_group()
            T.ptx.cp_async.bulk.wait_group(newest, reads_only)
            for i in T.serial(groups):
                s[i, 0, 0] = T.float16(9)

    return lower(kernel)


@pytest.mark.parametrize("reads_only", [False, True])
@pytest.mark.parametrize("newest", [0, 1, 2, 3, 5])
def test_wait_group_leaves_the_newest_groups_pending(newest, reads_only):
    """Under the lazy schedule what is not waited for reads what came later."""
    run = simulate(
        grouped_stores(newest, reads_only=reads_only), [np.zeros((24, 8), np.float16)], "lazy"
    )
    first = run.outputs["D"][::8, 0].tolist()
    waited = max(3 - newest, 0)
    assert first == [1, 2, 3][:waited] + [9] * (3 - waited)
    races = [f for f in run.findings if f.title == "race shared war"]
    assert [f.count for f in races] == ([3 - waited] if waited < 3 else [])
