"""What a barrier asks of those who execute it: the count that it names, or all threads of the CTA at one instruction."""

from phaseflip.spelling import T

from .harness import gives, requires, run

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


def parted(form="aligned"):
    """Two branches meet: with the barrier of the CTA, an aligned one with a count, or one that is not aligned."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        if warp < 2:
            if form == "cta":
                T.cuda.cta_sync()  # one
            elif form == "aligned":
                T.ptx.bar.sync(1, 128)  # one_aligned
            elif form == "alone":
                T.ptx.bar.sync(1, 64)
            else:
                T.ptx.barrier.sync(1, 128)
        else:
            if form == "cta":
                T.cuda.cta_sync()  # other
            elif form == "aligned":
                T.ptx.bar.sync(1, 128)  # other_aligned
            elif form == "alone":
                T.ptx.bar.sync(2, 64)
            else:
                T.ptx.barrier.sync(1, 128)
        D[tid] = tid

    return kernel


test_a_barrier_of_the_cta_is_no_meeting_of_branches = gives(
    parted, "divergent-collective @one <other", form="cta"
)
test_an_aligned_barrier_is_one_instruction = gives(
    parted, "~divergent-collective @one_aligned <other_aligned"
)
test_a_barrier_that_is_not_aligned_cures_it = gives(parted, form="barrier")
test_a_barrier_for_each_branch_cures_it = gives(parted, form="alone")


def test_the_advice_names_the_instruction_that_cures():
    for form, number in (("cta", 1), ("aligned", 1)):
        (finding,) = run(parted, form=form).findings
        assert f"T.ptx.barrier.sync({number}, 128)" in finding.fix


def groups(count=64, second=1, ordered=False):
    """Two pairs of warps with a barrier of 64 threads each; one after the other, if `ordered`."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        if warp < 2:
            T.ptx.bar.sync(1, 64)  # first
            if ordered:
                T.ptx.bar.arrive(3, 128)
        else:
            if ordered:
                T.ptx.bar.sync(3, 128)
            T.ptx.bar.sync(second, count)  # second
        D[tid] = tid

    return kernel


test_groups_require_barriers_of_their_own = gives(groups, "barrier-mismatch @second <first")
test_an_id_of_its_own_is_silent = gives(groups, second=2)
test_the_same_barrier_for_one_group_after_the_other_is_silent = gives(groups, ordered=True)


def other_count(ordered=False):
    """One warp uses a barrier with count 32 while two others use it with 64, or after them."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        if warp < 2:
            T.ptx.bar.sync(1, 64)  # wide
        if ordered:
            T.cuda.cta_sync()
        if warp == 2:
            T.ptx.bar.sync(1, 32)  # narrow
        D[tid] = tid

    return kernel


test_a_use_with_another_count_requires_order = requires(
    other_count, "ordered", "barrier-mismatch @narrow <wide"
)


def one_line(count=64):
    """All four warps come to one instruction; the barrier takes two of them."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        x = pool.alloc((N,), "int32")
        pool.commit()
        x[tid] = tid
        T.ptx.bar.sync(1, count)  # meet
        D[tid] = x[tid]

    return kernel


test_more_threads_than_the_count_from_one_line = gives(one_line, "barrier-mismatch @meet")
test_the_number_of_threads_as_count_is_silent = gives(one_line, count=128)
test_a_count_is_a_multiple_of_the_warp_size = gives(
    one_line, "barrier-mismatch @meet", "deadlock @meet", count=136
)


def handed_over(back="barrier"):
    """Warps 0-1 produce and only arrive, warps 2-3 wait; what lets a producer go on is `back`."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        pool = T.SMEMPool()
        x = pool.alloc((64,), "int32")
        pool.commit()
        if warp < 2:
            for i in T.serial(3):
                if back == "barrier":
                    T.ptx.bar.sync(2, 128)
                if back == "barrier":
                    x[tid] = tid + i
                if back == "sync":
                    T.ptx.barrier.sync(1, 128)
                else:
                    T.ptx.bar.arrive(1, 128)  # again
        else:
            for _i in T.serial(3):
                if back == "barrier":
                    T.ptx.bar.arrive(2, 128)
                T.ptx.bar.sync(1, 128)
                if back == "barrier":
                    D[tid] = x[tid - 64]

    return kernel


test_producer_and_consumer_with_a_barrier_back_are_silent = gives(handed_over)
test_an_arrival_in_a_loop_requires_a_barrier_back = gives(
    handed_over, "barrier-mismatch @again <again", back="none"
)
test_waiting_in_place_of_arriving_cures_it = gives(handed_over, back="sync")


def turns():
    """Two pairs of warps take turns, each waiting at a barrier of its own on which the other arrives."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        pool = T.SMEMPool()
        x = pool.alloc((64,), "int32")
        pool.commit()
        if warp >= 2:
            T.ptx.bar.arrive(1, 128)
        for i in T.serial(3):
            T.ptx.bar.sync(1 + warp // 2, 128)
            x[tid % 64] = tid + i
            if warp < 2:
                T.ptx.bar.arrive(2, 128)
            else:
                if i < 2:
                    T.ptx.bar.arrive(1, 128)
        D[tid] = tid

    return kernel


test_warpgroups_that_take_turns_are_silent = gives(turns)


def elected(warp_knows=True):
    """One lane of a warp waits for an mbarrier before the warp comes to the barrier, which waits for all its lanes."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        warp = T.warp_id([4])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64")
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 64)
        T.cuda.cta_sync()
        if warp < 2:
            T.ptx.bar.sync(1, 64)  # first
            T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        else:
            if warp_knows:
                if tid % 32 == 0:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                T.cuda.warp_sync()
            T.ptx.bar.sync(1, 64)  # second
        D[tid] = tid

    return kernel


test_a_barrier_is_free_once_a_lane_of_each_warp_has_waited = requires(
    elected, "warp_knows", "barrier-mismatch @second <first"
)
