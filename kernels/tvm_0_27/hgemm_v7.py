"""hgemm_v7: hgemm_v6 with specialised warps: a TMA producer, an MMA issuer and a writeback warpgroup that overlap.

Four barriers carry the hand-offs: full and empty per stage of the ring, and a pair between MMA and writeback for the
accumulator in TMEM. Each role keeps its own stage and phase; "empty" waits start with phase 1, which a fresh barrier
counts as over.
"""

import tvm
from tvm.backend.cuda.lang.pipeline import MBarrier, PipelineState, TCGen05Bar, TMABar
from tvm.backend.cuda.lang.tile_scheduler import ClusterPersistentScheduler2D
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.gemm.kernel import INDEX_SAFE_MAX, Kernel, ShapeRule
from phaseflip.gemm.oracle import reference


def hgemm_v7(M, N, K, ctas=148):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 128 divides M and N, 64 K; `ctas` CTAs at most."""
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    BLK_M, BLK_N, BLK_K, HALF, STAGES = 128, 128, 64, 64, 4
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
        wg_id = T.warpgroup_id([2])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        full = TMABar(pool, STAGES)  # TMA -> MMA: the stage's operands are there
        empty = TCGen05Bar(pool, STAGES)  # MMA -> TMA: the stage has been read
        mma2ld = TCGen05Bar(pool, 1)  # MMA -> writeback: the accumulator is complete
        ld2mma = MBarrier(pool, 1)  # writeback -> MMA: the accumulator has been read
        pool.move_base_to(1024)
        Asmem = pool.alloc((STAGES, BLK_M, BLK_K), f16, layout=A_layout)
        Bsmem = pool.alloc((STAGES, BLK_N, BLK_K), f16, layout=B_layout)
        Dsmem = pool.alloc((BLK_M, HALF), f16, layout=D_layout)
        pool.commit()

        full.init(1)
        empty.init(1)
        mma2ld.init(1)
        ld2mma.init(128)
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                    T.address_of(tmem_addr[0]), T.uint32(512)
                )
        T.ptx.fence.proxy.async_.shared__cta()
        T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()
        tmem = T.decl_buffer(
            (128, 512),
            "float32",
            scope="tmem",
            allocated_addr=0,
            layout=TileLayout(S[(128, 512) : (1 @ TLane, 1 @ TCol)]),
        )

        scheduler = ClusterPersistentScheduler2D(
            "scheduler",
            num_m_tiles=M_TILES,
            num_n_tiles=N_TILES,
            num_clusters=CTAS,
            l2_group_size=8,
        )
        scheduler.init(cta)
        m_st = T.meta_var(scheduler.m_idx * BLK_M)
        n_st = T.meta_var(scheduler.n_idx * BLK_N)

        if wg_id == 1:
            if warp_id == 3:
                if T.cuda.elect_sync() != T.uint32(0):
                    fill = PipelineState(STAGES, 1)
                    while scheduler.valid():
                        for i in T.serial(K_TILES):
                            empty.wait(fill.stage, fill.phase)
                            Tx.copy_async(
                                Asmem[fill.stage, :, :],
                                A[m_st : m_st + BLK_M, i * BLK_K : (i + 1) * BLK_K],
                                dispatch="tma_auto",
                                mbar=full.ptr_to([fill.stage]),
                            )
                            Tx.copy_async(
                                Bsmem[fill.stage, :, :],
                                B[n_st : n_st + BLK_N, i * BLK_K : (i + 1) * BLK_K],
                                dispatch="tma_auto",
                                mbar=full.ptr_to([fill.stage]),
                            )
                            full.arrive(fill.stage, CHUNK_BYTES)
                            fill.advance()
                        scheduler.next_tile()
                    # Commits still arrive on the empty barriers after the last MMA was issued.
                    # Stay until they have: the barriers' memory ends with the CTA.
                    for _stage in T.serial(STAGES):
                        empty.wait(fill.stage, fill.phase)
                        fill.advance()
            if warp_id == 0:
                if T.cuda.elect_sync() != T.uint32(0):
                    ring = PipelineState(STAGES, 0)
                    accumulator = PipelineState(1, 1)
                    while scheduler.valid():
                        # The writeback of the previous tile has read the accumulator: its loads
                        # were fenced before it arrived, this thread fences after it waited.
                        ld2mma.wait(0, accumulator.phase)
                        accumulator.advance()
                        T.ptx.tcgen05.fence__after_thread_sync()
                        for i in T.serial(K_TILES):
                            full.wait(ring.stage, ring.phase)
                            Tx.gemm_async(
                                tmem[:, :BLK_N],
                                Asmem[ring.stage, :, :],
                                Bsmem[ring.stage, :, :],
                                accum=(i != 0),
                                dispatch="tcgen05",
                                cta_group=1,
                            )
                            empty.arrive(ring.stage)
                            ring.advance()
                        mma2ld.arrive(0)
                        scheduler.next_tile()

        if wg_id == 0:
            result = PipelineState(1, 0)
            while scheduler.valid():
                mma2ld.wait(0, result.phase)
                result.advance()
                T.ptx.tcgen05.fence__after_thread_sync()
                Dreg = T.alloc_local((BLK_N,), f32)
                Dreg_f16 = T.alloc_local((BLK_N,), f16)
                Dreg_wg = Dreg.view(
                    128, BLK_N, layout=TileLayout(S[(128, BLK_N) : (1 @ tid_in_wg, 1)])
                )
                Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, :BLK_N])
                T.ptx.tcgen05.wait__ld.sync.aligned()
                # The accumulator is in registers: the next tile's MMAs may overwrite it.
                T.ptx.tcgen05.fence__before_thread_sync()
                ld2mma.arrive(0)
                Tx.cast(Dreg_f16[:], Dreg[:])
                for half in T.unroll(BLK_N // HALF):
                    Tx.copy(
                        Dsmem[warp_id * 32 + lane_id, :], Dreg_f16[half * HALF : (half + 1) * HALF]
                    )
                    T.ptx.fence.proxy.async_.shared__cta()
                    T.cuda.warpgroup_sync(10)
                    if warp_id == 0:
                        if T.cuda.elect_sync() != T.uint32(0):
                            Tx.copy_async(
                                D[
                                    m_st : m_st + BLK_M,
                                    n_st + half * HALF : n_st + (half + 1) * HALF,
                                ],
                                Dsmem[:, :],
                                dispatch="tma_auto",
                            )
                            T.ptx.cp.async_.bulk.commit_group()
                            T.ptx.cp.async_.bulk.wait_group.read(0)
                    T.cuda.warpgroup_sync(10)
                scheduler.next_tile()

        T.cuda.cta_sync()
        if wg_id == 0:
            if warp_id == 0:
                T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
                T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(tmem_addr[0], T.uint32(512))

    return kernel


KERNEL = Kernel(
    name="hgemm_v7",
    factory=hgemm_v7,
    shape_rule=ShapeRule(m_max=INDEX_SAFE_MAX, n_max=INDEX_SAFE_MAX, k_max=INDEX_SAFE_MAX),
    reference=reference,
    quick=False,
    summary="v6 with warp specialisation: TMA producer, MMA issuer, writeback warpgroup",
)
