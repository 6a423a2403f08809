"""What a barrier asks of those who execute it: the count that it names, or all threads of the CTA at one instruction."""

from phaseflip.spelling import T

from .harness import gives, requires

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


def role(counted=True):
    """Warp 1 synchronises in its branch; without a count the closing barrier of warp 0 takes part in that round."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        if warp == 1:
            if counted:
                T.ptx.bar.sync(1, 32)
            else:
                T.cuda.cta_sync()  # inner
        D[tid] = tid
        T.cuda.cta_sync()  # closing

    return kernel


test_a_barrier_in_a_role_requires_a_count = requires(
    role,
    "counted",
    "divergent-collective @inner <closing",
    "?divergent-collective @closing",
)


def two_instructions():
    """bar.sync is aligned: one instruction for all."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        if warp == 1:
            T.cuda.cta_sync()  # one
        else:
            T.cuda.cta_sync()  # other
        D[tid] = tid

    return kernel


test_two_instructions_are_no_barrier_of_the_cta = gives(
    two_instructions, "divergent-collective @one <other"
)


def early_exit(counted=True):
    """The last warp returns before the others meet: `exit` excuses it, and the report is a note."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        if warp < 3:
            if counted:
                T.ptx.bar.sync(1, 96)
            else:
                T.cuda.cta_sync()  # meet
            D[tid] = tid

    return kernel


test_a_warp_that_exits_early_is_noted = requires(
    early_exit, "counted", "?divergent-collective @meet"
)
