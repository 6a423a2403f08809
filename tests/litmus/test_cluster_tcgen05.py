"""tcgen05 of a CTA pair (cta_group::2), and operands that another CTA wrote: allocation, proxies, commits across CTAs."""

from tvm.script.tirx import tile as Tx

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, in_cta, requires, run
from .test_tcgen05 import LAYOUT, ROWS, K, M

N = 16
BOTH = 0b11


# -- one MMA of the pair ------------------------------------------------------------------------------------------------------
def pair_product(
    writer_fence="shared::cta",
    issuer_fence=False,
    meet=True,
    mask=BOTH,
    scope="cluster",
    after_fence=True,
    stay=True,
):
    """D = A B^T by one MMA of the pair: each CTA writes its rows of A (also B) and reads its rows of D."""

    @T.prim_func
    def kernel(A: T.Buffer((2 * M, K), "float16"), D: T.Buffer((2 * M,), "float32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        wg_id = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((M, K), "float16", layout=LAYOUT)
        pool.commit()
        T.cuda.cluster_sync()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=2)
        T.cuda.cluster_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        Tx.cta.copy(s[:, :], A[rank * M : rank * M + M, :])  # copy
        if writer_fence != "none":
            T.ptx.fence.proxy_async(writer_fence)
        if meet:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        if rank == 0:
            if warp == 0:
                if T.ptx.elect_sync():
                    if issuer_fence:
                        T.ptx.fence.proxy_async("")
                    Tx.gemm_async(  # mma
                        tmem[:, 0 : 2 * N], s[:, :], s[0:N, :], accum=False, dispatch="tcgen05", cta_group=2
                    )  # fmt: skip
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=2, cta_mask=mask)  # commit
        if scope == "cluster":
            T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)  # wait
        else:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        if after_fence:
            T.ptx.tcgen05.fence.after_thread_sync()
        reg = T.alloc_local((1,), "float32")
        T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)  # ld
        T.ptx.tcgen05.wait.ld()
        D[rank * M + warp * 32 + lane] = reg[0]
        if stay:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=2)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=2)  # dealloc

    return kernel


COPY = "missing-proxy-fence shared raw @mma <copy"
test_an_mma_of_the_pair_with_both_ctas_in_step_is_silent = gives(pair_product)
test_mma_of_the_pair_requires_proxy_fence_of_the_writers = gives(
    pair_product, COPY, writer_fence="none"
)
test_a_fence_of_the_issuer_serves_the_rows_of_its_own_cta_at_best = gives(
    pair_product, COPY, f"?{COPY}", writer_fence="none", issuer_fence=True
)
test_mma_of_the_pair_requires_cluster_barrier_and_not_cta_sync = requires(
    pair_product, "meet", "race shared raw @mma <copy"
)
test_wait_in_the_peer_requires_multicast_commit = gives(pair_product, "deadlock @wait", mask=0b01)
test_a_commit_of_the_peer_may_be_observed_at_cta_scope = gives(pair_product, scope="cta")
test_tcgen05_ld_requires_fence_after_the_commit_of_the_pair = requires(
    pair_product, "after_fence", "~missing-tcgen05-fence tmem raw @ld <mma"
)
test_dealloc_of_the_pair_requires_that_both_have_loaded = requires(
    pair_product, "stay", "tmem-freed-in-use tmem @dealloc <ld"
)


# -- operands written by threads of another CTA ----------------------------------------------------------------------------
def operand_from_the_peer(
    writer_fence="shared::cluster", issuer_fence=False, meet=True, reuse=False, reuse_fence=True
):
    """CTA 1 writes the operand into the shared memory of CTA 0, whose MMA reads it (cta_group::1), and `reuse`s it."""

    @T.prim_func
    def kernel(D: T.Buffer((M,), "float32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
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
        T.cuda.cluster_sync()
        tmem = T.decl_buffer(
            (M, 64), "float32", scope="tmem", allocated_addr=address[0], layout=ROWS
        )
        peer = in_cta(s, 0)
        if rank == 1:
            for k in T.serial(K):
                peer[warp * 32 + lane, k] = T.float16(1)  # store
            if writer_fence != "none":
                T.ptx.fence.proxy_async(writer_fence)
        if meet:
            T.cuda.cluster_sync()
        if rank == 0:
            if warp == 0:
                if T.ptx.elect_sync():
                    if issuer_fence:
                        T.ptx.fence.proxy_async("shared::cta")
                    Tx.gemm_async(  # mma
                        tmem[:, 0:N], s[:, :], s[0:N, :], accum=False, dispatch="tcgen05", cta_group=1
                    )  # fmt: skip
                    T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            T.ptx.tcgen05.fence.after_thread_sync()
            reg = T.alloc_local((1,), "float32")
            T.ptx.tcgen05.ld(address[0], reg[0], shape="32x32b", num=1, row=0, col=0)
            T.ptx.tcgen05.wait.ld()
            D[warp * 32 + lane] = reg[0]
        if reuse:
            T.cuda.cluster_sync()
            if rank == 1:
                if reuse_fence:
                    T.ptx.fence.proxy_async("shared::cluster")
                peer[warp * 32 + lane, 0] = T.float16(0)  # overwrite
        if T.Or(reuse, not meet):
            T.cuda.cluster_sync()
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=1)
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=1)

    return kernel


