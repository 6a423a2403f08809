"""Correct patterns that resemble faults: silent in both profiles, under every schedule."""

from tvm.script.tirx import tile as Tx

from phaseflip.spelling import T

from .harness import gives
from .test_tcgen05 import LAYOUT, ROWS, K, M

N = 64


def first_wait_of_a_producer():
    """Parity 1 on a fresh barrier passes at once."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cta_sync()
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 1)
        D[tid] = 1

    return kernel


def wait_twice_for_one_phase():
    """A second wait for a phase that is over, on a barrier that is not used again."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[tid] = 1

    return kernel


def wait_twice_and_then_another_phase():
    """The arrival of the next phase comes after the second wait, by a CTA barrier."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.cuda.cta_sync()
        if tid == 0:
            T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 1)
        D[tid] = 1

    return kernel


def some_lanes_wait_first():
    """Lane 0 waits before its warp does; the warp stays converged for the CTA barrier."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cta_sync()
        if warp == 1:
            if lane == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        T.cuda.cta_sync()
        D[warp * 32 + lane] = 1

    return kernel


def one_lane_of_each_warp_waits():
    """The elected lanes of two warps wait for two barriers; each warp is whole again for the CTA barrier."""

    @T.prim_func
    def kernel(D: T.Buffer((96,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(bar.ptr_to([1]), 1)
        T.cuda.cta_sync()
        if warp < 2:
            if T.ptx.elect_sync():
                T.ptx.mbarrier.try_wait(bar.ptr_to([warp]), 0)
        else:
            if T.ptx.elect_sync():
                T.ptx.mbarrier.arrive(bar.ptr_to([1]))
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.cuda.cta_sync()
        D[warp * 32 + lane] = 1

    return kernel


def ring():
    """A ring of two stages with full and empty barriers, by role; the producer starts with parity 1."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        full = pool.alloc((2,), "uint64", align=8)
        empty = pool.alloc((2,), "uint64", align=8)
        s = pool.alloc((2, 32), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                for b in T.serial(2):
                    T.ptx.mbarrier.init(full.ptr_to([b]), 32)
                    T.ptx.mbarrier.init(empty.ptr_to([b]), 32)
        T.cuda.cta_sync()
        total: T.int32 = 0
        for i in T.serial(5):
            if warp == 0:
                T.ptx.mbarrier.try_wait(empty.ptr_to([i % 2]), (i // 2 + 1) % 2)
                s[i % 2, lane] = i
                T.ptx.mbarrier.arrive(full.ptr_to([i % 2]))
            else:
                T.ptx.mbarrier.try_wait(full.ptr_to([i % 2]), i // 2 % 2)
                total += s[i % 2, 31 - lane]
                T.ptx.mbarrier.arrive(empty.ptr_to([i % 2]))
        if warp == 1:
            D[lane] = total

    return kernel


def one_value_by_a_warp():
    """All lanes of a warp store one value to one place: one of them wins."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        s = T.alloc_shared((1,), "int32")
        if warp == 0:
            s[0] = 7
        T.cuda.cta_sync()
        D[warp * 32 + lane] = s[0]

    return kernel


def news(tiles=2):
    """One warp waits on the MMA's barrier, a CTA barrier passes the news on, and everyone then runs the after-fence.

    Also: consecutive MMAs on one accumulator, all threads releasing what one thread issued, no tcgen05 fences between
    wait::ld and dealloc, no mbarrier.inval.
    """

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
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(bar.ptr_to([1]), 128)
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
        for i in T.serial(tiles):
            if warp == 0:
                if T.ptx.elect_sync():
                    T.ptx.mbarrier.try_wait(bar.ptr_to([1]), (i + 1) % 2)
                    T.ptx.tcgen05.fence.after_thread_sync()
                    Tx.gemm_async(
                        tmem[:, 0:16],
                        s[:, :],
                        s[0:16, :],
                        accum=False,
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    Tx.gemm_async(
                        tmem[:, 0:16],
                        s[:, :],
                        s[0:16, :],
                        accum=True,
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
            if warp == 3:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), i % 2)
            T.cuda.cta_sync()
            T.ptx.tcgen05.fence.after_thread_sync()
            T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
            T.ptx.tcgen05.wait.ld()
            T.ptx.tcgen05.fence.before_thread_sync()
            T.ptx.mbarrier.arrive(bar.ptr_to([1]))
        D[warp * 32 + lane] = reg[0]
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


test_parity_1_on_a_fresh_barrier_is_silent = gives(first_wait_of_a_producer)
test_a_second_wait_for_a_phase_is_silent = gives(wait_twice_for_one_phase)
test_a_second_wait_before_the_next_phase_is_silent = gives(wait_twice_and_then_another_phase)
test_a_lane_that_waits_before_its_warp_is_silent = gives(some_lanes_wait_first)
test_elected_lanes_that_wait_for_different_barriers_are_silent = gives(one_lane_of_each_warp_waits)
test_a_ring_of_full_and_empty_barriers_is_silent = gives(ring)
test_one_place_stored_by_all_lanes_of_a_warp_is_silent = gives(one_value_by_a_warp)
test_a_cta_barrier_that_passes_on_what_one_warp_waited_for_is_silent = gives(news)
