"""Instructions are decoded once, by the front end: what that keeps apart, and what no longer depends on it."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from tvm.script import tirx as T

from phaseflip import UnsupportedInstruction, lower, simulate
from phaseflip.gemm.target import foreign_instruction

PACKAGE = Path(__file__).resolve().parent.parent / "phaseflip"
BELOW = ("ir", "findings", "ordering", "races", "machine", "translate")


def test_what_lies_below_the_front_end_never_imports_it() -> None:
    files = [f for package in BELOW for f in (PACKAGE / package).rglob("*.py")]
    imports = [
        (f.name, node.module)
        for f in files
        for node in ast.walk(ast.parse(f.read_text()))
        if isinstance(node, ast.ImportFrom) and "frontend" in (node.module or "")
    ]
    assert len(files) > 50 and imports == []


def moves(between=False, other=False):
    """Each thread moves 16 bytes: global memory, its registers, shared memory; and out again."""

    @T.prim_func
    def kernel(A: T.Buffer((32, 4), "int32"), D: T.Buffer((32, 4), "int32")):
        T.device_entry()
        bx = T.cta_id([1])
        lane = T.thread_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((32, 4), "int32")
        pool.commit()
        r = T.alloc_local((4,), "int32")
        q = T.alloc_local((4,), "int32")
        for i in T.serial(4):
            q[i] = 5
        T.ptx.ld(A.ptr_to([lane, 0]), "uint32", "b32", dst=r.ptr_to([0]), space="global", vec="v4")
        if between:
            r[0] = 5
        source = T.meta_var(q if other else r)
        T.ptx.st(
            s.ptr_to([lane, 0]), src=source.ptr_to([0]), ptx_type="b32", space="shared", vec="v4"
        )
        for i in T.serial(4):
            D[lane, i] = s[lane, i]

    return kernel


@pytest.mark.parametrize(
    ("how", "nbytes"), [({}, 32 * 16), ({"between": True}, 0), ({"other": True}, 0)]
)
def test_a_load_and_store_by_the_same_registers_count_as_a_copy(how, nbytes) -> None:
    a = np.arange(128, dtype=np.int32).reshape(32, 4)
    run = simulate(moves(**how), [a, np.zeros_like(a)])
    expected = a.copy()
    if how.get("between"):
        expected[:, 0] = 5
    assert np.array_equal(run.outputs["D"], np.full_like(a, 5) if how.get("other") else expected)
    assert run.counters["bytes_global_to_shared"] == nbytes


@T.prim_func
def unknown(D: T.Buffer((1,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    lane = T.thread_id([32])
    if lane == 0:
        T.evaluate(T.call_intrin("int32", "tirx.ptx.tcgen05_shift", D[0], 1))  # unknown


def test_an_unknown_instruction_is_refused_by_line_when_it_is_to_run_and_still_has_its_home() -> (
    None
):
    lowered = lower(unknown)
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.endswith("# unknown"))
    with pytest.raises(UnsupportedInstruction, match=rf"py:{line}: .*ptx.tcgen05_shift"):
        _ = lowered.program
    told = foreign_instruction(lowered.device, "sm_90a")
    assert told == "uses tcgen05.shift, which sm_90a has not, but sm_100a or sm_103a"
