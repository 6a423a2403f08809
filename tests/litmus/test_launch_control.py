"""What a kernel that cancels clusters to do their work must wait for before it reads a response, and before it asks again."""

import pytest

from phaseflip.spelling import T

from .harness import SCHEDULES, gives, requires, run

TILES, N = 6, 64


def stealing(wait=True, meet=True, stop=True):
    """Each CTA works on its tile, and then on those of CTAs that it cancels."""

    @T.prim_func
    def kernel(D: T.Buffer((TILES, N), "int32")):
        T.device_entry()
        cta = T.cta_id([TILES])
        tid = T.thread_id([N])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        response = pool.alloc((4,), "uint32", align=16)
        pool.commit()
        if tid == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        tile: T.int32 = cta
        phase: T.int32 = 0
        rounds: T.int32 = 0
        while rounds < TILES + 3:
            if tid == 0:
                T.ptx.clc_try_cancel(response.ptr_to([0]), bar.ptr_to([0]))  # ask
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), 16)
            D[tile, tid] = tile * 100 + tid
            if wait:
                T.ptx.mbarrier.try_wait(bar.ptr_to([0]), phase)  # pass
            phase ^= 1
            following: T.uint32 = T.ptx.clc_query_cancel(response.ptr_to([0]))  # read
            if following == T.uint32(0xFFFFFFFF):
                rounds = rounds + (100 if stop else 0)
            else:
                tile = T.cast(following, "int32")
            rounds += 1
            if meet:
                T.cuda.cta_sync()

    return kernel


test_next_request_requires_that_all_have_read = requires(
    stealing, "meet", "race shared war @ask <read", "lapped-wait @pass"
)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_tile_is_done_once(schedule):
    """None is lost, and none done twice, whichever is cancelled when."""
    result = run(stealing, schedule)
    assert not result.findings
    D = result.outputs["D"]
    assert all(D[tile, tid] == tile * 100 + tid for tile in range(TILES) for tid in range(N))
    assert result.counters["st.global"] == TILES * N // 32


def test_who_cancels_in_order_does_all():
    assert run(stealing).counters["mbarrier.init"] == 1
    started = {run(stealing, f"random:{seed}").counters["mbarrier.init"] for seed in range(5)}
    assert max(started) > 1  # a request may fail, since hardware has started the rest


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_response_read_before_the_wait_is_a_race(schedule):
    found = {f.title for f in run(stealing, schedule, wait=False).findings if f.severity == "error"}
    assert "race shared raw" in found


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_asking_again_after_a_failure_is_undefined(schedule):
    (found,) = (f for f in run(stealing, schedule, stop=False).findings)
    assert found.title == "cancel-after-failure"
    assert "undefined" in found.why and "0xFFFFFFFF" in found.fix


def clusters(mine=True):
    """In a cluster of two, one CTA asks, and both get the response."""

    @T.prim_func
    def kernel(D: T.Buffer((8, 32), "int32")):
        T.device_entry()
        cluster = T.cluster_id([4])
        rank = T.cta_id_in_cluster([2])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        response = pool.alloc((4,), "uint32", align=16)
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
            T.ptx.fence.mbarrier_init()
            T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cluster_sync()
        tile: T.int32 = cluster * 2 + rank
        phase: T.int32 = 0
        done: T.int32 = 0
        while done == 0:
            if lane == 0:
                T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), 16)  # expect
                if rank == 0:
                    T.ptx.clc_try_cancel(response.ptr_to([0]), bar.ptr_to([0]))
            D[tile, lane] = tile * 100 + lane
            T.ptx.mbarrier.try_wait(bar.ptr_to([0]), phase)
            phase ^= 1
            following: T.uint32 = T.ptx.clc_query_cancel(response.ptr_to([0]))
            if following == T.uint32(0xFFFFFFFF):
                done = 1
            else:
                tile = T.cast(following, "int32") + rank
            T.cuda.cluster_sync()

    return kernel


test_a_cluster_that_asks_once_is_silent = gives(clusters)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_both_ctas_of_a_cluster_get_the_response(schedule):
    D = run(clusters, schedule).outputs["D"]
    assert all(D[tile, lane] == tile * 100 + lane for tile in range(8) for lane in range(32))
