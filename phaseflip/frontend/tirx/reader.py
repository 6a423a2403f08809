"""The only module that walks or rewrites TVM IR: reading it into `ir.nodes`, and marking statements with user lines."""

from __future__ import annotations

import itertools
import linecache
import re
from typing import Any

from tvm import tirx
from tvm_ffi import structural_map

from ...errors import BadInput, UnsupportedInstruction
from ...ir import nodes as ir
from .dialect import new_reading
from .parameters import by_value
from .places import LINE_MARK, mark_node, marked_site, span_site, statement_site, user_site
from .tvm_names import buffer_of
from .vector_values import lanes, scalar

_JUMPS = {
    "tirx.break_loop": "break",
    "tirx.continue_loop": "continue",
    "tirx.thread_return": "return",
}


_BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Mod": "mod", "FloorDiv": "floordiv",
    "FloorMod": "floormod", "Min": "min", "Max": "max", "EQ": "eq", "NE": "ne", "LT": "lt", "LE": "le",
    "GT": "gt", "GE": "ge", "And": "and", "Or": "or", "LShift": "shl", "RShift": "shr", "BitwiseAnd": "bitand",
    "BitwiseOr": "bitor", "BitwiseXor": "bitxor",
}  # fmt: skip
_BINARY_CALLS = {
    "tirx.shift_left": "shl", "tirx.shift_right": "shr", "tirx.bitwise_and": "bitand",
    "tirx.bitwise_or": "bitor", "tirx.bitwise_xor": "bitxor",
}  # fmt: skip


def mark_lines(func: Any, loops: dict[Any, ir.Site]) -> Any:
    """Return the PrimFunc with every tile primitive marked with its source line; nothing else changes.

    A tile primitive is replaced by library code whose spans name the library's files; an attribute statement around it,
    which carries its line, survives. `loops` is filled with the lines of its loops by variable, for `read_function`:
    passes drop the span of a loop, and keep its variable.
    """

    def note(loop: Any) -> Any:
        site = user_site(loop.span)
        if site is not None:
            loops[loop.loop_var] = site
        return loop

    def mark(call: Any) -> Any:
        site = span_site(call.span)
        if site is None:
            return call
        line = tirx.IntImm("int32", site.line)
        return tirx.AttrStmt(mark_node(site.file, site.callers), LINE_MARK, line, call)

    changes = [(tirx.For, note), (tirx.TilePrimitiveCall, mark)]
    return func.with_body(structural_map(func.body, changes))


def unmark_lines(func: Any) -> Any:
    """Return the PrimFunc without line marks."""

    def unmark(s: Any) -> Any:
        return s.body if str(s.attr_key) == LINE_MARK else s

    return func.with_body(structural_map(func.body, (tirx.AttrStmt, unmark)))


def function_parameters(func: Any) -> list[tuple[str, str, tuple[int, ...] | None]]:
    """(name, dtype, shape) of every parameter of a PrimFunc, in order; the shape of a number passed by value is None.

    BadInput for a parameter that is neither a buffer nor a number that TVM's runtime can pass to a kernel.
    """
    found: list[tuple[str, str, tuple[int, ...] | None]] = []
    for param in func.params:
        if not hasattr(param, "shape"):
            found.append((str(param.name), by_value(str(param.name), _dtype(param.ty)), None))
            continue
        shape = []
        for extent in param.shape:
            if not isinstance(extent, tirx.IntImm):
                raise BadInput(
                    f"parameter {param.name} of the kernel has the symbolic shape {param.shape}; "
                    "build the kernel with integer extents"
                )
            shape.append(int(extent))
        found.append((str(param.name), str(param.dtype), tuple(shape)))
    return found


def read_function(func: Any, loops: dict[Any, ir.Site]) -> ir.Function:
    """Read one lowered PrimFunc (host or device part) into plain Python values; `loops` is that of `mark_lines`.

    Raises UnsupportedInstruction, naming node and line, for IR that the simulator gives no meaning to.
    """
    return _Reader(loops).function(func)


