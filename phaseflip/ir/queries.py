"""Questions about the device IR: what a statement evaluates, what an expression reads, which loops are straight code."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

from . import nodes as ir
from .instruction import INLINE, REGISTRY, Decoded, traits_of


def observable(e: Any) -> bool:
    """Whether evaluating the expression reads memory or executes an instruction."""
    if isinstance(e, (ir.Load, ir.Call)):
        return True
    return any(observable(child) for child in children(e))


def children(e: Any) -> list[Any]:
    """Direct subexpressions."""
    if isinstance(e, ir.Binary):
        return [e.a, e.b]
    if isinstance(e, (ir.Unary, ir.Cast)):
        return [e.a]
    if isinstance(e, ir.Select):
        return [e.condition, e.a, e.b]
    if isinstance(e, (ir.Load, ir.Address)):
        return [e.index] + ([e.buffer.root.address] if e.buffer.root.address is not None else [])
    if isinstance(e, ir.Call):
        return list(e.args)
    if isinstance(e, ir.Vector):
        return [e.base] + ([e.stride] if e.stride is not None else [])
    return []


def waits(e: Any) -> bool:
    """Whether an expression contains an instruction that ends a basic block."""
    if isinstance(e, ir.Call) and ends_block(e.decoded):
        return True
    return any(waits(child) for child in children(e))


def ends_block(decoded: Decoded) -> bool:
    """Whether the instruction may wait, or needs operands that are the same for all lanes."""
    if decoded.mnemonic in INLINE:
        return False
    definition = REGISTRY[decoded.mnemonic]
    return definition.waits or bool(definition.uniform)


def walk(body: list[ir.Stmt]) -> list[ir.Stmt]:
    """All statements, nested ones included."""
    found: list[ir.Stmt] = []
    for s in body:
        found.append(s)
        if isinstance(s, ir.If):
            found += walk(s.then) + walk(s.orelse)
        elif isinstance(s, (ir.For, ir.While)):
            found += walk(s.body)
    return found


def roots(s: ir.Stmt) -> list[Any]:
    """The expressions that a statement evaluates itself."""
    if isinstance(s, ir.Let):
        return [s.value]
    if isinstance(s, ir.Store):
        return [s.index, s.value]
    if isinstance(s, ir.Evaluate):
        return [s.call]
    if isinstance(s, (ir.If, ir.While)):
        return [s.condition]
    if isinstance(s, ir.For):
        return [s.start, s.extent, s.step]
    return []


def plain(body: list[ir.Stmt]) -> bool:
    """Whether a loop body can be one straight piece of Python: no branch, no jump, nothing that ends a block."""
    for s in body:
        if isinstance(s, (ir.If, ir.While, ir.Jump)):
            return False
        if isinstance(s, ir.For) and not (constant_range(s) and plain(s.body)):
            return False
        for e in roots(s):
            if waits(e) or _branches(e):
                return False
    return True


def constant_range(s: ir.For) -> bool:
    """Whether all lanes run the same iterations, known at translation."""
    return all(isinstance(e, ir.Const) for e in (s.start, s.extent, s.step))


def _branches(e: Any) -> bool:
    if isinstance(e, ir.Select) and e.lazy and (observable(e.a) or observable(e.b)):
        return True
    if isinstance(e, ir.Binary) and e.op in ("and", "or") and observable(e.b):
        return True
    return any(_branches(child) for child in children(e))


def shared_uses(e: Any) -> list[tuple[ir.Buffer, int | None]]:
    """(buffer, constant part of the index) of every element of the CTA's own shared memory that an expression mentions.

    None for an index that is computed unusually, such as 1 - x.
    """
    found = [use for child in children(e) for use in shared_uses(child)]
    if isinstance(e, (ir.Load, ir.Address)) and e.buffer.root.own_shared:
        index = e.index
        if isinstance(index, ir.Binary) and index.op == "add" and isinstance(index.b, ir.Const):
            index = index.b
        found.append((e.buffer, value_at_zero(index, {})))
    return found


def shared_reads(s: ir.Stmt) -> Iterator[ir.Buffer]:
    """The allocations of shared memory that a statement itself reads, or takes an address in."""
    mentioned = roots(s)
    for e in mentioned:
        mentioned += children(e)
        if isinstance(e, (ir.Load, ir.Address)) and e.buffer.root.own_shared:
            yield e.buffer.root


def shared_in_order(body: list[ir.Stmt]) -> Iterator[ir.Buffer]:
    """The allocations of shared memory: those of a scope in the order of the text, then those of the scopes in it."""
    for s in body:
        if isinstance(s, ir.Allocate) and s.buffer.scope.startswith("shared"):
            yield s.buffer
    for s in body:
        if isinstance(s, ir.If):
            yield from shared_in_order(s.then)
            yield from shared_in_order(s.orelse)
        elif isinstance(s, (ir.For, ir.While)):
            yield from shared_in_order(s.body)


_INTEGER = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "shl": operator.lshift, "shr": operator.rshift,
    "bitand": operator.and_, "bitor": operator.or_, "bitxor": operator.xor,
}  # fmt: skip


def value_at_zero(e: Any, lets: dict[ir.Var, Any]) -> int | None:
    """An index where every variable is 0, but those that `lets` binds to an index; None if it is computed unusually."""
    if isinstance(e, ir.Const):
        return int(e.value)
    if isinstance(e, ir.Cast):
        return value_at_zero(e.a, lets)
    if isinstance(e, ir.Var):
        return (value_at_zero(lets[e], lets) if e in lets else 0) or 0
    if isinstance(e, ir.Binary) and e.op in _INTEGER:
        a, b = value_at_zero(e.a, lets), value_at_zero(e.b, lets)
        return None if a is None or b is None else int(_INTEGER[e.op](a, b))
    return None


def private_loads(function: ir.Function) -> dict[ir.Load, str]:
    """Plain loads under which nvcc takes global memory for private to the thread, and as what: see `Place.private`.

    TVM's CUDA code declares every pointer parameter `__restrict__`. nvcc believes that up to the first instruction, in the
    order of the program, that is given the pointer: TVM writes instructions as inline assembly, which may do anything.
    """
    parameters = set(function.params)
    stored: set[Any] = set()
    given_anywhere: set[Any] = set()
    for s in walk(function.body):
        for e in roots(s):
            _collect_given(e, given_anywhere)
        if isinstance(s, ir.Store):
            stored.add(s.buffer.root.parameter)
    loads: dict[ir.Load, str] = {}

    def visit(body: list[ir.Stmt], given: set[Any]) -> None:
        for s in body:
            for e in roots(s):
                for load in _loads(e):
                    pointer = load.buffer.root.parameter
                    if pointer in parameters and pointer not in given:
                        changed = pointer in stored or pointer in given_anywhere
                        loads[load] = "restrict" if changed else "read-only"
                _collect_given(e, given)
            if isinstance(s, ir.If):
                taken = set(given)
                visit(s.then, taken)
                visit(s.orelse, given)
                given |= taken
            elif isinstance(s, (ir.For, ir.While)):
                visit(s.body, given)

    visit(function.body, set())
    return loads


def written_parameters(function: ir.Function) -> set[ir.Var]:
    """Pointers and tensor maps that the function stores through, itself or by an instruction that is given one."""
    parameters = set(function.params)
    written: set[Any] = set()
    behind: dict[ir.Var, set[Any]] = {}  # what a variable that holds a pointer was computed from
    for s in walk(function.body):
        if isinstance(s, ir.Let) and s.var.dtype == "handle":
            behind[s.var] = set()
            _collect_given(s.value, behind[s.var])
        if isinstance(s, ir.Store):
            written.add(s.buffer.root.parameter)
        for call in calls(*roots(s)):
            if traits_of(call.decoded.mnemonic).stores_global:
                _collect_given(call, written)
    for var, pointers in reversed(behind.items()):
        if var in written:
            written |= pointers
    return written & parameters


def calls(*expressions: Any) -> Iterator[ir.Call]:
    """All calls in expressions."""
    for e in expressions:
        if isinstance(e, ir.Call):
            yield e
        yield from calls(*children(e))


def _loads(e: Any) -> list[ir.Load]:
    """All plain loads in an expression."""
    found = [load for child in children(e) for load in _loads(child)]
    return [*found, e] if isinstance(e, ir.Load) else found


def _collect_given(e: Any, given: set[Any]) -> None:
    """Add the pointers whose value an expression takes: into an instruction, or where this does not follow them."""
    if isinstance(e, ir.Var):
        given.add(e)
    elif isinstance(e, ir.Address) and e.buffer.root.parameter is not None:
        given.add(e.buffer.root.parameter)
    for child in children(e):
        _collect_given(child, given)


def same_value(a: Any, b: Any) -> bool:
    """Whether two expressions surely have one value where they stand: they are alike, and nothing in them can change."""
    if type(a) is not type(b) or isinstance(a, (ir.Load, ir.Call, ir.Vector)):
        return False
    if isinstance(a, ir.Var):
        return a is b
    if isinstance(a, ir.Const):
        return bool(a == b)
    if isinstance(a, ir.Address) and a.buffer is not b.buffer:
        return False
    alike = all(getattr(a, name, "") == getattr(b, name, "") for name in ("op", "dtype", "bits"))
    pairs = zip(children(a), children(b), strict=True)
    return alike and all(same_value(x, y) for x, y in pairs)


def collect_indexed(e: Any, found: set[ir.Buffer]) -> None:
    """Add each buffer that is indexed by a variable, viewed as another type, or has its address taken."""
    if isinstance(e, ir.Address):
        found.add(e.buffer.root)
    elif isinstance(e, ir.Load) and not (
        isinstance(e.index, ir.Const) and e.buffer.dtype == e.buffer.root.dtype
    ):
        found.add(e.buffer.root)
    elif isinstance(e, ir.Call):
        for operand in e.decoded.operands.values():
            for item in operand if isinstance(operand, list) else [operand]:
                collect_indexed(item, found)
        return
    for child in children(e):
        collect_indexed(child, found)
