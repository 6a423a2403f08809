"""The states that walk around a ring of stages, and what a tile loop sets anew: `advance()` and its registers in IR."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..frontend.tirx.edit import expressions as nodes
from ..frontend.tirx.edit.code import Code, Edit, Statement
from . import sites


@dataclass(frozen=True)
class Advance:
    """One `advance()` of a pipeline state: the next stage, and at the end of the ring the other phase.

    `steps` are its statements, neighbours: the store of the next stage and the branch that wraps around and flips, or
    the flip alone where there is one stage. `stage` is None then.
    """

    steps: tuple[Statement, ...]
    flip: Statement
    stage: Any

    @property
    def phase(self) -> Any:
        """The register of the phase."""
        return self.flip.node.buffer

    @property
    def wrap(self) -> Statement:
        """The branch at the end of the ring."""
        return self.steps[-1]


def advances(code: Code) -> list[Advance]:
    """Every advance of a state whose phase some wait uses."""
    found = []
    used = sites.phases(code)
    for flip in sites.state_stores(code):
        if not (sites.is_update(flip) and any(flip.node.buffer.same_as(p) for p in used)):
            continue
        branch = code.parent(flip)
        stages = [v for v in code.scalars if branch is not None and branch.mentions(v)]
        if branch is None or branch.name != "if" or not stages:
            found.append(Advance((flip,), flip, None))
        elif (step := code.previous(branch)) is not None:
            found.append(Advance((step, branch), flip, stages[0]))
    return found


def initial_value(code: Code, register: Any) -> int | None:
    """The constant that a register starts with."""
    starts = [s for s in sites.state_stores(code) if s.node.buffer.same_as(register)]
    return nodes.integer(starts[0].node.value) if starts else None


def without(code: Code, advance: Advance) -> Edit:
    """The state stays where it is."""
    return Edit(advance.steps[0], {s.path: () for s in advance.steps})


def twice(code: Code, advance: Advance) -> Edit:
    """The state goes on by two."""
    first, *rest = advance.steps
    again = [code.raw(s) for s in advance.steps] * 2
    return Edit(first, {first.path: again, **{s.path: () for s in rest}})


def tile_loops(code: Code) -> list[tuple[Statement, Any]]:
    """(loop, register) of every `while` that runs as long as a register is less than the number of tiles."""
    return [
        (loop, register)
        for loop in code.named("while")
        for register in code.scalars
        if nodes.upper_bound(loop.node.condition, register) is not None
    ]


def next_tile(code: Code, loop: Statement, register: Any) -> list[Statement]:
    """The statements by which a tile loop goes on to its next tile: the scheduler's stores and what they compute."""
    block = code.body(loop)
    steps = [s for s in block if s.name == "store" and s.node.buffer.same_as(register)]
    if not steps:
        return []
    rest = [s for s in block if s.path >= steps[0].path]
    ends = [i for i, s in enumerate(rest) if s.name not in ("store", "Bind", "if")]
    return rest[: ends[0]] if ends else rest
