"""Fixed bugs that a GPU showed: what an H200 does otherwise, and what went wrong on machines with one."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import tvm

from phaseflip import lower, simulate
from phaseflip.conformance.families.tma import CORNERS, box_kernel
from phaseflip.errors import BadInput
from phaseflip.frontend.tirx import lowering
from phaseflip.frontend.tirx.edit import expressions as tir_nodes
from phaseflip.frontend.tirx.edit.code import Code
from phaseflip.gemm.kernel import find_kernel
from phaseflip.gemm.verify import verify
from phaseflip.gpu import worker as gpu_run
from phaseflip.machine.copies.tensor_map import TensorMap
from phaseflip.study.mutant_run import make_mutant
from phaseflip.system.worker_pool import RETURNED, Ended
from phaseflip.timing import rounds as benchmark
from tests.litmus import test_mbarrier as mbarrier
from tests.litmus import test_restrict as restrict
from tests.litmus import test_shared_memory as shared
from tests.litmus import test_tma as tma
from tests.litmus import test_wgmma as wgmma
from tests.litmus.harness import gives

# -- bulk tensor copies, found by `python -m phaseflip conformance` --------------------------------------------------------
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


# -- other differences ---------------------------------------------------------------------------------------------------
test_a_read_only_load_gave_what_a_bulk_store_had_written_and_an_h200_the_old_value = gives(
    tma.reads_back, "race global raw @plain <store", by_ld=False
)
test_a_plain_load_that_nvcc_moves_before_its_barrier_was_silent = gives(
    restrict.handed_over, "~race global raw @load <store", by_ld=False
)


def test_a_warp_sync_of_one_lane_hung_on_an_h200_and_was_silent():
    mutant = make_mutant("hgemm_sm90", "move-into-next", 3, (128, 128, 384))
    assert "if lane_id == 0" in tir_nodes.script(mutant.kernel.build(128, 128, 384))
    verdict = verify(mutant.kernel, 128, 128, 384)
    assert [f.title for f in verdict.findings] == ["divergent-collective"]


test_a_matrix_descriptor_for_byte_8_was_one_for_byte_0 = gives(
    wgmma.released,
    "misaligned-access shared @descriptor",
    "uninitialised-read shared @wgmma",
    aligned=False,
)
test_more_bytes_than_an_mbarrier_counts_stopped_an_h200_and_were_silent = gives(
    mbarrier.bytes_to_come, "resource-limit @expect", times=2
)


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


def _findings(func, schedule):
    lowered = lower(func)
    arrays = [np.ones(shape, dtype) for _, dtype, shape in lowered.parameters]
    return [str(f) for f in simulate(lowered, arrays, schedule=schedule).findings]


@pytest.mark.parametrize(("seconds", "title"), [(0.4, "launch-failure"), (1.3, "deadlock")])
def test_an_arrival_too_many_stopped_an_h200_at_once_and_was_called_a_deadlock(seconds, title):
    said = "CUDA error: unspecified launch failure"
    assert gpu_run._failure(Ended(RETURNED), said, seconds, poll_limit_ms=1000).title == title


# -- machines with a GPU -------------------------------------------------------------------------------------------------
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
