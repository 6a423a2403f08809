"""One hardware unit per file: its state, its instructions, its ordering rule.

threads, memory, sync, copies, tcgen05, wgmma, operands: the units. cta: one CTA and its cluster. pipes, operation:
asynchronous operations in flight. `load` imports every module here, which registers every instruction: a new file is found
by itself. It imports races and all before it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil


@functools.cache
def load() -> None:
    """Register every instruction."""
    for module in sorted(m.name for m in pkgutil.walk_packages(__path__, f"{__name__}.")):
        importlib.import_module(module)
