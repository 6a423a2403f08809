"""Where things stand in a GEMM kernel, whoever wrote it: loads, MMAs, what lies between them, guards, barriers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..tir_edit import Code, Statement
from ..tir_nodes import calls, integer, occurs

MMA = "tile.gemm_async"
ACCUMULATE = 5
"""Index of `accum` among the arguments of tile.gemm_async: D, A, B, transA, transB, accum."""

SEED = ("hgemm_v1", "hgemm_v2", "hgemm_v3")
LOOPING = ("hgemm_v2", "hgemm_v3")
OPERANDS = ("tile.copy", MMA)
ACCUMULATOR = (MMA, "tile.copy_async")
COPIES = ("tile.copy", "tile.copy_async")


def loads(code: Code) -> list[Statement]:
    """Copies of a tile from global to shared memory."""
    return [s for s in code.named(*COPIES) if s.scopes == ["shared", "global"]]


def stores(code: Code) -> list[Statement]:
    """Copies of a tile to global memory."""
    return [s for s in code.named(*COPIES) if s.scopes[:1] == ["global"]]


def between_load_and_mma(code: Code, name: str) -> Iterator[Statement]:
    """Statements of that name after the last load and before the MMA, in the block that holds the loads."""
    for mma in code.named(MMA):
        above: Statement | None = mma
        while above is not None:
            block = code.block(above)
            earlier = [s for s in loads(code) if s in block and s.path < above.path]
            if earlier:
                yield from (
                    s for s in block if s.name == name and earlier[-1].path < s.path < above.path
                )
                break
            above = code.parent(above)


def guards(code: Code, s: Statement, kind: str) -> list[Statement]:
    """The `if` statements around `s` that elect by warp, by lane, or one thread ("elect"); innermost first."""
    return [g for g in code.enclosing(s, "if") if guard_kind(code, g) == kind]


def guard_kind(code: Code, guard: Statement) -> str:
    """ "elect", or the index that the condition tests: "cta", "warpgroup", "warp", "lane"; "" for another one."""
    if calls(guard.node.condition, "ptx.elect_sync"):
        return "elect"
    for kind, variables in code.indices.items():
        if any(guard.mentions(v) for v in variables):
            return kind
    return ""


def barrier(address: Any) -> Any:
    """The buffer of an mbarrier from its address."""
    return address.args[0].buffer


def commits(code: Code) -> list[Statement]:
    """Statements by which an mbarrier is told of completed MMAs."""
    return code.named("ptx.tcgen05_commit")


def mma_waits(code: Code) -> list[Statement]:
    """Waits on a barrier on which a commit arrives."""
    committed = [barrier(s.args[0]) for s in commits(code)]
    waits = code.named("ptx.mbarrier_try_wait")
    return [s for s in waits if any(barrier(s.args[0]).same_as(b) for b in committed)]


def phases(code: Code) -> list[Any]:
    """Registers that a wait takes its parity from."""
    waits = code.named("ptx.mbarrier_try_wait")
    return [v for v in code.scalars if any(occurs(v, s.node) for s in waits)]


def state_stores(code: Code) -> list[Statement]:
    """Stores to a register that holds a phase or a stage: its initial value and its updates."""
    return [s for s in code.named("store") if any(s.node.buffer.same_as(v) for v in code.scalars)]


def is_update(s: Statement) -> bool:
    """Whether a store reads the register that it writes."""
    return occurs(s.node.buffer, s.node.value)


def initial_phases(code: Code) -> Iterator[Statement]:
    """Stores of a phase's constant first value."""
    for s in state_stores(code):
        if integer(s.node.value) is not None and any(
            s.node.buffer.same_as(p) for p in phases(code)
        ):
            yield s


def first_sync_after(code: Code, s: Statement) -> Statement | None:
    """The first barrier of the CTA after `s`, in program order."""
    later = code.statements[code.statements.index(s) :]
    return next((t for t in later if t.name == "cuda.cta_sync"), None)


def last_sync_before(code: Code, s: Statement) -> Statement | None:
    """The last barrier of the CTA before `s`, in program order."""
    earlier = code.statements[: code.statements.index(s)]
    return next((t for t in reversed(earlier) if t.name == "cuda.cta_sync"), None)


def k_loops(code: Code) -> list[Statement]:
    """Loops around an MMA."""
    found = []
    for mma in code.named(MMA):
        found += [s for s in code.enclosing(mma, "for") if s not in found]
    return found
