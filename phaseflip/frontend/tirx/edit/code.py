"""Edits of a PrimFunc before lowering: its statements in program order, and rewrites that keep their source lines.

`Code` reads a PrimFunc into `Statement`s. Each knows its place: a path of (block, index) steps from the function's body.
An edit maps paths to the nodes that shall stand there; `Code.rewritten` builds the new function and
rebuilds only the nodes above the edits, so everything else, spans included, is shared with the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvm import tirx
from tvm.tirx.exec_scope import _SCOPE_BINDING_TO_PARENT_CUR

from ....ir.nodes import Site
from ..places import LINE_MARK, marked_site, statement_site
from ..release import mnemonic_called
from ..tvm_names import Region, buffer_of
from .calls import Calls, new_calls
from .expressions import marked, memory, occurs, statement_text

Path = tuple[tuple[str, int], ...]
Changes = Mapping[Path, Sequence[Any]]

_BLOCKS = {
    "IfThenElse": ("then_case", "else_case"),
    "For": ("body",),
    "While": ("body",),
    "AttrStmt": ("body",),
}
_DECLARATIONS = ("ScopeIdDefStmt", "AllocBuffer", "DeclBuffer", "Bind", "AttrStmt")
_THREAD_SCOPES = {
    ("kernel", "cta"): "cta",
    ("kernel", "cluster"): "cluster",
    ("cta", "warpgroup"): "warpgroup",
    ("cta", "warp"): "warp",
    ("warpgroup", "warp"): "warp",
    ("warp", "thread"): "lane",
    ("cta", "thread"): "thread",
}


@dataclass(frozen=True, eq=False)
class Statement:
    """One statement of a PrimFunc.

    `name` is what it executes, without "tirx.": the intrinsic of a call ("ptx.mbarrier_init"), the tile primitive
    ("tile.copy"), else the kind of node ("store", "if", "for", "declare"). `file` and `line` are its own, or those of the
    statement before it where TVM keeps none.
    """

    path: Path
    node: Any
    name: str
    file: str
    line: int
    calls: Calls = field(repr=False)

    @property
    def args(self) -> list[Any]:
        """Arguments of a call, in the order of its name, or of a tile primitive."""
        if self.name.startswith("tile."):
            return list(self.node.args)
        return self.calls.arguments(self.node.value)

    @property
    def mnemonic(self) -> str:
        """What PTX calls the instruction that it executes; "" if it is none, or if its arguments decide."""
        helper = str(self.args[0].value) if self.name == "cuda.func_call" else ""
        return mnemonic_called(f"tirx.{self.name}", helper)

    @property
    def text(self) -> str:
        """First line of the statement in TVMScript."""
        return statement_text(self.node)

    @property
    def memory(self) -> str:
        """Memory that a store writes."""
        return memory(self.node.buffer)

    @property
    def scopes(self) -> list[str]:
        """Memory of every buffer region of a tile primitive, in order: "global", "shared", "tmem", "local"."""
        return [memory(buffer_of(r)) for r in self.regions]

    @property
    def regions(self) -> list[Any]:
        """Buffer regions among the arguments of a tile primitive, in order (destination first)."""
        if not self.name.startswith("tile."):
            return []
        return [a for a in self.node.args if isinstance(a, Region)]

    @property
    def declares(self) -> bool:
        """Whether it executes nothing. (The declaration of a TMEM buffer reads its address.)"""
        if self.name == "declare":
            return memory(self.node.buffer) != "tmem"
        return type(self.node).__name__ in _DECLARATIONS or self.name == "nothing"

    def mentions(self, variable: Any) -> bool:
        """Whether the variable occurs in it (for an `if`, or a loop: in its condition or bounds)."""
        kind = type(self.node).__name__
        if kind == "IfThenElse":
            roots = [self.node.condition]
        elif kind == "For":
            roots = [self.node.min, self.node.extent]
        else:
            roots = [self.node]
        return any(occurs(variable, root) for root in roots)


@dataclass(frozen=True, eq=False)
class Edit:
    """A rewrite, and the statement at which it is made."""

    statement: Statement
    changes: Changes = field(repr=False)


class Code:
    """A PrimFunc as its statements in program order. The function itself never changes."""

    def __init__(self, func: Any) -> None:
        self.func = func
        self.statements: list[Statement] = []
        self.calls = new_calls()
        self._file, self._line = "", 0
        self._read(func.body, (), "body")
        self._at = {s.path: s for s in self.statements}

    def _read(self, parent: Any, path: Path, slot: str) -> None:
        for i, node in enumerate(_children(parent)):
            inner = _unmarked(node)
            if inner is not node:
                site: Site | None = marked_site(node)
            else:
                site = statement_site(node)
            if site is not None:
                self._file, self._line = site.file, site.line
            here = (*path, (slot, i))
            self.calls.note(inner)
            name = self._name(inner)
            self.statements.append(Statement(here, inner, name, self._file, self._line, self.calls))
            for block in _BLOCKS.get(type(inner).__name__, ()):
                if getattr(inner, block) is not None:
                    self._read(getattr(inner, block), here, block)

    def _name(self, node: Any) -> str:
        kind = type(node).__name__
        if kind == "Evaluate":
            return (
                "nothing"
                if getattr(node.value, "op", None) is None
                else self.calls.name(node.value)
            )
        if isinstance(node, tirx.TilePrimitiveCall):
            return str(node.op.name).removeprefix("tirx.")
        return _NAMES.get(kind, kind)

    # -- finding statements -----------------------------------------------------------------------------------------
    def named(self, *names: str) -> list[Statement]:
        """Statements of these names."""
        return [s for s in self.statements if s.name in names]

    def block(self, s: Statement) -> list[Statement]:
        """The statements of the block that `s` stands in, itself included."""
        *outer, (slot, _) = s.path
        found, i = [], 0
        while (sibling := self._at.get((*outer, (slot, i)))) is not None:
            found.append(sibling)
            i += 1
        return found

    def body(self, s: Statement) -> list[Statement]:
        """The statements directly inside a loop, or inside an `if` when it is taken; empty for others."""
        slots = _BLOCKS.get(type(s.node).__name__)
        first = self._at.get((*s.path, (slots[0], 0))) if slots else None
        return [] if first is None else self.block(first)

    def parent(self, s: Statement) -> Statement | None:
        """The `if`, loop or attribute that `s` stands in."""
        return self._at.get(s.path[:-1])

    def around(self, s: Statement) -> list[Statement]:
        """The statements that `s` stands in, innermost first."""
        return [self._at[s.path[:n]] for n in range(len(s.path) - 1, 0, -1)]

    def enclosing(self, s: Statement, name: str) -> list[Statement]:
        """The statements of that name around `s`, innermost first."""
        return [p for p in self.around(s) if p.name == name]

    def inside(self, s: Statement) -> list[Statement]:
        """Everything in `s`, itself included."""
        n = len(s.path)
        return [t for t in self.statements if t.path[:n] == s.path]

    def previous(self, s: Statement) -> Statement | None:
        """The statement executed before `s` in its block, past declarations."""
        earlier = [t for t in self.block(s) if t.path < s.path and not t.declares]
        return earlier[-1] if earlier else None

    def next(self, s: Statement) -> Statement | None:
        """The statement executed after `s` in its block, past declarations."""
        return next((t for t in self.block(s) if t.path > s.path and not t.declares), None)

    @cached_property
    def indices(self) -> dict[str, list[Any]]:
        """Variables of T.cta_id, T.warpgroup_id, T.warp_id..., T.lane_id by scope: "cta", "warpgroup", "warp", "lane"."""
        found: dict[str, list[Any]] = {}
        for s in self.statements:
            if s.name == "scope":
                definition = getattr(s.node, "def")
                scope = _THREAD_SCOPES.get(_SCOPE_BINDING_TO_PARENT_CUR[definition.scope], "other")
                found.setdefault(scope, []).extend(definition.def_ids)
        return found

    @cached_property
    def scalars(self) -> list[Any]:
        """Buffers of one register: the counters and phases that a kernel declares as `name: T.int32 = 0`."""
        buffers = [s.node.buffer for s in self.statements if type(s.node).__name__ == "AllocBuffer"]
        return [b for b in buffers if memory(b) == "local" and [int(n) for n in b.shape] == [1]]

    # -- edits ------------------------------------------------------------------------------------------------------
    def remove(self, s: Statement) -> Edit:
        """Without `s`; a branch left empty keeps its condition."""
        return Edit(s, {s.path: ()})

    def replace(self, s: Statement, *nodes: Any) -> Edit:
        """`nodes` in the place of `s`; a tile primitive keeps its line by a mark."""
        return Edit(s, {s.path: [marked(n, s) for n in nodes]})

    def double(self, s: Statement) -> Edit:
        """`s` twice in a row."""
        return Edit(s, {s.path: (self.raw(s), self.raw(s))})

    def swap(self, s: Statement, t: Statement) -> Edit:
        """`s` and `t` exchanged."""
        return Edit(s, {s.path: (self.raw(t),), t.path: (self.raw(s),)})

    def move_before(self, s: Statement, t: Statement, instead: Any = None) -> Edit:
        """`s` taken out and put before `t`, which may enclose it; or another node put there in its place."""
        return self._move(s, t, lambda moved, old: (moved if instead is None else instead, old))

    def move_after(self, s: Statement, t: Statement) -> Edit:
        """`s` taken out and put after `t`, which may enclose it."""
        return self._move(s, t, lambda moved, old: (old, moved))

    def move_into(self, s: Statement, t: Statement, first: bool) -> Edit:
        """`s` taken out and put first or last into the block of `t`, an `if` or a loop that does not enclose it."""
        inner = self.body(t)
        target = inner[0] if first else inner[-1]
        return self.move_before(s, target) if first else self.move_after(s, target)

    def unwrap(self, s: Statement) -> Edit:
        """The body of an `if` without its condition."""
        return Edit(s, {s.path: [self.raw(t) for t in self.body(s)]})

    def guard(self, found: Sequence[Statement], condition: Any) -> Edit:
        """Neighbouring statements inside `if condition:`, on the line of the first."""
        first, *rest = found
        body = _sequence([self.raw(s) for s in found], None)
        branch = tirx.IfThenElse(condition, body, None, first.node.span)
        return Edit(first, {**{s.path: () for s in rest}, first.path: [branch]})

    def raw(self, s: Statement) -> Any:
        """The node as it stands, with its line mark if it has one."""
        return _follow(self.func.body, s.path)

    def _move(self, s: Statement, t: Statement, order: Callable[[Any, Any], Any]) -> Edit:
        moved = self.raw(s)
        if s.path[: len(t.path)] != t.path:
            return Edit(s, {s.path: (), t.path: order(moved, self.raw(t))})
        rest = _rebuilt(self.raw(t), {s.path[len(t.path) :]: ()})
        return Edit(s, {t.path: order(moved, rest)})

    def rewritten(self, *edits: Edit) -> Any:
        """A new PrimFunc with the edits made."""
        changes = {path: new for edit in edits for path, new in edit.changes.items()}
        body = _sequence(_replaced(_children(self.func.body), "body", changes), None)
        return self.func.with_body(body)


def together(edits: Iterable[Edit]) -> Iterator[Edit]:
    """All edits as one, at the first of their statements; none if there are none. No two touch the same place."""
    found = list(edits)
    if found:
        yield Edit(found[0].statement, {p: new for e in found for p, new in e.changes.items()})


# -- paths ----------------------------------------------------------------------------------------------------------


def _children(block: Any) -> list[Any]:
    """The statements of a block: a sequence, one statement, or none."""
    if block is None:
        return []
    return list(block.seq) if isinstance(block, tirx.SeqStmt) else [block]


def _sequence(nodes: list[Any], span: Any) -> Any:
    """One statement that executes the nodes in order."""
    if not nodes:
        return tirx.Evaluate(tirx.IntImm("int32", 0))
    return nodes[0] if len(nodes) == 1 else tirx.SeqStmt(nodes, span)


def _unmarked(node: Any) -> Any:
    """The statement inside a line mark."""
    is_mark = isinstance(node, tirx.AttrStmt) and str(node.attr_key) == LINE_MARK
    return node.body if is_mark else node


def _follow(body: Any, path: Path) -> Any:
    (slot, i), *rest = path
    node = _children(body)[i]
    return node if not rest else _follow(getattr(node, rest[0][0]), tuple(rest))


def _replaced(nodes: list[Any], slot: str, changes: dict[Path, Sequence[Any]]) -> list[Any]:
    """The statements of one block after the changes, whose paths begin in it."""
    result: list[Any] = []
    for i, node in enumerate(nodes):
        step = (slot, i)
        own = {p[1:]: new for p, new in changes.items() if p[0] == step}
        if () in own:
            result += own[()]
        elif own:
            result.append(_rebuilt(node, own))
        else:
            result.append(node)
    return result


def _rebuilt(node: Any, changes: dict[Path, Sequence[Any]]) -> Any:
    """The same `if`, loop or attribute with changed blocks; the paths are relative to it."""
    blocks = {}
    for slot in _BLOCKS[type(node).__name__]:
        old = getattr(node, slot)
        if any(path[0][0] == slot for path in changes):
            new = _replaced(_children(old), slot, changes)
            old = _sequence(new, getattr(old, "span", None))
        blocks[slot] = old
    if isinstance(node, tirx.IfThenElse):
        return tirx.IfThenElse(node.condition, blocks["then_case"], blocks["else_case"], node.span)
    body = blocks["body"]
    if isinstance(node, tirx.While):
        return tirx.While(node.condition, body, node.span)
    if isinstance(node, tirx.AttrStmt):
        return tirx.AttrStmt(node.node, node.attr_key, node.value, body, node.span)
    return tirx.For(
        node.loop_var, node.min, node.extent, node.kind, body,
        node.thread_binding, node.annotations, node.step, node.span,
    )  # fmt: skip


_NAMES = {
    "IfThenElse": "if", "For": "for", "While": "while", "BufferStore": "store",
    "AllocBuffer": "allocate", "DeclBuffer": "declare", "ScopeIdDefStmt": "scope", "AttrStmt": "attribute",
}  # fmt: skip
