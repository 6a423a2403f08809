"""cp.async.bulk without a tensor map: what a copy's completion orders, byte counts, proxies, groups, and the peer."""

from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, in_cta, line_of, requires, run

N = 32
NBYTES = 4 * N
BOTH = 0b11


# -- global to shared --------------------------------------------------------------------------------------------------------
def loads(wait=True, nbytes=NBYTES, refill_fence=True, own=True, rounds=2):
    """In each round a thread loads a row into shared memory, all wait and read it, and, if there are two, overwrite it."""

    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((N,), "int32", align=16)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        for i in T.serial(rounds):
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)  # expect
                if own:
                    T.ptx.cp_async_bulk_g2s_cta(  # load
                        s.ptr_to([0]), A.ptr_to([0]), NBYTES, bar.ptr_to([0])
                    )
                else:
                    T.ptx.cp_async_bulk_g2s_cluster(
                        s.ptr_to([0]), A.ptr_to([0]), NBYTES, bar.ptr_to([0])
                    )
            if wait:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), i)  # wait
            D[lane] = s[lane]  # read
            if rounds > 1:
                s[lane] = 0  # reuse
            if refill_fence:
                T.ptx.fence.proxy_async("shared::cta")
            T.cuda.cta_sync()

    return kernel


test_a_copy_to_shared_memory_orders_its_bytes = gives(loads)
test_a_copy_in_cluster_spelling_to_the_own_cta_is_the_same = gives(loads, own=False)
test_the_next_copy_requires_proxy_fence_of_who_stored = requires(
    loads, "refill_fence", "missing-proxy-fence shared waw @load <reuse"
)
test_more_bytes_than_are_copied = gives(loads, "deadlock @wait", nbytes=NBYTES + 16)


test_read_requires_wait_for_the_copy = requires(
    loads, "wait", "race shared raw @read <load", rounds=1
)


def test_fewer_bytes_than_are_copied():
    for schedule in SCHEDULES:
        found = {(f.title, f.line) for f in run(loads, schedule, nbytes=16).findings}
        assert ("tx-count-mismatch", line_of(loads, "expect")) in found


# -- shared to global --------------------------------------------------------------------------------------------------------
def stores(fence=True, sync=True, wait=True, reads_only=True):
    """All threads fill shared memory, one stores it to global memory, and then all reuse it."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32"), E: T.Buffer((1,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((N,), "int32", align=16)
        pool.commit()
        s[lane] = lane  # write
        if fence:
            T.ptx.fence.proxy_async("shared::cta")
        if sync:
            T.cuda.cta_sync()
        if lane == 0:
            T.ptx.cp_async_bulk_s2g(D.ptr_to([0]), s.ptr_to([0]), NBYTES)  # store
            T.ptx.cp_async.bulk.commit_group()
            if wait:
                T.ptx.cp_async.bulk.wait_group(0, reads_only)
            if not reads_only:
                E[0] = D[0]
        T.cuda.cta_sync()
        s[lane] = 0  # reuse

    return kernel


test_a_copy_to_global_memory_is_silent = gives(stores)
test_a_copy_to_global_memory_may_be_read_after_wait_group = gives(stores, reads_only=False)
test_copy_requires_proxy_fence_of_the_writers = requires(
    stores, "fence", "missing-proxy-fence shared raw @store <write"
)
test_copy_requires_cta_sync = requires(stores, "sync", "race shared raw @store <write")
test_reuse_of_the_source_requires_wait_group = requires(
    stores, "wait", "race shared war @reuse <store"
)


# -- to another CTA ----------------------------------------------------------------------------------------------------------
def sends(wait=True, fence=True, source_waits=True, to=1, tile=False):
    """CTA 0 fills its shared memory and copies it to CTA 1, where the bytes are counted; then CTA 0 reuses it."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((N,), "int32", layout=TileLayout(S[(N,) : (1,)]), align=16)
        r = pool.alloc((N,), "int32", layout=TileLayout(S[(N,) : (1,)]), align=16)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        if rank == 0:
            s[lane] = lane  # write
            if fence:
                T.ptx.fence.proxy_async("shared::cta")
            T.cuda.warp_sync()
            if lane == 0:
                if tile:
                    Tx.copy_async(
                        r[:], s[:], dispatch="dsmem", mbar=bar.ptr_to([0]), remote_cta_id=to
                    )
                else:
                    T.ptx.cp_async_bulk_s2s_cluster(  # send
                        T.ptx.map_shared_rank(r.ptr_to([0]), to),
                        s.ptr_to([0]),
                        NBYTES,
                        T.ptx.map_shared_rank(bar.ptr_to([0]), to),
                    )
        else:
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), NBYTES)
            if wait:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
            D[lane] = r[lane]  # read
        if source_waits:
            T.cuda.cluster_sync()
        if rank == 0:
            s[lane] = 0  # reuse

    return kernel


test_a_copy_to_another_cta_is_silent = gives(sends)
test_a_tile_copy_to_another_cta_is_the_same = gives(sends, tile=True)
test_read_in_the_peer_requires_wait_for_the_copy = requires(
    sends, "wait", "race shared raw @read <send", "race shared war @reuse <send", "peer-exited @send"
)  # fmt: skip
test_copy_to_the_peer_requires_proxy_fence_of_the_writers = requires(
    sends, "fence", "missing-proxy-fence shared raw @send <write"
)
test_reuse_of_what_was_sent_requires_news_of_its_arrival = requires(
    sends, "source_waits", "race shared war @reuse <send"
)
test_a_copy_between_shared_memories_requires_another_cta = gives(sends, "out-of-bounds @send", to=0)


def multicast(mask=BOTH):
    """CTA 0 copies a row into both CTAs, each counts and reads its own."""

    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((2 * N,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((N,), "int32", align=16)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        if lane == 0:
            T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), NBYTES)
            if rank == 0:
                T.ptx.cp_async_bulk_g2s_cluster(  # load
                    s.ptr_to([0]),
                    A.ptr_to([0]),
                    NBYTES,
                    bar.ptr_to([0]),
                    multicast=True,
                    cta_mask=mask,
                )
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
        D[rank * N + lane] = s[lane]

    return kernel


test_a_multicast_copy_reaches_every_cta_of_the_mask = gives(multicast)
test_wait_requires_the_cta_in_the_mask_of_the_copy = gives(multicast, "deadlock @wait", mask=0b01)


def into_the_peer(own=False):
    """CTA 0 copies a row from global memory into CTA 1, which is not its own."""

    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((N,), "int32", align=16)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        there = in_cta(s, 1)
        counted = in_cta(bar, 1)
        if lane == 0:
            if rank == 1:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), NBYTES)
            else:
                if own:
                    T.ptx.cp_async_bulk_g2s_cta(  # load
                        there.ptr_to([0]), A.ptr_to([0]), NBYTES, counted.ptr_to([0])
                    )
                else:
                    T.ptx.cp_async_bulk_g2s_cluster(
                        there.ptr_to([0]), A.ptr_to([0]), NBYTES, counted.ptr_to([0])
                    )
        if rank == 1:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = s[lane]

    return kernel


test_a_copy_may_lead_into_another_cta = gives(into_the_peer)
test_a_copy_into_another_cta_requires_the_cluster_spelling = gives(
    into_the_peer, "out-of-bounds @load", own=True
)
