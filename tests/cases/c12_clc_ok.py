"""c12_clc:  (correct twin); made from hgemm_v6."""

import tvm
from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.backend.cuda.lang.tile_scheduler import ClusterPersistentScheduler2D
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.spelling import T


def k(M, N, K, ctas=1):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 128 divides M and N, 64 K; `ctas` CTAs at most."""
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    BLK_M, BLK_N, BLK_K, HALF, STAGES = 128, 128, 64, 64, 2
    M_TILES, N_TILES, K_TILES = M // BLK_M, N // BLK_N, K // BLK_K
    CTAS = min(ctas, M_TILES * N_TILES)
    CHUNK_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    A_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_M, BLK_K))
    B_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_N, BLK_K))
    D_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_M, HALF))

    @T.prim_func
    def kernel(A: T.Buffer((M, K), f16), B: T.Buffer((N, K), f16), D: T.Buffer((M, N), f16)):
        T.device_entry()
        cta = T.cta_id([CTAS])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        tma_bar = pool.alloc((STAGES,), "uint64", align=8)
        mma_bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        Asmem = pool.alloc((STAGES, BLK_M, BLK_K), f16, layout=A_layout)
        Bsmem = pool.alloc((STAGES, BLK_N, BLK_K), f16, layout=B_layout)
        Dsmem = pool.alloc((BLK_M, HALF), f16, layout=D_layout)
        pool.commit()

        if warp_id == 0:
            if lane_id == 0:
                for s in T.unroll(STAGES):
                    T.ptx.mbarrier.init(tma_bar.ptr_to([s]), 1)
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

        resp = pool.alloc((1,), "uint32x4")
        T.ptx.clc_try_cancel(resp.ptr_to([0]), mma_bar.ptr_to([0]))
        ring = PipelineState(STAGES, 0)  # of the stage that is consumed next
        fill = PipelineState(STAGES, 0)  # of the stage that is filled next: its phase is not used
        phase_mma: T.int32 = 0
        scheduler = ClusterPersistentScheduler2D(
            "scheduler",
            num_m_tiles=M_TILES,
            num_n_tiles=N_TILES,
            num_clusters=CTAS,
            l2_group_size=8,
        )
        scheduler.init(cta)

        @T.inline
        def load(chunk):
            Tx.copy_async(
                Asmem[fill.stage, :, :],
                A[
                    scheduler.m_idx * BLK_M : scheduler.m_idx * BLK_M + BLK_M,
                    chunk * BLK_K : (chunk + 1) * BLK_K,
                ],
                dispatch="tma_auto",
                mbar=tma_bar.ptr_to([fill.stage]),
            )
            Tx.copy_async(
                Bsmem[fill.stage, :, :],
                B[
                    scheduler.n_idx * BLK_N : scheduler.n_idx * BLK_N + BLK_N,
                    chunk * BLK_K : (chunk + 1) * BLK_K,
                ],
                dispatch="tma_auto",
                mbar=tma_bar.ptr_to([fill.stage]),
            )
            T.ptx.mbarrier.arrive.expect_tx(tma_bar.ptr_to([fill.stage]), CHUNK_BYTES)

        while scheduler.valid():
            for s in T.unroll(min(STAGES, K_TILES)):
                if warp_id == 0:
                    if T.ptx.elect_sync():
                        load(s)
                fill.advance()

            for i in T.serial(K_TILES):
                T.ptx.mbarrier.try_wait(tma_bar.ptr_to([ring.stage]), ring.phase)
                if warp_id == 0:
                    if T.ptx.elect_sync():
                        Tx.gemm_async(
                            tmem[:, :BLK_N],
                            Asmem[ring.stage, :, :],
                            Bsmem[ring.stage, :, :],
                            accum=(i != 0),
                            dispatch="tcgen05",
                            cta_group=1,
                        )
                        T.ptx.tcgen05.commit(mma_bar.ptr_to([0]), cta_group=1)
                T.ptx.mbarrier.try_wait(mma_bar.ptr_to([0]), phase_mma)
                phase_mma ^= 1
                T.cuda.cta_sync()  # all have seen this stage's phases end (see hgemm_v5)
                if i + STAGES < K_TILES:
                    if warp_id == 0:
                        if T.ptx.elect_sync():
                            load(i + STAGES)
                    fill.advance()
                ring.advance()

            T.ptx.tcgen05.fence.after_thread_sync()
            for half in T.unroll(BLK_N // HALF):
                Dreg = T.alloc_local((HALF,), f32)
                Dreg_f16 = T.alloc_local((HALF,), f16)
                Dreg_wg = Dreg.view(
                    128, HALF, layout=TileLayout(S[(128, HALF) : (1 @ tid_in_wg, 1)])
                )
                Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, half * HALF : (half + 1) * HALF])
                T.ptx.tcgen05.wait.ld()
                Tx.cast(Dreg_f16[:], Dreg[:])
                Tx.copy(Dsmem[warp_id * 32 + lane_id, :], Dreg_f16[:])
                T.ptx.fence.proxy_async("shared::cta")
                T.cuda.warpgroup_sync(10)
                if warp_id == 0:
                    if T.ptx.elect_sync():
                        m_st = T.meta_var(scheduler.m_idx * BLK_M)
                        n_st = T.meta_var(scheduler.n_idx * BLK_N + half * HALF)
                        Tx.copy_async(
                            D[m_st : m_st + BLK_M, n_st : n_st + HALF],
                            Dsmem[:, :],
                            dispatch="tma_auto",
                        )
                        T.ptx.cp_async.bulk.commit_group()
                        T.ptx.cp_async.bulk.wait_group(0)
                T.cuda.warpgroup_sync(10)

            # The next tile's MMA overwrites the TMEM that this tile's loads have read.
            T.ptx.tcgen05.fence.before_thread_sync()
            T.cuda.cta_sync()
            T.ptx.tcgen05.fence.after_thread_sync()
            scheduler.next_tile()

        T.cuda.cta_sync()
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(tmem_addr[0], n_cols=512, cta_group=1)

    return kernel
