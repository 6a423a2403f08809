"""Parts of TIR for edits: questions about expressions, and new nodes from old ones that keep the old one's span."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tvm import DataType, tirx
from tvm.ir import Call, Range
from tvm_ffi import structural_map, structural_walk

from ..places import LINE_MARK
from ..reader import unmark_lines
from ..tvm_names import Analyzer, StringImm, buffer_of
from .calls import new_calls

if TYPE_CHECKING:
    from .code import Statement


def memory(buffer: Any) -> str:
    """ "global", "shared", "tmem" or "local"."""
    scope = str(buffer.scope())
    return "shared" if scope.startswith("shared") else scope or "global"


def occurs(variable: Any, node: Any) -> bool:
    """Whether a variable or buffer occurs anywhere in a statement or expression."""
    found: list[Any] = []
    structural_walk(node, (tirx.Var, lambda v: found.append(v) if v.same_as(variable) else None))
    return bool(found)


def upper_bound(condition: Any, register: Any) -> int | None:
    """The constant that the value of a register is less than, somewhere in the condition."""
    found = []

    def visit(n: Any) -> None:
        if occurs(register, n.a) and integer(n.b) is not None:
            found.append(integer(n.b))

    structural_walk(condition, (tirx.LT, visit))
    return found[0] if found else None


def with_upper_bound(condition: Any, bound: int) -> Any:
    """register < constant, with another constant."""
    return tirx.LT(condition.a, number(condition.b, bound))


def guarded(node: Any, condition: Any) -> Any:
    """`if condition:` around a node, on its line."""
    return tirx.IfThenElse(condition, node, None, node.span)


def value_of(register: Any) -> Any:
    """What a register holds."""
    return tirx.BufferLoad(register, [int32(0)])


def calls(node: Any, name: str) -> bool:
    """Whether an expression calls the intrinsic of that name ("ptx.elect_sync")."""
    found = []
    known = new_calls()

    def visit(call: Any) -> None:
        if known.name(call) == name:
            found.append(call)

    structural_walk(node, (Call, visit))
    return bool(found)


def integer(e: Any) -> int | None:
    """The value of a constant, also of a Python one; None for another expression."""
    if isinstance(e, bool | int):
        return int(e)
    return int(e.value) if isinstance(e, tirx.IntImm) else None


def with_argument(s: Statement, i: int, value: Any) -> Any:
    """The node of a call with its i-th argument replaced (an int takes the dtype of the old one)."""
    old = s.args[i]
    new = tirx.IntImm(old.ty.dtype, value) if isinstance(value, int) else value
    return with_operands(s, {i: new})


def with_operands(s: Statement, values: Mapping[int, Any]) -> Any:
    """The node of a call or of a tile primitive with the arguments at these positions replaced."""
    if s.name.startswith("tile."):
        return s.node.replace(args=[values.get(i, old) for i, old in enumerate(s.args)])
    args = s.calls.with_arguments(s.node.value, values)
    return tirx.Evaluate(rebuilt_call(s.node.value, args), s.node.span)


def with_barrier(s: Statement, address: Any) -> Any:
    """The node of a TMA load that arrives on another mbarrier."""
    return s.node.replace(config={**s.node.config, "mbar": address})


def with_scope(s: Statement, scope: str) -> Any:
    """The node of a tile primitive run by the threads of another scope ("warp", "warpgroup", "cta")."""
    return s.node.replace(scope=tirx.exec_scope.ExecScope(scope))


def with_condition(s: Statement, condition: Any) -> Any:
    """The node of an `if` or a `while` under another condition."""
    node = s.node
    if isinstance(node, tirx.While):
        return tirx.While(condition, node.body, node.span)
    return tirx.IfThenElse(condition, node.then_case, node.else_case, node.span)


def with_value(s: Statement, value: Any) -> Any:
    """The node of a store of another value."""
    predicate = getattr(s.node, "predicate", None)  # TVM 0.27 has none
    more = {} if predicate is None else {"predicate": predicate}
    return tirx.BufferStore(s.node.buffer, value, s.node.indices, span=s.node.span, **more)


def with_range(s: Statement, start: Any, extent: Any) -> Any:
    """The node of a loop over another range."""
    n = s.node
    return tirx.For(
        n.loop_var, start, extent, n.kind, n.body, n.thread_binding, n.annotations, n.step, n.span
    )  # fmt: skip


def with_name(s: Statement, name: str, args: Iterable[Any] = ()) -> Any:
    """A call of another intrinsic in the place of a call."""
    return tirx.Evaluate(Call(f"tirx.{name}", list(args), ret_ty=s.node.value.ty), s.node.span)


def exchanged(node: Any, variables: Mapping[Any, Any]) -> Any:
    """The node with variables (or buffers) replaced; it keeps its spans."""
    return structural_map(node, (tirx.Var, lambda v: variables.get(v, v)))


def evaluated(e: Any, values: Mapping[Any, int]) -> Any:
    """The expression for constant values of some variables, folded."""
    constants = {v: number(v, value) for v, value in values.items()}
    return Analyzer().simplify(exchanged(e, constants))


def rebuilt_call(call: Any, args: Sequence[Any]) -> Any:
    """The same call with other arguments."""
    return Call(call.op, list(args), attrs=call.attrs, span=call.span, ret_ty=call.ty)


def negated(condition: Any) -> Any:
    """Not the condition."""
    for kind, opposite in ((tirx.EQ, tirx.NE), (tirx.NE, tirx.EQ)):
        if isinstance(condition, kind):
            return opposite(condition.a, condition.b)
    dtype = str(condition.ty.dtype)
    return tirx.Not(condition if dtype == "bool" else tirx.NE(condition, tirx.IntImm(dtype, 0)))


def equal(variable: Any, value: int) -> Any:
    """variable == value"""
    return tirx.EQ(variable, tirx.IntImm(variable.ty.dtype, value))


def both(a: Any, b: Any) -> Any:
    """a and b"""
    return tirx.And(a, b)


def truth(value: bool) -> Any:
    """A constant condition."""
    return tirx.IntImm("bool", int(value))


def chosen(cases: Sequence[tuple[Any, Any]], otherwise: Any) -> Any:
    """The first value whose condition holds, else `otherwise`."""
    result = otherwise
    for condition, value in reversed(cases):
        result = tirx.Select(condition, value, result)
    return result


def number(like: Any, value: int) -> Any:
    """A constant of the dtype of the expression `like`."""
    return tirx.IntImm(like.ty.dtype, value)


def moved_element(address: Any, step: int) -> Any:
    """address_of(buffer[i]) -> address_of(buffer[i + step]); None for another expression.

    An index that is no constant stays in the array: it goes round.
    """
    if not (isinstance(address, Call) and address.op.name == "tirx.address_of"):
        return None
    load = address.args[0]
    *rows, last = load.indices
    index = integer(last)
    if index is None:
        extent = buffer_of(load).shape[-1]
        moved = tirx.floormod(last + number(last, step), number(last, int(extent)))
    elif index + step < 0:
        return None
    else:
        moved = number(last, index + step)
    return rebuilt_call(address, [tirx.BufferLoad(buffer_of(load), [*rows, moved])])


def at_element(address: Any, i: int) -> Any:
    """address_of(buffer[...]) -> address_of(buffer[i])"""
    load = address.args[0]
    element = tirx.BufferLoad(buffer_of(load), [number(load.indices[0], i)])
    return rebuilt_call(address, [element])


def region_of(region: Any, buffer: Any) -> Any:
    """The same ranges of another buffer."""
    return tirx.BufferRegion(buffer, list(region.region))


def with_last_extent(region: Any, extent: int) -> Any:
    """The region with another number of columns."""
    *rows, columns = region.region
    return tirx.BufferRegion(
        buffer_of(region),
        [*rows, Range.from_min_extent(columns.min, number(columns.extent, extent))],
    )


def with_column(region: Any, step: Any) -> Any:
    """The region that begins `step` columns further."""
    *rows, columns = region.region
    moved = Range.from_min_extent(columns.min + step, columns.extent)
    return tirx.BufferRegion(buffer_of(region), [*rows, moved])


def region_bytes(region: Any) -> int:
    """Size of a region of constant extents."""
    count = element_bytes(buffer_of(region))
    for r in region.region:
        count *= int(r.extent)
    return count


def redeclared(
    declaration: Any,
    *,
    shape: Sequence[int] | None = None,
    elem_offset: int | None = None,
    layout: Any = None,
    name: str = "",
) -> Any:
    """A DeclBuffer of the same memory under a new buffer variable, with another shape, offset (elements) or layout."""
    old = declaration.buffer
    new = tirx.decl_buffer(
        old.shape if shape is None else shape,
        old.dtype,
        name or str(old.name),
        elem_offset=old.elem_offset if elem_offset is None else elem_offset,
        scope=old.scope(),
        data_alignment=old.data_alignment,
        layout=old.layout if layout is None else layout,
    )
    return tirx.DeclBuffer(new, declaration.span, data=declaration.data)


def marked(node: Any, s: Statement) -> Any:
    """A new tile primitive with the line of `s`: TVM's constructor takes no span."""
    if type(node).__name__ != "TilePrimitiveCall" and not isinstance(node, tirx.TilePrimitiveCall):
        return node
    if node.span is not None:
        return node
    return tirx.AttrStmt(StringImm(s.file), LINE_MARK, tirx.IntImm("int32", s.line), node)


