"""Bugs that were fixed, named by what was seen. Most are one variant of a litmus kernel, which says what is right."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tvm

from phaseflip import benchmark, cli, faults, gpu_run, lower, lowering, simulate, stepper, tir_nodes
from phaseflip.conformance.tma import CORNERS, box_kernel
from phaseflip.errors import BadInput
from phaseflip.finding import Place
from phaseflip.isolation import RETURNED, Ended
from phaseflip.kernel import find_kernel
from phaseflip.machine.barriers import BarrierWait, NamedBarrier
from phaseflip.machine.tensor_map import TensorMap
from phaseflip.mutant import make_mutant, run_item
from phaseflip.tir_edit import Code
from phaseflip.vector_clock import Clock
from phaseflip.verify import verify
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
from tests.litmus import test_registers as registers
from tests.litmus import test_restrict as restrict
from tests.litmus import test_shared_memory as shared
from tests.litmus import test_tcgen05 as tcgen05
from tests.litmus import test_tcgen05_pairs as pairs
from tests.litmus import test_tensor_memory as tensor_memory
from tests.litmus import test_tma as tma
from tests.litmus import test_wgmma as wgmma
from tests.litmus.harness import SCHEDULES, gives, run
from tests.litmus.harness import line_of as litmus_line
from tests.test_deadlock import waits_first
from tests.test_polling import NO_INSTRUCTION, line_of, never_repeats, released_behind_a_join

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
test_a_register_that_one_warp_had_not_stored_was_reported_only_when_warps_ran_apart = gives(
    registers.scalar, "uninitialised-read register @read", every_warp=False
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

test_an_element_of_a_local_array_that_nothing_had_stored_was_read_unnoticed = gives(
    registers.array, "uninitialised-read register @read", all_elements=False
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


def test_a_deadlock_named_whoever_arrives_on_some_barrier_without_a_name():
    """The producer waits for an empty stage: nobody but the commit of the stage's MMA can supply that."""
    mutant = make_mutant("hgemm_v7", "both-phases-zero", 0, (128, 128, 64))
    [deadlock] = verify(mutant.kernel, 128, 128, 64).run.findings
    source = Path(deadlock.file).read_text().splitlines()
    suppliers = [source[s["line"] - 1].strip() for s in deadlock.data[0]["suppliers"]]
    assert suppliers == ["empty.arrive(ring.stage)"]


@pytest.mark.parametrize(
    ("fault", "waits", "why"),
    [
        ("barrier-count-two", "full.wait", "on mbarrier full[0] (in phase 0 with 1 of 2 arrivals"),
        ("expect-too-many", "full.wait", "on mbarrier full[0] (in phase 0 with 1 of 1 arrivals"),
        ("expect-without-arrive", "full.wait", "no instruction that arrives on it"),
        ("missing-release", "empty.wait", "on mbarrier empty[0] (in phase 0 with 0 of 8 arrivals"),
        ("both-phases-zero", "empty.wait", "blocked before it (CTA 0 warps 0-7 at line {full})"),
    ],
)
def test_a_deadlock_named_first_who_comes_first_in_the_program_and_no_barrier_of_tvms_classes(
    fault, waits, why
):
    """Of those that wait for each other, it is the one whose barrier lacks something, by the name in the source."""
    shape = (128, 128, 512)
    mutant = make_mutant("hgemm_sm90", fault, 0, shape)
    deadlock = next(f for f in verify(mutant.kernel, *shape).run.findings if f.code == "deadlock")
    source = Path(deadlock.file).read_text().splitlines()
    full = next(i for i, line in enumerate(source, 1) if "full.wait(" in line)
    assert source[deadlock.line - 1].strip().startswith(f"{waits}(")
    assert why.format(full=full) in deadlock.why


@pytest.mark.parametrize("schedule", ["in-order", "random:1"])
def test_a_deadlock_named_a_victim_where_the_cause_waits_in_another_branch_of_the_loop(schedule):
    [deadlock] = simulate(lower(waits_first()), [np.zeros(64, np.int32)], schedule).findings
    source = Path(deadlock.file).read_text().splitlines()
    assert source[deadlock.line - 1].endswith("# cause")
    assert (
        "mbarrier never[0] (" in deadlock.why
    )  # indexed by 1 - i, and not bar[2], which is where bar ends
    assert deadlock.why.endswith("the kernel has no instruction that arrives on it")


def test_a_buffer_that_threads_only_store_to_had_the_name_of_a_copys_view():
    shape = (128, 128, 384)
    mutant = make_mutant("hgemm_sm90", "store-without-sync", 0, shape)
    race = verify(mutant.kernel, *shape).findings[0]
    assert race.title == "race shared raw" and "reads Dsmem (" in race.what


