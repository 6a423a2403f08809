"""Generic operators on synchronising instructions: leave one out, move it, exchange it with its neighbour."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit.code import Code, Edit, Statement
from ...ir.instruction import traits_of
from .. import sites
from ..example import Example
from ..fault import fault


def synchronising(code: Code) -> list[Statement]:
    """Instructions that order others, signal, wait, or own a resource; a barrier's initialisation too."""
    return [s for s in code.statements if _synchronises(s)]


def _synchronises(s: Statement) -> bool:
    traits = traits_of(s.mnemonic)
    return traits.synchronises or traits.owns


def is_commit_of(s: Statement, issue: Statement | None) -> bool:
    """Whether `s` commits the asynchronous operation just issued: `swap-issue-and-commit` exchanges them."""
    return issue is not None and issue.name == sites.MMA and s.name == "ptx.tcgen05_commit"


@fault(
    "drop-synchronisation",
    "A synchronising instruction is left out.",
    kind="mutation",
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        """,
        """
        if lane_id == 0:
            T.evaluate(0)
        """,
    ),
)
def drop_synchronisation(code: Code) -> Iterator[Edit]:
    return map(code.remove, synchronising(code))


@fault(
    "move-earlier",
    "A synchronising instruction comes before the statement that preceded it.",
    kind="mutation",
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        T.ptx.tcgen05.alloc(..., 512, 1)
        """,
        """
        T.ptx.tcgen05.alloc(..., 512, 1)
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        """,
    ),
)
def move_earlier(code: Code) -> Iterator[Edit]:
    for s in synchronising(code):
        before = code.previous(s)
        if before is None or is_commit_of(s, before) or before in sites.state_stores(code):
            continue  # nothing, or the mutant of another operator
        yield code.move_before(s, before)


@fault(
    "move-later",
    "A synchronising instruction comes after the statement that followed it.",
    kind="mutation",
    example=Example(
        """
        T.cuda.cta_sync()
        tmem = ...
        """,
        """
        tmem = ...
        T.cuda.cta_sync()
        """,
    ),
)
def move_later(code: Code) -> Iterator[Edit]:
    others = [*synchronising(code), *sites.state_stores(code)]
    for s in synchronising(code):
        after = code.next(s)
        if after is not None and after not in others:  # else it is the mutant of the other one
            yield code.move_after(s, after)


@fault(
    "move-out-before",
    "A synchronising instruction comes before the branch or loop that it stood in.",
    kind="mutation",
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        """,
        """
        T.ptx.mbarrier.init(..., 1)
        if lane_id == 0:
            T.evaluate(0)
        """,
    ),
)
def move_out_before(code: Code) -> Iterator[Edit]:
    for s, around in inside_branches_and_loops(code):
        yield code.move_before(s, around)


@fault(
    "move-out-after",
    "A synchronising instruction comes after the branch or loop that it stood in.",
    kind="mutation",
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        """,
        """
        if lane_id == 0:
            T.evaluate(0)
        T.ptx.mbarrier.init(..., 1)
        """,
    ),
)
def move_out_after(code: Code) -> Iterator[Edit]:
    for s, around in inside_branches_and_loops(code):
        yield code.move_after(s, around)


@fault(
    "move-into-previous",
    "A synchronising instruction is the last in the branch or loop before it.",
    kind="mutation",
    example=Example(
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
        T.ptx.tcgen05.alloc(..., 512, 1)
        """,
        """
        if lane_id == 0:
            T.ptx.mbarrier.init(..., 1)
            T.ptx.tcgen05.alloc(..., 512, 1)
        """,
    ),
)
def move_into_previous(code: Code) -> Iterator[Edit]:
    for s in synchronising(code):
        before = code.previous(s)
        if before is not None and code.body(before):
            yield code.move_into(s, before, first=False)


@fault(
    "move-into-next",
    "A synchronising instruction is the first in the branch or loop after it.",
    kind="mutation",
    example=Example(
        """
        T.cuda.cta_sync()
        if warp_id == 0:
            if T.ptx.elect_sync():
        """,
        """
        if warp_id == 0:
            T.cuda.cta_sync()
            if T.ptx.elect_sync():
        """,
    ),
)
def move_into_next(code: Code) -> Iterator[Edit]:
    for s in synchronising(code):
        after = code.next(s)
        if after is not None and code.body(after):
            yield code.move_into(s, after, first=True)


@fault(
    "swap-issue-and-commit",
    "The commit comes before the operation that it should tell of.",
    kind="mutation",
    example=Example(
        """
        T.tile.gemm_async(...)
        T.ptx.tcgen05.commit(...)
        """,
        """
        T.ptx.tcgen05.commit(...)
        T.tile.gemm_async(...)
        """,
    ),
)
def swap_issue_and_commit(code: Code) -> Iterator[Edit]:
    for s in synchronising(code):
        issue = code.previous(s)
        if issue is not None and is_commit_of(s, issue):
            yield code.swap(s, issue)


def inside_branches_and_loops(code: Code) -> Iterator[tuple[Statement, Statement]]:
    """(synchronising instruction, the branch or loop that it stands in)."""
    for s in synchronising(code):
        around = code.parent(s)
        if around is not None and around.name in ("if", "for", "while"):
            yield s, around