STORE = "missing-proxy-fence shared raw @mma <store"
test_a_cluster_fence_serves_what_another_cta_reads = gives(operand_from_the_peer)
test_a_fence_without_space_serves_what_another_cta_reads = gives(
    operand_from_the_peer, writer_fence=""
)
test_mma_of_what_the_peer_stored_requires_proxy_fence_of_the_writers = gives(
    operand_from_the_peer, STORE, writer_fence="none"
)
test_mma_of_what_the_peer_stored_requires_more_than_a_fence_of_the_issuer = gives(
    operand_from_the_peer, STORE, writer_fence="none", issuer_fence=True
)
test_mma_of_what_the_peer_stored_requires_fence_of_cluster_space = gives(
    operand_from_the_peer, STORE, writer_fence="shared::cta"
)
test_mma_of_what_the_peer_stored_requires_cluster_barrier = requires(
    operand_from_the_peer, "meet", "race shared raw @mma <store"
)
test_overwrite_of_an_operand_in_the_peer_requires_proxy_fence = requires(
    operand_from_the_peer,
    "reuse_fence",
    "~missing-proxy-fence shared war @overwrite <mma",
    reuse=True,
)


# -- allocation -----------------------------------------------------------------------------------------------------------
def allocates(
    launched="release", both=True, columns=64, free_both=True, group=2, apart=False, permits=0
):
    """The pair allocates and frees; the flags let CTA 1 do otherwise.

    `launched`: how each CTA tells the other that it has been launched: by a "release" or "relaxed" arrival, or not at all ("").
    """

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        address = pool.alloc((1,), "uint32")
        pool.commit()
        if launched != "":
            T.ptx.barrier.cluster.arrive(sem=launched)
            T.ptx.barrier.cluster.wait(acquire=True)
        if rank == 0:
            T.ptx.tcgen05.alloc(T.address_of(address), n_cols=64, cta_group=2)  # alloc
        else:
            if both:
                T.ptx.tcgen05.alloc(T.address_of(address), n_cols=columns, cta_group=group)  # peer
        T.cuda.warp_sync()
        if T.And(rank == 1, apart):
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=2)  # early
        T.cuda.cluster_sync()  # meet
        D[rank * 32 + lane] = 1
        if rank == 0:
            T.ptx.tcgen05.dealloc(address[0], n_cols=64, cta_group=2)  # free
        else:
            if T.And(free_both, not apart):
                T.ptx.tcgen05.dealloc(address[0], n_cols=columns, cta_group=group)
        if rank < permits:
            T.ptx.tcgen05.relinquish_alloc_permit(cta_group=group)  # permit

    return kernel


test_alloc_of_the_pair_requires_that_the_peer_has_been_launched = gives(
    allocates,
    "~peer-not-launched tmem @alloc",
    "~peer-not-launched tmem @peer",
    launched="",
)
test_a_relaxed_arrival_tells_that_a_cta_has_been_launched = gives(allocates, launched="relaxed")
test_alloc_of_the_pair_requires_both_ctas = requires(allocates, "both", "deadlock @alloc")
test_alloc_of_the_pair_requires_one_number_of_columns = gives(
    allocates, "tmem-bad-allocation tmem @peer <alloc", columns=32
)
test_tcgen05_requires_one_cta_group_in_a_kernel = gives(allocates, "resource-limit @peer", group=1)
test_exit_requires_dealloc_in_both_ctas = requires(allocates, "free_both", "tmem-leak tmem @peer")
test_dealloc_of_the_pair_requires_that_the_peer_need_not_wait = gives(
    allocates, "deadlock @early", apart=True
)
test_relinquish_of_the_pair_requires_both_ctas = gives(
    allocates, "divergent-collective tmem @permit", permits=1
)
test_relinquish_by_both_ctas_is_silent = gives(allocates, permits=2)


def test_a_deadlock_in_alloc_names_both_ctas():
    for schedule in SCHEDULES:
        (finding,) = run(allocates, schedule, both=False).findings
        assert "the other CTA of the pair has not reached its own" in finding.message
        assert [e["who"] for e in finding.data] == ["CTA 0 warp 0", "CTA 1 warp 0"]
