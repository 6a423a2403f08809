"""The first finding of a faulty kernel names the fault and its cure, and the cure leaves nothing to report."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.findings.finding import render
from phaseflip.ir.program import Program, View
from phaseflip.study.mutant_run import make_mutant
from tests.cases.harness import SCHEDULES, errors

HERE = Path(__file__).parent
CASES = [
    ("n25_same_rows", (256, 256, 128), "output-overwritten", "give every CTA a tile of its own"),
    ("n03_st_not_waited", (128, 256, 128), "race tmem raw", "T.ptx.tcgen05.wait.st(), "),
    ("n04_slot_freed_early", (128, 512, 128), "race shared war", "comes after line"),
    ("n18_barrier_overlay", (128, 256, 128), "barrier-reinitialised", "place tma_bar and mma_bar apart"),
    ("k01_flip_on_empty", (128, 256, 128), "stale-wait", "a pass of the loop without that wait must not flip it"),
    ("k06_peer_unobserved", (256, 256, 128), "race shared raw", "mbarrier of CTA 1: let a thread there wait for it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "shape", "title", "fix"), CASES, ids=[c[0] for c in CASES])
def test_the_first_finding_names_the_fault_and_its_cure(name, shape, title, fix):
    for schedule in SCHEDULES:
        first = errors(f"{name}_bad", *shape, schedule=schedule)[0]
        assert first.title.startswith(title) and fix in first.fix, schedule


@pytest.mark.parametrize(("name", "shape"), [c[:2] for c in CASES], ids=[c[0] for c in CASES])
def test_the_advice_leaves_nothing_to_report(name, shape):
    """The twin is the faulty kernel with its advice followed."""
    for schedule in SCHEDULES:
        assert not errors(f"{name}_ok", *shape, schedule=schedule), schedule


def test_a_slot_freed_early_is_overwritten_and_never_read_early():
    for schedule in SCHEDULES:
        found = errors("n04_slot_freed_early_bad", 128, 512, 128, schedule=schedule)
        assert {f.kind for f in found if f.code == "race"} == {"war"}, schedule


def test_a_barrier_in_place_of_the_wait_for_a_store_is_told_the_same():
    for schedule in SCHEDULES:
        first = errors("n03_advice_followed", 128, 256, 128, schedule=schedule)[0]
        assert "T.ptx.tcgen05.wait.st()" in first.fix, schedule


def test_a_store_that_four_warps_issue_was_said_to_lack_a_commit_group(tmp_path):
    shape, name = (256, 256, 128), "own_v8_four_stores"
    for schedule in SCHEDULES:
        first = errors(name, *shape, schedule=schedule, factory="hgemm_v8")[0]
        assert first.code == "duplicate-issue" and "one warp" in first.fix, schedule
    text = (HERE / f"{name}.py").read_text()
    assert "if warp_id < 4:" in text
    file = tmp_path / "mended.py"
    file.write_text(text.replace("if warp_id < 4:", "if warp_id == 0:"))
    spec = importlib.util.spec_from_file_location("mended", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = lower(module.hgemm_v8(*shape))
    for schedule in SCHEDULES:
        arrays = [np.zeros(s, dtype) for _, dtype, s in kernel.parameters]
        assert not [f for f in simulate(kernel, arrays, schedule).findings if f.severity == "error"]


@pytest.mark.parametrize("depth", [192, 256])
def test_a_product_of_four_warps_was_an_unordered_pair_under_lazy(depth):
    mutant = lower(
        make_mutant("hgemm_v2", "mma-by-four-warps", 0, (128, 128, depth)).kernel.build(
            128, 128, depth
        )
    )
    for schedule in SCHEDULES:
        arrays = [np.ones(s, dtype) for _, dtype, s in mutant.parameters]
        assert simulate(mutant, arrays, schedule).findings[0].code == "duplicate-issue", schedule


@pytest.mark.parametrize("fault", ["initial-phase-one", "flip-on-wrong-stage"])
def test_arrivals_and_bytes_out_of_turn_came_before_the_wait_for_the_wrong_phase(fault):
    shape = (128, 128, 512)
    mutant = lower(make_mutant("hgemm_v5", fault, 0, shape).kernel.build(*shape))
    for schedule in SCHEDULES[:8]:
        arrays = [np.ones(s, dtype) for _, dtype, s in mutant.parameters]
        found = simulate(mutant, arrays, schedule).findings
        assert (
            found[0].title == "race shared raw"
            and "wait for the first phase with parity 0" in found[0].fix
        )
        assert {"over-arrival", "tx-count-mismatch"} <= {f.code for f in found[1:]}


def test_a_stage_of_one_buffer_had_the_name_of_a_smaller_one_before_it():
    program = Program.__new__(Program)
    views = [View(0, "Asmem", 4096), View(512, "Dsmem", 512)]
    object.__setattr__(program, "shared_views", views)
    names = [program.shared_name(offset) for offset in (0, 512, 1023, 1024, 2048, 4096)]
    assert names == ["Asmem", "Dsmem", "Dsmem", "Asmem", "Asmem", "Dsmem"]


INLINED = """from tvm.script import tirx as T

@T.inline
def helper(buffer, tx):
    buffer[0] = tx
    buffer[1] = tx

def k():
    @T.prim_func
    def kernel(D: T.Buffer((2,), "int32")):
        T.device_entry()
        cta = T.cta_id([1])
        tx = T.thread_id([64])
        helper(D, tx)
    return kernel
"""


def test_instructions_of_an_inlined_function_all_had_the_line_of_its_call(tmp_path):
    file = tmp_path / "inlined.py"
    file.write_text(INLINED)
    spec = importlib.util.spec_from_file_location("inlined", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = lower(module.k())
    found = simulate(kernel, [np.zeros(2, np.int32)], "in-order").findings
    assert [f.line for f in found] == [5, 6]
    for f in found:
        assert f"{file}:{f.line} (st.global), called at {file}:14" in render(f)
        told = f.to_json()
        assert told["mnemonic"] == "st.global"
        assert told["callers"] == [{"file": str(file), "line": 14}]
