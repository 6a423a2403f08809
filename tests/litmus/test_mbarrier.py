"""mbarrier: what arrivals release and waits acquire, counts, parities, life of the object."""

from phaseflip.spelling import T

from .harness import gives, requires, run

N = 64


def handover(wait=True, every=True, warp_sync=True, arrive_after=True, init=True, init_sync=True):
    """Warp 0 fills a buffer and arrives, warp 1 waits and reads it."""
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
        if init:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.init(bar.ptr_to([0]), count)  # init
        if init_sync:
            T.cuda.cta_sync()
        if warp == 0:
            if not arrive_after:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            s[lane] = lane  # store
            if warp_sync:
                T.cuda.warp_sync()
            if arrive_after:
                if every:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # arrive
                else:
                    if lane == 0:
                        T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        else:
            if wait:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
            D[lane] = s[lane]  # load

    return kernel


RACE = "race shared raw @load <store"
test_shared_load_requires_wait = requires(handover, "wait", RACE)
test_shared_load_requires_arrive_after_the_store = requires(handover, "arrive_after", RACE)
test_shared_load_requires_every_storing_lane_to_arrive_or_warp_sync = requires(
    handover, "warp_sync", RACE, every=False
)
test_arrivals_of_every_storing_lane_require_no_warp_sync = gives(handover, warp_sync=False)


test_wait_requires_init = requires(
    handover, "init", "barrier-not-initialised @arrive", "barrier-not-initialised @wait", RACE
)


def own_init(sync=True, waits=False):
    """The barrier is initialised by warp 0 and used by warp 1; with `waits`, warp 0 waits for it."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # init
        if sync:
            T.cuda.cta_sync()
        if warp == 1:
            if lane == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # arrive
        if waits:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = 1

    return kernel


test_arrive_requires_cta_sync_after_init = requires(
    own_init, "sync", "barrier-not-initialised @arrive"
)
test_an_arrival_before_the_init_counts_all_the_same = gives(
    own_init, "barrier-not-initialised @arrive", sync=False, waits=True
)


def slots(initialised=2, reached=True, sync=True):
    """Each warp arrives on its slot of an array, of which one thread, where `reached`, has initialised so many."""
    limit = 1000 if reached else -1000

    @T.prim_func
    def kernel(A: T.Buffer((1,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0 and A[0] < limit:
                for i in T.serial(initialised):
                    T.ptx.mbarrier.init(bar.ptr_to([i]), 32)  # init
        if sync:
            T.cuda.cta_sync()
        T.ptx.mbarrier.arrive(bar.ptr_to([warp]))  # arrive
        D[warp * 32 + lane] = 1

    return kernel


def ring(stages=2, subtracted=False):
    """A thread arrives on each barrier of a ring of so many stages, for which there are two; another array follows."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.lane_id([32])
        warp = T.warp_id([1])
        pool = T.SMEMPool()
        full = pool.alloc((2,), "uint64", align=8)
        empty = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            for i in T.serial(2):
                T.ptx.mbarrier.init(full.ptr_to([i]), 1)
                T.ptx.mbarrier.init(empty.ptr_to([i]), 1)
            for i in T.serial(stages):
                T.ptx.mbarrier.arrive(full.ptr_to([i]))  # arrive
                if subtracted:
                    other = T.local_scalar("int32")
                    other = i ^ 1
                    T.ptx.mbarrier.arrive(empty.ptr_to([1 - other]))
        D[lane] = 1

    return kernel


test_a_ring_of_as_many_stages_as_barriers_is_silent = gives(ring)
test_an_index_may_be_subtracted = gives(ring, subtracted=True)
test_a_ring_requires_as_many_barriers_as_stages = gives(
    ring, "?out-of-bounds shared @arrive", stages=3
)
test_every_slot_of_an_array_requires_an_init = gives(
    slots, "barrier-not-initialised @arrive", initialised=1
)
test_an_init_must_be_reached = gives(slots, "barrier-not-initialised @arrive", reached=False)
test_arrivals_on_slots_require_cta_sync_after_the_inits = requires(
    slots, "sync", "barrier-not-initialised @arrive"
)


# -- counts ---------------------------------------------------------------------------------------------------------------
def deadlocked(enough=True):
    """Two arrivals are expected; without `enough` only one comes."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 2)
        T.cuda.cta_sync()
        if lane == 0:
            if warp == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            if enough:
                if warp == 1:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
        D[warp * 32 + lane] = 1

    return kernel


test_wait_requires_all_arrivals = requires(deadlocked, "enough", "deadlock @wait")


def test_a_deadlock_says_how_many_arrivals_came():
    (finding,) = run(deadlocked, enough=False).findings
    assert "1 of 2 arrivals" in finding.message


def too_many(count=True):
    """Two threads arrive."""
    expected = 2 if count else 1

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), expected)
        T.cuda.cta_sync()
        if lane == 0:
            if warp == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # first
            else:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # second
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = 1

    return kernel


test_two_arrivals_require_a_count_of_two = requires(
    too_many, "count", "over-arrival @second <first"
)


def by_a_whole_warp(elected=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cta_sync()
        if warp == 0:
            if elected:
                if lane == 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            else:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # arrive
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = 1

    return kernel


test_arrival_of_a_warp_requires_one_lane = requires(
    by_a_whole_warp, "elected", "over-arrival @arrive <arrive"
)


def bytes_to_come(times=1):
    """Each arrival expects 2^19 bytes more; then all of them have come."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), times)
                for _ in T.unroll(times):
                    T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), 524288)  # expect
                for _ in T.unroll(times):
                    T.ptx.mbarrier.complete_tx(bar.ptr_to([0]), 524288)
        T.cuda.cta_sync()
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        D[warp * 32 + lane] = 1

    return kernel


test_the_bytes_that_a_phase_expects_fit_into_the_tx_count = gives(
    bytes_to_come, "resource-limit @expect", times=2
)
test_half_as_many_do = gives(bytes_to_come)


# -- init -----------------------------------------------------------------------------------------------------------------
def initialised_twice(once=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # first
        T.cuda.cta_sync()
        if not once:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # second
        D[warp * 32 + lane] = 1

    return kernel


test_init_requires_a_barrier_that_is_not_live = requires(
    initialised_twice, "once", "barrier-reinitialised @second <first"
)


def initialised_by_each_warp(one=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if one:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        else:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # init
        T.cuda.cta_sync()
        D[warp * 32 + lane] = 1

    return kernel


test_init_requires_one_thread = requires(
    initialised_by_each_warp, "one", "barrier-reinitialised @init <init"
)


def initialised_by_two_roles(one=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            if warp == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # first
            else:
                if not one:
                    T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # second
        T.cuda.cta_sync()
        D[warp * 32 + lane] = 1

    return kernel


test_init_requires_one_role = requires(
    initialised_by_two_roles, "one", "barrier-reinitialised @second <first"
)


def overwritten(apart=True):
    """The bytes of a live barrier hold data."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)  # init
        T.cuda.cta_sync()
        if lane == 0:
            if apart:
                bar[1] = T.uint64(0)
            else:
                bar[0] = T.uint64(0)  # store
        D[lane] = 1

    return kernel


test_store_requires_bytes_without_a_live_barrier = requires(
    overwritten, "apart", "barrier-reinitialised shared waw @store <init"
)
