"""Where things stand in a GEMM kernel, whoever wrote it: loads, MMAs, what lies between them, guards, barriers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..frontend.tirx.edit.code import Code, Statement
from ..frontend.tirx.edit.expressions import calls, integer, memory, occurs
from ..frontend.tirx.tvm_names import buffer_of
from ..frontend.tirx.version import installed_series

if installed_series() == "0.27":
    from ..frontend.tirx.v0_27.printed import printed as printed
else:

    def printed(fragment: str) -> str:
        """A fragment of an example as the installed TVM prints it."""
        return fragment


MMA = "tile.gemm_async"
WGMMA = "ptx.wgmma_mma_async_ss"
ACCUMULATE = 5
"""Index of `accum` among the arguments of tile.gemm_async: D, A, B, transA, transB, accum."""
PRODUCTS = {MMA: (1, 2, ACCUMULATE), WGMMA: (10, 11, 9)}
"""Matrix product -> positions of its operands A and B (or their descriptors) and of `accum` among its arguments."""

WAITS = ("ptx.mbarrier_try_wait", "ptx.mbarrier_try_wait_acquire_cluster")
EXPECT = "ptx.mbarrier_arrive_expect_tx"

SEED = ("hgemm_v1", "hgemm_v2", "hgemm_v3")
TMA = ("hgemm_v4", "hgemm_v5", "hgemm_v6")
ADDRESSED = SEED if installed_series() == "0.26" else ()
"""Seed kernels that read the address that tcgen05.alloc wrote: under TVM 0.27 they begin at column 0 without."""
RINGS = ("hgemm_v5", "hgemm_v6")
PERSISTENT = ("hgemm_v6",)
ROLES = ("hgemm_v7", "hgemm_v8", "hgemm_v9")
CLUSTERS = ("hgemm_v8", "hgemm_v9")
CONSUMERS = ("hgemm_v9",)
HOPPER = ("hgemm_sm90",)
LOOPING = ("hgemm_v2", "hgemm_v3")
OPERANDS = ("tile.copy", MMA)
ACCUMULATOR = (MMA, "tile.copy_async")
COPIES = ("tile.copy", "tile.copy_async")


def tma_loads(code: Code) -> list[Statement]:
    """Loads of a tile that arrive on an mbarrier."""
    return [s for s in loads(code) if "mbar" in s.node.config]


def loads(code: Code) -> list[Statement]:
    """Copies of a tile from global to shared memory."""
    return [s for s in code.named(*COPIES) if s.scopes == ["shared", "global"]]


def stores(code: Code) -> list[Statement]:
    """Copies of a tile to global memory."""
    return [s for s in code.named(*COPIES) if s.scopes[:1] == ["global"]]


def stagings(code: Code) -> list[Statement]:
    """Copies of a part of the result from registers to shared memory, where a TMA store reads it.

    They are tile copies, or loops of stores that do nothing else.
    """
    copies = [s for s in code.named(*COPIES) if s.scopes == ["shared", "local"]]
    return copies + [
        loop
        for loop in code.named("for")
        if all(t.name == "store" and memory(t.node.buffer) == "shared" for t in code.body(loop))
    ]


def between_load_and_mma(code: Code, name: str) -> Iterator[Statement]:
    """Statements of that name after the last load and before the MMA, in the block that holds the loads."""
    return between(code, loads(code), code.named(MMA), name)


def between(
    code: Code, first: list[Statement], second: list[Statement], name: str
) -> Iterator[Statement]:
    """Statements of that name after the last of `first` and before one of `second`, in the block that holds the former.

    `second` may stand in a branch of that block.
    """
    for s in second:
        for above in [s, *code.around(s)]:
            block = code.block(above)
            earlier = [t for t in first if t in block and t.path < above.path]
            if earlier:
                yield from (
                    t for t in block if t.name == name and earlier[-1].path < t.path < above.path
                )
                break


def after(code: Code, first: list[Statement], name: str) -> Iterator[Statement]:
    """The next statement of that name after one of `first`, in its block or the one that holds it, and so on outwards."""
    for s in first:
        for above in [s, *code.around(s)]:
            later = [t for t in code.block(above) if t.name == name and t.path > above.path]
            if later:
                yield later[0]
                break


def guards(code: Code, s: Statement, kind: str) -> list[Statement]:
    """The `if` statements around `s` that elect by warp, by lane, or one thread ("elect"); innermost first."""
    return [g for g in code.enclosing(s, "if") if guard_kind(code, g) == kind]


def guard_kind(code: Code, guard: Statement) -> str:
    """ "elect", or the index that the condition tests: "cta", "warpgroup", "warp", "lane", "thread"; "" for another one."""
    for kind, call in (("elect", "ptx.elect_sync"), ("thread", "cuda.thread_rank")):
        if calls(guard.node.condition, call):
            return kind
    for kind, variables in code.indices.items():
        if any(guard.mentions(v) for v in variables):
            return kind
    return ""


def barrier(address: Any) -> Any:
    """The buffer of an mbarrier from its address."""
    return buffer_of(address.args[0])


def declaration_of(code: Code, buffer: Any) -> Statement | None:
    """The statement that declares a view of shared memory at a constant offset."""
    for s in code.named("declare"):
        b = s.node.buffer
        if b.same_as(buffer) and memory(b) == "shared":
            return s if integer(b.elem_offset) is not None else None
    return None


def commits(code: Code) -> list[Statement]:
    """Statements by which an mbarrier is told of completed MMAs."""
    return code.named("ptx.tcgen05_commit")


def on_barrier_of(code: Code, names: tuple[str, ...], others: list[Statement]) -> list[Statement]:
    """Instructions of these names on a barrier that one of the others uses."""
    used = [barrier(s.args[0]) for s in others]
    return [s for s in code.named(*names) if any(barrier(s.args[0]).same_as(b) for b in used)]


def mma_waits(code: Code) -> list[Statement]:
    """Waits on a barrier on which a commit arrives."""
    return on_barrier_of(code, WAITS, commits(code))


def phases(code: Code) -> list[Any]:
    """Registers that a wait takes its parity from."""
    return [v for v in code.scalars if any(occurs(v, s.args[1]) for s in code.named(*WAITS))]


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
    found = [s for mma in code.named(MMA) for s in code.enclosing(mma, "for")]
    return list(dict.fromkeys(found))
