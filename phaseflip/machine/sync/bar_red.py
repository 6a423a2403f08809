"""Named barriers that reduce a predicate over their threads: bar.red.

Source: PTX ISA 9.1, 9.7.13.1 bar / barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.instruction import instruction
from .bar import BarrierWait, check_whole_warps, meet

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..threads.divergence import Parted
    from ..threads.warp import Group
    from .named_barrier import Arrival, NamedBarrier

_REDUCE: dict[str, Callable[[list[np.ndarray]], int]] = {
    "and": lambda votes: int(all(v.all() for v in votes)),
    "or": lambda votes: int(any(v.any() for v in votes)),
    "popc": lambda votes: sum(int(v.sum()) for v in votes),
}
"""Operation -> the result of the predicates of all threads."""


class ReductionWait(BarrierWait):
    """A group that has arrived with its predicates; the result goes to register slot `slot`."""

    __slots__ = ("op", "slot")

    def __init__(self, barrier: NamedBarrier, arrival: Arrival, op: str, slot: int | None) -> None:
        super().__init__(barrier, arrival)
        self.op, self.slot = op, slot

    def finish(self, group: Group) -> None:
        """As for bar.sync; and the result is known."""
        super().finish(group)
        if self.slot is not None:
            assert self.arrival.phase is not None
            votes = [a.votes for a in self.arrival.phase.arrivals if a.votes is not None]
            group.r[self.slot] = _REDUCE[self.op](votes)


@instruction(
    "bar.red", waits=True, uniform=("barrier", "count"), synchronises=True, supplies=BarrierWait
)
def bar_red(
    g: Group, place: Place, op: str, barrier: int, count: int | None, predicate: Any, result: int | None = None
) -> BarrierWait | Parted | None:  # fmt: skip
    """bar.red.popc.u32 d, a{, b}, c; bar.red.{and, or}.pred p, a{, b}, c: bar.sync that reduces predicate c over its threads.

    `op`: popc (how many are true), and, or. The other operands are those of bar.sync; every thread gets the result. That
    all threads of a round ask for the same operation is not checked.
    """
    check_whole_warps(g, place, barrier)
    votes = np.broadcast_to(np.asarray(predicate), (g.n,)) != 0
    return meet(g, place, barrier, count, votes, lambda b, a: ReductionWait(b, a, op, result))
