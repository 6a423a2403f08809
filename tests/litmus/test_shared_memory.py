"""Generic accesses to shared and global memory: what bar.sync, named barriers and bar.warp.sync order."""

from phaseflip.spelling import T

from .harness import gives, requires

N = 64


def store_load(sync=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        s[tid] = tid  # store
        if sync:
            T.cuda.cta_sync()
        D[tid] = s[N - 1 - tid]  # load

    return kernel


def load_store(sync=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        s[tid] = tid
        T.cuda.cta_sync()
        D[tid] = s[N - 1 - tid]  # load
        if sync:
            T.cuda.cta_sync()
        s[tid] = 0  # store

    return kernel


def store_store(sync=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        s[tid] = tid  # first
        if sync:
            T.cuda.cta_sync()
        s[N - 1 - tid] = tid  # second
        T.cuda.cta_sync()
        D[tid] = s[tid]

    return kernel


def loop(sync=True):
    """The store of the next iteration overwrites what this one reads."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        for i in T.serial(3):
            s[tid] = i  # store
            T.cuda.cta_sync()
            D[tid] = s[N - 1 - tid]  # load
            if sync:
                T.cuda.cta_sync()

    return kernel


test_shared_load_requires_cta_sync = requires(store_load, "sync", "race shared raw @load <store")
test_shared_store_after_load_requires_cta_sync = requires(
    load_store, "sync", "race shared war @store <load"
)
test_shared_store_after_store_requires_cta_sync = requires(
    store_store, "sync", "race shared waw @second <first"
)
test_shared_store_in_a_loop_requires_cta_sync = requires(
    loop, "sync", "race shared war @store <load"
)


# -- one warp -----------------------------------------------------------------------------------------------------------
def lanes(sync=True):
    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([32])
        s = T.alloc_shared((32,), "int32")
        s[tid] = tid  # store
        if sync:
            T.cuda.warp_sync()
        D[tid] = s[31 - tid]  # load

    return kernel


test_shared_load_of_another_lane_requires_warp_sync = requires(
    lanes, "sync", "race shared raw @load <store"
)


def warps(sync=True, whole=True):
    """A warp barrier orders no two warps."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        s[tid] = tid  # store
        if whole:
            T.cuda.cta_sync()
        T.cuda.warp_sync()
        T.cuda.thread_fence()
        D[tid] = s[N - 1 - tid]  # load

    return kernel


test_shared_load_of_another_warp_requires_more_than_warp_sync_and_fence = requires(
    warps, "whole", "race shared raw @load <store"
)


# -- named barriers -----------------------------------------------------------------------------------------------------
def named(everyone=True):
    """Warps 0 and 1 meet at barrier 1; warp 2 reads too."""

    @T.prim_func
    def kernel(D: T.Buffer((96,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        s = T.alloc_shared((32,), "int32")
        if warp == 0:
            s[lane] = lane  # store
        if everyone:
            T.ptx.bar.sync(1, 96)
        else:
            if warp < 2:
                T.ptx.bar.sync(1, 64)
        if warp > 0:
            D[warp * 32 + lane] = s[lane]  # load

    return kernel


test_shared_load_requires_to_take_part_in_the_named_barrier = requires(
    named, "everyone", "race shared raw @load <store"
)


def producer(arrive_after=True):
    """bar.arrive releases what came before it, and nothing after."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        s = T.alloc_shared((32,), "int32")
        if warp == 0:
            if not arrive_after:
                T.ptx.bar.arrive(1, 64)
            s[lane] = lane  # store
            if arrive_after:
                T.ptx.bar.arrive(1, 64)
        else:
            T.ptx.bar.sync(1, 64)
            D[lane] = s[lane]  # load

    return kernel


test_shared_load_requires_bar_arrive_after_the_store = requires(
    producer, "arrive_after", "race shared raw @load <store"
)


def one_sided():
    """bar.arrive acquires nothing: the arriving warp may not read what the waiting one wrote."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        s = T.alloc_shared((32,), "int32")
        if warp == 0:
            s[lane] = lane  # store
            T.ptx.bar.sync(1, 64)
        else:
            T.ptx.bar.arrive(1, 64)
            D[lane] = s[lane]  # load

    return kernel


test_bar_arrive_does_not_acquire = gives(one_sided, "race shared raw @load <store")


def counts(same=True):
    @T.prim_func
    def kernel(D: T.Buffer((96,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([3])
        lane = T.lane_id([32])
        if warp == 0:
            T.ptx.barrier.sync(1, 96)  # three
        else:
            if same:
                T.ptx.barrier.sync(1, 96)
            else:
                T.ptx.barrier.sync(1, 64)  # two
        D[warp * 32 + lane] = 1

    return kernel


test_named_barrier_requires_one_count = requires(
    counts, "same", "barrier-mismatch @two <three", "deadlock @three"
)


def partial(whole=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        if whole:
            T.cuda.cta_sync()
        else:
            if tid != 5:
                T.cuda.cta_sync()  # sync
        D[tid] = 1

    return kernel


test_cta_sync_requires_whole_warps = requires(
    partial, "whole", "divergent-collective @sync", "deadlock @sync"
)


# -- bytes --------------------------------------------------------------------------------------------------------------
def neighbours(apart=True, know_alike=True):
    """Single bytes of one word by different threads do not collide; one byte by two warps does."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int8")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int8")
        if not know_alike:
            T.cuda.warp_sync()
        if apart:
            s[tid] = T.int8(1)
        else:
            s[tid % 32] = T.int8(1)  # store
        T.cuda.cta_sync()
        if tid < 32:
            D[tid] = s[tid]

    return kernel


test_shared_stores_to_neighbouring_bytes_require_nothing = requires(
    neighbours, "apart", "race shared waw @store <store"
)
test_what_warps_know_does_not_keep_their_stores_apart = requires(
    neighbours, "apart", "race shared waw @store <store", know_alike=False
)


def unwritten(store=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        if store:
            s[tid] = tid
        D[tid] = s[tid]  # load

    return kernel


test_shared_load_requires_a_store = requires(unwritten, "store", "uninitialised-read shared @load")


def bounds(inside=True):
    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        if inside:
            D[tid] = A[tid]
        else:
            D[tid] = A[tid + 1]  # load

    return kernel


test_global_load_requires_an_address_inside = requires(bounds, "inside", "out-of-bounds @load")


def alignment(aligned=True):
    """A vector of four words has to start at a multiple of 16 bytes."""

    @T.prim_func
    def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([8])
        reg = T.alloc_local((4,), "int32")
        if aligned:
            T.ptx.ld(
                A.ptr_to([4 * tid]), "int32", "b32", dst=reg.ptr_to([0]), space="global", vec="v4"
            )
        else:
            T.ptx.ld(  # load
                A.ptr_to([4 * tid + 1]),
                "int32",
                "b32",
                dst=reg.ptr_to([0]),
                space="global",
                vec="v4",
            )
        D[tid] = reg[0]

    return kernel


test_vector_load_requires_alignment = requires(alignment, "aligned", "misaligned-access @load")


# -- global memory --------------------------------------------------------------------------------------------------------
def tiles(apart=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([2])
        tid = T.thread_id([32])
        if apart:
            D[bx * 32 + tid] = bx
        else:
            D[tid] = bx  # store

    return kernel


test_output_requires_a_tile_for_each_cta = requires(
    tiles, "apart", "output-overwritten global waw @store <store"
)


def in_place(apart=True):
    """A CTA reads what another one writes."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([2])
        tid = T.thread_id([32])
        reg = T.alloc_local((1,), "int32")
        if apart:
            reg[0] = D[bx * 32 + tid]
        else:
            reg[0] = D[(1 - bx) * 32 + tid]  # load
        D[bx * 32 + tid] = reg[0]  # store

    return kernel


test_global_load_requires_that_no_other_cta_writes = requires(
    in_place, "apart", "race global war @store <load"
)


def through_global(sync=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32"), E: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        D[tid] = tid  # store
        if sync:
            T.cuda.cta_sync()
        E[tid] = T.ptx.ld(D.ptr_to([N - 1 - tid]), "int32", "s32")  # load

    return kernel


test_global_load_requires_cta_sync = requires(
    through_global, "sync", "race global raw @load <store"
)
