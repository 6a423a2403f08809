"""Which of two accesses is first in the program, where nothing orders them: what a race is called follows from it."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..findings.finding import Place

Position = tuple[tuple[int, ...], int]
"""Iterations of the enclosing loops, outermost first, and place in the program."""


class Placed(Protocol):
    """What was executed somewhere: an access, a commit."""

    @property
    def place(self) -> Any:
        """The instruction."""

    @property
    def position(self) -> Position:
        """When its threads came there."""


class Step(NamedTuple):
    """An instruction executed at a position."""

    place: Place
    position: Position


def comes_first(a: Placed, b: Placed) -> bool:
    """Whether a is before b in the program: by iterations of the loops that can be compared, then by place."""
    depth = _comparable_loops(a.place, b.place)
    return (a.position[0][:depth], a.position[1]) <= (b.position[0][:depth], b.position[1])


def place_decides(write: Placed, read: Placed) -> bool:
    """Whether a write in a loop of one role comes before or after a read of another by its place alone, whatever its pass."""
    a, b = write.place, read.place
    depth, shared = _comparable_loops(a, b), min(len(a.branches), len(b.branches))
    same_pass = write.position[0][:depth] == read.position[0][:depth]
    return same_pass and depth < len(a.loops) and a.branches[:shared] != b.branches[:shared]


def _comparable_loops(a: Place, b: Place) -> int:
    """How many of the enclosing loops, from the outermost, count the same for both.

    One loop around both does. So, it is taken, do loops of two roles, for which iteration n of the one hands to iteration
    n of the other; not where they are known to have different numbers of iterations, such as K chunks and parts of an
    epilogue. Of two loops of one role, the one comes after the other.
    """
    shared = min(len(a.branches), len(b.branches))
    one_role = a.branches[:shared] == b.branches[:shared]
    loops = zip(a.loops, b.loops, a.extents, b.extents, strict=False)
    for depth, (mine, other, extent, other_extent) in enumerate(loops):
        if mine != other and (one_role or (extent and other_extent and extent != other_extent)):
            return depth
    return min(len(a.loops), len(b.loops))