def script(func: Any) -> str:
    """The PrimFunc in TVMScript, without line marks."""
    return str(unmark_lines(func).script())


def statement_text(node: Any) -> str:
    """The first line that executes something of a statement printed as TVMScript."""
    lines = str(node.script()).splitlines()
    kept = [line for line in lines if line and not _IS_HEADER(line)]
    return kept[0].strip() if kept else ""


_IS_HEADER = re.compile(r"# |\w+ = T\.(Buffer\(|u?int\d+\(|float\d+\()|metadata").match
"""Lines by which TVM declares the free variables of a printed statement."""


def elements(buffer: Any) -> int:
    """Number of elements of a buffer of constant shape."""
    count = 1
    for extent in buffer.shape:
        count *= int(extent)
    return count


def element_bytes(buffer: Any) -> int:
    """Size of one element."""
    return DataType(str(buffer.dtype)).bits // 8


def swizzled_layout(buffer: Any, swizzle_bytes: int) -> Any:
    """The shared-memory layout of an MMA operand of the buffer's shape and dtype, with another swizzle."""
    from tvm.backend.cuda.tile_primitive.tma_utils import SwizzleMode, mma_shared_layout

    mode = SwizzleMode[f"SWIZZLE_{swizzle_bytes}B_ATOM"]
    shape = [int(extent) for extent in buffer.shape]
    return mma_shared_layout(DataType(str(buffer.dtype)), mode, shape)


def plain_layout(shape: Sequence[int], stage_elements: int) -> Any:
    """Rows of a tile one after the other, not swizzled; with a leading stage, stages begin every `stage_elements`."""
    from tvm.tirx.layout import S, TileLayout

    strides = (stage_elements, shape[-1], 1)[-len(shape) :]
    return TileLayout(S[tuple(shape) : strides])


def flipped(parity: Any) -> Any:
    """The other parity."""
    return tirx.bitwise_xor(parity, number(parity, 1))


def text(value: str) -> Any:
    """A constant string."""
    return StringImm(value)


def int32(value: int) -> Any:
    """A constant."""
    return tirx.IntImm("int32", value)
