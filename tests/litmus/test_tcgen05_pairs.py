"""Pairs of tcgen05 operations: which are a pipeline, and what orders the others."""

from tvm.script.tirx import tile as Tx

from phaseflip.spelling import T

from .harness import gives, requires
from .test_tcgen05 import LAYOUT, ROWS, WIDE, K, M


def transfers(
    wait_st=True,
    between_stores=True,
    wait_ld=True,
    wait_reload=True,
):
    """A warp stores, stores again, loads and stores once more; all to one column."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        T.cuda.warp_sync()
        reg = T.alloc_local((1,), "float32")
        out = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # st1
        if between_stores:
            T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # st2
        if wait_st:
            T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.ld(address[0], out[0], shape="32x32b", num=1, row=0, col=0)  # ld
        if wait_ld:
            T.ptx.tcgen05.wait.ld()
        T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # st3
        T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.wait.ld()
        D[lane] = out[0]
        T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


test_tcgen05_ld_of_what_was_stored_requires_wait_st = requires(
    transfers, "wait_st", "race tmem raw @ld <st2"
)
test_tcgen05_st_over_a_store_requires_wait_st = requires(
    transfers, "between_stores", "race tmem waw @st2 <st1"
)
test_tcgen05_st_over_what_was_loaded_requires_wait_ld = requires(
    transfers, "wait_ld", "race tmem war @st3 <ld"
)


def stored_registers(wait=True):
    """Registers that a load has not delivered yet are stored."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        T.cuda.warp_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
        T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
        if wait:
            T.ptx.tcgen05.wait.ld()
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=1)  # st
        T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.wait.ld()
        D[lane] = reg[0]
        T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


test_tcgen05_st_of_loaded_registers_requires_wait_ld = requires(
    stored_registers, "wait", "uninitialised-read register @st <ld"
)


def across_warps(before=True, after=True, sync=True, wait_st=True):
    """Warp 0 stores to lanes 0-31, warp 4 loads them."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([5])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        if warp == 0:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        T.cuda.cta_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        if warp == 0:
            T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # st
            if wait_st:
                T.ptx.tcgen05.wait.st()
            if before:
                T.ptx.tcgen05.fence.before_thread_sync()
        if sync:
            T.cuda.cta_sync()
        if warp == 4:
            if after:
                T.ptx.tcgen05.fence.after_thread_sync()
            T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
            T.ptx.tcgen05.wait.ld()
            D[lane] = reg[0]
        if warp == 0:
            T.ptx.tcgen05.wait.st()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


FENCE = "~missing-tcgen05-fence tmem raw @ld <st"
test_tcgen05_ld_of_another_warps_store_requires_fence_before_thread_sync = requires(
    across_warps, "before", FENCE
)
test_tcgen05_ld_of_another_warps_store_requires_fence_after_thread_sync = requires(
    across_warps, "after", FENCE
)
test_tcgen05_ld_of_another_warps_store_requires_cta_sync = requires(
    across_warps, "sync", "race tmem raw @ld <st"
)
test_tcgen05_ld_of_another_warps_store_requires_wait_st = requires(
    across_warps, "wait_st", "race tmem raw @ld <st"
)


def two_readers(both=True):
    """Warps 0 and 4 load the same lanes; warp 0 overwrites them when the readers have arrived at its barrier."""
    threads = 64 if both else 32

    @T.prim_func
    def kernel(D: T.Buffer((2, 32), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([9])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), threads)
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=32, cta_group=1)
        T.cuda.cta_sync()
        reg = T.alloc_local((1,), "float32")
        reg[0] = T.float32(1)
        if warp == 0:
            T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
            T.ptx.tcgen05.wait.st()
            T.ptx.tcgen05.fence.before_thread_sync()
        T.cuda.cta_sync()
        T.ptx.tcgen05.fence.after_thread_sync()
        if warp == 4 or warp == 8:
            T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
            T.ptx.tcgen05.wait.ld()
            T.ptx.tcgen05.fence.before_thread_sync()
            D[warp // 4 - 1, lane] = reg[0]
            if both or warp == 8:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        if warp == 0:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            T.ptx.tcgen05.fence.after_thread_sync()
            T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # st
            T.ptx.tcgen05.wait.st()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=32, cta_group=1)

    return kernel


test_tcgen05_st_over_what_two_warps_load_requires_both_to_arrive = requires(
    two_readers, "both", "race tmem war @st <ld"
)


def elected_wait(all_lanes=True):
    """One lane waits for the MMA's barrier, then its whole warp loads."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((32,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        Tx.cta.copy(s[:, :], A[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        reg = T.alloc_local((1,), "float32")
        if warp == 0:
            if T.ptx.elect_sync():
                Tx.gemm_async(  # mma
                    tmem[:, 0:16], s[:, :], s[0:16, :], accum=False, dispatch="tcgen05", cta_group=1
                )
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        if warp == 1:
            if lane == 0:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            if all_lanes:
                T.cuda.warp_sync()
            T.ptx.tcgen05.fence.after_thread_sync()
            T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
            T.ptx.tcgen05.wait.ld()
            D[lane] = reg[0]
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_tcgen05_ld_requires_every_lane_to_know_of_the_mma = requires(
    elected_wait, "all_lanes", "race tmem raw @ld <mma"
)


