"""Edits of a PrimFunc: what each does to the statements, and that lines, spans and the original stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from tvm import tirx

from phaseflip import lower
from phaseflip.frontend.tirx.edit import expressions as tir_nodes
from phaseflip.frontend.tirx.edit.code import Code, Statement, together
from phaseflip.frontend.tirx.lowering import cuda_source
from phaseflip.gemm.kernel import find_kernel
from phaseflip.spelling import T

N = 128
HERE = str(Path(__file__).resolve())


@T.prim_func
def kernel(A: T.Buffer((N,), "int32"), D: T.Buffer((N,), "int32")):
    T.device_entry()
    bx, by = T.cta_id([1, 1])
    warp = T.warp_id([4])
    lane = T.lane_id([32])
    x: T.int32 = 0
    T.cuda.cta_sync()
    if warp == 0:
        x = 1
        T.cuda.warp_sync()
    else:
        x = 2
    for i in T.serial(3):
        x = x + A[i]
    D[warp * 32 + lane] = x


BODY = [
    "T.cuda.cta_sync()", "if warp == 0:", "    x = 1", "    T.cuda.warp_sync()", "else:", "    x = 2",
    "for i in range(3):", "    x = x + A[i]", "D[warp * 32 + lane] = x",
]  # fmt: skip
"""The kernel's TVMScript after its declarations."""


def body(func: Any) -> list[str]:
    lines = tir_nodes.script(func).splitlines()
    start = next(i for i, line in enumerate(lines) if "x: T.int32" in line) + 1
    return [line.removeprefix("    ") for line in lines[start:]]


def statement(code: Code, text: str) -> Statement:
    return next(s for s in code.statements if s.text.startswith(text))


@pytest.fixture
def code() -> Code:
    return Code(kernel)


def test_statements_come_in_program_order_with_their_lines(code: Code) -> None:
    lines = Path(__file__).read_text().splitlines()
    executed = [s for s in code.statements if not s.declares]
    assert [s.text for s in executed] == [
        "x = 0", "T.cuda.cta_sync()", "if warp == 0:", "x = 1", "T.cuda.warp_sync()", "x = 2",
        "for i in range(3):", "x = x + A[i]", "D[warp * 32 + lane] = x",
    ]  # fmt: skip
    for s in executed:
        assert s.file == HERE
        first_word = s.text.split()[0]
        assert lines[s.line - 1].strip().startswith(first_word), s.text
    assert [s.name for s in executed[:4]] == ["store", "cuda.cta_sync", "if", "store"]


def test_no_change_gives_the_same_function(code: Code) -> None:
    assert tvm_ffi.structural_equal(code.rewritten(), kernel)
    assert body(code.rewritten()) == BODY


def test_remove(code: Code) -> None:
    sync = statement(code, "T.cuda.cta_sync")
    assert body(code.rewritten(code.remove(sync))) == BODY[1:]
    assert body(kernel) == BODY  # the original stays


def test_removing_all_of_a_branch_keeps_its_condition(code: Code) -> None:
    loop = statement(code, "for i")
    [only] = code.body(loop)
    mutant = body(code.rewritten(code.remove(only)))
    assert mutant == [*BODY[:6], "for i in range(3):", "    T.evaluate(0)", BODY[-1]]


def test_double(code: Code) -> None:
    sync = statement(code, "T.cuda.cta_sync")
    assert body(code.rewritten(code.double(sync))) == [BODY[0], *BODY]


def test_swap(code: Code) -> None:
    a, b = statement(code, "x = 1"), statement(code, "T.cuda.warp_sync")
    assert body(code.rewritten(code.swap(a, b))) == [*BODY[:2], BODY[3], BODY[2], *BODY[4:]]


def test_swap_of_statements_in_different_blocks(code: Code) -> None:
    a, b = statement(code, "x = 1"), statement(code, "x = 2")
    mutant = body(code.rewritten(code.swap(a, b)))
    assert (mutant[2], mutant[5]) == ("    x = 2", "    x = 1")


def test_move_before_and_after_a_neighbour(code: Code) -> None:
    sync, branch = statement(code, "T.cuda.cta_sync"), statement(code, "if warp")
    assert body(code.rewritten(code.move_after(sync, branch))) == [*BODY[1:6], BODY[0], *BODY[6:]]
    branch_first = [*BODY[1:6], BODY[0], *BODY[6:]]
    assert body(code.rewritten(code.move_before(branch, sync))) == branch_first


