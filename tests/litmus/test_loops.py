"""Accesses in loops whose iterations differ among the lanes."""

from phaseflip.spelling import T

from .harness import requires

N = 64


def trips(sync=True):
    """Lane t stores t % 3 + 1 times before the others read."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        s = T.alloc_shared((N,), "int32")
        for i in T.serial(tid % 3, 2 * (tid % 3) + 1):
            s[tid] = i  # store
        if sync:
            T.cuda.cta_sync()
        D[tid] = s[N - 1 - tid]  # load

    return kernel


test_shared_load_after_a_loop_of_each_lane_requires_cta_sync = requires(
    trips, "sync", "race shared raw @load <store"
)


def parts(sync=True):
    """In each of two rounds warp 0 writes three parts, and warp 1 reads four: no part of the one goes with one of the other."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        s = T.alloc_shared((96,), "int32")
        for i in T.serial(2):
            if warp == 0:
                for written in T.serial(3):
                    s[written * 32 + lane] = i  # store
            if sync:
                T.cuda.cta_sync()
            if warp == 1:
                for read in T.serial(4):
                    D[lane] = s[read * 24 + lane % 24]  # load
            T.cuda.cta_sync()

    return kernel


test_reads_in_parts_of_another_number_are_of_what_is_written_in_the_same_round = requires(
    parts, "sync", "race shared raw @load <store"
)
