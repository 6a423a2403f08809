"""mbarrier: parities, phases that are skipped or lapped, and other forms of arriving."""

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, line_of, requires, run

N = 64


# -- parities -------------------------------------------------------------------------------------------------------------
def phases(flip=True, sync=True, modulo=True):
    """Warp 0 hands over three values, one a phase; warp 1 reads each."""

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
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 32)
        T.cuda.cta_sync()
        phase: T.int32 = 0
        for i in T.serial(3):
            if warp == 0:
                s[lane] = i  # store
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))  # arrive
            else:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), phase)  # wait
                D[lane] = s[lane]  # load
            if flip:
                phase = phase ^ 1 if modulo else phase + 1
            if sync:
                T.cuda.cta_sync()

    return kernel


test_wait_requires_a_parity_of_0_or_1 = requires(phases, "modulo", "~out-of-bounds shared @wait")
test_wait_requires_the_phase_to_flip = requires(
    phases, "flip", "stale-wait @wait", "race shared raw @load <store"
)
test_arrivals_require_that_waiters_have_seen_the_phase = requires(
    phases,
    "sync",
    "lapped-wait @wait",
    "over-arrival @arrive <arrive",
    "race shared war @store <load",
)


def test_the_race_behind_a_stale_wait_names_it():
    for schedule in SCHEDULES:
        race = next(f for f in run(phases, schedule, flip=False).findings if f.code == "race")
        wait = line_of(phases, "wait")
        assert f"the wait at line {wait} was satisfied by phase 0" in race.why
        assert "flip" in race.fix


