"""cp.async.bulk.tensor in a cluster: multicast, byte counts of every CTA, and bytes counted on the leader's barrier."""

from tvm.script.tirx import tile as Tx
from tvm.tirx.layout import S, TileLayout

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, in_cta, line_of, requires, run

ROWS, COLUMNS = 32, 8
BOX = ROWS * COLUMNS * 2
PLAIN = TileLayout(S[(ROWS, COLUMNS) : (COLUMNS, 1)])
BOTH = 0b11


# -- multicast ----------------------------------------------------------------------------------------------------------------
def multicast(wait=True, scope="cluster", peer_bytes=BOX, meet=True, mask=BOTH):
    """CTA 0 loads one box into both CTAs; each counts its copy on its own barrier, waits and reads it."""

    @T.prim_func
    def kernel(
        A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((2 * ROWS, COLUMNS), "float16")
    ):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        if meet:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        if lane == 0:
            if rank == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
            else:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), peer_bytes)  # expect
            if rank == 0:
                Tx.copy_async(  # load
                    s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0]), cta_mask=mask
                )
        if rank == 0:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        else:
            if wait:
                if scope == "cluster":
                    T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)  # wait
                else:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[rank * ROWS + lane, 0] = s[lane, 0]  # read
        T.cuda.cluster_sync()

    return kernel


test_each_cta_waits_for_its_copy = gives(multicast)
test_read_requires_wait_for_the_copy = gives(
    multicast, "race shared raw @read <load", "peer-exited @load", wait=False
)
test_a_copy_that_the_peer_issued_is_visible_to_whoever_observes_its_completion = gives(
    multicast, scope="cta"
)
test_fewer_bytes_than_the_peer_sends = gives(
    multicast, "tx-count-mismatch @expect", peer_bytes=BOX // 2
)
test_more_bytes_than_the_peer_sends = gives(multicast, "deadlock @wait", peer_bytes=2 * BOX)
test_wait_requires_the_cta_in_the_mask = gives(multicast, "deadlock @wait", mask=0b01)
test_multicast_requires_ranks_of_the_cluster = gives(multicast, "out-of-bounds @load", mask=0b101)


def test_multicast_requires_cluster_barrier_after_the_inits():
    """Under which schedule the peer's init comes first decides whether its bytes are counted at all."""
    for schedule in SCHEDULES:
        found = {(f.code, f.line) for f in run(multicast, schedule, meet=False).findings}
        assert ("barrier-not-initialised", line_of(multicast, "load")) in found


def told(wait=True):
    """CTA 0 loads a box into both CTAs and waits for its copy; CTA 1 waits for its own, or is told by CTA 0 alone."""

    @T.prim_func
    def kernel(
        A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((2 * ROWS, COLUMNS), "float16")
    ):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        if lane == 0:
            T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
            if rank == 0:
                Tx.copy_async(  # load
                    s[:, :], A[:, :], dispatch="tma_auto", mbar=bar.ptr_to([0]), cta_mask=BOTH
                )
        if T.Or(rank == 0, wait):
            T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        T.cuda.cluster_sync()
        D[rank * ROWS + lane, 0] = s[lane, 0]  # read

    return kernel


test_a_copy_requires_its_own_wait_in_each_cta = requires(
    told, "wait", "race shared raw @read <load", "peer-exited @load"
)


def halves(both=True, refill=True):
    """Each CTA loads one half of a box into both; two rounds, with a cluster barrier before the refill."""

    @T.prim_func
    def kernel(
        A: T.Buffer((ROWS, COLUMNS), "float16"), D: T.Buffer((2 * ROWS, COLUMNS), "float16")
    ):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        for i in T.serial(2):
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), BOX)
                if T.Or(rank == 0, both):
                    Tx.copy_async(  # load
                        s[rank * 16 : rank * 16 + 16, :],
                        A[rank * 16 : rank * 16 + 16, :],
                        dispatch="tma_auto",
                        mbar=bar.ptr_to([0]),
                        cta_mask=BOTH,
                    )
            T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), i)  # wait
            D[rank * ROWS + lane, i] = s[lane, i]  # read
            if refill:
                T.ptx.fence.proxy_async("shared::cta")
                T.cuda.cluster_sync()
        T.cuda.cluster_sync()

    return kernel


test_wait_requires_the_half_of_the_peer = requires(halves, "both", "deadlock @wait")


def test_refill_of_both_ctas_requires_that_both_have_read():
    """What else can be seen of it depends on how far the two are apart."""
    assert all(run(halves, s).findings == [] for s in SCHEDULES)
    for schedule in SCHEDULES:
        found = {(f.title, f.line) for f in run(halves, schedule, refill=False).findings}
        assert ("race shared war", line_of(halves, "load")) in found


# -- bytes counted on the leader's barrier ----------------------------------------------------------------------------------
def counted_by_the_leader(nbytes=2 * BOX, cta_group=2, tell=True, scope="cluster"):
    """Both CTAs load into their own shared memory; CTA 0 counts the bytes, waits, and tells the other one."""

    @T.prim_func
    def kernel(
        A: T.Buffer((2 * ROWS, COLUMNS), "float16"), D: T.Buffer((2 * ROWS, COLUMNS), "float16")
    ):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(1024)
        s = pool.alloc((ROWS, COLUMNS), "float16", layout=PLAIN)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        leader = in_cta(bar, 0)
        if lane == 0:
            if rank == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)  # expect
            Tx.copy_async(  # load
                s[:, :],
                A[rank * ROWS : rank * ROWS + ROWS, :],
                dispatch="tma_auto",
                mbar=leader.ptr_to([0]),
                cta_group=cta_group,
            )
        if rank == 0:
            if scope == "cluster":
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)  # wait
            else:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        if tell:
            T.cuda.cluster_sync()
        D[rank * ROWS + lane, 0] = s[lane, 0]  # read
        T.cuda.cluster_sync()

    return kernel


test_the_leader_counts_the_bytes_of_both_ctas = gives(counted_by_the_leader)
test_the_leader_may_observe_and_tell_what_the_peer_copied = gives(
    counted_by_the_leader, scope="cta"
)


def test_the_leader_must_expect_the_bytes_of_both_ctas():
    """Which copy is left out, and what follows, depends on which comes first."""
    for schedule in SCHEDULES:
        found = {
            (f.title, f.line) for f in run(counted_by_the_leader, schedule, nbytes=BOX).findings
        }
        assert ("tx-count-mismatch", line_of(counted_by_the_leader, "expect")) in found


test_the_leader_waits_for_bytes_that_nobody_sends = gives(
    counted_by_the_leader, "deadlock @wait", nbytes=3 * BOX
)
test_a_barrier_of_the_peer_requires_cta_group_2 = gives(
    counted_by_the_leader, "out-of-bounds @load", cta_group=1
)
test_read_in_the_peer_requires_news_from_the_leader = requires(
    counted_by_the_leader, "tell", "race shared raw @read <load"
)
