"""Memory, barriers and TMEM of a CTA last until it exits: who reaches into them must be known to have done so before."""

from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip.spelling import T

from .harness import gives, in_cta, requires

ROWS, COLUMNS = 32, 8
BOX = ROWS * COLUMNS * 2
PLAIN = TileLayout(S[(ROWS, COLUMNS) : (COLUMNS, 1)])


# -- by threads --------------------------------------------------------------------------------------------------------------
def touches(load=True, store=True, stay=True, all_stay=True):
    """Both CTAs load from or store into the other one's shared memory, then meet, or exit at once."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 1:
            s[lane] = lane
        T.cuda.cluster_sync()
        peer = in_cta(s, rank ^ 1)
        if warp == 0:
            if load:
                D[rank * 32 + lane] = peer[lane]  # load
            if store:
                if lane >= 16:
                    peer[lane] = 0  # store
        if stay:
            if T.Or(warp == 0, all_stay):
                T.cuda.cluster_sync()

    return kernel


test_load_from_the_peer_requires_that_it_stays = requires(
    touches, "stay", "peer-exited @load", load=True, store=False
)
test_store_to_the_peer_requires_that_it_stays = requires(
    touches, "stay", "peer-exited @store", load=False, store=True
)
test_one_warp_that_stays_keeps_the_cta = gives(touches, load=True, store=False, all_stay=False)


def arrives(wait=True):
    """CTA 1 arrives on the barrier of CTA 0, which waits for it, or exits."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
        T.cuda.cluster_sync()
        if rank == 1:
            T.ptx.mbarrier.arrive(  # arrive
                bar.ptr_to([0]), sem="release", scope="cluster", remote=0
            )
        else:
            if wait:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        D[rank * 32 + lane] = 1

    return kernel


test_remote_arrive_requires_that_the_peer_waits_for_it = requires(
    arrives, "wait", "peer-exited @arrive"
)


# -- by asynchronous operations ------------------------------------------------------------------------------------------------
def load_in_flight(wait=True):
    """One CTA, no cluster: a bulk load must have landed before the CTA exits."""

    @T.prim_func
    def kernel(A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if warp == 0:
            if lane == 0:
                Tx.copy_async(  # load
                    s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0])
                )
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
        if warp == 1:
            if wait:
                if lane == 5:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = 1

    return kernel


test_exit_requires_wait_for_a_bulk_load = requires(load_in_flight, "wait", "peer-exited @load")


def store_in_flight(wait=True, reads_only=True):
    """One CTA, no cluster: a bulk store must have read its source before the CTA exits, and need not have written."""

    @T.prim_func
    def kernel(D: T.Buffer((ROWS, COLUMNS), "float16")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        for c in T.serial(COLUMNS):
            s[lane, c] = T.float16(1)
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        if lane == 0:
            Tx.copy_async(D[:, :], s[:, :], dispatch="tma_auto")  # store
            T.ptx.cp_async.bulk.commit_group()
            if wait:
                T.ptx.cp_async.bulk.wait_group(0, reads_only)

    return kernel


test_exit_requires_wait_group_for_a_bulk_store = requires(
    store_in_flight, "wait", "peer-exited @store"
)


def commit_in_flight(wait=True, peer_waits=True, mask=0b11, meet=False, group=1):
    """CTA 0 commits (nothing) to its own barrier or to those of both CTAs, who wait for it, or exit, maybe together."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        if rank == 0:
            if lane == 0:
                T.ptx.tcgen05.commit(  # commit
                    bar.ptr_to([0]), cta_group=group, cta_mask=mask
                )
            if wait:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        else:
            if peer_waits:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        if meet:
            T.cuda.cluster_sync()
        D[rank * 32 + lane] = 1

    return kernel


test_exit_requires_wait_for_a_commit = gives(
    commit_in_flight, "peer-exited @commit", wait=False, peer_waits=False, mask=0b01
)
test_exit_requires_wait_for_a_multicast_commit = requires(
    commit_in_flight, "wait", "peer-exited @commit"
)
test_exit_of_the_peer_requires_wait_for_a_multicast_commit = requires(
    commit_in_flight, "peer_waits", "peer-exited @commit"
)
test_exit_of_the_peer_requires_wait_for_its_own_signal_of_a_multicast_commit = requires(
    commit_in_flight, "peer_waits", "peer-exited @commit", meet=True
)
test_commit_of_the_pair_requires_that_the_peer_stays = gives(
    commit_in_flight, "peer-exited @commit", peer_waits=False, mask=0b01, group=2
)
test_a_commit_of_the_pair_to_one_cta_is_silent = gives(
    commit_in_flight, peer_waits=False, mask=0b01, group=2, meet=True
)


def commits_in_order(follows=True, later=True):
    """CTA 0 commits to one barrier of both CTAs, then (`follows`) to another one, of which `later` both CTAs wait."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bars = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bars.ptr_to([0]), 1)
            T.ptx.mbarrier.init(bars.ptr_to([1]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        if rank == 0:
            if lane == 0:
                if not follows:
                    T.ptx.tcgen05.commit(bars.ptr_to([1]), cta_group=1, cta_mask=0b11)
                T.ptx.tcgen05.commit(bars.ptr_to([0]), cta_group=1, cta_mask=0b11)  # commit
                if follows:
                    T.ptx.tcgen05.commit(bars.ptr_to([1]), cta_group=1, cta_mask=0b11)  # last
        if later:
            T.ptx.mbarrier.try_wait_acquire_cluster(bars.ptr_to([1]), 0)
        T.cuda.cluster_sync()
        D[rank * 32 + lane] = 1

    return kernel


test_a_commit_that_a_later_one_has_overtaken_is_borne_in_practice = gives(
    commits_in_order, "~peer-exited @commit"
)
test_a_commit_after_the_one_that_was_waited_for_is_not = gives(
    commits_in_order, "peer-exited @commit", follows=False
)
test_commits_that_nobody_waits_for_are_not = gives(
    commits_in_order, "peer-exited @commit", "peer-exited @last", later=False
)
