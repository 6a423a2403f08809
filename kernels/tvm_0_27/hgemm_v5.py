"""hgemm_v5: hgemm_v4 with a ring of shared-memory stages, so that loads run ahead of the MMA.

Each stage has its own TMA barrier; its parity flips once per round of the ring (PipelineState). The MMA barrier is one
barrier, used every chunk: it keeps a phase of its own.
"""

import tvm
from tvm.backend.cuda.lang.pipeline import PipelineState
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.gemm.kernel import INDEX_SAFE_MAX, Kernel, ShapeRule
from phaseflip.gemm.oracle import reference


def hgemm_v5(M, N, K):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 128 divides M and N, 64 K."""
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    BLK_M, BLK_N, BLK_K, HALF, STAGES = 128, 128, 64, 64, 2
    K_TILES = K // BLK_K
    CHUNK_BYTES = (BLK_M + BLK_N) * BLK_K * 2

    A_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_M, BLK_K))
    B_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_N, BLK_K))
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
                    T.ptx.mbarrier.init.shared.b64(tma_bar.ptr_to([s]), T.uint32(1))
                T.ptx.mbarrier.init.shared.b64(mma_bar.ptr_to([0]), T.uint32(1))
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

        m_st = T.meta_var(bx * BLK_M)
        n_st = T.meta_var(by * BLK_N)
        ring = PipelineState(STAGES, 0)
        phase_mma: T.int32 = 0

        @T.inline
        def load(stage, chunk):
            Tx.copy_async(
                Asmem[stage, :, :],
                A[m_st : m_st + BLK_M, chunk * BLK_K : (chunk + 1) * BLK_K],
                dispatch="tma_auto",
                mbar=tma_bar.ptr_to([stage]),
            )
            Tx.copy_async(
                Bsmem[stage, :, :],
                B[n_st : n_st + BLK_N, chunk * BLK_K : (chunk + 1) * BLK_K],
                dispatch="tma_auto",
                mbar=tma_bar.ptr_to([stage]),
            )
            T.ptx.mbarrier.arrive.expect_tx.shared.b64(
                tma_bar.ptr_to([stage]), T.uint32(CHUNK_BYTES)
            )

        # Fill the ring.
        if warp_id == 0:
            if T.cuda.elect_sync() != T.uint32(0):
                for s in T.unroll(min(STAGES, K_TILES)):
                    load(s, s)

        for i in T.serial(K_TILES):
            T.cuda.mbarrier_wait(tma_bar.ptr_to([ring.stage]), ring.phase)
            if warp_id == 0:
                if T.cuda.elect_sync() != T.uint32(0):
                    Tx.gemm_async(
                        tmem[:, :BLK_N],
                        Asmem[ring.stage, :, :],
                        Bsmem[ring.stage, :, :],
                        accum=(i != 0),
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
                        mma_bar.ptr_to([0])
                    )
            T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), phase_mma)
            phase_mma ^= 1
            # All have seen this stage's phases end. Only now may the stage be filled again: a refill
            # that completes before a slow warp has waited would turn its parity once more.
            T.cuda.cta_sync()
            if warp_id == 0:
                if T.cuda.elect_sync() != T.uint32(0):
                    if i + STAGES < K_TILES:
                        load(ring.stage, i + STAGES)
            ring.advance()

        T.ptx.tcgen05.fence__after_thread_sync()
        for half in T.unroll(BLK_N // HALF):
            Dreg = T.alloc_local((HALF,), f32)
            Dreg_f16 = T.alloc_local((HALF,), f16)
            Dreg_wg = Dreg.view(128, HALF, layout=TileLayout(S[(128, HALF) : (1 @ tid_in_wg, 1)]))
            Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, half * HALF : (half + 1) * HALF])
            T.ptx.tcgen05.wait__ld.sync.aligned()
            Tx.cast(Dreg_f16[:], Dreg[:])
            Tx.copy(Dsmem[warp_id * 32 + lane_id, :], Dreg_f16[:])
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.warpgroup_sync(10)
            if warp_id == 0:
                if T.cuda.elect_sync() != T.uint32(0):
                    Tx.copy_async(
                        D[m_st : m_st + BLK_M, n_st + half * HALF : n_st + (half + 1) * HALF],
                        Dsmem[:, :],
                        dispatch="tma_auto",
                    )
                    T.ptx.cp.async_.bulk.commit_group()
                    T.ptx.cp.async_.bulk.wait_group.read(0)
            T.cuda.warpgroup_sync(10)

        T.cuda.cta_sync()
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(tmem_addr[0], T.uint32(512))

    return kernel


KERNEL = Kernel(
    name="hgemm_v5",
    factory=hgemm_v5,
    shape_rule=ShapeRule(m_max=INDEX_SAFE_MAX, n_max=INDEX_SAFE_MAX, k_max=INDEX_SAFE_MAX),
    reference=reference,
    quick=False,
    summary="v4 with a ring of two shared-memory stages and prefetch",
)
