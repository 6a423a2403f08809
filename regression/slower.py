"""A mutant that does more work and gives the same bits: the first K chunk is loaded and multiplied several times.

The MMA of the first chunk overwrites the accumulators, so repeats of it leave no trace in D. Loads, barriers and MMAs go
on as in any other chunk, in the same loops, so that `repeats` of them at K = 64 n are repeats / n more work of the kind
that the kernel does anyway; ptxas sees another bound and a maximum.
"""

from __future__ import annotations

from dataclasses import replace
from functools import wraps
from typing import Any

from tvm import tirx

from phaseflip.frontend.tirx.edit import expressions as nodes
from phaseflip.frontend.tirx.edit.code import Code, Statement, together
from phaseflip.gemm.kernel import Kernel

WORK = ("tile.copy_async", "ptx.wgmma_mma_async_ss")


def slower(kernel: Kernel, repeats: int) -> Kernel:
    """The mutant of a kernel whose loops over K are written as those of hgemm_sm90; it keeps the name."""

    @wraps(kernel.factory)
    def factory(M: int, N: int, K: int) -> Any:
        return with_repeated_chunk(kernel.factory(M, N, K), repeats)

    return replace(kernel, factory=factory)


def with_repeated_chunk(func: Any, repeats: int) -> Any:
    """`for i in range(n)` over chunks i becomes `for i in range(n + repeats)` over chunks max(i - repeats, 0)."""
    code = Code(func)
    changes = []
    for loop in _k_loops(code):
        i = loop.node.loop_var
        chunk = tirx.Max(i - nodes.number(i, repeats), nodes.number(i, 0))
        for s in _work(code, loop):
            changes.append(code.replace(s, nodes.exchanged(code.raw(s), {i: chunk})))
    code = Code(code.rewritten(*together(changes)))
    longer = []
    for loop in _k_loops(code):
        more = nodes.number(loop.node.extent, nodes.integer(loop.node.extent) + repeats)
        longer.append(code.replace(loop, nodes.with_range(loop, loop.node.min, more)))
    return code.rewritten(*together(longer))


def _k_loops(code: Code) -> list[Statement]:
    """The loops that are not unrolled and whose variable says what to load or to multiply."""
    serial = [s for s in code.named("for") if s.node.kind == tirx.ForKind.SERIAL]
    return [s for s in serial if _work(code, s)]


def _work(code: Code, loop: Statement) -> list[Statement]:
    inside = (s for s in code.inside(loop) if s.name in WORK)
    return [s for s in inside if s.mentions(loop.node.loop_var)]
