"""tcgen05.mma, commit and ld through real TIRx kernels: swizzles, formats, shapes, accumulation."""

import functools

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg, tmem_datapath_layout

from phaseflip import lower, simulate
from phaseflip.spelling import T

FORMATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
SWIZZLES = {
    "none": SwizzleMode.SWIZZLE_NONE,
    "32B": SwizzleMode.SWIZZLE_32B_ATOM,
    "64B": SwizzleMode.SWIZZLE_64B_ATOM,
    "128B": SwizzleMode.SWIZZLE_128B_ATOM,
}


@functools.cache
def product_kernel(dtype, mode, N, K, repeat=1, column=0):
    """D = repeat * A B^T in float32 for one 128xN tile of one CTA, loaded whole."""
    M, width = 128, min(N, 128)
    operand = tvm.DataType(dtype)
    a_layout = mma_shared_layout(operand, mode, (M, K))
    b_layout = mma_shared_layout(operand, mode, (N, K))

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), operand), B: T.Buffer((N, K), operand), D: T.Buffer((M, N), "float32")
    ):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])
        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        mma_bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        Asmem = pool.alloc((M, K), operand, layout=a_layout)
        Bsmem = pool.alloc((N, K), operand, layout=b_layout)
        pool.commit()
        if warp_id == 0:
            if lane_id == 0:
                T.ptx.mbarrier.init(mma_bar.ptr_to([0]), 1)
            T.ptx.tcgen05.alloc(T.address_of(tmem_addr), n_cols=512, cta_group=1)
        T.ptx.fence.proxy_async("shared::cta")
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (128, 512),
            "float32",
            scope="tmem",
            allocated_addr=tmem_addr[0],
            layout=TileLayout(S[(128, 512) : (1 @ TLane, 1 @ TCol)]),
        )
        Tx.cta.copy(Asmem[:, :], A[:, :])
        Tx.cta.copy(Bsmem[:, :], B[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp_id == 0:
            if T.ptx.elect_sync():
                for i in T.serial(repeat):
                    Tx.gemm_async(
                        tmem[:, column : column + N],
                        Asmem[:, :],
                        Bsmem[:, :],
                        accum=(i != 0),
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                T.ptx.tcgen05.commit(mma_bar.ptr_to([0]), cta_group=1)
        T.ptx.mbarrier.try_wait(mma_bar.ptr_to([0]), 0)
        T.ptx.tcgen05.fence.after_thread_sync()
        Dreg = T.alloc_local((N,), "float32")
        Dreg_wg = Dreg.view(128, N, layout=TileLayout(S[(128, N) : (1 @ tid_in_wg, 1)]))
        for c in T.unroll(N // width):
            Tx.wg.copy_async(
                Dreg_wg[:, c * width : (c + 1) * width],
                tmem[:, column + c * width : column + (c + 1) * width],
            )
        T.ptx.tcgen05.wait.ld()
        Tx.copy(D[warp_id * 32 + lane_id, 0:N], Dreg[:])
        T.cuda.cta_sync()
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(tmem_addr[0], n_cols=512, cta_group=1)

    return lower(kernel)


def operands(dtype, m, n, k, seed=0):
    """Small integers, for which every order of summation is exact."""
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(-4, 5, s).astype(FORMATS[dtype]) for s in ((m, k), (n, k)))


def product(a, b):
    return a.astype(np.float32) @ b.astype(np.float32).T


def check(dtype, mode, n, k, schedule="in-order", **options):
    a, b = operands(dtype, 128, n, k)
    kernel = product_kernel(dtype, SWIZZLES[mode], n, k, **options)
    run = simulate(kernel, [a, b, np.zeros((128, n), np.float32)], schedule)
    assert [str(f) for f in run.findings if f.severity == "error"] == []
    expected = product(a, b) * options.get("repeat", 1)
    np.testing.assert_array_equal(run.outputs["D"], expected)
    return run


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("mode", SWIZZLES)
def test_every_swizzle_of_both_formats(dtype, mode):
    run = check(dtype, mode, 128, 64)
    assert run.counters["tcgen05.mma"] == 4


@pytest.mark.parametrize(("mode", "k"), [("32B", 16), ("64B", 32), ("128B", 128), ("none", 16)])
def test_other_k_extents(mode, k):
    check("float16", mode, 64, k)


@pytest.mark.parametrize("n", [16, 64, 256])
def test_other_n_extents(n):
    check("float16", "128B", n, 64)


def test_an_accumulator_that_starts_elsewhere():
    check("bfloat16", "128B", 64, 64, column=192)


@pytest.mark.parametrize("schedule", ["eager", "lazy", "random:5"])
def test_repeated_accumulation_under_every_schedule(schedule):
    check("float16", "64B", 64, 64, schedule, repeat=3)


@pytest.mark.parametrize("dtype", FORMATS)
def test_products_are_summed_in_float32(dtype):
    """1 + 2**-10 in half and 2**-7 in bfloat16 vanish in a 16-bit sum of 4096; a float32 one keeps them."""
    a, b = (np.zeros((128, 64), FORMATS[dtype]) for _ in range(2))
    a[:, 0], b[:, 0] = 64, 64
    a[:, 1], b[:, 1] = 1, FORMATS[dtype](2.0**-8)
    kernel = product_kernel(dtype, SWIZZLES["128B"], 128, 64)
    out = simulate(kernel, [a, b, np.zeros((128, 128), np.float32)]).outputs["D"]
    np.testing.assert_array_equal(out, np.full((128, 128), 4096 + 2.0**-8, np.float32))


def test_infinities_and_nans_propagate():
    a, b = operands("float16", 128, 128, 64)
    a[3, 5], a[7, 1], b[9, 5] = np.inf, np.nan, 0
    kernel = product_kernel("float16", SWIZZLES["128B"], 128, 64)
    out = simulate(kernel, [a, b, np.zeros((128, 128), np.float32)]).outputs["D"]
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(out, product(a, b))
    assert np.isnan(out[7]).all() and np.isnan(out[3, 9])


# -- tcgen05.ld in its shapes -----------------------------------------------------------------------------------------
SHAPES = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4}
"""Registers of a thread for .x1."""


@functools.cache
def load_kernel(shape, num, row=0, M=128):
    """R[t, i] = register i of thread t after one tcgen05.ld a warp of the product A B^T in TMEM."""
    N, K = 64, 16
    rows = TileLayout(S[(128, N) : (1 @ TLane, 1 @ TCol)])
    if M == 64:
        rows = tmem_datapath_layout("F", 64, N)
    registers = SHAPES[shape] * num
    layout = mma_shared_layout(tvm.DataType("float16"), SwizzleMode.SWIZZLE_32B_ATOM, (M, K))
    b_layout = mma_shared_layout(tvm.DataType("float16"), SwizzleMode.SWIZZLE_32B_ATOM, (N, K))

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"), B: T.Buffer((N, K), "float16"),
        R: T.Buffer((128, registers), "float32"),
    ):  # fmt: skip
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])
        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        mma_bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        Asmem = pool.alloc((M, K), "float16", layout=layout)
        Bsmem = pool.alloc((N, K), "float16", layout=b_layout)
        pool.commit()
        if warp_id == 0:
            if lane_id == 0:
                T.ptx.mbarrier.init(mma_bar.ptr_to([0]), 1)
            T.ptx.tcgen05.alloc(T.address_of(tmem_addr), n_cols=64, cta_group=1)
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, N), "float32", scope="tmem", allocated_addr=tmem_addr[0], layout=rows
        )
        Tx.cta.copy(Asmem[:, :], A[:, :])
        Tx.cta.copy(Bsmem[:, :], B[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp_id == 0:
            if T.ptx.elect_sync():
                Tx.gemm_async(
                    tmem[:, 0:N],
                    Asmem[:, :],
                    Bsmem[:, :],
                    accum=False,
                    dispatch="tcgen05",
                    cta_group=1,
                )
                T.ptx.tcgen05.commit(mma_bar.ptr_to([0]), cta_group=1)
        T.ptx.mbarrier.try_wait(mma_bar.ptr_to([0]), 0)
        T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((registers,), "float32")
        T.ptx.tcgen05.ld(
            tmem_addr[0], *[reg[i] for i in range(registers)], shape=shape, num=num, row=row, col=0
        )
        T.ptx.tcgen05.wait.ld()
        for i in T.serial(registers):
            R[warp_id * 32 + lane_id, i] = reg[i]
        T.cuda.cta_sync()
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(tmem_addr[0], n_cols=64, cta_group=1)

    return lower(kernel)


def where(shape, t, i):
    """(lane, column) of register i of thread t, as the PTX figures of the shapes have it."""
    if shape == "32x32b":
        return t, i
    if shape == "16x64b":
        return t // 4 + 8 * (t % 2), 2 * i + t // 2 % 2
    if shape == "16x128b":
        return t // 4 + 8 * (i % 2), 4 * (i // 2) + t % 4
    return t // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (t % 4) + i % 2


@pytest.mark.parametrize(
    ("shape", "num", "row"),
    [("32x32b", 1, 0), ("32x32b", 32, 0), ("16x64b", 4, 0), ("16x64b", 2, 16), ("16x128b", 4, 0), ("16x256b", 2, 16)],
)  # fmt: skip
@pytest.mark.parametrize("schedule", ["in-order", "lazy", "random:5"])
def test_load_shapes(shape, num, row, schedule):
    a, b = operands("float16", 128, 64, 16)
    registers = SHAPES[shape] * num
    arrays = [a, b, np.zeros((128, registers), np.float32)]
    run = simulate(load_kernel(shape, num, row), arrays, schedule)
    assert [str(f) for f in run.findings if f.severity == "error"] == []
    d = product(a, b)
    expected = np.zeros((128, registers), np.float32)
    for t in range(128):
        for i in range(registers):
            lane, column = where(shape, t % 32, i)
            expected[t, i] = d[t // 32 * 32 + row + lane, column]
    np.testing.assert_array_equal(run.outputs["R"], expected)


@pytest.mark.parametrize("schedule", ["in-order", "random:5"])
def test_an_accumulator_of_64_rows(schedule):
    """Layout F: row r lies in lane 32 * (r // 16) + r % 16, so warp w reads rows 16w to 16w + 15."""
    a, b = operands("float16", 64, 64, 16)
    arrays = [a, b, np.zeros((128, 32), np.float32)]
    run = simulate(load_kernel("16x64b", 32, M=64), arrays, schedule)
    assert [str(f) for f in run.findings if f.severity == "error"] == []
    d, expected = product(a, b), np.zeros((128, 32), np.float32)
    for t in range(128):
        for i in range(32):
            lane, column = where("16x64b", t % 32, i)
            expected[t, i] = d[t // 32 * 16 + lane, column]
    np.testing.assert_array_equal(run.outputs["R"], expected)


def test_lanes_that_no_accumulator_row_is_in_are_not_written():
    """Reading them is an error of the kernel, and gives the garbage that TMEM starts with."""
    a, b = operands("float16", 64, 64, 16)
    arrays = [a, b, np.zeros((128, 64), np.float32)]
    run = simulate(load_kernel("32x32b", 64, M=64), arrays)
    assert "uninitialised" in "".join(f.code for f in run.findings if f.severity == "error")
    out = run.outputs["R"].reshape(4, 32, 64)
    np.testing.assert_array_equal(out[:, :16].reshape(64, 64), product(a, b))
    assert np.isnan(out[:, 16:]).all()
