"""Bugs that were fixed, named by what was seen. Most are one variant of a litmus kernel, which says what is right."""

import importlib
from types import SimpleNamespace

import numpy as np
import pytest
import tvm

from phaseflip import lower, lowering, simulate
from phaseflip.conformance.tma import CORNERS, box_kernel
from phaseflip.finding import Place
from phaseflip.machine.barriers import BarrierWait, NamedBarrier
from phaseflip.machine.tensor_map import TensorMap
from phaseflip.vector_clock import Clock
from tests.litmus import test_look_alikes as look_alikes
from tests.litmus import test_mbarrier as mbarrier
from tests.litmus import test_shared_memory as shared
from tests.litmus import test_tcgen05_pairs as pairs
from tests.litmus import test_tensor_memory as tensor_memory
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

# -- false alarms and crashes -------------------------------------------------------------------------------------------
test_mmas_of_two_threads_ordered_by_tcgen05_fences_were_a_race = gives(
    pairs.accumulators, second_thread=True
)
test_lanes_that_waited_apart_never_met_again = gives(look_alikes.some_lanes_wait_first)
test_freed_columns_used_by_the_freeing_warp_were_called_unordered = (
    tensor_memory.test_tcgen05_st_requires_columns_that_are_not_freed
)


def test_a_barrier_waiter_that_slept_for_many_rounds_crashed():
    """Others complete ten rounds of the barrier before it goes on from the first."""
    told = []
    detector = SimpleNamespace(acquire=lambda group, clock, everything: told.append(clock))
    barrier = NamedBarrier(1, SimpleNamespace(live_threads=64))
    sleeper = BarrierWait(barrier, barrier.round)
    clocks = [Clock.zero(2) for _ in range(11)]
    for clock in clocks:
        barrier.round.clocks.append(clock)
        barrier.arrive(Place(), 64, 64)
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
