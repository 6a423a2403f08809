"""Distributed shared memory of a cluster: what orders stores and loads across CTAs, and at which scope."""

from phaseflip.spelling import T

from .harness import gives, in_cta, requires


# -- ordered by the cluster barrier -----------------------------------------------------------------------------------------
def stored_to_the_peer(meet=True, sem="release", fence="", every_writer=True):
    """Both CTAs store into the other one's shared memory, and read their own after a cluster barrier."""

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
        peer[lane] = lane  # store
        if fence != "":
            if every_writer:
                T.ptx.fence("acq_rel", fence)
            else:
                if lane == 0:
                    T.ptx.fence("acq_rel", fence)
        if meet:
            T.ptx.barrier.cluster.arrive(sem=sem)
            T.ptx.barrier.cluster.wait(acquire=True)
        D[rank * 32 + lane] = s[lane]  # load
        T.ptx.barrier.cluster.arrive(sem="release")
        T.ptx.barrier.cluster.wait(acquire=True)

    return kernel


RACE = "race shared raw @load <store"
NARROW = "~scope-too-narrow shared raw @load <store"
test_load_of_what_the_peer_stored_requires_cluster_barrier = requires(
    stored_to_the_peer, "meet", RACE
)
test_arrive_without_sem_is_a_release = gives(stored_to_the_peer, sem="")
test_load_of_what_the_peer_stored_requires_release = gives(stored_to_the_peer, RACE, sem="relaxed")
test_a_fence_before_a_relaxed_arrive_is_a_release = gives(
    stored_to_the_peer, sem="relaxed", fence="cluster"
)
test_a_gpu_fence_before_a_relaxed_arrive_is_a_release = gives(
    stored_to_the_peer, sem="relaxed", fence="gpu"
)
test_relaxed_arrive_requires_fence_of_cluster_scope = gives(
    stored_to_the_peer, NARROW, sem="relaxed", fence="cta"
)
test_relaxed_arrive_requires_fence_of_every_writer = gives(
    stored_to_the_peer, RACE, sem="relaxed", fence="cluster", every_writer=False
)


def loaded_from_the_peer(before=True, after=True):
    """Both CTAs store into their own shared memory, and read the other one's; then they reuse it."""

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
        s[lane] = lane  # store
        if before:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        peer = in_cta(s, rank ^ 1)
        D[rank * 32 + lane] = peer[lane]  # load
        if after:
            T.cuda.cluster_sync()
        else:
            T.cuda.cta_sync()
        s[lane] = 0  # reuse
        T.cuda.cluster_sync()

    return kernel


test_load_from_the_peer_requires_cluster_barrier_and_not_cta_sync = requires(
    loaded_from_the_peer, "before", "race shared raw @load <store"
)
test_reuse_of_what_the_peer_reads_requires_cluster_barrier = requires(
    loaded_from_the_peer, "after", "race shared war @reuse <load"
)


# -- ordered by an mbarrier in another CTA -------------------------------------------------------------------------------
def signalled(wait="cluster", sem="release", scope="cluster", fence="", one=False, warp_sync=False):
    """CTA 1 stores into the shared memory of CTA 0 and arrives on its barrier (`one` lane); CTA 0 waits and reads."""
    count = 1 if one else 32

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), count)
        T.ptx.fence.mbarrier_init()
        T.cuda.cluster_sync()
        peer = in_cta(s, 0)
        if rank == 1:
            peer[lane] = lane  # store
            if fence != "":
                T.ptx.fence("acq_rel", fence)
            if warp_sync:
                T.cuda.warp_sync()
            if T.Or(not one, lane == 0):
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem=sem, scope=scope, remote=0)
        else:
            if wait == "cluster":
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
            if wait == "cta":
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = s[lane]  # load
        if wait == "":
            T.cuda.cluster_sync()

    return kernel


