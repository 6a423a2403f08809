"""Bugs that were fixed, named by what was seen. Most are one variant of a litmus kernel, which says what is right."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from phaseflip import simulate
from phaseflip.finding import Place
from phaseflip.kernel import find_kernel
from phaseflip.machine.barriers import BarrierWait, NamedBarrier
from phaseflip.tir_edit import Code
from phaseflip.vector_clock import Clock
from tests import test_cluster_launch
from tests.litmus import test_cluster_barrier as cluster_barrier
from tests.litmus import test_cluster_exit as cluster_exit
from tests.litmus import test_cluster_mbarrier as cluster_mbarrier
from tests.litmus import test_cluster_memory as cluster_memory
from tests.litmus import test_cluster_tcgen05 as cluster_tcgen05
from tests.litmus import test_cluster_tma as cluster_tma
from tests.litmus import test_look_alikes as look_alikes
from tests.litmus import test_mbarrier as mbarrier
from tests.litmus import test_named_barriers as named
from tests.litmus import test_proxy_spaces as proxy_spaces
from tests.litmus import test_shared_memory as shared
from tests.litmus import test_tcgen05 as tcgen05
from tests.litmus import test_tcgen05_pairs as pairs
from tests.litmus import test_tensor_memory as tensor_memory
from tests.litmus import test_tma as tma
from tests.litmus.harness import SCHEDULES, gives, run

# -- found under some schedules only ------------------------------------------------------------------------------------
test_warps_that_store_to_one_place_collided_only_when_they_ran_apart = gives(
    shared.neighbours, "race shared waw @store <store", apart=False
)
test_a_stale_wait_was_missed_when_it_ran_before_the_next_arrival = gives(
    mbarrier.phases, "stale-wait @wait", "race shared raw @load <store", flip=False
)
test_the_arrival_too_many_was_the_one_that_happened_to_come_last = gives(
    mbarrier.too_many, "over-arrival @second <first", count=False
)
test_two_phases_that_ended_while_a_waiter_slept_were_not_a_lap = gives(
    mbarrier.lapped_once, "lapped-wait @wait", after_wait=False
)
test_a_wait_far_behind_its_barrier_passed_unnoticed_when_the_others_ran_ahead = gives(
    mbarrier.skips, "lapped-wait @wait", awaited=False, more=7, parity=1
)
test_a_wait_for_a_phase_known_from_another_barrier_was_lapped_only_when_it_came_early = gives(
    mbarrier.skips, "lapped-wait @wait", awaited=False
)
test_arrivals_for_the_next_round_were_dropped_and_the_kernel_deadlocked = gives(
    mbarrier.phases,
    "lapped-wait @wait",
    "over-arrival @arrive <arrive",
    "race shared war @store <load",
    sync=False,
)


def test_a_use_without_init_was_a_finding_of_its_own_where_the_init_had_been_executed():
    for schedule in SCHEDULES:
        found = run(mbarrier.own_init, schedule, sync=False).findings
        assert [(f.code, f.other) for f in found] == [("barrier-not-initialised", None)]


test_an_arrival_that_came_before_the_init_was_lost_and_its_waiter_deadlocked = gives(
    mbarrier.own_init, "barrier-not-initialised @arrive", sync=False, waits=True
)
test_of_two_inits_the_one_that_came_last_was_named = gives(
    mbarrier.initialised_by_two_roles, "barrier-reinitialised @second <first", one=False
)
test_a_barrier_with_two_counts_was_a_deadlock_or_a_mismatch_at_either_line = gives(
    shared.counts, "barrier-mismatch @two <three", "deadlock @three", same=False
)
test_more_threads_than_a_barrier_takes_deadlocked_when_they_ran_apart = gives(
    named.counted, "barrier-mismatch @meet", "deadlock @meet", count=96
)
test_an_mma_by_a_whole_warp_was_also_a_race_if_another_lane_than_the_committing_came_last = gives(
    tcgen05.product, "duplicate-issue tmem @mma_by_warp <mma_by_warp", elect=False
)


def test_a_copy_that_landed_after_its_phase_had_ended_was_also_a_race():
    """Under these schedules a copy lands after another warp has read: the phase expects the bytes of one copy only."""
    for seed in (56, 71, 83, 96):
        for flags in ({"expect_last": False}, {"expect_last": True}):
            found = run(tma.shared_phase, f"random:{seed}", nbytes=tma.BOX, **flags).findings
            assert [f.title for f in found] == ["tx-count-mismatch"]


# -- missed -----------------------------------------------------------------------------------------------------------------
test_a_second_reader_of_tmem_hid_the_first = gives(
    pairs.two_readers, "race tmem war @st <ld", both=False
)
test_an_mma_of_another_shape_passed_as_pipelined = gives(
    pairs.accumulators, "race tmem waw @second <first", same_shape=False
)
test_a_tcgen05_st_over_another_passed_without_wait_st = gives(
    pairs.transfers, "race tmem waw @st2 <st1", between_stores=False
)
test_registers_of_an_unfinished_load_were_stored_unnoticed = gives(
    pairs.stored_registers, "uninitialised-read register @st <ld", wait=False
)
test_data_over_a_live_mbarrier_went_unnoticed = gives(
    mbarrier.overwritten, "barrier-reinitialised shared waw @store <init", apart=False
)
test_a_warp_loaded_what_only_its_first_lane_had_waited_for = gives(
    pairs.elected_wait, "race tmem raw @ld <mma", all_lanes=False
)

test_the_end_of_a_phase_was_taken_as_known_from_a_later_commit_to_another_barrier = gives(
    mbarrier.two_commits, "lapped-wait @wait", "race shared raw @load <store", seen=False
)
test_a_wait_on_a_fresh_barrier_could_be_lapped_unnoticed = gives(
    mbarrier.fresh, "lapped-wait @wait", awaited=False
)

# -- false alarms and crashes -------------------------------------------------------------------------------------------
test_mmas_of_two_threads_ordered_by_tcgen05_fences_were_a_race = gives(
    pairs.accumulators, second_thread=True
)
test_lanes_that_waited_apart_never_met_again = gives(look_alikes.some_lanes_wait_first)
test_lanes_that_waited_for_different_barriers_left_their_warps_behind = gives(
    look_alikes.one_lane_of_each_warp_waits
)
test_freed_columns_used_by_the_freeing_warp_were_called_unordered = (
    tensor_memory.test_tcgen05_st_requires_columns_that_are_not_freed
)


def test_statements_of_an_inlined_function_had_the_line_of_the_statement_before():
    code = Code(find_kernel("hgemm_v7").build(128, 128, 64))
    source = Path(find_kernel("hgemm_v7").factory.__code__.co_filename).read_text().splitlines()
    waits = [source[s.line - 1].strip() for s in code.named("ptx.mbarrier_try_wait")]
    assert len(waits) == 5 and all(".wait(" in line for line in waits)


def test_a_barrier_waiter_that_slept_for_many_rounds_crashed():
    """Others complete ten rounds of the barrier before it goes on from the first."""
    told = []
    detector = SimpleNamespace(acquire=lambda group, clock, everything: told.append(clock))
    barrier = NamedBarrier(1, SimpleNamespace(live_threads=64), 64)
    sleeper = BarrierWait(barrier, barrier.round)
    clocks = [Clock.zero(2) for _ in range(11)]
    for clock in clocks:
        barrier.round.clocks.append(clock)
        barrier.arrive(Place(), 64)
    assert sleeper.ready()
    sleeper.finish(SimpleNamespace(cta=SimpleNamespace(detector=detector)))
    assert told == clocks[:1]


# -- clusters -----------------------------------------------------------------------------------------------------------------
test_an_arrival_too_many_at_the_cluster_barrier_became_a_deadlock = gives(
    cluster_barrier.rounds, "barrier-mismatch @again", once=False
)
test_a_thread_that_arrived_and_exited_completed_the_cluster_barrier_for_others = gives(
    cluster_barrier.gone
)
test_a_fence_of_cta_scope_before_a_relaxed_arrive_was_taken_for_none = gives(
    cluster_memory.relaxed_within_a_cta, fence="cta"
)
test_a_lane_released_what_other_lanes_had_fenced = gives(
    cluster_memory.relaxed_within_a_cta, cluster_memory.RACE, fence="cta", every=False
)
test_the_fence_of_mbarrier_inits_released_data = gives(
    cluster_mbarrier.data_under_the_fence_of_inits,
    "race shared raw @load <store",
    release=False,
)
test_a_cta_that_waited_for_its_copy_of_a_multicast_load_knew_of_the_other_one = gives(
    cluster_tma.told, "race shared raw @read <load", "peer-exited @load", wait=False
)
test_a_cta_that_waited_for_its_signal_of_a_multicast_commit_knew_of_the_other_one = gives(
    cluster_exit.commit_in_flight, "peer-exited @commit", peer_waits=False, meet=True
)
test_a_wait_of_cta_scope_acquired_what_the_peer_had_committed = gives(
    cluster_tcgen05.pair_product, "~scope-too-narrow tmem raw @ld <mma", scope="cta"
)
test_news_from_a_wait_that_was_too_narrow_were_believed_in_the_first_cta = gives(
    cluster_tma.counted_by_the_leader, "~scope-too-narrow shared raw @read <load", scope="cta"
)
test_a_proxy_fence_of_the_own_shared_memory_covered_that_of_the_peer = gives(
    cluster_tcgen05.operand_from_the_peer, cluster_tcgen05.STORE, writer_fence="shared::cta"
)
test_a_proxy_fence_of_shared_memory_covered_global_memory = gives(
    proxy_spaces.reloaded, proxy_spaces.STORE, fence="shared::cta"
)
test_tmem_was_freed_while_the_peer_still_read_its_own = gives(
    cluster_tcgen05.pair_product, "tmem-freed-in-use tmem @dealloc <ld", stay=False
)
test_a_dealloc_of_the_pair_that_may_hang_was_silent = gives(
    cluster_tcgen05.allocates, "deadlock @early", apart=True
)
test_the_place_of_two_unequal_allocs_was_that_of_whoever_came_last = gives(
    cluster_tcgen05.allocates, "tmem-bad-allocation tmem @peer <alloc", columns=32
)


def test_an_address_mapped_to_another_cta_in_each_lane_was_lost():
    kernel = test_cluster_launch.mapped(0)
    run_ = simulate(kernel, [np.zeros(32, np.int32)])
    assert run_.outputs["D"].tolist() == [(lane % 4) << 24 for lane in range(32)]