def test_mmas_of_two_consumers_on_overlapping_columns_were_one_mma_issued_twice():
    shape = (512, 256, 64)
    mutant = make_mutant("hgemm_v9:ctas=1", "consumers-share-columns", 0, shape)
    titles = {f.title for f in verify(mutant.kernel, *shape).run.findings}
    assert "race tmem waw" in titles and "duplicate-issue tmem" not in titles


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


# -- what an H200 does otherwise (found by `python -m phaseflip conformance`) -----------------------------------------------
SHARED_FILL, GLOBAL_FILL = 0x5A5A5A5A, 0xABABABAB


def boxes(load_at=(0, 0), store_at=(0, 0), sizes=(8, 4), box=(8, 2), dtype="uint32", **load):
    """One box loaded and stored; the run, shared memory after the load, and D as (row, 16 words)."""
    load = {"swizzle": "none", "nan_fill": False} | load
    element = np.dtype(dtype).itemsize
    source = TensorMap("A", "A", 0, dtype, sizes, (64,), box, (1, 1), **load)
    target = TensorMap(
        "D", "D", 0, dtype, (*sizes, CORNERS), (64, 64 * sizes[1]), (*box, 1), (1, 1, 1), source.swizzle, False
    )  # fmt: skip
    words = 256
    n, stored = 16 * sizes[1], 16 * sizes[1] * CORNERS
    A = np.arange(n, dtype=np.uint32) + 1
    corners = np.tile(np.array([*load_at, *store_at], np.int32), (CORNERS, 1))
    kernel = lower(box_kernel(source, target, n, stored, words), "sm_90a")
    P, D = np.zeros((CORNERS, words), np.uint32), np.full(stored, GLOBAL_FILL, np.uint32)
    assert element <= 4
    run = simulate(kernel, [A, corners, P, D])
    return run, run.outputs["P"][0], run.outputs["D"].reshape(CORNERS, sizes[1], 16)[0]


def test_a_box_wholly_outside_its_tensor_stopped_the_race_detector():
    run, shared_words, stored = boxes(load_at=(0, 9), store_at=(16, 0))
    assert run.findings == [] and (shared_words[:16] == 0).all()
    assert (stored == GLOBAL_FILL).all()


@pytest.mark.parametrize("at", [{"load_at": (1, 0)}, {"load_at": (-2, 0)}, {"store_at": (2, 0)}])
def test_a_box_that_starts_off_16_bytes_was_copied(at):
    """An H200 stops with "illegal instruction"."""
    run, _, _ = boxes(**at)
    assert [f.code for f in run.findings] == ["misaligned-access"] and run.stopped
    assert "a multiple of 16 is legal" in run.findings[0].why


@pytest.mark.parametrize("corner", [(-4, 0), (0, -1)])
def test_a_store_from_a_negative_corner_was_clipped(corner):
    """An H200 stops with "illegal instruction"; a load from there is filled."""
    run, _, _ = boxes(store_at=corner)
    assert [f.code for f in run.findings] == ["out-of-bounds"] and run.stopped
    loaded, shared_words, _ = boxes(load_at=corner)
    assert loaded.findings == [] and (shared_words[:4] == 0).all()


def test_rows_narrower_than_their_swizzle_were_packed():
    """They start a span apart: here row 1 is at byte 64, in the half line that a swizzle of 64 bytes permutes alike."""
    _, shared_words, _ = boxes(box=(4, 2), swizzle="64B")
    assert shared_words[:4].tolist() == [1, 2, 3, 4] and shared_words[16:20].tolist() == [
        17,
        18,
        19,
        20,
    ]
    assert (shared_words[4:16] == SHARED_FILL).all()


def test_a_store_ended_within_a_unit_of_16_bytes():
    """A row of 5 words is written as 8: the last three come from the box, zero where the load was outside."""
    run, _, stored = boxes(sizes=(5, 4))
    assert run.findings == []
    assert stored[0].tolist() == [1, 2, 3, 4, 5, 0, 0, 0] + [GLOBAL_FILL] * 8


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_nan_fill_was_all_ones(dtype):
    _, shared_words, _ = boxes(load_at=(0, 9), dtype=dtype, nan_fill=True)
    assert (shared_words[:8] == 0x7FF77FF7).all()