test_a_remote_arrive_and_a_wait_at_cluster_scope_are_silent = gives(signalled)
test_a_remote_arrive_of_one_lane_requires_warp_sync = requires(
    signalled, "warp_sync", RACE, "peer-exited @store", one=True
)
test_load_requires_wait_for_the_remote_arrive = gives(signalled, RACE, wait="")
test_remote_arrive_requires_cluster_scope = gives(signalled, NARROW, scope="cta")
test_remote_arrive_requires_cluster_scope_which_is_not_the_default = gives(
    signalled, NARROW, sem="", scope=""
)
test_wait_for_a_remote_arrive_requires_cluster_scope = gives(signalled, NARROW, wait="cta")
test_relaxed_remote_arrive_requires_fence = gives(signalled, RACE, sem="relaxed")
test_a_fence_before_a_relaxed_remote_arrive_is_silent = gives(
    signalled, sem="relaxed", fence="cluster"
)
test_relaxed_remote_arrive_requires_fence_of_cluster_scope = gives(
    signalled, NARROW, sem="relaxed", fence="cta"
)


def relaxed_within_a_cta(fence="", every=True):
    """Warp 0 fills a buffer and arrives relaxed (all lanes, or one), warp 1 waits and reads it; one CTA."""
    count = 32 if every else 1

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), count)
        T.cuda.cta_sync()
        if warp == 0:
            s[lane] = lane  # store
            if fence != "":
                T.ptx.fence("acq_rel", fence)
            if T.Or(every, lane == 0):
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem="relaxed", scope="cta")
        else:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = s[lane]  # load

    return kernel


test_relaxed_arrive_requires_fence = gives(relaxed_within_a_cta, RACE)
test_a_cta_fence_serves_a_relaxed_arrive_within_a_cta = gives(relaxed_within_a_cta, fence="cta")
test_a_cluster_fence_serves_a_relaxed_arrive_within_a_cta = gives(
    relaxed_within_a_cta, fence="cluster"
)

test_a_fence_releases_for_its_own_thread = gives(
    relaxed_within_a_cta, RACE, fence="cta", every=False
)


def relaxed_barrier_within_a_cta(fence=""):
    """Warp 0 of each CTA fills a buffer, and warp 1 reads it after a relaxed cluster barrier."""

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
        if warp == 0:
            s[lane] = lane  # store
        if fence != "":
            T.ptx.fence("acq_rel", fence)
        T.ptx.barrier.cluster.arrive(sem="relaxed")
        T.ptx.barrier.cluster.wait(acquire=True)
        if warp == 1:
            D[rank * 32 + lane] = s[lane]  # load

    return kernel


test_relaxed_cluster_barrier_within_a_cta_requires_fence = gives(relaxed_barrier_within_a_cta, RACE)
test_a_cta_fence_serves_a_relaxed_cluster_barrier_within_a_cta = gives(
    relaxed_barrier_within_a_cta, fence="cta"
)


# -- handed on ------------------------------------------------------------------------------------------------------------
def handed_on(scope="cluster", first="cta"):
    """Warp 0 of CTA 1 tells warp 1 of its CTA, which tells CTA 0: order is transitive, each step at a scope that suffices."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((2,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
                T.ptx.mbarrier.init(bar.ptr_to([1]), 32)
        T.cuda.cluster_sync()
        peer = in_cta(s, 0)
        if rank == 1:
            if warp == 0:
                peer[lane] = lane  # store
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem="release", scope=first)
            else:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                T.ptx.mbarrier.arrive(bar.ptr_to([1]), sem="release", scope=scope, remote=0)
        else:
            if warp == 0:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([1]), 0)
                D[lane] = s[lane]  # load

    return kernel


test_a_cta_scope_step_within_the_cta_is_silent = gives(handed_on)
test_the_step_between_ctas_requires_cluster_scope = gives(handed_on, NARROW, scope="cta")


def returned(scope="cluster"):
    """Warp 0 of CTA 1 stores at home and tells CTA 0, which tells warp 1 of CTA 1: both steps leave the CTA."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
        T.cuda.cluster_sync()
        if rank == 1:
            if warp == 0:
                s[lane] = lane  # store
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem="release", scope=scope, remote=0)
            else:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
                D[lane] = s[lane]  # load
        else:
            if warp == 0:
                T.ptx.mbarrier.try_wait_acquire_cluster(bar.ptr_to([0]), 0)
                T.ptx.mbarrier.arrive(bar.ptr_to([0]), sem="release", scope="cluster", remote=1)

    return kernel


test_news_that_return_to_a_cta_require_cluster_scope_on_the_way = gives(
    returned, NARROW, scope="cta"
)
test_news_may_return_to_a_cta = gives(returned)
