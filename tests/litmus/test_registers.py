"""Registers: what nothing has stored may not be read, be it a scalar or an element of a local array."""

from phaseflip.spelling import T

from .harness import requires

N = 64


def scalar(every_warp=True):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        x: T.int32
        if warp == 0:
            x = lane
        else:
            if every_warp:
                x = lane + 32
        D[warp * 32 + lane] = x  # read

    return kernel


test_register_read_requires_a_store_by_every_warp = requires(
    scalar, "every_warp", "uninitialised-read register @read"
)


def array(all_elements=True):
    stored = 8 if all_elements else 7

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        x = T.alloc_local((8,), "int32")
        for i in range(stored):
            x[i] = tid
        D[tid] = x[tid % 8]  # read

    return kernel


test_read_of_a_local_array_requires_a_store_to_every_element = requires(
    array, "all_elements", "uninitialised-read register @read"
)
