"""hgemm_v8: hgemm_v7 with clusters of two CTAs that compute one tile of 256 x 256 together (cta_group::2).

Each CTA loads its 128 rows of A and one half of B; the MMAs, issued by the leader (rank 0), read both CTAs' shared memory
and leave in each CTA's TMEM its own 128 rows of D. What the pair decides together meets on the leader's barriers (full,
ld2mma); what the MMA has to tell both CTAs is committed to both by multicast (empty, mma2ld).
"""

import tvm
from tvm.backend.cuda.lang.pipeline import MBarrier, PipelineState, TCGen05Bar, TMABar
from tvm.backend.cuda.lang.tile_scheduler import ClusterPersistentScheduler2D
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.spelling import T


def hgemm_v8(M, N, K, ctas=148):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 256 divides M and N, 64 K; `ctas` CTAs at most.

    Two CTAs make a cluster: an odd `ctas` leaves one out; one cluster is the least.
    """
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    CTA_GROUP, BLK_M, BLK_N, BLK_K, EPI_N, STAGES = 2, 128, 128, 64, 64, 4
    TILE_M, TILE_N = CTA_GROUP * BLK_M, CTA_GROUP * BLK_N
    M_TILES, N_TILES, K_TILES = M // TILE_M, N // TILE_N, K // BLK_K
    CLUSTERS = max(1, min(ctas // CTA_GROUP, M_TILES * N_TILES))
    CHUNK_BYTES = (BLK_M + BLK_N) * BLK_K * 2  # of one CTA
    BOTH = (1 << CTA_GROUP) - 1

    A_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_M, BLK_K))
    B_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_N, BLK_K))
    D_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_M, EPI_N))

    @T.prim_func
    def kernel(A: T.Buffer((M, K), f16), B: T.Buffer((N, K), f16), D: T.Buffer((M, N), f16)):
        T.device_entry()
        cluster = T.cluster_id([CLUSTERS])
        rank = T.cta_id_in_cluster([CTA_GROUP], preferred=[CTA_GROUP])
        wg_id = T.warpgroup_id([2])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        full = TMABar(pool, STAGES)  # TMA -> MMA, the leader's counts the bytes of both CTAs
        empty = TCGen05Bar(pool, STAGES)  # MMA -> TMA: the stage has been read in both CTAs
        mma2ld = TCGen05Bar(pool, 1)  # MMA -> writeback: the accumulator is complete
        ld2mma = MBarrier(pool, 1)  # writeback of both CTAs -> MMA, on the leader's
        pool.move_base_to(1024)
        Asmem = pool.alloc((STAGES, BLK_M, BLK_K), f16, layout=A_layout)
        Bsmem = pool.alloc((STAGES, BLK_N, BLK_K), f16, layout=B_layout)
        Dsmem = pool.alloc((BLK_M, EPI_N), f16, layout=D_layout)
        pool.commit()

        # Allocation for the pair takes both CTAs: the peer must be running. (T.cuda.cluster_sync() is
        # the same pair of instructions, but does not tell the C++ compiler that memory is ordered.)
        T.ptx.barrier.cluster.arrive(sem="release")
        T.ptx.barrier.cluster.wait(acquire=True)
        full.init(1)
        empty.init(1)
        mma2ld.init(1)
        ld2mma.init(CTA_GROUP * 128)
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.alloc(T.address_of(tmem_addr), n_cols=512, cta_group=CTA_GROUP)
        T.ptx.fence.proxy_async("shared::cta")
        T.ptx.fence.mbarrier_init()
        # The peer arrives on the leader's barriers and the leader's MMAs write the peer's TMEM: both
        # CTAs must have initialised and allocated.
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
        # This CTA's rows of A and D, its half of B's rows, and the first column of the tile.
        m_st = T.meta_var(scheduler.m_idx * TILE_M + rank * BLK_M)
        n_st = T.meta_var(scheduler.n_idx * TILE_N)
        b_st = T.meta_var(n_st + rank * BLK_N)

        if wg_id == 1:
            if warp_id == 3:
                if T.ptx.elect_sync():
                    fill = PipelineState(STAGES, 1)
                    while scheduler.valid():
                        for i in T.serial(K_TILES):
                            # TVM's wait() acquires at CTA scope. The commit comes from the leader.
                            T.ptx.mbarrier.try_wait_acquire_cluster(
                                empty.ptr_to([fill.stage]), fill.phase
                            )
                            Tx.copy_async(
                                Asmem[fill.stage, :, :],
                                A[m_st : m_st + BLK_M, i * BLK_K : (i + 1) * BLK_K],
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
            if warp_id == 0:
                if rank == 0:
                    if T.ptx.elect_sync():
                        ring = PipelineState(STAGES, 0)
                        accumulator = PipelineState(1, 1)
                        while scheduler.valid():
                            # Both CTAs' writebacks have read the previous tile's accumulator.
                            T.ptx.mbarrier.try_wait_acquire_cluster(
                                ld2mma.ptr_to([0]), accumulator.phase
                            )
                            accumulator.advance()
                            T.ptx.tcgen05.fence.after_thread_sync()
                            for i in T.serial(K_TILES):
                                T.ptx.mbarrier.try_wait_acquire_cluster(
                                    full.ptr_to([ring.stage]), ring.phase
                                )
                                Tx.gemm_async(
                                    tmem[:, :TILE_N],
                                    Asmem[ring.stage, :, :],
                                    Bsmem[ring.stage, :, :],
                                    accum=(i != 0),
                                    dispatch="tcgen05",
                                    cta_group=CTA_GROUP,
                                )
                                empty.arrive(ring.stage, cta_group=CTA_GROUP, cta_mask=BOTH)
                                ring.advance()
                            mma2ld.arrive(0, cta_group=CTA_GROUP, cta_mask=BOTH)
                            scheduler.next_tile()

        if wg_id == 0:
            result = PipelineState(1, 0)
            while scheduler.valid():
                T.ptx.mbarrier.try_wait_acquire_cluster(mma2ld.ptr_to([0]), result.phase)
                result.advance()
                T.ptx.tcgen05.fence.after_thread_sync()
                # One tcgen05.ld brings at most 128 columns, and 256 registers would be too many.
                for part in T.unroll(TILE_N // EPI_N):
                    Dreg = T.alloc_local((EPI_N,), f32)
                    Dreg_f16 = T.alloc_local((EPI_N,), f16)
                    Dreg_wg = Dreg.view(
                        128, EPI_N, layout=TileLayout(S[(128, EPI_N) : (1 @ tid_in_wg, 1)])
                    )
                    Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, part * EPI_N : (part + 1) * EPI_N])
                    T.ptx.tcgen05.wait.ld()
                    if part == TILE_N // EPI_N - 1:
                        # All of the accumulator has been read: the next tile's MMAs may overwrite
                        # it. The leader issues them for both CTAs, so the arrival must release to
                        # the cluster; the default, and TVM's arrive(), release to the CTA.
                        T.ptx.tcgen05.fence.before_thread_sync()
                        T.ptx.mbarrier.arrive(
                            ld2mma.ptr_to([0]), sem="release", scope="cluster", remote=0
                        )
                    Tx.cast(Dreg_f16[:], Dreg[:])
                    Tx.copy(Dsmem[warp_id * 32 + lane_id, :], Dreg_f16[:])
                    T.ptx.fence.proxy_async("shared::cta")
                    T.cuda.warpgroup_sync(10)
                    if warp_id == 0:
                        if T.ptx.elect_sync():
                            Tx.copy_async(
                                D[
                                    m_st : m_st + BLK_M,
                                    n_st + part * EPI_N : n_st + (part + 1) * EPI_N,
                                ],
                                Dsmem[:, :],
                                dispatch="tma_auto",
                            )
                            T.ptx.cp_async.bulk.commit_group()
                            T.ptx.cp_async.bulk.wait_group(0)
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
