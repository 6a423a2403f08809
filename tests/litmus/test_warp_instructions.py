"""elect.sync and shfl.sync: who has to execute them, and what it tells that the lanes of a warp meet there."""

from phaseflip.spelling import T

from .harness import gives, requires

N = 64


def meeting(whole=True, mask=True):
    """All lanes of a warp elect one and shuffle, or some of them."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        D[lane] = 0
        if whole:
            if T.ptx.elect_sync():
                D[lane] = 1
        else:
            if lane < 16:
                if T.ptx.elect_sync():  # elect
                    D[lane] = 1
        if lane < 8:
            if mask:
                D[lane] = T.cuda.__shfl_sync(T.uint32(0xFF), lane, 3, 32)
            else:
                D[lane] = T.cuda.__shfl_sync(T.uint32(0xFFFF), lane, 3, 32)  # shuffle

    return kernel


test_elect_requires_a_whole_warp = requires(meeting, "whole", "divergent-collective @elect")
test_a_shuffle_requires_all_lanes_of_its_mask = requires(
    meeting, "mask", "divergent-collective @shuffle"
)


def rounds(meet="elect"):
    """All lanes of warp 0 wait for each round; one of them then lets warp 1 begin the next."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        full = pool.alloc((1,), "uint64", align=8)
        empty = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(full.ptr_to([0]), 1)
            T.ptx.mbarrier.init(empty.ptr_to([0]), 1)
        T.cuda.cta_sync()
        if tid < 32:
            for i in T.serial(4):
                T.ptx.mbarrier.try_wait(full.ptr_to([0]), i % 2)  # wait
                if meet == "elect":
                    if T.ptx.elect_sync():
                        T.ptx.mbarrier.arrive(empty.ptr_to([0]))
                else:
                    if meet == "shuffle":
                        D[tid] = T.cuda.__shfl_sync(T.uint32(0xFFFFFFFF), tid, 3, 32)
                    if tid == 0:
                        T.ptx.mbarrier.arrive(empty.ptr_to([0]))
        if tid == 32:
            for i in T.serial(4):
                T.ptx.mbarrier.try_wait(empty.ptr_to([0]), (i + 1) % 2)
                T.ptx.mbarrier.arrive(full.ptr_to([0]))
        if tid < 32:
            D[tid] = 0

    return kernel


test_the_elected_lane_arrives_for_lanes_that_have_waited = gives(rounds)
test_a_lane_arrives_after_a_shuffle_for_lanes_that_have_waited = gives(rounds, meet="shuffle")
test_a_lane_that_has_met_no_other_must_not = gives(rounds, "lapped-wait @wait", meet="nothing")
