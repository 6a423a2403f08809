"""hgemm_sm90: D = A B^T on Hopper: a TMA producer warp, two consumer warpgroups with wgmma, accumulators in registers.

Full and empty barriers per stage of the ring carry the hand-offs, as in hgemm_v7. Each consumer warpgroup computes 64
rows of the tile. It keeps one wgmma-group in flight: a stage is given back when the group after the one that read it has
been committed and `wgmma.wait_group 1` has returned. One lane of every warp gives back, for the waits of its own warp.
"""

import tvm
from tvm.backend.cuda.lang.pipeline import MBarrier, PipelineState, TMABar
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx

from phaseflip.gemm.kernel import INDEX_SAFE_MAX, Kernel, ShapeRule
from phaseflip.gemm.oracle import reference


def hgemm_sm90(M, N, K):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 128 divides M and N, 64 divides K."""
    f16, f32 = tvm.DataType("float16"), tvm.DataType("float32")
    BLK_M, BLK_N, BLK_K, HALF, STAGES = 128, 128, 64, 64, 4
    WG_M, MMA_K, CONSUMERS = 64, 16, 2
    K_TILES = K // BLK_K
    CHUNK_BYTES = (BLK_M + BLK_N) * BLK_K * 2
    REGISTERS = WG_M * BLK_N // 128  # of the accumulator, per thread

    A_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_M, BLK_K))
    B_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (STAGES, BLK_N, BLK_K))
    D_layout = mma_shared_layout(f16, SwizzleMode.SWIZZLE_128B_ATOM, (CONSUMERS, WG_M, HALF))

    @T.prim_func
    def kernel(A: T.Buffer((M, K), f16), B: T.Buffer((N, K), f16), D: T.Buffer((M, N), f16)):
        T.device_entry()
        bx, by = T.cta_id([M // BLK_M, N // BLK_N])
        wg_id = T.warpgroup_id([CONSUMERS + 1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        pool = T.SMEMPool()
        full = TMABar(pool, STAGES)  # TMA -> wgmma: the stage's operands are there
        empty = MBarrier(pool, STAGES)  # wgmma -> TMA: the stage has been read
        pool.move_base_to(1024)
        Asmem = pool.alloc((STAGES, BLK_M, BLK_K), f16, layout=A_layout)
        Bsmem = pool.alloc((STAGES, BLK_N, BLK_K), f16, layout=B_layout)
        Dsmem = pool.alloc((CONSUMERS, WG_M, HALF), f16, layout=D_layout)
        pool.commit()

        full.init(1)
        empty.init(4 * CONSUMERS)
        T.ptx.fence.proxy.async_.shared__cta()
        T.ptx.fence.mbarrier_init.release.cluster()
        T.cuda.cta_sync()

        m_st = T.meta_var(bx * BLK_M)
        n_st = T.meta_var(by * BLK_N)

        if wg_id == CONSUMERS:
            if warp_id == 0:
                if T.cuda.elect_sync() != T.uint32(0):
                    fill = PipelineState(STAGES, 1)
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

        if wg_id < CONSUMERS:
            ring = PipelineState(STAGES, 0)
            desc = T.alloc_local((2,), "uint64")
            acc = T.alloc_local((REGISTERS,), f32)
            acc_f16 = T.alloc_local((REGISTERS,), f16)
            for i in T.serial(K_TILES):
                full.wait(ring.stage, ring.phase)
                T.ptx.wgmma.fence.sync.aligned()
                for k in T.unroll(BLK_K // MMA_K):
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(desc[0]),
                        Asmem.ptr_to([ring.stage, wg_id * WG_M, k * MMA_K]),
                        1, 64, 3,
                    )  # fmt: skip
                    T.cuda.wgmma.encode_matrix_descriptor(
                        T.address_of(desc[1]), Bsmem.ptr_to([ring.stage, 0, k * MMA_K]), 1, 64, 3
                    )
                    T.ptx.wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16(
                        *[acc[r] for r in range(REGISTERS)], desc[0], desc[1],
                        T.ptx.pred(tvm.tirx.any(i != 0, k != 0)), 1, 1, 0, 0,
                    )  # fmt: skip
                T.ptx.wgmma.commit_group.sync.aligned()
                T.ptx.wgmma.wait_group.sync.aligned(1)
                # The group before this one is complete: its stage may be filled again.
                # The lanes of a warp have all waited, and meet, before one of them says so.
                if i > 0:
                    T.cuda.warp_sync()
                    if lane_id == 0:
                        empty.arrive((ring.stage + STAGES - 1) % STAGES)
                ring.advance()
            T.ptx.wgmma.wait_group.sync.aligned(0)

            Tx.cast(acc_f16[:], acc[:])
            for half in T.unroll(BLK_N // HALF):
                # Of every 8x8 block a lane holds two neighbours in row lane / 4, and the same 8 rows further down.
                for r in T.unroll(REGISTERS // 2):
                    Dsmem[
                        wg_id,
                        warp_id * 16 + r // 2 % 2 * 8 + lane_id // 4,
                        r // 4 * 8 + lane_id % 4 * 2 + r % 2,
                    ] = acc_f16[half * (REGISTERS // 2) + r]
                T.ptx.fence.proxy.async_.shared__cta()
                T.cuda.warpgroup_sync(10 + wg_id)
                if warp_id == 0:
                    if T.cuda.elect_sync() != T.uint32(0):
                        Tx.copy_async(
                            D[
                                m_st + wg_id * WG_M : m_st + (wg_id + 1) * WG_M,
                                n_st + half * HALF : n_st + (half + 1) * HALF,
                            ],
                            Dsmem[wg_id, :, :],
                            dispatch="tma_auto",
                        )
                        T.ptx.cp.async_.bulk.commit_group()
                        T.ptx.cp.async_.bulk.wait_group.read(0)
                T.cuda.warpgroup_sync(10 + wg_id)

    return kernel


KERNEL = Kernel(
    name="hgemm_sm90",
    factory=hgemm_sm90,
    shape_rule=ShapeRule(m_max=INDEX_SAFE_MAX, n_max=INDEX_SAFE_MAX, k_max=INDEX_SAFE_MAX),
    reference=reference,
    needs=(9, 0),
    quick=False,
    summary="Hopper: TMA producer, two consumer warpgroups with wgmma, accumulators in registers",
)
