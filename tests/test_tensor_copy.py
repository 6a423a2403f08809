"""tcgen05.cp of all shapes and multicasts: the rows of TVM's layouts against where PTX says that warps find them."""

import functools

import numpy as np
import pytest
import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import R, S, TCol, TileLayout, TLane

from phaseflip import lower, simulate
from phaseflip.errors import UnsupportedInstruction
from phaseflip.spelling import T

WORD = tvm.DataType("uint32")
SCHEDULES = ("in-order", "eager", "lazy", "random:3")
EMPTY = 0xFFFFFFFF


def tensor_layout(shape, multicast, columns):
    """Where TVM's planner has the rows of an instruction."""
    return TileLayout({
        ("128x256b", ""): S[(128, columns) : (1 @ TLane, 1 @ TCol)],
        ("128x128b", ""): S[(128, columns) : (1 @ TLane, 1 @ TCol)],
        ("4x256b", ""): S[(4, columns) : (32 @ TLane, 1 @ TCol)],
        ("64x128b", "warpx2::02_13"): S[(64, columns) : (1 @ TLane, 1 @ TCol)] + R[2 : 64 @ TLane],
        ("64x128b", "warpx2::01_23"): S[(2, 32, columns) : (64 @ TLane, 1 @ TLane, 1 @ TCol)] + R[2 : 32 @ TLane],
        ("32x128b", "warpx4"): S[(32, columns) : (1 @ TLane, 1 @ TCol)] + R[4 : 32 @ TLane],
    }[shape, multicast])  # fmt: skip


def shared_layout(kind, rows, columns):
    """Rows of 32-bit words: consecutive, swizzled, or the 16-byte columns one after the other."""
    if kind == "rows":
        return TileLayout(S[(rows, columns) : (columns, 1)])
    if kind == "columns":
        return TileLayout(S[(rows, columns // 4, 4) : (4, 4 * rows, 1)])
    mode = {"32B": SwizzleMode.SWIZZLE_32B_ATOM, "64B": SwizzleMode.SWIZZLE_64B_ATOM}
    return mma_shared_layout(WORD, mode.get(kind, SwizzleMode.SWIZZLE_128B_ATOM), (rows, columns))


@functools.cache
def copier(shape, multicast, kind, copies=1, group=1):
    """D holds all lanes of TMEM (of each CTA, one after the other) after copies of the rows of A, column by column."""
    rows = int(shape.partition("x")[0])
    width = int(shape.partition("x")[2][:-1]) // 32
    columns = width * copies
    source = shared_layout(kind, rows, columns)
    target = tensor_layout(shape, multicast, columns)

    @T.prim_func
    def kernel(A: T.Buffer((2 * rows, columns), WORD), D: T.Buffer((256, columns), WORD)):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((rows, columns), WORD, layout=source)
        pool.commit()
        reg = T.alloc_local((columns,), WORD)
        T.cuda.cluster_sync()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=group)
        T.cuda.cta_sync()
        for c in T.unroll(columns):
            reg[c] = T.uint32(EMPTY)
            T.ptx.tcgen05.st(address[0], reg[c], shape="32x32b", num=1, row=0, col=c)
        T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.fence.before_thread_sync()
        row: T.int32 = warp * 32 + lane
        if row < rows:
            for c in T.serial(columns):
                s[row, c] = A[rank * rows + row, c]
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cluster_sync()
        T.ptx.tcgen05.fence.after_thread_sync()
        tmem = T.decl_buffer(
            (rows, columns), WORD, scope="tmem", allocated_addr=address[0], layout=target
        )
        if T.Or(rank == 0, group == 1):
            if warp == 0:
                if T.ptx.elect_sync():
                    Tx.copy_async(
                        tmem[:, :], s[:, :], shape=shape, multicast=multicast, cta_group=group
                    )
                    if group == 1:
                        T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
                    else:
                        T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=2, cta_mask=3)
        T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        T.ptx.tcgen05.fence.after_thread_sync()
        for c in T.unroll(columns):
            T.ptx.tcgen05.ld(address[0], reg[c], shape="32x32b", num=1, row=0, col=c)
        T.ptx.tcgen05.wait.ld()
        for c in T.serial(columns):
            D[rank * 128 + row, c] = reg[c]
        T.cuda.cluster_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=group)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=group)

    return lower(kernel)


def rows_of_warp(shape, multicast, warp):
    """(lane of the warp, row) pairs, from the words of PTX."""
    if shape == "4x256b":
        return [(0, warp)]
    if shape.startswith("128"):
        return [(lane, 32 * warp + lane) for lane in range(32)]
    if multicast == "warpx4":
        return [(lane, lane) for lane in range(32)]
    pairs = {"warpx2::02_13": ((0, 2), (1, 3)), "warpx2::01_23": ((0, 1), (2, 3))}[multicast]
    (half,) = (i for i, pair in enumerate(pairs) if warp in pair)
    return [(lane, 32 * half + lane) for lane in range(32)]


