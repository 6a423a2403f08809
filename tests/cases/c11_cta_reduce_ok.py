"""c11_cta_reduce:  (correct twin); made from hgemm_v4."""

import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.spelling import T


def k(M, N, K):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 128 divides M and N, 64 K."""
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    BLK_M, BLK_N, BLK_K, HALF = 128, 128, 64, 64
    K_TILES = K // BLK_K
    CHUNK_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    A_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_M, BLK_K))
    B_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_N, BLK_K))
    D_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_M, HALF))

    @T.prim_func
    def kernel(A: T.Buffer((M, K), f16), B: T.Buffer((N, K), f16), D: T.Buffer((M, N), f16)):
        T.device_entry()
        bx, by = T.cta_id([M // BLK_M, N // BLK_N])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        tma_bar = pool.alloc((1,), "uint64", align=8)
        mma_bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        Asmem = pool.alloc((BLK_M, BLK_K), f16, layout=A_layout)
        Bsmem = pool.alloc((BLK_N, BLK_K), f16, layout=B_layout)
        Dsmem = pool.alloc((BLK_M, HALF), f16, layout=D_layout)
        pool.commit()

        if warp_id == 0:
            if lane_id == 0:
                T.ptx.mbarrier.init(tma_bar.ptr_to([0]), 1)
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

        m_st = T.meta_var(bx * BLK_M)
        n_st = T.meta_var(by * BLK_N)
        phase_tma: T.int32 = 0
        phase_mma: T.int32 = 0

        for i in T.serial(K_TILES):
            # The bytes of both boxes belong to one phase: one arrival registers them all. TMA may
            # deliver before that arrival; the count then is negative for a while.
            if warp_id == 0:
                if T.ptx.elect_sync():
                    Tx.copy_async(
                        Asmem[:, :],
                        A[m_st : m_st + BLK_M, i * BLK_K : (i + 1) * BLK_K],
                        dispatch="tma_auto",
                        mbar=tma_bar.ptr_to([0]),
                    )
                    Tx.copy_async(
                        Bsmem[:, :],
                        B[n_st : n_st + BLK_N, i * BLK_K : (i + 1) * BLK_K],
                        dispatch="tma_auto",
                        mbar=tma_bar.ptr_to([0]),
                    )
                    T.ptx.mbarrier.arrive.expect_tx(tma_bar.ptr_to([0]), CHUNK_BYTES)
            T.ptx.mbarrier.try_wait(tma_bar.ptr_to([0]), phase_tma)
            phase_tma ^= 1

            # TMA wrote and the MMA reads through the async proxy: no proxy fence between them.
            if warp_id == 0:
                if T.ptx.elect_sync():
                    Tx.gemm_async(
                        tmem[:, :BLK_N],
                        Asmem[:, :],
                        Bsmem[:, :],
                        accum=(i != 0),
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    T.ptx.tcgen05.commit(mma_bar.ptr_to([0]), cta_group=1)
            T.ptx.mbarrier.try_wait(mma_bar.ptr_to([0]), phase_mma)
            phase_mma ^= 1
            # All threads wait on barriers that one thread drives. Without this meeting point a
            # slow warp could sleep through two phases and find its parity used again.
            T.cuda.cta_sync()

        any_ = T.cuda.syncthreads_or(lane_id)
        T.ptx.tcgen05.fence.after_thread_sync()
        for half in T.unroll(BLK_N // HALF):
            Dreg = T.alloc_local((HALF,), f32)
            Dreg_f16 = T.alloc_local((HALF,), f16)
            Dreg_wg = Dreg.view(128, HALF, layout=TileLayout(S[(128, HALF) : (1 @ tid_in_wg, 1)]))
            Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, half * HALF : (half + 1) * HALF])
            T.ptx.tcgen05.wait.ld()
            Tx.cast(Dreg_f16[:], Dreg[:])
            Tx.copy(Dsmem[warp_id * 32 + lane_id, :], Dreg_f16[:])
            # The store reads through the async proxy what every thread wrote through the generic
            # one: each fences its own writes, then all meet.
            T.ptx.fence.proxy_async("shared::cta")
            T.cuda.warpgroup_sync(10)
            if warp_id == 0:
                if T.ptx.elect_sync():
                    Tx.copy_async(
                        D[m_st : m_st + BLK_M, n_st + half * HALF : n_st + (half + 1) * HALF],
                        Dsmem[:, :],
                        dispatch="tma_auto",
                    )
                    T.ptx.cp_async.bulk.commit_group()
                    T.ptx.cp_async.bulk.wait_group(0)
            # The next half may be written only when the store has read this one.
            T.cuda.warpgroup_sync(10)

        T.cuda.cta_sync()
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(tmem_addr[0], n_cols=512, cta_group=1)

    return kernel
