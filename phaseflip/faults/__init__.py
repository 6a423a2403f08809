"""Faults: named rewrites of a kernel's IR, and which findings must name them.

`catalogue()` are mistakes that people have made and published; `mutations()` are generic operators that find their sites
by themselves; `no_op()` is the control. A fault is one decorated function in a file of `mistakes/` (the catalogue) or
`operators/`: files there are found by themselves.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil

from ..errors import BadInput
from .example import Example
from .fault import (
    FAULTS,
    Fault,
    Site,
    as_expected,
    as_studied,
    fault,
    is_title,
    matching,
    shapes_for,
)

__all__ = [
    "Example", "Fault", "Site", "as_expected", "as_studied", "catalogue", "fault", "find_fault", "is_title", "matching",
    "mutations", "no_op", "shapes_for",
]  # fmt: skip


@functools.cache
def _declared() -> dict[str, Fault]:
    """Every fault, after all files of the package have been imported."""
    found = pkgutil.walk_packages(__path__, f"{__name__}.")
    for name in sorted(info.name for info in found):
        importlib.import_module(name)
    return FAULTS


def catalogue() -> list[Fault]:
    """The named faults."""
    return [f for f in _declared().values() if f.kind == "catalogue"]


def mutations() -> list[Fault]:
    """The generic operators."""
    return [f for f in _declared().values() if f.kind == "mutation"]


def no_op() -> Fault:
    """The control: it changes nothing, so nothing may be reported."""
    return _declared()["no-op"]


def find_fault(name: str) -> Fault:
    """The fault of that name; BadInput lists the names."""
    found = _declared()
    if name in found:
        return found[name]
    near = difflib.get_close_matches(name, found, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise BadInput(f"unknown fault {name!r}{hint}; known are {', '.join(found)}")