def refills(flip=True):
    """Warp 0 fills a slot once warp 1 has read it, three times; its first wait is for the phase before the first."""

    @T.prim_func
    def kernel(D: T.Buffer((32,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        empty = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(empty.ptr_to([0]), 32)
        T.cuda.cta_sync()
        for i in T.serial(3):
            if warp == 0:
                T.ptx.mbarrier.try_wait(empty.ptr_to([0]), (i + 1) % 2 if flip else 1)  # wait
                s[lane] = i  # store
            T.cuda.cta_sync()
            if warp == 1:
                D[lane] = s[lane]  # load
                T.ptx.mbarrier.arrive(empty.ptr_to([0]))

    return kernel


test_the_phase_before_the_first_is_waited_for_once = requires(
    refills, "flip", "stale-wait @wait", "race shared war @store <load"
)


def lapped(empty=True):
    """Nobody who arrives waits for warp 1, unless through the second barrier."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((2,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(bar.ptr_to([1]), 1)
        T.cuda.cta_sync()
        for i in T.serial(2):
            if warp == 0:
                if lane == 0:
                    if empty:
                        T.ptx.mbarrier.try_wait(bar.ptr_to([1]), (i + 1) % 2)
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            else:
                if lane == 0:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), i % 2)  # wait
                    T.ptx.mbarrier.arrive(bar.ptr_to([1]))
        D[warp * 32 + lane] = 1

    return kernel


test_arrive_requires_an_empty_barrier_or_waiters_are_lapped = requires(
    lapped, "empty", "lapped-wait @wait"
)


def lapped_once(after_wait=True):
    """Warp 1 waits once; two phases may end before it does."""

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
            if lane == 0:
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
                if not after_wait:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        else:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
        T.cuda.cta_sync()
        if after_wait:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        D[warp * 32 + lane] = 1

    return kernel


test_a_second_arrival_requires_that_the_first_was_seen = requires(
    lapped_once, "after_wait", "lapped-wait @wait"
)


def skips(awaited=True, more=1, parity=0):
    """Phases 0 to 2 of one barrier end, which warp 1 learns from another one; then it waits on the first.

    Parity 0 is phase 2's, parity 1 phase 3's; `more` arrivals follow. With `awaited` the last of them comes after the wait.
    """

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        told = pool.alloc((1,), "uint64", align=8)
        seen = pool.alloc((1,), "uint64", align=8)
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(told.ptr_to([0]), 1)
                T.ptx.mbarrier.init(seen.ptr_to([0]), 1)
        T.cuda.cta_sync()
        if lane == 0:
            if warp == 0:
                for _i in T.serial(3):
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
                T.ptx.mbarrier.arrive(told.ptr_to([0]))
                for i in T.serial(more):
                    if awaited:
                        if i == more - 1:
                            T.ptx.mbarrier.try_wait(seen.ptr_to([0]), 0)
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            else:
                T.ptx.mbarrier.try_wait(told.ptr_to([0]), 0)
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), parity)  # wait
                T.ptx.mbarrier.arrive(seen.ptr_to([0]))
        D[warp * 32 + lane] = 1

    return kernel


test_a_phase_known_from_another_barrier_may_be_waited_for_again = gives(skips)
test_waiting_again_requires_that_the_next_phase_waits = requires(
    skips, "awaited", "lapped-wait @wait"
)
test_waiting_again_far_behind_is_a_lapped_wait = gives(
    skips, "lapped-wait @wait", awaited=False, more=7
)
test_a_wait_after_skipped_phases_requires_no_order_with_the_phase_it_waits_for = gives(
    skips, awaited=False, parity=1
)
test_a_wait_after_skipped_phases_requires_that_the_next_phase_waits = requires(
    skips, "awaited", "lapped-wait @wait", more=2, parity=1
)
test_a_wait_far_behind_is_a_lapped_wait = gives(
    skips, "lapped-wait @wait", awaited=False, more=7, parity=1
)


def fresh(awaited=True):
    """Warp 1 waits for the phase before the first, as a producer does; phase 0 ends once warp 0 arrives."""

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
        if not awaited:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        if warp == 1:
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 1)  # wait
        T.cuda.cta_sync()
        if awaited:
            if warp == 0:
                if lane == 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        D[warp * 32 + lane] = 1

    return kernel


test_the_first_arrival_requires_that_a_wait_on_the_fresh_barrier_is_over = requires(
    fresh, "awaited", "lapped-wait @wait"
)


def two_commits(seen=True):
    """Commits to two barriers: that one has arrived does not tell that the other has, even if it was issued before."""

    @T.prim_func
    def kernel(D: T.Buffer((N,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        other = pool.alloc((1,), "uint64", align=8)
        ready = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((1,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
                T.ptx.mbarrier.init(other.ptr_to([0]), 1)
                T.ptx.mbarrier.init(ready.ptr_to([0]), 1)
                T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if lane == 0:
            if warp == 0:
                T.ptx.tcgen05.commit(bar.ptr_to([0]), cta_group=1)
                T.ptx.tcgen05.commit(other.ptr_to([0]), cta_group=1)
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                T.ptx.mbarrier.try_wait(ready.ptr_to([0]), 0)
                s[0] = 1  # store
                T.ptx.mbarrier.arrive(bar.ptr_to([0]))
            else:
                if seen:
                    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
                T.ptx.mbarrier.try_wait(other.ptr_to([0]), 0)
                T.ptx.mbarrier.arrive(ready.ptr_to([0]))
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 1)  # wait
                D[0] = s[0]  # load

    return kernel


test_skipping_a_phase_requires_that_its_commit_was_seen = requires(
    two_commits, "seen", "lapped-wait @wait", "race shared raw @load <store"
)


# -- other forms of arriving ----------------------------------------------------------------------------------------------
def simulated_bytes(enough=True, remote=False, acquires=True):
    """Warp 0 stores, and says that the bytes have come which warp 1 expects and waits for: that orders nothing."""
    count = 64 if enough else 32

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        cluster = T.cluster_id([1])
        rank = T.cta_id_in_cluster([2])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        T.cuda.cluster_sync()
        if warp == 0:
            s[lane] = lane  # store
            if lane == 0:
                if remote:
                    T.ptx.mbarrier.complete_tx(bar.ptr_to([0]), count, remote=rank ^ 1)
                else:
                    T.ptx.mbarrier.complete_tx(bar.ptr_to([0]), count, pred=rank + 1)
        else:
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), 64)
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
            if not acquires:
                D[rank * 32 + lane] = s[lane]  # load
        T.cuda.cluster_sync()

    return kernel


test_bytes_that_are_said_to_have_come_are_counted = gives(simulated_bytes)
test_bytes_of_the_peer_s_barrier_that_are_said_to_have_come_are_counted = gives(
    simulated_bytes, remote=True
)
test_wait_requires_that_all_bytes_are_said_to_have_come = requires(
    simulated_bytes, "enough", "deadlock @wait"
)
test_complete_tx_requires_something_else_to_order_what_was_stored = requires(
    simulated_bytes, "acquires", "race shared raw @load <store"
)


def without_completing(last=True, pred=1):
    """Warp 0 arrives for all but one, and one thread of warp 1 ends the phase."""

    @T.prim_func
    def kernel(D: T.Buffer((64,), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        warp = T.warp_id([2])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        s = pool.alloc((32,), "int32")
        pool.commit()
        if warp == 0:
            if lane == 0:
                T.ptx.mbarrier.init(bar.ptr_to([0]), 65)
        T.cuda.cta_sync()
        if warp == 0:
            s[lane] = lane
            T.ptx.mbarrier.arrive.no_complete(bar.ptr_to([0]), 2, pred=pred)
        T.cuda.cta_sync()
        if warp == 1:
            if last:
                if lane == 0:
                    T.ptx.mbarrier.arrive(bar.ptr_to([0]))
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)  # wait
        D[warp * 32 + lane] = s[lane]

    return kernel


test_arrivals_that_do_not_complete_count = requires(without_completing, "last", "deadlock @wait")
test_an_arrival_whose_predicate_is_false_does_not_count = gives(
    without_completing, "deadlock @wait", pred=0
)