def test_a_swizzled_box_past_shared_memory_raised_index_error():
    """The last of 32 rows of 16 bytes, 128 apart, ends behind the 1024 bytes that the kernel has for them."""
    run, _, _ = boxes(sizes=(8, 32), box=(4, 32), swizzle="128B")
    assert [f.code for f in run.findings] == ["out-of-bounds"]


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
test_news_from_a_wait_that_was_too_narrow_were_believed_in_the_first_cta = gives(
    cluster_memory.returned, "~scope-too-narrow shared raw @load <store", scope="cta"
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
test_a_pair_allocated_before_the_other_cta_need_have_been_launched = gives(
    cluster_tcgen05.allocates,
    "~peer-not-launched tmem @alloc",
    "~peer-not-launched tmem @peer",
    launched="",
)


@pytest.mark.parametrize("name", ["hgemm_v8", "hgemm_v9"])
def test_a_gemm_of_cta_pairs_without_its_first_cluster_barrier_was_silent(name):
    kernel = find_kernel(name)
    shape = (kernel.shape_rule.m_multiple, kernel.shape_rule.n_multiple, 64)
    function = kernel.build(*shape)
    for _ in ("arrive", "wait"):  # the first of what is left, each time
        code = Code(function)
        first = next(s for s in code.statements if s.name.startswith("ptx.barrier_cluster"))
        function = code.rewritten(code.remove(first))
    found = verify(replace(kernel, factory=lambda M, N, K: function), *shape).findings
    assert [(f.title, f.place.mnemonic, f.count) for f in found] == [
        ("peer-not-launched tmem", "tcgen05.alloc", 2)
    ]


test_the_place_of_two_unequal_allocs_was_that_of_whoever_came_last = gives(
    cluster_tcgen05.allocates, "tmem-bad-allocation tmem @peer <alloc", columns=32
)


test_a_read_only_load_gave_what_a_bulk_store_had_written_and_an_h200_the_old_value = gives(
    tma.reads_back, "race global raw @plain <store", by_ld=False
)
test_a_plain_load_that_nvcc_moves_before_its_barrier_was_silent = gives(
    restrict.handed_over, "~race global raw @load <store", by_ld=False
)


test_products_behind_one_wgmma_fence_were_taken_for_writes_of_the_thread = gives(
    wgmma.chain, newest=1
)
test_wgmma_of_another_shape_on_the_same_registers_was_silent = gives(
    wgmma.chain, "missing-wgmma-fence register @wide", wide=True, wide_fence=False
)


def test_one_wgmma_fence_more_was_other_work():
    item = {"kernel": "hgemm_sm90", "fault": "move-into-next", "site": 1, "shape": [128, 128, 64]}
    outcome = run_item(item | {"schedule": "in-order", "seed": 0})
    assert outcome["counter_changes"] == {"wgmma.fence": [8, 32]}
    assert outcome["fate"] == "equivalent" and not outcome["reason"]


def test_an_address_mapped_to_another_cta_in_each_lane_was_lost():
    kernel = test_cluster_launch.mapped(0)
    run_ = simulate(kernel, [np.zeros(32, np.int32)])
    assert run_.outputs["D"].tolist() == [(lane % 4) << 24 for lane in range(32)]


def test_on_a_machine_with_a_gpu_tvm_compiled_for_that_gpu(monkeypatch):
    """Its CUDA runtime compiles as soon as a module is made: sm_100a code on a Hopper machine, which nvcc refused."""
    name, asked = lowering.COMPILE_CALLBACK, []
    build = importlib.import_module("tvm.tirx.build")
    to_runtime, usual = build.tir_to_runtime, tvm.get_global_func(name)

    def eager(*modules):
        asked.append(tvm.get_global_func(name)("text"))
        return to_runtime(*modules)

    monkeypatch.setattr(build, "tir_to_runtime", eager)
    tvm.register_global_func(name, lambda source: b"by TVM", override=True)
    try:
        lower(shared.store_load()).cuda_source()
        assert [bytes(code) for code in asked] == [b"not compiled"]
        assert tvm.get_global_func(name)("text") == b"by TVM"  # restored
    finally:
        tvm.register_global_func(name, usual, override=True)


def test_on_a_machine_with_a_gpu_what_nvcc_refused_was_an_error_of_the_harness(monkeypatch):
    build = importlib.import_module("tvm.tirx.build")
    through_tvm = tvm.runtime.convert(lambda *_: tvm.get_global_func(lowering.COMPILE_CALLBACK)(""))
    monkeypatch.setattr(build, "tir_to_runtime", through_tvm)

    def refuse(source):
        raise BadInput("nvcc cannot compile it")

    with pytest.raises(BadInput, match="nvcc cannot compile it"):
        lowering.export_library({"main": shared.store_load()}, "sm_90a", Path("x.so"), refuse)


def test_a_conformance_family_of_one_program_had_no_function_of_its_name(tmp_path):
    """A library of one kernel kept the PrimFunc's own name, so that the GPU was asked for what it had not."""
    file = tmp_path / "one.so"
    lowering.export_library({"program_0": shared.store_load()}, "sm_90a", file, lambda text: b"")
    assert b"__tvm_ffi_program_0" in file.read_bytes()


def test_clocks_were_those_of_another_gpu_than_the_one_timed(monkeypatch, tmp_path):
    """nvidia-smi was asked for number 0, which CUDA_VISIBLE_DEVICES need not have chosen."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(benchmark, "gpu_uuid", lambda: "GPU-second")
    monkeypatch.setattr("torch.cuda.get_device_name", lambda i: "NVIDIA H200")
    machine = benchmark.this_machine()
    assert machine.driver.endswith("-i GPU-second") and "driver_version" in machine.driver
    assert "GPU-second" in str(machine.state) and "GPU-second" in str(machine.limits)


@pytest.mark.parametrize("schedule", ["in-order", "lazy", "random:1"])
def test_one_lane_released_for_its_warp_and_the_others_were_said_to_be_lapped(schedule):
    """wgmma.wait_group and tcgen05.wait are executed by all lanes of a warp before one of them goes on."""
    func = find_kernel("hgemm_sm90").build(128, 128, 384)
    code = Code(func)
    [meeting] = code.named("cuda.warp_sync")
    assert _findings(code.rewritten(code.remove(meeting)), schedule) == []

    code = Code(find_kernel("hgemm_v7:ctas=1").build(128, 256, 192))
    [release] = code.named("ptx.mbarrier_arrive")
    [init] = [s for s in code.named("ptx.mbarrier_init") if int(s.args[1]) == 128]
    first_lane = tir_nodes.equal(code.indices["lane"][0], 0)
    one_of_each_warp = code.rewritten(
        code.guard([release], first_lane), code.replace(init, tir_nodes.with_argument(init, 1, 4))
    )
    assert _findings(one_of_each_warp, schedule) == []


def test_a_warp_sync_of_one_lane_hung_on_an_h200_and_was_silent():
    mutant = make_mutant("hgemm_sm90", "move-into-next", 3, (128, 128, 384))
    assert "if lane_id == 0" in tir_nodes.script(mutant.kernel.build(128, 128, 384))
    verdict = verify(mutant.kernel, 128, 128, 384)
    assert [f.title for f in verdict.findings] == ["divergent-collective"]


test_more_bytes_than_an_mbarrier_counts_stopped_an_h200_and_were_silent = gives(
    mbarrier.bytes_to_come, "resource-limit @expect", times=2
)


@pytest.mark.parametrize(("seconds", "title"), [(0.4, "launch-failure"), (1.3, "deadlock")])
def test_an_arrival_too_many_stopped_an_h200_at_once_and_was_called_a_deadlock(seconds, title):
    said = "CUDA error: unspecified launch failure"
    assert gpu_run._failure(Ended(RETURNED), said, seconds, poll_limit_ms=1000).title == title


@pytest.mark.parametrize(
    ("kernel", "fault", "shape", "first"),
    [
        ("hgemm_sm90", "release-by-every-lane", (128, 128, 512), "over-arrival"),
        ("hgemm_v2", "missing-barrier-init", (128, 128, 192), "barrier-not-initialised"),
        ("hgemm_v2", "missing-phase-flip", (128, 128, 192), "stale-wait"),
        ("hgemm_v2", "mma-by-whole-warp", (128, 128, 192), "duplicate-issue"),
    ],
)
def test_a_report_began_with_a_race_that_only_followed(kernel, fault, shape, first):
    verdict = verify(make_mutant(kernel, fault, 0, shape).kernel, *shape)
    assert len(verdict.findings) > 1 and verdict.findings[0].code == first


def _findings(func, schedule):
    lowered = lower(func)
    arrays = [np.ones(shape, dtype) for _, dtype, shape in lowered.parameters]
    return [str(f) for f in simulate(lowered, arrays, schedule=schedule).findings]


@pytest.mark.parametrize(
    ("kernel", "fault", "shape", "words"),
    [
        ("hgemm_v8", "no-cluster-sync-after-init", (512, 512, 192), "barrier.cluster.arrive and wait) before"),
        ("hgemm_v1", "missing-final-sync", (128, 128, 64), "put a CTA barrier (T.cuda.cta_sync) between the last use"),
        ("hgemm_sm90", "group-wait-too-loose", (128, 128, 512), "let T.ptx.wgmma.wait_group complete the wgmma at line"),
        ("hgemm_sm90", "store-not-drained", (128, 128, 512), "T.ptx.cp_async.bulk.wait_group(0) after the commit_group"),
        ("hgemm_sm90", "store-without-sync", (128, 128, 512), "put a CTA barrier (T.cuda.cta_sync), or an mbarrier"),
    ],
)  # fmt: skip
def test_every_race_was_to_be_mended_by_a_cta_barrier(kernel, fault, shape, words):
    verdict = verify(make_mutant(kernel, fault, 0, shape).kernel, *shape)
    assert words in verdict.findings[0].fix


@pytest.mark.parametrize("command", ["fault", "study", "silicon"])
def test_the_help_of_a_command_that_takes_faults_did_not_say_how_to_list_them(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "list --faults" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["list", "--faults", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["faults"]
    every = [*faults.catalogue(), *faults.mutations(), faults.no_op()]
    assert [(f["name"], f["kind"]) for f in listed] == [(f.name, f.kind) for f in every]


@pytest.mark.parametrize(("body", "mark"), NO_INSTRUCTION)
def test_an_endless_loop_that_executes_no_instruction_was_reported_at_line_0(body, mark):
    [deadlock] = simulate(lower(body), [np.zeros(64, np.int32)]).findings
    assert (Path(deadlock.file).name, deadlock.line) == ("test_polling.py", line_of(mark))


def test_a_loop_whose_registers_never_repeat_was_reported_at_an_instruction_before_it(monkeypatch):
    monkeypatch.setattr(stepper, "POLL_BLOCKS", 30_000)
    [deadlock] = simulate(lower(never_repeats), [np.zeros(64, np.int32)]).findings
    assert (Path(deadlock.file).name, deadlock.line) == ("test_polling.py", line_of("count"))


@pytest.mark.parametrize(
    ("kernel", "schedule", "sentence"),
    [
        ("hgemm_v1", "lazy+delay:cta1", "delays CTA 1, but a cluster of the kernel has CTA 0"),
        ("hgemm_v1", "lazy+delay:cta0.warp9", "delays warp 9, but a CTA of the kernel has warps 0-3"),
        ("hgemm_v1", "eager+delay:warps2-4", "delays warps 2-4, but a CTA of the kernel has warps 0-3"),
        ("hgemm_v8", "random:1+delay:warp0+delay:cta2", "delays CTA 2, but a cluster of the kernel has CTAs 0-1"),
    ],
)  # fmt: skip
def test_a_delay_of_threads_that_the_kernel_does_not_have_did_nothing(kernel, schedule, sentence):
    shape = find_kernel(kernel).shape_rule.nearest(1, 1, 1)
    with pytest.raises(BadInput) as error:
        verify(find_kernel(kernel), *shape, schedule=schedule)
    assert str(error.value) == f"schedule {schedule!r} {sentence}"


@pytest.mark.parametrize("command", ["run", "fault"])
def test_a_delay_of_threads_that_are_not_there_is_bad_input_of_the_commands(command, capsys):
    kernel = ["hgemm_v1"] if command == "run" else ["hgemm_v1", "missing-commit"]
    words = [command, *kernel, "128", "128", "64", "--schedule", "lazy+delay:warp4", "--json"]
    assert cli.main(words) == 2
    assert "has warps 0-3" in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("kernel", "fault", "shape", "name"),
    [
        ("hgemm_sm90", "barrier-count-two", (128, 128, 512), "full[0]"),
        ("hgemm_v2", "missing-commit", (128, 128, 192), "mma_bar"),
    ],
)
def test_slot_0_of_an_array_of_mbarriers_had_the_name_of_a_single_one(kernel, fault, shape, name):
    found = verify(make_mutant(kernel, fault, 0, shape).kernel, *shape).findings
    deadlock = next(f for f in found if f.code == "deadlock")
    assert deadlock.data[0]["barrier"]["name"] == name and f"mbarrier {name} (" in deadlock.why


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"initialised": 1}, "bar[1]: this slot has none; line {init} initialises another slot of bar"),
        ({"reached": False}, "bar[0]: CTA 0 has not executed the one at line {init}"),
        ({"sync": False}, "bar[0]: nothing orders the one at line {init} before this use"),
    ],
)  # fmt: skip
def test_the_init_of_another_slot_was_said_to_be_unordered(flags, words, schedule):
    """And the text depended on whether the init had been executed, hence on the schedule."""
    [finding] = run(mbarrier.slots, schedule, **flags).findings
    name, _, text = words.format(init=litmus_line(mbarrier.slots, "init")).partition(": ")
    assert finding.what.endswith(f" uses {name}")
    assert finding.why == f"no mbarrier.init of this barrier happens before: {text}"
