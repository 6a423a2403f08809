"""What orders a cp.async copy: the groups of its own thread, an mbarrier that tracks it, and then what orders anything."""

from phaseflip.spelling import T

from .harness import gives, requires

N = 128


def own(commit=True, wait=True, newest=0):
    """Each thread reads what it has copied itself."""

    @T.prim_func
    def kernel(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N, 4), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((N, 4), "int32", align=16)
        pool.commit()
        T.ptx.cp_async(s.ptr_to([tid, 0]), A.ptr_to([tid, 0]), 16)  # copy
        if commit:
            T.ptx.cp_async.commit_group()
        if wait:
            T.ptx.cp_async.wait_group(newest)
        for i in T.serial(4):
            D[tid, i] = s[tid, i]  # load

    return kernel


RACE = "race shared raw @load <copy"
test_load_of_an_own_copy_requires_commit_group = requires(own, "commit", RACE)
test_load_of_an_own_copy_requires_wait_group = requires(own, "wait", RACE)
test_load_of_an_own_copy_requires_its_group_to_be_waited_for = gives(own, RACE, newest=1)


def shared(wait=True, meet=True, lanes=False):
    """Each thread reads what another one has copied."""

    @T.prim_func
    def kernel(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((N, 4), "int32", align=16)
        pool.commit()
        T.ptx.cp_async(s.ptr_to([tid, 0]), A.ptr_to([tid, 0]), 16)  # copy
        T.ptx.cp_async.commit_group()
        if wait:
            T.ptx.cp_async.wait_group(0)
        if meet:
            T.cuda.cta_sync()
        if lanes:
            D[tid] = s[tid ^ 1, 0]  # neighbour
        else:
            D[tid] = s[N - 1 - tid, 0]  # load

    return kernel


test_load_of_another_threads_copy_requires_wait_group = requires(shared, "wait", RACE)
test_load_of_another_threads_copy_requires_a_barrier = requires(shared, "meet", RACE)
test_wait_group_tells_nothing_of_other_lanes = gives(
    shared, "race shared raw @neighbour <copy", meet=False, lanes=True
)


def overwritten(wait=True, meet=True):
    """A copy over what others have read."""

    @T.prim_func
    def kernel(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((N, 4), "int32", align=16)
        pool.commit()
        for i in T.serial(4):
            s[tid, i] = A[tid, i]
        T.cuda.cta_sync()
        x: T.int32 = s[N - 1 - tid, 0]  # load
        if meet:
            T.cuda.cta_sync()
        T.ptx.cp_async(s.ptr_to([tid, 0]), A.ptr_to([tid, 0]), 16)  # copy
        T.ptx.cp_async.commit_group()
        T.ptx.cp_async.wait_group(0)
        D[tid] = x + s[tid, 1]

    return kernel


test_copy_over_what_others_read_requires_a_barrier = requires(
    overwritten, "meet", "race shared war @copy <load"
)


def tracked(every=True, wait=True, noinc=True):
    """Warp 0 copies, warp 1 reads; the mbarrier tells of the copies."""
    count = 32 if noinc else 64

    @T.prim_func
    def kernel(A: T.Buffer((32, 4), "int32"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32, 4), "int32", align=16)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
        T.cuda.cta_sync()
        if warp == 0:
            T.ptx.cp_async(s.ptr_to([lane, 0]), A.ptr_to([lane, 0]), 16)  # copy
            if every:
                if noinc:
                    T.ptx.cp_async.mbarrier.arrive.noinc(bar.ptr_to([0]))
                else:
                    T.ptx.cp_async.mbarrier.arrive(bar.ptr_to([0]))
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            else:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        else:
            if wait:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = s[31 - lane, 0]  # load

    return kernel


test_mbarrier_arrive_tells_nothing_of_copies_in_flight = requires(tracked, "every", RACE)
test_load_of_a_tracked_copy_requires_the_wait = requires(tracked, "wait", RACE)
test_arrival_that_raises_the_count_first = requires(tracked, "wait", RACE, noinc=False)


def tracks_copies_alone(plain=True):
    """What a thread stores itself is not told by the arrival of its copies."""

    @T.prim_func
    def kernel(A: T.Buffer((32, 4), "int32"), D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32, 4), "int32", align=16)
        t = pool.alloc((32,), "int32", align=16)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 64 if plain else 32)
        T.cuda.cta_sync()
        if warp == 0:
            t[lane] = lane  # store
            T.ptx.cp_async(s.ptr_to([lane, 0]), A.ptr_to([lane, 0]), 16)
            T.ptx.cp_async.mbarrier.arrive.noinc(bar.ptr_to([0]))
            if plain:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        else:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
            D[lane] = s[31 - lane, 0] + t[31 - lane]  # load

    return kernel


test_arrival_of_copies_tells_nothing_of_stores = requires(
    tracks_copies_alone, "plain", "race shared raw @load <store"
)


def twice(wait=True):
    """Two copies of a thread to one place have no order."""

    @T.prim_func
    def kernel(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((N, 4), "int32", align=16)
        pool.commit()
        T.ptx.cp_async(s.ptr_to([tid, 0]), A.ptr_to([tid, 0]), 16)  # first
        T.ptx.cp_async.commit_group()
        if wait:
            T.ptx.cp_async.wait_group(0)
        T.ptx.cp_async(s.ptr_to([tid, 0]), A.ptr_to([N - 1 - tid, 0]), 16)  # second
        T.ptx.cp_async.commit_group()
        T.ptx.cp_async.wait_group(0)
        D[tid] = s[tid, 1]

    return kernel


test_copy_over_a_copy_requires_wait_group = requires(
    twice, "wait", "race shared waw @second <first"
)


def stored_over(wait=True):
    """A store over a copy that may still be under way."""

    @T.prim_func
    def kernel(A: T.Buffer((N, 4), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        s = pool.alloc((N, 4), "int32", align=16)
        pool.commit()
        T.ptx.cp_async(s.ptr_to([tid, 0]), A.ptr_to([tid, 0]), 16)  # copy
        T.ptx.cp_async.commit_group()
        if wait:
            T.ptx.cp_async.wait_group(0)
        s[tid, 0] = tid  # store
        T.ptx.cp_async.wait_group(0)
        D[tid] = s[tid, 0] + s[tid, 1]

    return kernel


test_store_over_a_copy_requires_wait_group = requires(
    stored_over, "wait", "race shared waw @store <copy"
)
