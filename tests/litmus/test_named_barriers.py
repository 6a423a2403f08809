"""The count of a named barrier is the number of threads that execute it."""

from tvm.script import tirx as T

from .harness import gives

N = 128


def counted(count=128):
    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        for _i in T.serial(2):
            T.ptx.bar.sync(1, count)  # meet
        D[tid] = tid

    return kernel


test_named_barrier_requires_the_count_of_its_threads = gives(
    counted, "barrier-mismatch @meet", "deadlock @meet", count=96
)
test_the_right_count_is_silent = gives(counted)
