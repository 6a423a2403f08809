"""Bugs that were fixed, named by what was seen: findings missed, wrong, or found under some schedules only.

Most are one variant of a litmus kernel, which says what is right. Of other subjects: `test_fixed_clusters.py`,
`test_fixed_reports.py` (lines, names, advice), `test_fixed_hardware.py` (what a GPU does otherwise, and machines that have
one) and `test_fixed_commands.py`.
"""

from types import SimpleNamespace

import numpy as np

from phaseflip import lower, simulate
from phaseflip.gemm.verify import verify
from phaseflip.ir.place import Place
from phaseflip.machine.sync.bar import BarrierWait
from phaseflip.machine.sync.named_barrier import Arrival, NamedBarrier
from phaseflip.ordering.knowledge import Clock
from phaseflip.study.mutant_run import make_mutant, run_item
from tests.litmus import test_look_alikes as look_alikes
from tests.litmus import test_loops as loops
from tests.litmus import test_mbarrier as mbarrier
from tests.litmus import test_mbarrier_phases as mbarrier_phases
from tests.litmus import test_named_barriers as named
from tests.litmus import test_registers as registers
from tests.litmus import test_shared_memory as shared
from tests.litmus import test_tcgen05 as tcgen05
from tests.litmus import test_tcgen05_pairs as pairs
from tests.litmus import test_tensor_memory as tensor_memory
from tests.litmus import test_tma as tma
from tests.litmus import test_warp_instructions as warp_instructions
from tests.litmus import test_wgmma as wgmma
from tests.litmus.harness import SCHEDULES, gives, run
from tests.test_polling import released_behind_a_join

# -- found under some schedules only ------------------------------------------------------------------------------------
test_warps_that_store_to_one_place_collided_only_when_they_ran_apart = gives(
    shared.neighbours, "race shared waw @store <store", apart=False
)
test_a_stale_wait_was_missed_when_it_ran_before_the_next_arrival = gives(
    mbarrier_phases.phases, "stale-wait @wait", "race shared raw @load <store", flip=False
)
test_the_arrival_too_many_was_the_one_that_happened_to_come_last = gives(
    mbarrier.too_many, "over-arrival @second <first", count=False
)
test_two_phases_that_ended_while_a_waiter_slept_were_not_a_lap = gives(
    mbarrier_phases.lapped_once, "lapped-wait @wait", after_wait=False
)
test_a_wait_far_behind_its_barrier_passed_unnoticed_when_the_others_ran_ahead = gives(
    mbarrier_phases.skips, "lapped-wait @wait", awaited=False, more=7, parity=1
)
test_a_wait_for_a_phase_known_from_another_barrier_was_lapped_only_when_it_came_early = gives(
    mbarrier_phases.skips, "lapped-wait @wait", awaited=False
)
test_a_register_that_one_warp_had_not_stored_was_reported_only_when_warps_ran_apart = gives(
    registers.scalar, "uninitialised-read register @read", every_warp=False
)
test_arrivals_for_the_next_round_were_dropped_and_the_kernel_deadlocked = gives(
    mbarrier_phases.phases,
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
    mbarrier_phases.two_commits, "lapped-wait @wait", "race shared raw @load <store", seen=False
)
test_a_wait_on_a_fresh_barrier_could_be_lapped_unnoticed = gives(
    mbarrier_phases.fresh, "lapped-wait @wait", awaited=False
)
test_an_element_of_a_local_array_that_nothing_had_stored_was_read_unnoticed = gives(
    registers.array, "uninitialised-read register @read", all_elements=False
)
test_wgmma_of_another_shape_on_the_same_registers_was_silent = gives(
    wgmma.chain, "missing-wgmma-fence register @wide", wide=True, wide_fence=False
)


# -- false alarms and crashes -------------------------------------------------------------------------------------------
test_mmas_of_two_threads_ordered_by_tcgen05_fences_were_a_race = gives(
    pairs.accumulators, second_thread=True
)
test_lanes_that_waited_apart_never_met_again = gives(look_alikes.some_lanes_wait_first)
test_lanes_that_waited_for_different_barriers_left_their_warps_behind = gives(
    look_alikes.one_lane_of_each_warp_waits
)


