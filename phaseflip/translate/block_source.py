"""Basic blocks under construction, and their Python source."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from ..ir import arithmetic as operators
from ..ir.instruction import REGISTRY
from ..ir.program import Flow
from ..machine.memory import load_store as memory
from ..machine.memory.unrolled import UNROLLED
from ..machine.tcgen05 import mma as tensor_core
from ..machine.threads import registers, warp
from ..machine.threads.divergence import branch, split
from .control_flow import EXIT, immediate_post_dominators, live_in


class Block:
    """Source lines of one block, the slots it reads and writes, its successors, and the loops around it."""

    def __init__(self, number: int, loops: tuple[int, ...]) -> None:
        self.number = number
        self.loops = loops  # the slots of their iteration numbers, outermost first
        self.lines: list[tuple[int, int | None, str]] = []  # (indent, slot defined or None, text)
        self.used_first: set[int] = set()
        self.defined: set[int] = set()
        self.successors: list[int] = []
        self.shared = False
        self.mma = False
        self.end: int | None = None  # index of the line where the block's exit begins

    def find_uses(self) -> None:
        """Note the names that its lines use but do not define: an operand's text may have outlived its block."""
        defined: set[int] = set()
        for _, slot, text in self.lines:
            loop = _LOOP.match(text)
            if loop:
                defined.add(int(loop[1]))
            self.used_first |= {int(name) for name in _NAME.findall(text)} - defined
            self.shared |= "shared" in text
            if slot is not None:
                defined.add(slot)

    def flow(self) -> Flow:
        """What it does to registers."""
        effects: set[int] = set()
        definitions = []
        for _, slot, text in self.lines:
            uses = {int(name) for name in _NAME.findall(text)}
            if slot is not None:
                definitions.append((slot, uses))
            if slot is None or ("(g, " in text and not text.startswith(_READS)):
                effects |= uses
        return Flow(effects, definitions, self.successors)


_READS = ("load(", "load_local(", "initialised(")
"""Calls in the generated source that change nothing."""

_NAME = re.compile(r"\bv(\d+)\b")
_LOOP = re.compile(r"for v(\d+) in ")


def render(blocks: list[Block]) -> tuple[str, dict[int, set[int]]]:
    """Python source of all blocks, a function block_N each, and the slots live at the start of every block."""
    for b in blocks:
        b.find_uses()
    graph = {b.number: b.successors for b in blocks}
    joins = immediate_post_dominators(graph)
    live = live_in(graph, {b.number: (b.used_first, b.defined) for b in blocks})
    parts = []
    for b in blocks:
        parts.append(f"def block_{b.number}(g):")
        leaving = set().union(*(live[n] for n in b.successors))
        if b.used_first or leaving & b.defined:
            parts.append("    r = g.r")
        if b.shared:
            parts.append("    shared = g.cta.shared_base")
        parts += [f"    v{slot} = r[{slot}]" for slot in sorted(b.used_first)]
        for number, (indent, defined, text) in enumerate(b.lines):
            pad = "    " * indent
            if b.mma and number == b.end:
                parts.append(f"{pad}g.cta.tensor_core.close_batch()")
            if defined is not None:
                text = (
                    f"v{defined} = r[{defined}] = {text}"
                    if defined in leaving
                    else f"v{defined} = {text}"
                )
            parts.append(pad + text.replace(f"JOIN_{b.number}", str(_join(b, joins))))
        parts.append("")
    return "\n".join(parts), live


def _join(block: Block, joins: dict[int, int]) -> int:
    """Where the lanes meet that part at the block's branch: a block that no lane is in at once, because they *arrive*."""
    join = joins[block.number]
    while join in block.successors and join != EXIT:
        join = joins[join]
    return join


def namespace(constants: dict[Any, str]) -> dict[str, Any]:
    """The names that the source uses: operators, memory accesses, and the constants by their names."""
    names: dict[str, Any] = {
        "ndarray": np.ndarray, "branch": branch, "split": split, "same": warp.same, "load": memory.load,
        "store": memory.store, "load_local": memory.load_local,
        "local_index": memory.local_index, "store_local": memory.store_local, "initialised": registers.initialised,
        "add_low_half": tensor_core.add_low_half,
    }  # fmt: skip
    for name in (
        "truncdiv", "truncmod", "floordiv", "floormod", "shift_left", "shift_right", "minimum", "maximum", "select",
        "cast", "reinterpret", "unsigned64",
    ):  # fmt: skip
        names[name] = getattr(operators, name)
    for key, name in constants.items():
        names[name] = _constant_value(key)
    return names


def _constant_value(key: Any) -> Any:
    if isinstance(key, tuple) and key and key[0] in ("place", "name"):
        return key[1]
    if isinstance(key, tuple) and key and key[0] == "dtype":
        return operators.numpy_dtype(key[1])
    if isinstance(key, tuple) and key and key[0] == "float":
        return operators.numpy_dtype(key[1]).type(float(key[2]))
    if isinstance(key, tuple) and key and key[0] == "iterations":
        return np.arange(key[1], key[1] + key[2], key[3], dtype=np.int64)[:, None]
    if isinstance(key, tuple) and key and key[0] == "unrolled":
        return UNROLLED[key[1]]
    if isinstance(key, tuple) and key and key[0] == "instruction":
        return REGISTRY[key[1]].function
    return key
