"""mbarriers of another CTA of the cluster: init that is visible there, arrivals, expected bytes, and what is out of reach."""

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, in_cta, requires, run


# -- init ---------------------------------------------------------------------------------------------------------------------
def initialised(fence=False, meet="cluster", sem="release", by_the_fencing_thread=True):
    """A thread of each CTA initialises a barrier, and one of the other CTA arrives there."""

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
            T.ptx.mbarrier.init(bar.ptr_to([0]), 2)
        if fence:
            if by_the_fencing_thread:
                T.ptx.fence.mbarrier_init()
            else:
                if lane == 1:
                    T.ptx.fence.mbarrier_init()
        if meet == "cluster":
            T.ptx.barrier.cluster.arrive(sem=sem)
            T.ptx.barrier.cluster.wait(acquire=True)
        if meet == "cta":
            T.cuda.cta_sync()
        if lane == 0:
            T.ptx.mbarrier.arrive(  # arrive
                bar.ptr_to([0]), sem="release", scope="cluster", remote=rank ^ 1
            )
        T.cuda.cluster_sync()
        D[rank * 32 + lane] = 1

    return kernel


UNSEEN = "barrier-not-initialised @arrive"
test_remote_arrive_after_a_cluster_barrier_is_silent = gives(initialised)
test_remote_arrive_after_fence_and_cluster_barrier_is_silent = gives(initialised, fence=True)
test_remote_arrive_requires_cluster_barrier_and_not_cta_sync = gives(
    initialised, UNSEEN, fence=True, meet="cta"
)
test_the_idiom_of_a_fence_and_a_relaxed_arrive_is_silent = gives(
    initialised, fence=True, sem="relaxed"
)
test_relaxed_arrive_requires_fence_of_the_inits = gives(initialised, UNSEEN, sem="relaxed")
test_relaxed_arrive_requires_fence_by_the_initialising_thread = gives(
    initialised, UNSEEN, sem="relaxed", fence=True, by_the_fencing_thread=False
)


def data_under_the_fence_of_inits(release=True):
    """The fence of the inits releases nothing else: what the peer reads needs a release of its own."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((1,), "int32")
        pool.commit()
        peer = in_cta(s, rank ^ 1)
        if lane == 0:
            s[0] = rank  # store
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
        if release:
            T.ptx.barrier.cluster.arrive(sem="release")
        else:
            T.ptx.barrier.cluster.arrive(sem="relaxed")
        T.ptx.barrier.cluster.wait(acquire=True)
        D[rank * 32 + lane] = peer[0]  # load
        T.cuda.cluster_sync()

    return kernel


test_data_beside_the_inits_require_release = requires(
    data_under_the_fence_of_inits, "release", "race shared raw @load <store"
)


# -- counts across CTAs --------------------------------------------------------------------------------------------------------
def counted(count=64, arrives=True, consume=True):
    """All threads of both CTAs arrive on the barrier of CTA 0, which waits; two rounds."""

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
            T.ptx.mbarrier.init(bar.ptr_to([0]), count)
        T.cuda.cluster_sync()
        for i in T.serial(2):
            if T.Or(rank == 0, arrives):
                T.ptx.mbarrier.arrive(  # arrive
                    bar.ptr_to([0]), sem="release", scope="cluster", remote=0
                )
            if rank == 0:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), i)  # wait
            if consume:
                T.cuda.cluster_sync()
        D[rank * 32 + lane] = 1

    return kernel


test_arrivals_of_both_ctas_are_counted = gives(counted)
test_wait_requires_arrivals_of_both_ctas = requires(counted, "arrives", "deadlock @wait")
test_a_wait_that_lacks_arrivals_of_both_ctas = gives(counted, "deadlock @wait", count=65)


def test_a_deadlock_says_how_many_arrivals_of_both_ctas_came():
    for schedule in SCHEDULES:
        (finding,) = run(counted, schedule, count=65).findings
        assert "64 of 65 arrivals" in finding.message


# -- out of reach -----------------------------------------------------------------------------------------------------------
def reaches(init=0, wait=0, arrive=0):
    """CTA 0 uses the barrier at the given ranks."""

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
        initialised = in_cta(bar, init)
        waited = in_cta(bar, wait)
        if rank == 0:
            if lane == 0:
                T.ptx.mbarrier.init(initialised.ptr_to([0]), 1)  # init
        T.cuda.cluster_sync()
        if rank == 0:
            if lane == 0:
                T.ptx.mbarrier.arrive(  # arrive
                    bar.ptr_to([0]), sem="release", scope="cluster", remote=arrive
                )
                T.ptx.mbarrier.try_wait(waited.ptr_to([0]), 0)  # wait
        T.cuda.cluster_sync()
        D[rank * 32 + lane] = 1

    return kernel


test_a_generic_address_of_the_own_barrier_is_silent = gives(reaches)
test_init_requires_a_barrier_of_the_own_cta = gives(reaches, "out-of-bounds @init", init=1)
test_wait_requires_a_barrier_of_the_own_cta = gives(reaches, "out-of-bounds @wait", wait=1)
test_mapa_requires_a_rank_of_the_cluster = gives(reaches, "out-of-bounds @arrive", arrive=2)


# -- to and fro -------------------------------------------------------------------------------------------------------------
def handshake(to=0):
    """CTA 1 tells CTA 0 that it is ready, and waits until that has told it to go on; twice. `to`: whom it tells."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        ready = pool.alloc((1,), "uint64", align=8)
        go = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(ready.ptr_to([0]), 1)
            T.ptx.mbarrier.init(go.ptr_to([0]), 1)
        T.cuda.cluster_sync()
        if lane == 0:
            if rank == 1:
                for i in T.serial(2):
                    T.ptx.mbarrier.arrive(  # tells
                        ready.ptr_to([0]), sem="release", scope="cluster", remote=to
                    )
                    T.ptx.mbarrier.try_wait_acquire_cluster(go.ptr_to([0]), i)
            else:
                for i in T.serial(2):
                    T.ptx.mbarrier.try_wait_acquire_cluster(ready.ptr_to([0]), i)  # hears
                    T.ptx.mbarrier.arrive(go.ptr_to([0]), sem="release", scope="cluster", remote=1)
        T.cuda.cluster_sync()
        D[rank * 32 + lane] = 1

    return kernel


test_a_handshake_between_ctas_is_silent = gives(handshake)
test_an_arrival_on_the_own_barrier_serves_no_peer = gives(handshake, "deadlock @hears", to=1)
