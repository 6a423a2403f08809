"""tcgen05.cp: the proxy of its source, what tells that it is done, and what is in a pipeline with it."""

import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run
from .test_tcgen05 import LAYOUT, ROWS, K, M

N = 16
FILL = mma_shared_layout(tvm.DataType("float32"), SwizzleMode.SWIZZLE_64B_ATOM, (M, N))


def copied(
    writer_fence=True,
    load_sync=True,
    elect=True,
    commit_after=True,
    wait=True,
    after_fence=True,
    overwrite_fence=True,
    wait_ld=True,
    again="",
):
    """All threads fill a tile, one copies it to TMEM, all load it and overwrite the tile; then it is copied `again`."""

    @T.prim_func
    def kernel(D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((2,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, N), "float32", layout=FILL)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(bar.ptr_to([1]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        for c in T.serial(N):
            s[warp * 32 + lane, c] = T.float32(1)  # fill
        if writer_fence:
            T.ptx.fence.proxy_async("shared::cta")
        if load_sync:
            T.cuda.cta_sync()
        if warp == 0:
            if not elect:
                Tx.copy_async(tmem[:, 0:N], s[:, :])  # by_warp
            if T.ptx.elect_sync():
                if not commit_after:
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
                if elect:
                    Tx.copy_async(tmem[:, 0:N], s[:, :])  # cp
                if commit_after:
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        if wait:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        if after_fence:
            T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((1,), "float32")
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
        if wait_ld:
            T.ptx.tcgen05.wait.ld()
            D[warp * 32 + lane] = reg[0]
        if wait:
            if overwrite_fence:
                T.ptx.fence.proxy_async("shared::cta")
            s[warp * 32 + lane, 0] = T.float32(2)  # reuse
        if again != "":
            T.ptx.fence.proxy_async("shared::cta")
            if again == "fenced":
                T.ptx.tcgen05.fence.before_thread_sync()
            T.cuda.cta_sync()
            if again == "fenced":
                T.ptx.tcgen05.fence.after_thread_sync()
            if warp == 1:
                if T.ptx.elect_sync():
                    Tx.copy_async(tmem[:, 0:N], s[:, :])  # again
                    T.ptx.tcgen05.commit(bar.ptr_to([1]), cta_group=1)
            T.ptx.mbarrier.try_wait(bar.ptr_to([1]), 0)
        T.ptx.tcgen05.wait.ld()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)  # dealloc

    return kernel


UNORDERED = ("race tmem raw @ld <cp", "tmem-freed-in-use tmem @dealloc <cp")
test_copy_requires_proxy_fence_of_the_writers = requires(
    copied, "writer_fence", "missing-proxy-fence shared raw @cp <fill"
)
test_copy_requires_cta_sync_after_the_writers = requires(
    copied, "load_sync", "race shared raw @cp <fill"
)
test_tcgen05_ld_requires_wait_for_the_copy = requires(copied, "wait", *UNORDERED)
test_tcgen05_ld_requires_fence_after_the_copy = requires(
    copied, "after_fence", "~missing-tcgen05-fence tmem raw @ld <cp"
)
test_overwriting_the_source_requires_proxy_fence_after_the_wait = requires(
    copied, "overwrite_fence", "~missing-proxy-fence shared war @reuse <cp"
)
test_a_copy_over_what_was_loaded_is_silent_with_both_fences = gives(copied, again="fenced")
test_copy_over_what_was_loaded_requires_fences = gives(
    copied, "~missing-tcgen05-fence tmem war @again <ld", again="bare"
)


def test_tcgen05_ld_requires_commit_after_the_copy():
    for schedule in SCHEDULES:
        titles = {f.title for f in run(copied, schedule, commit_after=False).findings}
        assert "race tmem raw" in titles


def test_copy_requires_one_thread():
    for schedule in SCHEDULES:
        codes = {f.code for f in run(copied, schedule, elect=False).findings}
        assert "duplicate-issue" in codes


# -- pipelines ------------------------------------------------------------------------------------------------------------
def piped(copy_first=True, wait=False, other_thread=False, fences=True, twice=False):
    """A copy gives the accumulator its first value, and an MMA adds to it; or the other way round."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((2,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, N), "float32", layout=FILL)
        a = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(bar.ptr_to([1]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        for c in T.serial(N):
            s[warp * 32 + lane, c] = T.float32(1)
        Tx.cta.copy(a[:, :], A[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp == 0:
            if T.ptx.elect_sync():
                if copy_first:
                    Tx.copy_async(tmem[:, 0:N], s[:, :])  # cp
                    if twice:
                        Tx.copy_async(tmem[:, 0:N], s[:, :])  # twice
                else:
                    Tx.gemm_async(  # mma
                        tmem[:, 0:N], a[:, :], a[0:N, :], accum=False, dispatch="tcgen05", cta_group=1
                    )  # fmt: skip
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
                if wait:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                    T.ptx.tcgen05.fence.after_thread_sync()
                if not other_thread:
                    if copy_first:
                        Tx.gemm_async(  # add
                            tmem[:, 0:N], a[:, :], a[0:N, :], accum=True, dispatch="tcgen05", cta_group=1
                        )  # fmt: skip
                    else:
                        Tx.copy_async(tmem[:, 0:N], s[:, :])  # over
                    T.ptx.tcgen05.commit(bar.ptr_to([1]), cta_group=1)
        if other_thread:
            if fences:
                T.ptx.tcgen05.fence.before_thread_sync()
            T.cuda.cta_sync()
            if fences:
                T.ptx.tcgen05.fence.after_thread_sync()
            if warp == 1:
                if T.ptx.elect_sync():
                    Tx.gemm_async(  # other
                        tmem[:, 0:N], a[:, :], a[0:N, :], accum=True, dispatch="tcgen05", cta_group=1
                    )  # fmt: skip
                    T.ptx.tcgen05.commit(bar.ptr_to([1]), cta_group=1)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.ptx.mbarrier.try_wait(bar.ptr_to([1]), 0)
        T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((1,), "float32")
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
        T.ptx.tcgen05.wait.ld()
        D[warp * 32 + lane] = reg[0]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_an_mma_after_a_copy_of_its_thread_is_a_pipeline = gives(piped)
test_an_mma_after_a_copy_that_was_waited_for_is_silent = gives(piped, wait=True)
test_an_mma_of_a_thread_that_fences_order_after_the_copy_is_a_pipeline = gives(
    piped, other_thread=True
)
test_mma_of_another_thread_requires_tcgen05_fences = gives(
    piped, "race tmem waw @other <cp", other_thread=True, fences=False
)
test_a_copy_after_an_mma_that_was_waited_for_is_silent = gives(piped, copy_first=False, wait=True)
test_copy_over_what_an_mma_writes_requires_wait = gives(
    piped, "race tmem waw @over <mma", copy_first=False
)
test_copy_over_what_a_copy_writes_requires_wait = gives(
    piped, "race tmem waw @twice <cp", twice=True
)


def test_the_mma_adds_to_what_was_copied():
    for schedule in SCHEDULES:
        assert run(piped, schedule).outputs["D"].tolist() == [1.0] * M