class _Reader:
    def __init__(self, loops: dict[Any, ir.Site]) -> None:
        self.loops = loops
        self.vars: dict[Any, ir.Var] = {}
        self.lets: dict[Any, ir.Expr] = {}
        self.buffers: dict[Any, ir.Buffer] = {}
        self.site = ir.Site()
        self.marked = False
        self.extents: dict[str, int] = {}
        self.axes: dict[str, ir.Var] = {}
        self.unnamed = itertools.count(1)
        self.reading = new_reading()

    def function(self, func: Any) -> ir.Function:
        params = [self.var(p) for p in func.params]
        body = self.block(func.body)
        attrs, key = func.attrs, "tirx.kernel_launch_params"
        launch = attrs[key] if key in attrs.keys() else []
        return ir.Function(
            str(attrs["global_symbol"]),
            params,
            body,
            [str(p) for p in launch],
            self.extents,
            self.axes,
        )

    # -- names ------------------------------------------------------------------------------------------------------
    def var(self, v: Any) -> ir.Var:
        found = self.vars.get(v)
        if found is None:
            found = self.vars[v] = ir.Var(str(v.name), _dtype(v.ty))
        return found

    def buffer(self, b: Any) -> ir.Buffer:
        found = self.buffers.get(b)
        if found is None:
            raise UnsupportedInstruction(
                f"{self.site}: buffer {b.name} is used but nowhere declared"
            )
        return found

    def declare(self, b: Any, data: Any) -> ir.Buffer:
        elements: int | None = 1
        for extent in b.shape:
            elements = (
                elements * int(extent)
                if elements is not None and isinstance(extent, tirx.IntImm)
                else None
            )
        name, scope = self.name(b), str(b.scope())
        new = ir.Buffer(name, str(b.dtype), elements, scope, align_bytes=int(b.data_alignment))
        if data is not None:
            base = self.expr(data)
            if (
                isinstance(base, ir.Address)
                and isinstance(base.index, ir.Const)
                and base.index.value == 0
            ):
                new.storage = base.buffer
            elif isinstance(base, ir.Var):
                new.parameter = base
            else:
                new.address = base
        self.buffers[b] = new
        return new

    def name(self, b: Any) -> str:
        """Its name in the IR, but `full` where the user wrote `full.init(1)`.

        TVM's classes of barriers leave their arrays unnamed, or name them after their attribute (full_buf).
        """
        site = user_site(b.span) or ir.Site()
        found = re.match(r"\s*(\w+)\.init\(", linecache.getline(site.file, site.line))
        if found is not None and str(b.name) in ("", f"{found[1]}_buf"):
            if not any(other.name == found[1] for other in self.buffers.values()):
                return found[1]
        return str(b.name) or f"(unnamed {next(self.unnamed)})"

    # -- statements -------------------------------------------------------------------------------------------------
    def block(self, stmt: Any) -> list[ir.Stmt]:
        out: list[ir.Stmt] = []
        if stmt is not None:
            self.statement(stmt, out)
        return out

    def statement(self, s: Any, out: list[ir.Stmt]) -> None:
        kind = type(s).__name__
        if kind == "SeqStmt":
            for child in s.seq:
                self.statement(child, out)
            return
        handler = getattr(self, "read_" + kind, None)
        if handler is None:
            raise UnsupportedInstruction(
                f"{self.site}: the simulator has no meaning for the TIR statement {kind}"
            )
        if not self.marked:
            loop = self.loops.get(s.loop_var) if kind == "For" else None
            self.site = statement_site(s) or loop or self.site
        handler(s, out)

    def read_AttrStmt(self, s: Any, out: list[ir.Stmt]) -> None:
        key = str(s.attr_key)
        if key == LINE_MARK and not self.marked:
            self.site, self.marked = marked_site(s), True
            self.statement(s.body, out)
            self.marked = False
            return
        if key == "thread_extent":
            tag = str(s.node.thread_tag)
            if not isinstance(s.value, tirx.IntImm):
                raise UnsupportedInstruction(f"{self.site}: the extent of {tag} is not a constant")
            self.extents[tag] = int(s.value)
            if tag in self.axes:
                out.append(ir.Let(self.var(s.node.var), self.axes[tag], self.site))
            else:
                self.axes[tag] = self.var(s.node.var)
        self.statement(s.body, out)

    def read_Bind(self, s: Any, out: list[ir.Stmt]) -> None:
        var, value = self.var(s.var), self.expr(s.value)
        self.reading.bound(var, value)
        out.append(ir.Let(var, value, self.site))

    def read_AllocBuffer(self, s: Any, out: list[ir.Stmt]) -> None:
        out.append(ir.Allocate(self.declare(s.buffer, None), self.site))

    def read_DeclBuffer(self, s: Any, out: list[ir.Stmt]) -> None:
        if str(s.buffer.scope()) == "tmem":
            # TMEM is reached by address only. But the CUDA code reads that address, from shared memory, here.
            out.append(ir.Let(ir.Var(str(s.buffer.name), "uint32"), self.expr(s.data), self.site))
        else:
            self.declare(s.buffer, s.data)

    def read_BufferStore(self, s: Any, out: list[ir.Stmt]) -> None:
        buffer, index = self.buffer(s.buffer), self.index(s.indices)
        self.reading.stored(buffer, index)
        out.append(ir.Store(buffer, index, self.expr(s.value), self.site))

    def read_Evaluate(self, s: Any, out: list[ir.Stmt]) -> None:
        value = self.expr(s.value)
        if isinstance(value, ir.Call) and value.name in _JUMPS:
            out.append(ir.Jump(_JUMPS[value.name], self.site))
        elif isinstance(value, ir.Call):
            out.extend(self.reading.statements(value))

    def read_AssertStmt(self, s: Any, out: list[ir.Stmt]) -> None:
        message = "".join(str(p.value) for p in s.message_parts)
        kind = s.error_kind.value
        out.append(ir.Assert(self.expr(s.condition), str(kind), message, self.site))

    def read_IfThenElse(self, s: Any, out: list[ir.Stmt]) -> None:
        condition, site = self.expr(s.condition), self.site
        out.append(ir.If(condition, self.block(s.then_case), self.block(s.else_case), site))

    def read_For(self, s: Any, out: list[ir.Stmt]) -> None:
        var, start, extent = self.var(s.loop_var), self.expr(s.min), self.expr(s.extent)
        site = self.site
        if s.thread_binding is not None:
            raise UnsupportedInstruction(
                f"{site}: a loop bound to {s.thread_binding.thread_tag} survived lowering"
            )
        step = self.expr(s.step) if getattr(s, "step", None) is not None else ir.Const(1, var.dtype)
        out.append(ir.For(var, start, extent, step, self.block(s.body), site))

    def read_While(self, s: Any, out: list[ir.Stmt]) -> None:
        condition, site = self.expr(s.condition), self.site
        out.append(ir.While(condition, self.block(s.body), site))

    def read_Break(self, s: Any, out: list[ir.Stmt]) -> None:
        out.append(ir.Jump("break", self.site))

    def read_Continue(self, s: Any, out: list[ir.Stmt]) -> None:
        out.append(ir.Jump("continue", self.site))

    def read_Return(self, s: Any, out: list[ir.Stmt]) -> None:
        out.append(ir.Jump("return", self.site))

    # -- expressions ------------------------------------------------------------------------------------------------
    def index(self, indices: Any) -> ir.Expr:
        if len(indices) != 1:
            raise UnsupportedInstruction(
                f"{self.site}: a buffer access with {len(indices)} indices survived lowering"
            )
        return self.expr(indices[0])

    def expr(self, e: Any) -> ir.Expr:
        kind = type(e).__name__
        op = _BINARY.get(kind)
        if op is not None:
            return ir.Binary(op, self.expr(e.a), self.expr(e.b), _dtype(e.ty))
        if kind == "Var":
            return self.lets.get(e) or self.var(e)
        if kind == "Let":
            self.lets[e.var] = self.expr(e.value)  # values have no side effects: substituted
            return self.expr(e.body)
        if kind == "IntImm":
            dtype = _dtype(e.ty)
            return ir.Const(bool(e.value) if dtype == "bool" else int(e.value), dtype)
        if kind == "FloatImm":
            return ir.Const(float(e.value), _dtype(e.ty))
        if kind == "StringImm":
            return ir.Const(str(e.value), "str")
        if kind in ("BufferLoad", "TensorLoad"):
            return ir.Load(self.buffer(buffer_of(e)), self.index(e.indices), _dtype(e.ty))
        if kind == "Cast":
            return ir.Cast(self.expr(e.value), _dtype(e.ty))
        if kind == "BitwiseNot":
            return ir.Unary("bitnot", self.expr(e.a), _dtype(e.ty))
        if kind == "Not":
            return ir.Unary("not", self.expr(e.a), "bool")
        if kind == "Select":
            branches = (self.expr(e.true_value), self.expr(e.false_value))
            return ir.Select(self.expr(e.condition), *branches, _dtype(e.ty), lazy=False)
        if kind == "Ramp":
            return ir.Vector(self.expr(e.base), self.expr(e.stride), int(e.lanes), _dtype(e.ty))
        if kind == "Broadcast":
            return ir.Vector(self.expr(e.value), None, int(e.lanes), _dtype(e.ty))
        if kind == "Call":
            return self.call(e)
        if kind == "Shuffle":
            found = lanes(e, self.expr)
            if found is not None and len(found) == 1:
                return found[0]
        raise UnsupportedInstruction(
            f"{self.site}: the simulator has no meaning for the TIR expression {kind}"
        )

    def call(self, e: Any) -> ir.Expr:
        name = str(e.op.name) if hasattr(e.op, "name") else str(e.op.name_hint)
        name = re.sub("^prim[.]", "tirx.", name)  # where TVM 0.27 keeps if_then_else and its like
        if name in _BINARY_CALLS:
            return ir.Binary(
                _BINARY_CALLS[name], self.expr(e.args[0]), self.expr(e.args[1]), _dtype(e.ty)
            )
        if name == "tirx.bitwise_not":
            return ir.Unary("bitnot", self.expr(e.args[0]), _dtype(e.ty))
        if name == "tirx.if_then_else":
            condition, a, b = (self.expr(x) for x in e.args)
            return ir.Select(condition, a, b, _dtype(e.ty), lazy=True)
        if name == "tirx.reinterpret":
            whole = scalar(e, self.expr)
            return whole or ir.Cast(self.expr(e.args[0]), _dtype(e.ty), bits=True)
        if name == "tirx.address_of":
            load = self.expr(e.args[0])
            if isinstance(load, ir.Var):
                return load  # a tensor map parameter stands for its address
            if not isinstance(load, ir.Load):
                raise UnsupportedInstruction(
                    f"{self.site}: address_of something that is no buffer element"
                )
            return ir.Address(load.buffer, load.index)
        if name == "tirx.buffer_data":
            return ir.Address(self.buffer(e.args[0]), ir.Const(0, "int32"))
        call = ir.Call(name, [self.expr(a) for a in e.args], _dtype(e.ty), self.site)
        return self.reading.expression(call)


def _dtype(ty: Any) -> str:
    """ "handle" for pointers, "void" for no value, else the element type as TVM writes it ("float16", "int32x4")."""
    name = type(ty).__name__
    if name == "PrimType":
        return str(ty.dtype)
    if name == "PointerType":
        return "handle"
    return "void"
