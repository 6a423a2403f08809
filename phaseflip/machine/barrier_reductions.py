"""Named barriers that reduce a predicate over their threads: bar.red.

Source: PTX ISA 9.1, 9.7.13.1 bar / barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..control_flow import EXIT
from ..finding import Finding, agree
from ..instructions import instruction
from .barriers import BarrierWait, NamedBarrier, Round, _arrive
from .divergence import Parted, split

if TYPE_CHECKING:
    from ..finding import Place
    from .warp import Group

_REDUCE: dict[str, Callable[[list[np.ndarray]], int]] = {
    "and": lambda votes: int(all(v.all() for v in votes)),
    "or": lambda votes: int(any(v.any() for v in votes)),
    "popc": lambda votes: sum(int(v.sum()) for v in votes),
}
"""Operation -> the result of the predicates of all threads."""


class ReductionWait(BarrierWait):
    """A group that has arrived with its predicates; the result goes to register slot `slot`."""

    __slots__ = ("op", "slot", "votes")

    def __init__(
        self, barrier: NamedBarrier, entered: Round, op: str, votes: list[np.ndarray], slot: int | None
    ) -> None:  # fmt: skip
        super().__init__(barrier, entered)
        self.op, self.votes, self.slot = op, votes, slot

    def finish(self, group: Group) -> None:
        """As for bar.sync; and the result is known."""
        super().finish(group)
        if self.slot is not None:
            group.r[self.slot] = _REDUCE[self.op](self.votes)


@instruction("bar.red", waits=True, uniform=("barrier", "count"))
def bar_red(
    g: Group, place: Place, op: str, barrier: int, count: int | None, predicate: Any, result: int | None = None
) -> ReductionWait | Parted | None:  # fmt: skip
    """bar.red.popc.u32 d, a{, b}, c; bar.red.{and, or}.pred p, a{, b}, c: bar.sync that reduces predicate c over its threads.

    `op`: popc (how many are true), and, or. The other operands are those of bar.sync; every thread gets the result. That
    all threads of a round ask for the same operation is not checked.
    """
    if count is not None and g.n > count and g.warps > 1:
        g.cta.counts[place.order] -= g.warps  # more than a round takes: warp by warp
        return split(g, g.lanes >> 5, g.pc, EXIT)
    if not g.whole_warps():
        part = g.agents(g.in_partial_warps())
        g.cta.report(
            Finding(
                "divergent-collective",
                "bar.red is executed by whole warps, all lanes together",
                place=place,
                what=f"only {part} {agree(part, 'reaches', 'reach')} bar.red {barrier}",
                fix="move the barrier out of the branch that separates the lanes",
            )
        )
    g.cta.bytes["waits"] += g.warps
    found, entered = _arrive(g, place, barrier, count, aligned=count is None)
    votes = g.cta.reductions.setdefault(entered, [])
    votes.append(np.broadcast_to(np.asarray(predicate), (g.n,)) != 0)
    wait = ReductionWait(found, entered, op, votes, result)
    if not wait.ready():
        return wait
    wait.finish(g)
    return None
