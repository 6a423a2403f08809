"""The control of every study: a rewrite that changes nothing, so that what it reports is a false alarm."""

from __future__ import annotations

from collections.abc import Iterator

from ...frontend.tirx.edit.code import Code, Edit
from ..example import Example
from ..fault import fault


@fault(
    "no-op",
    "Nothing is changed.",
    kind="control",
    example=Example(
        """
        if warp_id == 0:
            if lane_id == 0:
        """,
        """
        if warp_id == 0:
            if lane_id == 0:
        """,
    ),
)
def no_op(code: Code) -> Iterator[Edit]:
    first = next(s for s in code.statements if not s.declares)
    yield Edit(first, {first.path: [code.raw(first)]})
