"""hgemm_v9: hgemm_v8 with two MMA consumers that share the staged tile of B; a cluster computes a tile of 512 x 256.

Each CTA stages 128 rows of A for either consumer and one half of B for both, so a stage is empty when both consumers have
read it. A consumer has its own 256 columns of TMEM, and its own writeback warpgroup with its own named barrier.
"""

import tvm
from tvm.backend.cuda.lang.pipeline import MBarrier, PipelineState, TCGen05Bar, TMABar
from tvm.backend.cuda.lang.tile_scheduler import ClusterPersistentScheduler2D
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.spelling import T


def hgemm_v9(M, N, K, ctas=148):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 512 divides M, 256 N, 64 K; `ctas` CTAs at most.

    Two CTAs make a cluster: an odd `ctas` leaves one out; one cluster is the least.
    """
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    CTA_GROUP, CONSUMERS, BLK_M, BLK_N, BLK_K, EPI_N, STAGES = 2, 2, 128, 128, 64, 64, 4
    MMA_M, MMA_N = CTA_GROUP * BLK_M, CTA_GROUP * BLK_N
    TILE_M, TILE_N = CONSUMERS * MMA_M, MMA_N
    M_TILES, N_TILES, K_TILES = M // TILE_M, N // TILE_N, K // BLK_K
    CLUSTERS = max(1, min(ctas // CTA_GROUP, M_TILES * N_TILES))
    CHUNK_BYTES = (CONSUMERS * BLK_M + BLK_N) * BLK_K * 2  # of one CTA
    BOTH = (1 << CTA_GROUP) - 1
    A_SHAPE, B_SHAPE = (STAGES, CONSUMERS, BLK_M, BLK_K), (STAGES, BLK_N, BLK_K)
    D_SHAPE = (CONSUMERS, BLK_M, EPI_N)

    A_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, A_SHAPE)
    B_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, B_SHAPE)
    D_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, D_SHAPE)

    @T.prim_func
    def kernel(A: T.Buffer((M, K), f16), B: T.Buffer((N, K), f16), D: T.Buffer((M, N), f16)):
        T.device_entry()
        cluster = T.cluster_id([CLUSTERS])
        rank = T.cta_id_in_cluster([CTA_GROUP])
        wg_id = T.warpgroup_id([CONSUMERS + 1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        full = TMABar(pool, STAGES)  # TMA -> MMA, the leader's counts the bytes of both CTAs
        empty = TCGen05Bar(pool, STAGES)  # MMA -> TMA: one consumer has read the stage
        mma2ld = TCGen05Bar(pool, CONSUMERS)  # MMA -> writeback: the accumulator is complete
        ld2mma = MBarrier(pool, CONSUMERS)  # writeback of both CTAs -> MMA, on the leader's
        pool.move_base_to(1024)
        Asmem = pool.alloc(A_SHAPE, f16, layout=A_layout)
        Bsmem = pool.alloc(B_SHAPE, f16, layout=B_layout)
        Dsmem = pool.alloc(D_SHAPE, f16, layout=D_layout)
        pool.commit()

        T.ptx.barrier.cluster.arrive(sem="release")
        T.ptx.barrier.cluster.wait(acquire=True)
        full.init(1)
        empty.init(CONSUMERS)
        mma2ld.init(1)
        ld2mma.init(CTA_GROUP * 128)
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.alloc(T.address_of(tmem_addr), n_cols=512, cta_group=CTA_GROUP)
        T.ptx.fence.proxy_async("shared::cta")
        T.ptx.fence.mbarrier_init()
        T.ptx.barrier.cluster.arrive(sem="release")
        T.ptx.barrier.cluster.wait(acquire=True)
        tmem = T.decl_buffer(
            (128, 512),
            "float32",
            scope="tmem",
            allocated_addr=tmem_addr[0],
            layout=TileLayout(S[(128, 512) : (1 @ TLane, 1 @ TCol)]),
        )
        leader_full = full.remote_view(0)

        scheduler = ClusterPersistentScheduler2D(
            "scheduler",
            num_m_tiles=M_TILES,
            num_n_tiles=N_TILES,
            num_clusters=CLUSTERS,
            l2_group_size=8,
        )
        scheduler.init(cluster)
        # This CTA's rows of A and D for consumer 0 (those of consumer 1 are MMA_M further), its half
        # of B's rows, and the first column of the tile.
        m_st = T.meta_var(scheduler.m_idx * TILE_M + rank * BLK_M)
        n_st = T.meta_var(scheduler.n_idx * TILE_N)
        b_st = T.meta_var(n_st + rank * BLK_N)

        if wg_id == CONSUMERS:
            if warp_id == 3:
                if T.ptx.elect_sync():
                    fill = PipelineState(STAGES, 1)
                    while scheduler.valid():
                        for i in T.serial(K_TILES):
                            T.ptx.mbarrier.try_wait_acquire_cluster(
                                empty.ptr_to([fill.stage]), fill.phase
                            )
                            for c in T.unroll(CONSUMERS):
                                Tx.copy_async(
                                    Asmem[fill.stage, c, :, :],
                                    A[
                                        m_st + c * MMA_M : m_st + c * MMA_M + BLK_M,
                                        i * BLK_K : (i + 1) * BLK_K,
                                    ],
                                    dispatch="tma_auto",
                                    mbar=leader_full.ptr_to([fill.stage]),
                                    cta_group=CTA_GROUP,
                                )
                            Tx.copy_async(
                                Bsmem[fill.stage, :, :],
                                B[b_st : b_st + BLK_N, i * BLK_K : (i + 1) * BLK_K],
                                dispatch="tma_auto",
                                mbar=leader_full.ptr_to([fill.stage]),
                                cta_group=CTA_GROUP,
                            )
                            if rank == 0:
                                full.arrive(fill.stage, CTA_GROUP * CHUNK_BYTES)
                            fill.advance()
                        scheduler.next_tile()
                    # Commits still arrive on the empty barriers after the last MMA was issued.
                    # Stay until they have: the barriers' memory ends with the CTA.
                    for _stage in T.serial(STAGES):
                        T.ptx.mbarrier.try_wait_acquire_cluster(
                            empty.ptr_to([fill.stage]), fill.phase
                        )
                        fill.advance()
            if warp_id < CONSUMERS:
                if rank == 0:
                    if T.ptx.elect_sync():
                        ring = PipelineState(STAGES, 0)
                        accumulator = PipelineState(1, 1)
                        while scheduler.valid():
                            # Both CTAs' writebacks have read the previous tile's accumulator.
                            T.ptx.mbarrier.try_wait_acquire_cluster(
                                ld2mma.ptr_to([warp_id]), accumulator.phase
                            )
                            accumulator.advance()
                            T.ptx.tcgen05.fence.after_thread_sync()
                            for i in T.serial(K_TILES):
                                T.ptx.mbarrier.try_wait_acquire_cluster(
                                    full.ptr_to([ring.stage]), ring.phase
                                )
                                Tx.gemm_async(
                                    tmem[:, warp_id * MMA_N : (warp_id + 1) * MMA_N],
                                    Asmem[ring.stage, warp_id, :, :],
                                    Bsmem[ring.stage, :, :],
                                    accum=(i != 0),
                                    dispatch="tcgen05",
                                    cta_group=CTA_GROUP,
                                )
                                empty.arrive(ring.stage, cta_group=CTA_GROUP, cta_mask=BOTH)
                                ring.advance()
                            mma2ld.arrive(warp_id, cta_group=CTA_GROUP, cta_mask=BOTH)
                            scheduler.next_tile()

        if wg_id < CONSUMERS:
            result = PipelineState(1, 0)
            while scheduler.valid():
                T.ptx.mbarrier.try_wait_acquire_cluster(mma2ld.ptr_to([wg_id]), result.phase)
                result.advance()
                T.ptx.tcgen05.fence.after_thread_sync()
                for part in T.unroll(TILE_N // EPI_N):
                    Dreg = T.alloc_local((EPI_N,), f32)
                    Dreg_f16 = T.alloc_local((EPI_N,), f16)
                    Dreg_wg = Dreg.view(
                        128, EPI_N, layout=TileLayout(S[(128, EPI_N) : (1 @ tid_in_wg, 1)])
                    )
                    column = T.meta_var(wg_id * MMA_N + part * EPI_N)
                    Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, column : column + EPI_N])
                    T.ptx.tcgen05.wait.ld()
                    if part == TILE_N // EPI_N - 1:
                        # All of the accumulator has been read: the next tile's MMAs may overwrite
                        # it. The leader issues them for both CTAs: release to the cluster.
                        T.ptx.tcgen05.fence.before_thread_sync()
                        T.ptx.mbarrier.arrive(
                            ld2mma.ptr_to([wg_id]), sem="release", scope="cluster", remote=0
                        )
                    Tx.cast(Dreg_f16[:], Dreg[:])
                    Tx.copy(Dsmem[wg_id, warp_id * 32 + lane_id, :], Dreg_f16[:])
                    T.ptx.fence.proxy_async("shared::cta")
                    if wg_id == 0:
                        T.cuda.warpgroup_sync(10)
                    else:
                        T.cuda.warpgroup_sync(10)
                    if warp_id == 0:
                        if T.ptx.elect_sync():
                            row = T.meta_var(m_st + wg_id * MMA_M)
                            Tx.copy_async(
                                D[
                                    row : row + BLK_M,
                                    n_st + part * EPI_N : n_st + (part + 1) * EPI_N,
                                ],
                                Dsmem[wg_id, :, :],
                                dispatch="tma_auto",
                            )
                            T.ptx.cp_async.bulk.commit_group()
                            T.ptx.cp_async.bulk.wait_group(0)
                    if wg_id == 0:
                        T.cuda.warpgroup_sync(10)
                    else:
                        T.cuda.warpgroup_sync(10)
                scheduler.next_tile()

        # Neither CTA leaves, or frees TMEM of the pair, while the other may still reach into it.
        T.ptx.barrier.cluster.arrive(sem="release")
        T.ptx.barrier.cluster.wait(acquire=True)
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.relinquish_alloc_permit(cta_group=CTA_GROUP)
                T.ptx.tcgen05.dealloc(tmem_addr[0], n_cols=512, cta_group=CTA_GROUP)

    return kernel