def test_move_out_of_a_branch(code: Code) -> None:
    sync, branch = statement(code, "T.cuda.warp_sync"), statement(code, "if warp")
    out = "T.cuda.warp_sync()"
    rest = [*BODY[1:3], *BODY[4:6]]
    assert body(code.rewritten(code.move_before(sync, branch))) == [BODY[0], out, *rest, *BODY[6:]]
    assert body(code.rewritten(code.move_after(sync, branch))) == [BODY[0], *rest, out, *BODY[6:]]


@pytest.mark.parametrize(("first", "at"), [(True, 1), (False, 3)])
def test_move_into_a_branch(code: Code, first: bool, at: int) -> None:
    sync, branch = statement(code, "T.cuda.cta_sync"), statement(code, "if warp")
    mutant = body(code.rewritten(code.move_into(sync, branch, first)))
    expected = BODY[1:]
    expected.insert(at, "    T.cuda.cta_sync()")
    assert mutant == expected


def test_unwrap(code: Code) -> None:
    branch = statement(code, "if warp")
    mutant = body(code.rewritten(code.unwrap(branch)))
    assert mutant == [BODY[0], "x = 1", "T.cuda.warp_sync()", *BODY[6:]]


def test_neighbours_and_surroundings(code: Code) -> None:
    one, sync = statement(code, "x = 1"), statement(code, "T.cuda.warp_sync")
    assert code.next(one) is sync and code.previous(sync) is one
    assert code.previous(one) is None and code.next(sync) is None
    branch = code.parent(one)
    assert branch is not None and branch.name == "if"
    assert code.enclosing(one, "if") == [branch] and code.enclosing(branch, "if") == []
    assert [s.text for s in code.inside(branch)] == [
        "if warp == 0:", "x = 1", "T.cuda.warp_sync()", "x = 2",
    ]  # fmt: skip
    assert code.body(sync) == []
    assert code.previous(statement(code, "x = 0")) is None  # declarations are passed over


def test_indices_scalars_and_mentions(code: Code) -> None:
    assert {k: [str(v.name) for v in vs] for k, vs in code.indices.items()} == {
        "cta": ["bx", "by"], "warp": ["warp"], "lane": ["lane"],
    }  # fmt: skip
    [x] = code.scalars
    [warp] = code.indices["warp"]
    branch, store = statement(code, "if warp"), statement(code, "D[")
    assert branch.mentions(warp) and store.mentions(warp) and store.mentions(x)
    assert not branch.mentions(x)  # its condition does not


# --- nodes ---------------------------------------------------------------------------------------


def test_new_condition_value_and_range(code: Code) -> None:
    branch, store, loop = (statement(code, t) for t in ("if warp", "x = 1", "for i"))
    negated = tir_nodes.with_condition(branch, tir_nodes.negated(branch.node.condition))
    assert body(code.rewritten(code.replace(branch, negated)))[1] == "if warp != 0:"
    seven = tir_nodes.with_value(store, tir_nodes.number(store.node.value, 7))
    assert body(code.rewritten(code.replace(store, seven)))[2] == "    x = 7"
    shorter = tir_nodes.with_range(loop, loop.node.min, tir_nodes.int32(2))
    assert body(code.rewritten(code.replace(loop, shorter)))[6] == "for i in range(2):"


def test_guarded_and_renamed_call(code: Code) -> None:
    sync = statement(code, "T.cuda.cta_sync")
    [lane] = code.indices["lane"]
    mutant = code.rewritten(code.guard([sync], tir_nodes.equal(lane, 3)))
    assert body(mutant)[:2] == ["if lane == 3:", "    T.cuda.cta_sync()"]
    renamed = code.rewritten(code.replace(sync, tir_nodes.with_name(sync, "cuda.warp_sync")))
    assert body(renamed)[0] == "T.cuda.warp_sync()"


def test_exchanged_variables(code: Code) -> None:
    store = statement(code, "D[")
    [warp], [lane] = code.indices["warp"], code.indices["lane"]
    node = tir_nodes.exchanged(code.raw(store), {warp: lane, lane: warp})
    assert body(code.rewritten(code.replace(store, node)))[-1] == "D[lane * 32 + warp] = x"


def test_negation_of_any_condition() -> None:
    v, zero = tirx.Var("v", "int32"), tir_nodes.int32(0)
    assert isinstance(tir_nodes.negated(tirx.EQ(v, zero)), tirx.NE)
    assert isinstance(tir_nodes.negated(tirx.NE(v, zero)), tirx.EQ)
    assert isinstance(tir_nodes.negated(tirx.LT(v, zero)), tirx.Not)
    not_zero = tir_nodes.negated(v).a  # an integer as a condition: v != 0
    assert isinstance(not_zero, tirx.NE)