def test_a_loop_that_polled_what_a_warp_behind_its_own_branch_writes_was_given_up():
    run = simulate(lower(released_behind_a_join), [np.zeros(64, np.int32)])
    assert not run.stopped


test_freed_columns_used_by_the_freeing_warp_were_called_unordered = (
    tensor_memory.test_tcgen05_st_requires_columns_that_are_not_freed
)


def test_mmas_of_two_consumers_on_overlapping_columns_were_one_mma_issued_twice():
    shape = (512, 256, 64)
    mutant = make_mutant("hgemm_v9:ctas=1", "consumers-share-columns", 0, shape)
    titles = {f.title for f in verify(mutant.kernel, *shape).run.findings}
    assert "race tmem waw" in titles and "duplicate-issue tmem" not in titles


def test_a_barrier_waiter_that_slept_for_many_rounds_crashed():
    """Others complete ten rounds of the barrier before it goes on from the first."""
    told = []
    detector = SimpleNamespace(acquire=lambda group, clock, everything: told.append(clock))
    cluster = SimpleNamespace(touch=lambda *use: None)
    cta = SimpleNamespace(live_threads=64, threads=64, detector=None, cluster=cluster, rank=0)
    barrier, g = NamedBarrier(1, cta), SimpleNamespace(cta=cta, n=64, lanes=np.arange(64))
    clocks = [Clock.zero(2) for _ in range(11)]
    arrivals = [Arrival(Place("bar.sync"), g.lanes, 64, clock) for clock in clocks]
    for arrival in arrivals:
        barrier.arrive(g, arrival)
    sleeper = BarrierWait(barrier, arrivals[0])
    assert sleeper.ready()
    sleeper.finish(SimpleNamespace(cta=SimpleNamespace(detector=detector)))
    assert told == clocks[:1]


test_warps_that_store_to_one_place_at_once_passed_where_they_knew_different_things = gives(
    shared.neighbours, "race shared waw @store <store", apart=False, know_alike=False
)
test_an_elected_lane_that_arrives_for_its_warp_lapped_the_other_lanes = gives(
    warp_instructions.rounds
)
test_an_election_among_half_a_warp_was_silent = gives(
    warp_instructions.meeting, "divergent-collective @elect", whole=False
)
test_a_wait_for_loads_by_one_lane_was_silent = gives(
    tensor_memory.one_lane, "divergent-collective tmem @wait_ld", wait_ld=False
)
test_a_barrier_whose_index_is_subtracted_was_taken_for_one_of_another_array = gives(
    mbarrier.ring, subtracted=True
)
test_iterations_of_loops_that_have_nothing_in_common_were_compared = gives(
    loops.parts, "race shared raw @load <store", sync=False
)
test_an_overwrite_after_the_issue_was_called_a_read_of_it = gives(
    wgmma.released, "race shared war @overwrite <wgmma", wait_first=False
)
test_a_producer_that_always_waits_with_parity_1_was_no_stale_wait = gives(
    mbarrier_phases.refills, "stale-wait @wait", "race shared war @store <load", flip=False
)
test_a_warpgroup_knew_that_the_product_of_another_one_in_step_with_it_was_done = gives(
    wgmma.two_warpgroups, "race shared war @overwrite <wgmma", sync=False
)
test_a_parity_of_2_was_silent = gives(
    mbarrier_phases.phases, "~out-of-bounds shared @wait", modulo=False
)


test_products_behind_one_wgmma_fence_were_taken_for_writes_of_the_thread = gives(
    wgmma.chain, newest=1
)
test_one_arrival_for_a_warpgroup_whose_product_was_done_lapped_its_other_warps = gives(wgmma.rounds)


def test_one_wgmma_fence_more_was_other_work():
    item = {"kernel": "hgemm_sm90", "fault": "move-into-next", "site": 1, "shape": [128, 128, 64]}
    outcome = run_item(item | {"schedule": "in-order", "seed": 0})
    assert outcome["counter_changes"] == {"wgmma.fence": [8, 32]}
    assert outcome["fate"] == "equivalent" and not outcome["reason"]