def accumulators(
    same_shape=True, apart=False, waits=False, after=False, second_thread=False, fences=True
):
    """Two MMAs without a wait between them."""
    n, at = (16 if same_shape else 32), (32 if apart else 0)

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((3,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                for b in T.serial(3):
                    T.ptx.mbarrier.init(bar.ptr_to([b]), 1)
                    T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        Tx.cta.copy(s[:, :], A[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp == 0:
            if T.ptx.elect_sync():
                Tx.gemm_async(  # first
                    tmem[:, 0:16], s[:, :], s[0:16, :], accum=False, dispatch="tcgen05", cta_group=1
                )
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
                if waits:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                    if after:
                        T.ptx.tcgen05.fence.after_thread_sync()
                if second_thread:
                    if fences:
                        T.ptx.tcgen05.fence.before_thread_sync()
                    T.ptx.mbarrier.arrive(bar.ptr_to([1]))
                else:
                    Tx.gemm_async(  # second
                        tmem[:, at : at + n], s[:, :], s[0:n, :], accum=False, dispatch="tcgen05",
                        cta_group=1,
                    )  # fmt: skip
                    T.ptx.tcgen05.commit(bar.ptr_to([2]), cta_group=1)
        if second_thread:
            if warp == 1:
                if T.ptx.elect_sync():
                    T.ptx.mbarrier.try_wait(bar.ptr_to([1]), 0)
                    if fences:
                        T.ptx.tcgen05.fence.after_thread_sync()
                    Tx.gemm_async(  # other
                        tmem[:, at : at + n], s[:, :], s[0:n, :], accum=False, dispatch="tcgen05",
                        cta_group=1,
                    )  # fmt: skip
                    T.ptx.tcgen05.commit(bar.ptr_to([2]), cta_group=1)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.ptx.mbarrier.try_wait(bar.ptr_to([2]), 0)
        T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((1,), "float32")
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
        T.ptx.tcgen05.wait.ld()
        D[warp * 32 + lane] = reg[0]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_mma_over_an_mma_requires_the_same_shape_or_a_wait = requires(
    accumulators, "same_shape", "race tmem waw @second <first"
)
test_mma_of_another_shape_after_a_wait_requires_fence_after_thread_sync = requires(
    accumulators,
    "after",
    "~missing-tcgen05-fence tmem waw @second <first",
    same_shape=False,
    waits=True,
)
test_mmas_on_accumulators_apart_require_nothing = gives(accumulators, same_shape=False, apart=True)
test_mma_over_another_threads_mma_requires_tcgen05_fences = requires(
    accumulators, "fences", "race tmem waw @other <first", second_thread=True
)
test_mma_of_another_thread_requires_the_same_shape = requires(
    accumulators, "same_shape", "race tmem waw @other <first", second_thread=True
)


def batches(same_buffer=False, sync=True):
    """Two MMAs on one accumulator without a commit between; the second reads what was written meanwhile."""
    buffers = 1 if same_buffer else 2

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((buffers * M, K), "float16", layout=WIDE if buffers == 2 else LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        for i in T.unroll(2):
            Tx.cta.copy(s[i % buffers * M : i % buffers * M + M, :], A[:, :])  # copy
            T.ptx.fence.proxy_async("shared::cta")
            if sync:
                T.cuda.cta_sync()
            else:
                if i == 0:
                    T.cuda.cta_sync()
            if warp == 0:
                if T.ptx.elect_sync():
                    Tx.gemm_async(  # mma
                        tmem[:, 0:16],
                        s[i % buffers * M : i % buffers * M + M, :],
                        s[i % buffers * M : i % buffers * M + 16, :],
                        accum=(i != 0),
                        dispatch="tcgen05",
                        cta_group=1,
                    )
        if warp == 0:
            if T.ptx.elect_sync():
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((1,), "float32")
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
        T.ptx.tcgen05.wait.ld()
        D[warp * 32 + lane] = reg[0]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_two_mmas_and_one_commit_require_nothing_more = gives(batches)
test_operands_of_an_mma_that_nobody_waited_for_require_a_buffer_apart = gives(
    batches, "race shared war @copy <mma", same_buffer=True
)
test_the_second_of_two_mmas_requires_cta_sync_too = requires(
    batches, "sync", "race shared raw @mma <copy"
)


def stored_accumulator(wait_st=True, before=True, after=True, wait_mma=True, after_mma=True):
    """All warps store zeros to the accumulator, an MMA adds to them, all warps load, and store again."""

    @T.prim_func
    def kernel(A: T.Buffer((M, K), "float16"), D: T.Buffer((M,), "float32")):
        T.device_entry()
        bx = T.cta_id([1])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=1)
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        reg = T.alloc_local((16,), "float32")
        for i in T.unroll(16):
            reg[i] = T.float32(0)
        T.ptx.tcgen05.st(  # st
            address[0], *[reg[i] for i in range(16)], shape="32x32b", num=16, row=0, col=0
        )
        if wait_st:
            T.ptx.tcgen05.wait.st()
        if before:
            T.ptx.tcgen05.fence.before_thread_sync()
        Tx.cta.copy(s[:, :], A[:, :])
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if warp == 0:
            if after:
                T.ptx.tcgen05.fence.after_thread_sync()
            if T.ptx.elect_sync():
                Tx.gemm_async(  # mma
                    tmem[:, 0:16], s[:, :], s[0:16, :], accum=True, dispatch="tcgen05", cta_group=1
                )
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
        if wait_mma:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        if after_mma:
            T.ptx.tcgen05.fence.after_thread_sync()
        T.ptx.tcgen05.wait.st()
        T.ptx.tcgen05.st(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # again
        T.ptx.tcgen05.wait.st()
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.cuda.cta_sync()
        D[warp * 32 + lane] = reg[0]
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_mma_onto_what_was_stored_requires_wait_st = requires(
    stored_accumulator, "wait_st", "race tmem waw @mma <st"
)
test_mma_onto_what_was_stored_requires_fence_before_thread_sync = requires(
    stored_accumulator, "before", "~missing-tcgen05-fence tmem waw @mma <st"
)
test_mma_onto_what_was_stored_requires_fence_after_thread_sync = requires(
    stored_accumulator, "after", "~missing-tcgen05-fence tmem waw @mma <st"
)
test_tcgen05_st_over_a_product_requires_wait_for_the_mma = requires(
    stored_accumulator, "wait_mma", "race tmem waw @again <mma"
)
test_tcgen05_st_over_a_product_requires_fence_after_thread_sync = requires(
    stored_accumulator, "after_mma", "~missing-tcgen05-fence tmem waw @again <mma"
)
