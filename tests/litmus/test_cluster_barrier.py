"""barrier.cluster: who must arrive, how often, by which lanes; what lies between arriving and waiting."""

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, in_cta, requires, run


# -- once a round, and wait after it -----------------------------------------------------------------------------------------
def rounds(once=True, arrive=True):
    """Three rounds of the cluster barrier, each an arrival and a wait."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        for _round in T.serial(3):
            if arrive:
                T.ptx.barrier.cluster.arrive(sem="release")
            if not once:
                T.ptx.barrier.cluster.arrive(sem="release")  # again
            T.ptx.barrier.cluster.wait(acquire=True)  # wait
        D[rank * 32 + lane] = 1

    return kernel


test_arrive_requires_a_wait_after_the_arrive_before = requires(
    rounds, "once", "barrier-mismatch @again"
)
test_wait_requires_an_arrive = requires(rounds, "arrive", "barrier-mismatch @wait")


def between(early=True):
    """Each CTA stores into its own shared memory, before or after it arrives; the other one reads it after the wait."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32,), "int32")
        pool.commit()
        peer = in_cta(s, rank ^ 1)
        if early:
            s[lane] = lane
        T.ptx.barrier.cluster.arrive(sem="release")
        if not early:
            s[lane] = lane  # store
        T.ptx.barrier.cluster.wait(acquire=True)
        D[rank * 32 + lane] = peer[lane]  # load
        T.cuda.cluster_sync()

    return kernel


test_load_requires_store_before_the_arrive = requires(
    between, "early", "race shared raw @load <store"
)


# -- which threads ----------------------------------------------------------------------------------------------------------
def halves(together=True, aligned=True):
    """The lanes of a warp arrive and wait all together, or by halves that reach different instructions."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        if together:
            T.ptx.barrier.cluster.arrive(sem="release", aligned=aligned)
        else:
            if lane < 16:
                T.ptx.barrier.cluster.arrive(sem="release", aligned=aligned)  # low
            else:
                T.ptx.barrier.cluster.arrive(sem="release", aligned=aligned)  # high
        T.ptx.barrier.cluster.wait(acquire=True, aligned=aligned)
        D[rank * 32 + lane] = 1

    return kernel


test_aligned_arrive_requires_whole_warps = requires(
    halves, "together", "divergent-collective @low", "divergent-collective @high"
)
test_lanes_may_come_apart_without_aligned = gives(halves, together=False, aligned=False)


def some(first=0, last=63, exits=True, whole=True):
    """Threads `first` to `last` of the cluster come to its barrier; without `exits`, the others wait for an mbarrier."""

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
        T.cuda.cta_sync()
        thread: T.int32 = rank * 32 + lane
        if T.And(thread >= first, thread <= last):
            T.ptx.barrier.cluster.arrive(sem="release", aligned=whole)
            T.ptx.barrier.cluster.wait(acquire=True, aligned=whole)  # meet
            D[thread] = 1
        else:
            if not exits:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # elsewhere

    return kernel


test_a_cta_that_has_exited_counts_as_arrived = gives(some, last=31)
test_threads_blocked_elsewhere_do_not_count = gives(
    some, "deadlock @elsewhere", last=31, exits=False
)
test_part_of_a_warp_requires_the_rest_to_arrive = gives(
    some, "deadlock @meet", last=47, whole=False
)


def test_a_deadlock_names_both_ctas():
    for schedule in SCHEDULES:
        (finding,) = run(some, schedule, last=31, exits=False).findings
        assert finding.why.endswith("the kernel has no instruction that arrives on it")
        assert finding.what.startswith("CTA 1 warp 0 waits for ever")
        assert finding.details[0].startswith("CTA 0 warp 0 waits")
        assert finding.details[1] == "  barrier.cluster: 32 of 64 threads have arrived"
        assert [(e["who"], e["instruction"]) for e in finding.data] == [
            ("CTA 1 warp 0", "mbarrier.try_wait.parity"),
            ("CTA 0 warp 0", "barrier.cluster.wait"),
        ]


def gone(arrives=True):
    """CTA 0 arrives and exits; a warp of CTA 1 hands a value to the other one through the cluster barrier."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32,), "int32")
        pool.commit()
        if rank == 0:
            if arrives:
                T.ptx.barrier.cluster.arrive(sem="release")
        else:
            if warp == 1:
                s[lane] = lane
            T.ptx.barrier.cluster.arrive(sem="release")
            T.ptx.barrier.cluster.wait(acquire=True)
            if warp == 0:
                D[lane] = s[lane]

    return kernel


test_threads_that_arrive_and_exit_stand_for_nobody_else = requires(gone, "arrives")


def crossed(same=True):
    """CTA 0 waits for the cluster, and only then arrives at the barrier that CTA 1 waits for first."""

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
            if not same:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)  # signal
        T.ptx.barrier.cluster.arrive(sem="release")
        T.ptx.barrier.cluster.wait(acquire=True)  # meet
        if rank == 0:
            T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem="release", scope="cluster", remote=1)
        if rank == 1:
            if same:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
        D[rank * 32 + lane] = 1

    return kernel


test_ctas_require_one_order_of_waits = requires(crossed, "same", "deadlock @signal")


def test_a_deadlock_across_ctas_names_who_has_not_supplied():
    for schedule in SCHEDULES:
        (finding,) = run(crossed, schedule, same=False).findings
        assert sorted(e["who"] for e in finding.data) == ["CTA 0 warp 0", "CTA 1 warp 0"]
        (blocked,) = [e for e in finding.data if e["who"] == "CTA 1 warp 0"]
        (supplier,) = blocked["suppliers"]
        assert supplier["mnemonic"] == "mbarrier.arrive" and supplier["executed"] == 0
