"""wgmma: what its fence, commit and wait order, and the proxies of its shared-memory operands."""

import numpy as np
import pytest
import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run

M, N, K = 64, 8, 16
LAYOUT = mma_shared_layout(tvm.DataType("float16"), SwizzleMode.SWIZZLE_32B_ATOM, (M, K))
SHAPE = {"M": M, "N": N, "K": K, "in_dtype": "float16", "out_dtype": "float32"}
PLAIN = {"transA": False, "transB": False, "scaleA": 1.0, "scaleB": 1.0}


def product(
    writer_fence=True,
    load_sync=True,
    fence=True,
    commit=True,
    wait=True,
    overwrite=False,
    overwrite_sync=True,
    second=False,
    touch=False,
    touch_fence=True,
    newest=0,
    whole=True,
):
    """D = A A^T, with A row m = m % 4; `second`: twice as much, by a second group."""

    @T.prim_func
    def kernel(D: T.Buffer((128, N // 2), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        desc = T.alloc_local((1,), "uint64")
        acc = T.alloc_local((N // 2,), "float32")
        tid = T.meta_var(warp * 32 + lane)
        for k in T.serial(K // 2):
            s[tid // 2, tid % 2 * 8 + k] = T.cast(tid // 2 % 4, "float16")  # store
        if writer_fence:
            T.ptx.fence.proxy_async("shared::cta")
        if load_sync:
            T.cuda.cta_sync()
        T.ptx.wgmma.encode_matrix_descriptor(T.address_of(desc[0]), s.ptr_to([0, 0]), 1, 16, 1)
        if fence:
            T.ptx.wgmma.fence()
        if whole:
            T.ptx.wgmma.mma_async.ss(  # wgmma
                desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=False
            )
        else:
            if warp < 3:
                T.ptx.wgmma.mma_async.ss(
                    desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=False
                )  # fmt: skip
        if commit:
            T.ptx.wgmma.commit_group()
        if touch:
            T.ptx.wgmma.wait_group(0)
            acc[0] = acc[0] + 1.0
            if touch_fence:
                T.ptx.wgmma.fence()
        if second:
            T.ptx.wgmma.mma_async.ss(  # again
                desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=True
            )
            T.ptx.wgmma.commit_group()
        if wait:
            T.ptx.wgmma.wait_group(newest)
        if overwrite:
            if overwrite_sync:
                T.cuda.cta_sync()
            s[M - 1 - tid // 2, tid % 2 * 8] = T.float16(0)  # overwrite
        for r in T.serial(N // 2):
            D[tid, r] = acc[r]  # read

    return kernel


test_wgmma_of_generic_stores_requires_proxy_fence = requires(
    product, "writer_fence", "missing-proxy-fence shared raw @wgmma <store"
)
test_wgmma_of_stores_by_others_requires_barrier = requires(
    product, "load_sync", "race shared raw @wgmma <store"
)
test_first_wgmma_requires_fence = requires(product, "fence", "missing-wgmma-fence register @wgmma")
test_wgmma_on_registers_written_since_requires_fence = requires(
    product, "touch_fence", "missing-wgmma-fence register @again", second=True, touch=True
)
test_accumulator_read_requires_wait_group = requires(
    product, "wait", "uninitialised-read register @read <wgmma"
)
test_wait_group_needs_a_commit = requires(
    product, "commit", "uninitialised-read register @read <wgmma"
)
test_overwrite_of_operands_requires_wait_group = requires(
    product,
    "wait",
    "race shared war @overwrite <wgmma",
    "uninitialised-read register @read <wgmma",
    overwrite=True,
)
test_overwrite_of_operands_of_another_warp_needs_no_barrier = gives(
    product, overwrite=True, overwrite_sync=False
)
"""The wait is for a group of the whole warpgroup; and no proxy fence: completion implies it."""

test_accumulating_twice_needs_no_fence_between = gives(product, second=True)
test_the_newest_group_may_be_pending_where_it_is_read = gives(
    product,
    "uninitialised-read register @read <again",
    second=True,
    newest=1,
)


def chain(newest=0, wide=False, wide_fence=True):
    """D = 3 A A^T by three groups behind one fence; `wide`: then A A^T anew, in twice the registers."""

    @T.prim_func
    def kernel(D: T.Buffer((128, N // 2), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        desc = T.alloc_local((1,), "uint64")
        acc = T.alloc_local((N,), "float32")
        tid = T.meta_var(warp * 32 + lane)
        for k in T.serial(K // 2):
            s[tid // 2, tid % 2 * 8 + k] = T.cast(tid // 2 % 4, "float16")
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        T.ptx.wgmma.encode_matrix_descriptor(T.address_of(desc[0]), s.ptr_to([0, 0]), 1, 16, 1)
        T.ptx.wgmma.fence()
        for i in T.serial(3):
            T.ptx.wgmma.mma_async.ss(
                desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=i != 0
            )
            T.ptx.wgmma.commit_group()
            T.ptx.wgmma.wait_group(newest)
        if wide:
            if wide_fence:
                T.ptx.wgmma.fence()
            T.ptx.wgmma.mma_async.ss(  # wide
                desc[0],
                desc[0],
                *[acc[r] for r in range(N)],
                **SHAPE | {"N": 2 * N},
                **PLAIN,
                scaleD=False,
            )
            T.ptx.wgmma.commit_group()
        T.ptx.wgmma.wait_group(0)
        for r in T.serial(N // 2):
            D[tid, r] = acc[r]

    return kernel


test_one_fence_does_for_groups_that_are_waited_for_one_by_one = gives(chain)
test_one_fence_does_for_groups_of_which_one_is_in_flight = gives(chain, newest=1)
test_wgmma_of_another_shape_requires_fence = requires(
    chain, "wide_fence", "missing-wgmma-fence register @wide", wide=True
)


def released(wait_first=True, aligned=True):
    """Warp 4 overwrites the operands once a lane of each warp that multiplies has arrived; it stands first in the program."""

    @T.prim_func
    def kernel(D: T.Buffer((128, N // 2), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([8])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        if not aligned:
            pool.move_base_to(8)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        desc = T.alloc_local((1,), "uint64")
        acc = T.alloc_local((N // 2,), "float32")
        tid = T.meta_var(warp * 32 + lane)
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 4)
        if warp < 4:
            for k in T.serial(K // 2):
                s[tid // 2, tid % 2 * 8 + k] = T.float16(1)
            T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp == 4:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            s[lane, 0] = T.float16(2)  # overwrite
        if warp < 4:
            T.ptx.wgmma.encode_matrix_descriptor(  # descriptor
                T.address_of(desc[0]), s.ptr_to([0, 0]), 1, 16, 1
            )
            T.ptx.wgmma.fence()
            T.ptx.wgmma.mma_async.ss(  # wgmma
                desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=False
            )
            T.ptx.wgmma.commit_group()
            if wait_first:
                T.ptx.wgmma.wait_group(0)
            if lane == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            T.ptx.wgmma.wait_group(0)
            for r in T.serial(N // 2):
                D[tid, r] = acc[r]

    return kernel


test_whoever_knows_that_a_product_was_issued_comes_after_it = requires(
    released, "wait_first", "race shared war @overwrite <wgmma"
)


test_a_matrix_descriptor_requires_an_operand_at_a_multiple_of_16_bytes = requires(
    released, "aligned", "misaligned-access shared @descriptor", "uninitialised-read shared @wgmma"
)


def two_warpgroups(sync=True):
    """Each multiplies the same operands and waits for its own product, then the first one overwrites them."""

    @T.prim_func
    def kernel(D: T.Buffer((256, N // 2), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([8])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        desc = T.alloc_local((1,), "uint64")
        acc = T.alloc_local((N // 2,), "float32")
        tid = T.meta_var(warp * 32 + lane)
        if warp < 4:
            for k in T.serial(K // 2):
                s[tid // 2, tid % 2 * 8 + k] = T.float16(1)
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        T.ptx.wgmma.encode_matrix_descriptor(T.address_of(desc[0]), s.ptr_to([0, 0]), 1, 16, 1)
        T.ptx.wgmma.fence()
        T.ptx.wgmma.mma_async.ss(  # wgmma
            desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=False
        )
        T.ptx.wgmma.commit_group()
        T.ptx.wgmma.wait_group(0)
        if sync:
            T.cuda.cta_sync()
        if warp < 4:
            s[tid // 2, tid % 2 * 8] = T.float16(2)  # overwrite
        for r in T.serial(N // 2):
            D[tid, r] = acc[r]

    return kernel


test_a_wait_tells_of_the_products_of_its_own_warpgroup = requires(
    two_warpgroups, "sync", "race shared war @overwrite <wgmma"
)


def rounds(product=True, newest=0):
    """Four warps multiply once a round; one lane arrives for all of them, and warp 4 begins the next round."""

    @T.prim_func
    def kernel(D: T.Buffer((256, N // 2), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([8])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        full = pool.alloc((1,), "uint64", align=8)
        empty = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        desc = T.alloc_local((1,), "uint64")
        acc = T.alloc_local((N // 2,), "float32")
        tid = T.meta_var(warp * 32 + lane)
        if tid == 0:
            T.ptx.mbarrier.init(full.ptr_to([0]), 1)
            T.ptx.mbarrier.init(empty.ptr_to([0]), 1)
        if warp < 4:
            for k in T.serial(K // 2):
                s[tid // 2, tid % 2 * 8 + k] = T.float16(1)
            T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp < 4:
            T.ptx.wgmma.encode_matrix_descriptor(T.address_of(desc[0]), s.ptr_to([0, 0]), 1, 16, 1)
            T.ptx.wgmma.fence()
            for i in T.serial(4):
                T.ptx.mbarrier.try_wait(full.ptr_to([0]), i % 2)  # wait
                if product:
                    T.ptx.wgmma.mma_async.ss(
                        desc[0], desc[0], *[acc[r] for r in range(N // 2)], **SHAPE, **PLAIN, scaleD=i != 0
                    )  # fmt: skip
                    T.ptx.wgmma.commit_group()
                T.ptx.wgmma.wait_group(newest)
                if tid == 0:
                    T.ptx.mbarrier.arrive(empty.ptr_to([0]))
            T.ptx.wgmma.wait_group(0)
            for r in T.serial(N // 2):
                D[tid, r] = acc[r] if product else T.float32(0)
        if tid == 128:
            for i in T.serial(4):
                T.ptx.mbarrier.try_wait(empty.ptr_to([0]), (i + 1) % 2)
                T.ptx.mbarrier.arrive(full.ptr_to([0]))

    return kernel


test_one_lane_arrives_for_the_warpgroup_whose_product_is_done = requires(
    rounds, "product", "lapped-wait @wait"
)
test_one_lane_arrives_not_for_a_product_in_flight = gives(rounds, "lapped-wait @wait", newest=1)


def test_the_products_under_every_schedule():
    """Register r of lane l: row l / 4 + 8 (r / 2) of its warp, column 2 (l % 4) + r % 2."""
    lanes, r = np.arange(128)[:, None], np.arange(N // 2)[None, :]
    rows = lanes // 32 * 16 + lanes % 32 // 4 + 8 * (r // 2)
    columns = 2 * (lanes % 4) + r % 2
    expected = K * (rows % 4) * (columns % 4)
    for schedule in SCHEDULES:
        once = run(product, schedule).outputs["D"]
        twice = run(product, schedule, second=True).outputs["D"]
        assert (once == expected).all() and (twice == 2 * expected).all()
        for newest in (0, 1):
            assert (run(chain, schedule, newest=newest).outputs["D"] == 3 * expected).all()
        assert (run(chain, schedule, wide=True).outputs["D"] == expected).all()


def test_a_product_of_three_warps_is_no_product_of_the_warpgroup():
    found = run(product, whole=False)
    assert {f.code for f in found.findings} == {"divergent-collective", "uninitialised-read"}
    assert "different products" in found.findings[0].why  # and the fourth has none to store


@pytest.mark.parametrize(
    ("dropped", "lacks", "fix"),
    [
        ("wait", "no wgmma.wait_group", "T.ptx.wgmma.wait_group(0)"),
        ("commit", "no wgmma.commit_group", "T.ptx.wgmma.commit_group(), then T.ptx.wgmma.wait_group(0),"),
    ],
)  # fmt: skip
def test_the_fix_of_an_early_read_names_what_is_missing(dropped, lacks, fix):
    early = next(f for f in run(product, **{dropped: False}).findings if f.memory == "register")
    assert early.why.startswith(f"it is asynchronous, and {lacks} of this warp has ")
    assert early.fix == f"{fix} between it and the first use of its registers"