def test_a_guard_around_neighbours(code: Code) -> None:
    sync, branch = statement(code, "T.cuda.cta_sync"), statement(code, "if warp")
    [lane] = code.indices["lane"]
    mutant = body(code.rewritten(code.guard([sync, branch], tir_nodes.equal(lane, 3))))
    assert mutant == ["if lane == 3:", *(f"    {line}" for line in BODY[:6]), *BODY[6:]]


def test_several_edits_as_one(code: Code) -> None:
    sync, store = statement(code, "T.cuda.cta_sync"), statement(code, "D[")
    [edit] = together([code.remove(sync), code.remove(store)])
    assert edit.statement is sync and body(code.rewritten(edit)) == BODY[1:-1]
    assert body(code.rewritten(code.remove(sync), code.remove(store))) == BODY[1:-1]
    assert list(together([])) == []


def test_lines_survive_every_kind_of_edit(code: Code) -> None:
    """Whatever is moved, the statement keeps the line that it has in the user's file."""
    original = {s.text: s.line for s in code.statements if not s.declares}
    sync, branch = statement(code, "T.cuda.cta_sync"), statement(code, "if warp")
    inner = statement(code, "T.cuda.warp_sync")
    for edit in (
        code.remove(sync), code.swap(sync, branch), code.move_into(sync, branch, True),
        code.move_before(inner, branch), code.unwrap(branch), code.double(sync),
    ):  # fmt: skip
        mutant = Code(code.rewritten(edit))
        for s in mutant.statements:
            if s.text in original:
                assert s.line == original[s.text], s.text


# --- tile primitives -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gemm() -> Any:
    return find_kernel("hgemm_v2").build(128, 128, 128)


def test_a_changed_tile_primitive_keeps_its_line(gemm: Any) -> None:
    code = Code(gemm)
    [mma] = code.named("tile.gemm_async")
    changed = tir_nodes.with_operands(mma, {5: tir_nodes.truth(True)})
    mutant = code.rewritten(code.replace(mma, changed))
    [again] = Code(mutant).named("tile.gemm_async")
    assert (again.file, again.line) == (mma.file, mma.line)
    places = {i.line for i in lower(mutant).program.instructions if i.mnemonic == "tcgen05.mma"}
    assert places == {mma.line}
    assert "phaseflip" not in tir_nodes.script(mutant)


def test_a_change_can_be_changed_again(gemm: Any) -> None:
    code = Code(gemm)
    [mma] = code.named("tile.gemm_async")
    once = code.rewritten(
        code.replace(mma, tir_nodes.with_operands(mma, {5: tir_nodes.truth(True)}))
    )
    code = Code(once)
    [mma] = code.named("tile.gemm_async")
    [commit] = code.named("ptx.tcgen05_commit")
    twice = code.rewritten(code.swap(mma, commit))
    lines = [line.strip() for line in tir_nodes.script(twice).splitlines()]
    at = next(i for i, line in enumerate(lines) if "commit" in line)
    assert "T.bool(True)" in lines[at + 1]
    [again] = Code(twice).named("tile.gemm_async")
    assert again.line == mma.line


def test_marks_are_not_seen_in_the_generated_code(gemm: Any) -> None:
    """A tile primitive put in its own place again, marked: the CUDA source is that of the original."""
    code = Code(gemm)
    tiles = [s for s in code.statements if s.name.startswith("tile.")]
    assert len(tiles) == 6
    same = code.rewritten(*(code.replace(s, s.node.replace()) for s in tiles))
    assert cuda_source(same) == cuda_source(gemm)


def test_scopes_and_regions_of_tile_primitives(gemm: Any) -> None:
    code = Code(gemm)
    scopes = [s.scopes for s in code.statements if s.name.startswith("tile.")]
    assert scopes == [
        ["shared", "global"], ["shared", "global"], ["tmem", "shared", "shared"],
        ["local", "tmem"], ["local", "local"], ["global", "local"],
    ]  # fmt: skip


def test_a_redeclared_buffer_has_the_new_offset_and_nothing_else_changes(gemm: Any) -> None:
    code = Code(gemm)
    declaration = statement(code, "Bsmem = ")
    moved = tir_nodes.redeclared(declaration.node, elem_offset=512)
    assert int(moved.buffer.elem_offset) == 512
    for attribute in ("shape", "dtype", "name", "layout", "data_alignment"):
        assert str(getattr(moved.buffer, attribute)) == str(
            getattr(declaration.node.buffer, attribute)
        )
