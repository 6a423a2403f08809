"""What generated code calls where lanes part: a branch on differing conditions, an operand that differs among lanes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...translate.control_flow import EXIT
from .warp import Group, Join


class Parted:
    """Signal of a block whose group was replaced by several smaller ones."""


PARTED: Final = Parted()


def branch(g: Group, condition: Any, taken: int, skipped: int, join: int) -> int | Parted:
    """Next block of a conditional jump; splits the group where `condition` (bool per lane) differs among its lanes.

    `join` is the block where the two parts meet again, EXIT if nowhere before the end of the kernel.
    """
    if condition.all():
        return taken
    if not condition.any():
        return skipped
    return _replace(g, [(condition, taken), (~condition, skipped)], join)


def split(g: Group, values: Any, here: int, after: int) -> Parted:
    """Split the group by the value of an operand; every part executes block `here` again, and they meet at `after`."""
    return _replace(g, [(values == v, here) for v in np.unique(values)], after)


def _replace(g: Group, parts: list[tuple[Any, int]], join: int) -> Parted:
    joins = g.joins if join == EXIT else (*g.joins, Join(g, join))
    g.cta.groups_changed(g, [g.subset(keep, pc, joins) for keep, pc in parts])
    return PARTED