def expected(A, shape, multicast):
    D = np.full((128, A.shape[1]), EMPTY, np.uint32)
    for warp in range(4):
        for lane, row in rows_of_warp(shape, multicast, warp):
            D[32 * warp + lane] = A[row]
    return D


def check(schedule, shape, multicast, kind, **options):
    kernel = copier(shape, multicast, kind, **options)
    shapes = {name: shape for name, _, shape in kernel.parameters}
    A = np.arange(np.prod(shapes["A"]), dtype=np.uint32).reshape(shapes["A"]) + 1
    run = simulate(kernel, [A, np.zeros(shapes["D"], np.uint32)], schedule)
    assert [str(f) for f in run.findings] == []
    for cta, rows in enumerate(np.split(A, 2)):
        found = run.outputs["D"][128 * cta : 128 * cta + 128]
        assert found.tolist() == expected(rows, shape, multicast).tolist()


CASES = [
    ("128x256b", "", "32B", 1),
    ("128x256b", "", "64B", 2),
    ("128x256b", "", "128B", 4),
    ("128x256b", "", "columns", 1),
    ("128x128b", "", "rows", 1),
    ("128x128b", "", "columns", 2),
    ("128x128b", "", "32B", 2),
    ("4x256b", "", "columns", 1),
    ("64x128b", "warpx2::02_13", "rows", 1),
    ("64x128b", "warpx2::01_23", "rows", 1),
    ("64x128b", "warpx2::01_23", "64B", 4),
    ("32x128b", "warpx4", "rows", 1),
    ("32x128b", "warpx4", "columns", 4),
]


@pytest.mark.parametrize(("shape", "multicast", "kind", "copies"), CASES)
def test_rows_go_where_ptx_says(shape, multicast, kind, copies):
    check("in-order", shape, multicast, kind, copies=copies)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("group", [1, 2])
def test_schedules_and_cta_pairs(schedule, group):
    check(schedule, "32x128b", "warpx4", "rows", group=group)


# -- the instruction itself -------------------------------------------------------------------------------------------------
def raw(shape, multicast, row=0, column=0, decompress=""):
    """One copy of zeros from byte 1024 of shared memory, rows 16 bytes apart, to (row, column) of TMEM."""

    @T.prim_func
    def kernel(D: T.Buffer((128,), "uint32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([128])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((1024,), "uint32", align=1024)
        pool.commit()
        desc = T.alloc_local((1,), "uint64")
        if tid // 32 == 0:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        for i in T.serial(8):
            s[tid + 128 * i] = T.uint32(0)
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        T.ptx.tcgen05.encode_matrix_descriptor(T.address_of(desc), s.ptr_to([0]), 1, 8, 0)
        if tid == 0:
            T.ptx.tcgen05.cp(
                address[0], desc[0], shape=shape, multicast=multicast, decompress=decompress,
                row=row, col=column,
            )  # fmt: skip
            T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[tid] = T.uint32(1)
        T.cuda.cta_sync()
        if tid // 32 == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


@pytest.mark.parametrize(("row", "column"), [(0, 24), (15, 0), (31, 24)])
def test_rows_and_columns_are_added_to_the_address(row, column):
    assert simulate(raw("4x256b", "", row, column), [np.zeros(128, np.uint32)]).findings == []


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        ({"shape": "4x256b", "multicast": "", "row": 32}, "out-of-bounds", "reaches lanes 32 to 128; TMEM has 128"),
        ({"shape": "128x128b", "multicast": "", "row": 1}, "out-of-bounds", "reaches lanes 1 to 128; TMEM has 128"),
        ({"shape": "32x128b", "multicast": "warpx4", "column": 510}, "out-of-bounds", "columns 510-513; a CTA has"),
        ({"shape": "4x256b", "multicast": "", "column": 28}, "tmem-unallocated", "TMEM columns 28-35"),
    ],
)  # fmt: skip
def test_lanes_and_columns_must_exist_and_be_allocated(options, code, sentence):
    run = simulate(raw(**options), [np.zeros(128, np.uint32)])
    (finding,) = run.findings
    assert finding.code == code and sentence in finding.message


def test_a_copy_that_decompresses_is_refused_by_name():
    kernel = raw("128x128b", "", decompress="b8x16.b4x16_p64")
    with pytest.raises(UnsupportedInstruction, match="tcgen05.cp with .b8x16.b4x16_p64"):
        simulate(kernel, [np.zeros(128, np.uint32)])
