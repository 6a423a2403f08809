"""hgemm_v3: D = A B^T for a grid of 128x128 tiles, one CTA each, and any number of K chunks of 64.

A is MxK, B is NxK, D is MxN, all float16 and row-major; the accumulator is float32 in TMEM.
Structure: step 3 of the "Building a tiled GEMM" chapter, plus the fences PTX ISA 9.1 asks for.

No ``from __future__ import annotations`` here: TVM's parser evaluates the buffer annotations
itself.
"""

import tvm
from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout
from tvm.script import tirx as T
from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TCol, TileLayout, TLane, tid_in_wg

from phaseflip.gemm.kernel import INDEX_SAFE_MAX, Kernel, ShapeRule
from phaseflip.gemm.oracle import reference


def hgemm_v3(M, N, K):
    """Return the PrimFunc (A[M, K], B[N, K], D[M, N]), all float16; 128 divides M and N, 64 K."""
    a_type = tvm.DataType("float16")
    b_type = tvm.DataType("float16")
    d_type = tvm.DataType("float16")
    acc_type = tvm.DataType("float32")

    BLK_M, BLK_N, BLK_K = 128, 128, 64
    K_TILES = K // BLK_K

    # One row of a K chunk is 64 halves = 128 bytes, so the 128-byte swizzle holds a whole row per
    # atom.
    A_layout = mma_shared_layout(a_type, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_M, BLK_K))
    B_layout = mma_shared_layout(b_type, SwizzleMode.SWIZZLE_128B_ATOM, (BLK_N, BLK_K))

    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), a_type),
        B: T.Buffer((N, K), b_type),
        D: T.Buffer((M, N), d_type),
    ):
        T.device_entry()
        bx, by = T.cta_id([M // BLK_M, N // BLK_N])
        wg_id = T.warpgroup_id([1])
        warp_id = T.warp_id_in_wg([4])
        lane_id = T.lane_id([32])

        # Shared memory: TMEM address and mbarrier in the first KiB, operands from there on
        # (the swizzle repeats every 1024 bytes, so the operand tiles start on such a boundary).
        pool = T.SMEMPool()
        tmem_addr = pool.alloc((1,), "uint32")
        mma_bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        Asmem = pool.alloc((BLK_M, BLK_K), a_type, layout=A_layout)
        Bsmem = pool.alloc((BLK_N, BLK_K), b_type, layout=B_layout)
        pool.commit()

        # One commit arrives once per phase, hence count 1. tcgen05.alloc needs the whole warp.
        if warp_id == 0:
            if lane_id == 0:
                T.ptx.mbarrier.init.shared.b64(mma_bar.ptr_to([0]), T.uint32(1))
            T.ptx.tcgen05.alloc.cta_group__1.sync.aligned.shared__cta.b32(
                T.address_of(tmem_addr[0]), T.uint32(512)
            )

        # Nobody may use the barrier or the TMEM address before they are written.
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

        # CTA (bx, by) owns tile (bx, by) of D: bx picks rows of A, by rows of B (columns of D).
        m_st = T.meta_var(bx * BLK_M)
        n_st = T.meta_var(by * BLK_N)
        phase_mma: T.int32 = 0

        # One pair of operand tiles serves all chunks, and one accumulator collects their products.
        for i in T.serial(K_TILES):
            # Load: all 128 threads store their share of chunk i of both operands.
            Tx.cta.copy(Asmem[:, :], A[m_st : m_st + BLK_M, i * BLK_K : (i + 1) * BLK_K])
            Tx.cta.copy(Bsmem[:, :], B[n_st : n_st + BLK_N, i * BLK_K : (i + 1) * BLK_K])

            # Addition 1. The stores above went through the generic proxy, the MMA reads the bytes
            # through the async proxy, and a CTA barrier orders only accesses of one proxy. So each
            # writing thread fences its own stores before it meets the thread that issues the MMA.
            T.ptx.fence.proxy.async_.shared__cta()
            T.cuda.cta_sync()

            # Compute: the first chunk overwrites the accumulator (TMEM holds garbage until then),
            # later ones add to it.
            if warp_id == 0:
                if T.cuda.elect_sync() != T.uint32(0):
                    Tx.gemm_async(
                        tmem[:, :BLK_N],
                        Asmem[:, :],
                        Bsmem[:, :],
                        accum=(i != 0),
                        dispatch="tcgen05",
                        cta_group=1,
                    )
                    T.ptx.tcgen05.commit.cta_group__1.mbarrier__arrive__one.shared__cluster.b64(
                        mma_bar.ptr_to([0])
                    )

            # The barrier runs through one phase per chunk, so the parity to wait on alternates.
            T.cuda.mbarrier_wait(mma_bar.ptr_to([0]), phase_mma)
            phase_mma ^= 1

            # Addition 2. The MMA read the tiles through the async proxy and the next chunk's stores
            # overwrite them through the generic one: every thread that is about to store has to
            # fence after it has seen the MMA complete. (PTX grants no implicit fence here, unlike
            # for bulk copies.) After the last chunk the fence is idle.
            T.ptx.fence.proxy.async_.shared__cta()

        # Addition 3. tcgen05 operations are asynchronous to the thread that runs them: without this
        # fence the TMEM load below is not ordered after the barrier wait, hence not after the MMA.
        T.ptx.tcgen05.fence__after_thread_sync()

        # Write back: thread t of the warpgroup owns row t of the tile, in registers and in D.
        Dreg = T.alloc_local((BLK_N,), acc_type)
        Dreg_f16 = T.alloc_local((BLK_N,), d_type)
        Dreg_wg = Dreg.view(128, BLK_N, layout=TileLayout(S[(128, BLK_N) : (1 @ tid_in_wg, 1)]))
        Tx.wg.copy_async(Dreg_wg[:, :], tmem[:, :BLK_N])
        T.ptx.tcgen05.wait__ld.sync.aligned()
        Tx.cast(Dreg_f16[:], Dreg[:])
        m_thr = T.meta_var(m_st + warp_id * 32 + lane_id)
        Tx.copy(D[m_thr, n_st : n_st + BLK_N], Dreg_f16[:])

        # Every warp has to be done with TMEM before warp 0 frees it.
        T.cuda.cta_sync()
        if warp_id == 0:
            T.ptx.tcgen05.relinquish_alloc_permit.cta_group__1.sync.aligned()
            T.ptx.tcgen05.dealloc.cta_group__1.sync.aligned.b32(tmem_addr[0], T.uint32(512))

    return kernel


KERNEL = Kernel(
    name="hgemm_v3",
    factory=hgemm_v3,
    shape_rule=ShapeRule(m_max=INDEX_SAFE_MAX, n_max=INDEX_SAFE_MAX, k_max=INDEX_SAFE_MAX),
    reference=reference,
    summary="a grid of 128x128 tiles, a loop over K chunks of 64, one CTA per tile",
)
