"""Accesses in loops whose iterations differ among the lanes."""

from tvm.script import tirx as T

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
