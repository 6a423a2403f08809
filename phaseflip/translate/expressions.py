"""Expressions of the device IR as Python source over lanes.

Variables are Python locals: `v7` holds slot 7, loaded from the group's registers where a block first needs it. Reading
memory, or any call, is a statement of its own, so that order is kept; the rest nests.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..errors import UnsupportedInstruction
from ..ir import nodes as ir
from ..ir.arithmetic import is_float
from ..ir.instruction import Decoded, dtype_size
from ..ir.queries import observable
from ..machine.memory.load_store import LOCAL_BASE
from .layout import Layout

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
    "shl": "<<", "shr": ">>", "bitand": "&", "bitor": "|", "bitxor": "^", "floordiv": "//", "floormod": "%",
    "and": "&", "or": "|",
}  # fmt: skip
_WRAPS = {"add", "sub", "mul", "shl"}
_PARTIAL = {
    "shl": "shift_left",
    "shr": "shift_right",
    "floordiv": "floordiv",
    "floormod": "floormod",
}
"""Operators that Python refuses for some right sides: called, unless that side is a positive constant."""
_CALLED = {"min": "minimum", "max": "maximum", "div": "truncdiv", "mod": "truncmod"}


class Emitter(Protocol):
    """The part of the translator that expressions need."""

    layout: Layout

    def line(self, text: str) -> None: ...
    def use(self, slot: int) -> str: ...
    def define(self, slot: int, text: str) -> str: ...
    def constant(self, value: Any) -> str: ...
    def counted(self, mnemonic: str, site: ir.Site, times: int = 1, private: str = "") -> str: ...
    def place(self, mnemonic: str, site: ir.Site) -> str: ...
    def shared_base(self) -> str: ...
    def branch_value(self, select: ir.Select) -> str: ...
    def instruction(self, decoded: Decoded, site: ir.Site, wants_value: bool) -> str: ...


class ExpressionWriter:
    """Turns expressions into source text; `site` is the line of the statement that they belong to.

    private: what nvcc takes for granted under plain loads (`ir_queries.private_loads`).
    """

    def __init__(self, emitter: Emitter, private: dict[ir.Load, str]) -> None:
        self.out, self.private = emitter, private
        self.site = ir.Site()

    def text(self, e: Any) -> str:
        """Source text of the value of an expression."""
        text = self.plain_text(e)
        if isinstance(e, (ir.Var, ir.Load, ir.Select)) and e.dtype == "uint64":
            return f"unsigned64({text})"
        return text

    def plain_text(self, e: Any) -> str:
        """The same, but for the carrier of 64-bit unsigned values."""
        if isinstance(e, ir.Const):
            return repr(e.value) if not is_float(e.dtype) else self.float_constant(e)
        if isinstance(e, ir.Var):
            return self.out.use(self.out.layout.slot(e))
        if isinstance(e, ir.Binary):
            return self.binary(e)
        if isinstance(e, ir.Load):
            return self.load(e)
        if isinstance(e, ir.Address):
            return self.address(e.buffer, e.index)
        if isinstance(e, ir.Unary):
            return (
                f"({self.text(e.a)} ^ True)"
                if e.op == "not"
                else self.wrap(f"(~{self.text(e.a)})", e.dtype)
            )
        if isinstance(e, ir.Cast):
            return self.cast(e)
        if isinstance(e, ir.Select):
            if e.lazy and (observable(e.a) or observable(e.b)):
                return self.out.branch_value(e)
            return f"select({self.condition(e.condition)}, {self.text(e.a)}, {self.text(e.b)})"
        if isinstance(e, ir.Call):
            return self.call(e)
        raise UnsupportedInstruction(
            f"{self.site}: vector expressions (T.vectorized) are not simulated"
        )

    def condition(self, e: Any) -> str:
        """Source text of a truth value: a bool, or a boolean array."""
        text = self.text(e)
        return text if getattr(e, "dtype", "bool") == "bool" else f"({text} != 0)"

    def float_constant(self, e: ir.Const) -> str:
        return self.out.constant(("float", e.dtype, repr(e.value)))

    def binary(self, e: ir.Binary) -> str:
        if e.op in ("and", "or") and observable(e.b):
            other = ir.Const(e.op == "or", "bool")
            then, orelse = (e.b, other) if e.op == "and" else (other, e.b)
            return self.out.branch_value(ir.Select(e.a, then, orelse, "bool", lazy=True))
        a, b = self.text(e.a), self.text(e.b)
        if e.op in _CALLED and not (e.op == "div" and is_float(e.dtype)):
            return f"{_CALLED[e.op]}({a}, {b})"
        if e.op in _PARTIAL and not (isinstance(e.b, ir.Const) and e.b.value > 0):
            text = f"{_PARTIAL[e.op]}({a}, {b})"
        else:
            text = f"({a} {'/' if e.op == 'div' else _INFIX[e.op]} {b})"
        if e.op == "shl" and e.dtype in ("int8", "int16", "int32"):
            top = 1 << (int(e.dtype[3:]) - 1)
            return f"((({text} & {2 * top - 1}) ^ {top}) - {top})"
        return self.wrap(text, e.dtype) if e.op in _WRAPS else text

    @staticmethod
    def wrap(text: str, dtype: str) -> str:
        if dtype.startswith("uint"):
            return f"({text} & {(1 << int(dtype[4:])) - 1})"
        return text

    def cast(self, e: ir.Cast) -> str:
        source, target = getattr(e.a, "dtype", "handle"), e.dtype
        text = self.text(e.a)
        if source == target or "handle" in (source, target):
            return text
        if e.bits:
            return f"reinterpret({text}, {self.out.constant(('dtype', source))}, {self.out.constant(('dtype', target))})"
        if target.startswith("int") and source in (
            "bool",
            "int8",
            "int16",
            "int32",
            "uint8",
            "uint16",
        ):
            if int(target[3:]) >= 32 or target == source:
                return f"({text} + 0)" if source == "bool" else text
        if target == "float8_e8m0fnu":
            raise UnsupportedInstruction(
                f"{self.site}: conversions to {target}, which round upwards, are not simulated"
            )
        kind = "f" if is_float(target) else "b" if target == "bool" else target[0]
        return f"cast({text}, {self.out.constant(('dtype', target))}, {8 * dtype_size(target)}, {kind!r})"

    # -- memory -----------------------------------------------------------------------------------------------------
    def load(self, e: ir.Load) -> str:
        if e.dtype != e.buffer.dtype:
            raise UnsupportedInstruction(
                f"{self.site}: reading {e.buffer.name} as {e.dtype} (a vector) is not simulated"
            )
        scalar = self.scalar_slot(e.buffer, e.index)
        if scalar is not None:
            text = self.out.use(scalar)
            if scalar not in self.out.layout.unset:
                return text
            place = self.out.place("ld.local", self.site)
            name = self.out.constant(("name", e.buffer.name))
            slot = self.out.layout.slot(object())
            stored = self.out.use(self.out.layout.stored(scalar))
            return self.out.define(slot, f"initialised(g, {place}, {name}, {text}, {stored})")
        dtype = self.out.constant(("dtype", e.dtype))
        root = e.buffer.root
        slot = self.out.layout.slot(object())
        if root.scope == "local":
            return self.out.define(
                slot,
                f"load_local(g, {self.out.place('ld.local', self.site)}, {dtype}, "
                f"{self.local_index(e.buffer, e.index)})",
            )
        where = self.address(e.buffer, e.index)
        private = self.private.get(e, "")
        place = self.out.counted(f"ld.{_space(root)}", self.site, private=private)
        return self.out.define(slot, f"load(g, {place}, {where}, {dtype})")

    def store(self, s: ir.Store) -> None:
        value_dtype = getattr(s.value, "dtype", s.buffer.dtype)
        if value_dtype != s.buffer.dtype and not (
            s.buffer.dtype == "uint8" and value_dtype == "bool"
        ):
            raise UnsupportedInstruction(
                f"{s.site}: writing {value_dtype} (a vector) to {s.buffer.name} is not simulated"
            )
        value = self.text(s.value)
        scalar = self.scalar_slot(s.buffer, s.index)
        if scalar is not None:
            self.out.layout.mutable.add(scalar)
            self.out.define(scalar, value)
            if scalar in self.out.layout.unset:
                self.out.define(self.out.layout.stored(scalar), "1")
            return
        dtype = self.out.constant(("dtype", s.buffer.dtype))
        if s.buffer.root.scope == "local":
            self.out.line(
                f"store_local(g, {dtype}, {self.local_index(s.buffer, s.index)}, {value})"
            )
            return
        where = self.address(s.buffer, s.index)
        place = self.out.counted(f"st.{_space(s.buffer.root)}", s.site)
        self.out.line(f"store(g, {place}, {where}, {dtype}, {value})")

    def scalar_slot(self, buffer: ir.Buffer, index: ir.Expr) -> int | None:
        """The register slot of an element of a local buffer that is only ever indexed by constants."""
        if buffer.root not in self.out.layout.scalars:
            return None
        assert isinstance(index, ir.Const)
        return self.out.layout.slot((buffer.root, index.value))

    def local_index(self, buffer: ir.Buffer, index: ir.Expr) -> str:
        """Index in the thread's frame, in elements; checked where it is not a constant."""
        first = self.out.layout.frame[buffer.root] // dtype_size(buffer.dtype)
        text = self.text(index)
        if isinstance(index, ir.Const) and 0 <= index.value < (buffer.elements or 0):
            return repr(first + index.value)
        name = self.out.constant(("name", buffer.name))
        where = self.out.place("ld.local", self.site)
        return f"local_index(g, {where}, {name}, {first}, {buffer.elements}, {text})"

    def address(self, buffer: ir.Buffer, index: ir.Expr) -> str:
        """Source text of the generic address of buffer[index]."""
        root, start = buffer.root, isinstance(index, ir.Const) and index.value == 0
        size = 1 if start else dtype_size(buffer.dtype)
        offset = (
            repr(index.value * size)
            if isinstance(index, ir.Const)
            else f"{self.text(index)} * {size}"
        )
        if root.parameter is not None:
            return f"({self.text(root.parameter)} + {offset})"
        if root.address is not None:
            return f"({self.text(root.address)} + {offset})"
        if root.scope == "local":
            return _sum(LOCAL_BASE + self.out.layout.frame[root], offset)
        if root.scope.startswith("shared"):
            return f"({self.out.shared_base()} + {_sum(self.out.layout.shared[root], offset)})"
        raise UnsupportedInstruction(
            f"{self.site}: buffer {buffer.name} of scope {root.scope} has no address"
        )

    # -- calls ------------------------------------------------------------------------------------------------------
    def call(self, e: ir.Call) -> str:
        site = self.site if e.site.line == 0 else e.site
        decoded = e.decoded
        if decoded.mnemonic == "add.pointer":
            o = decoded.operands
            return f"({self.text(o['pointer'])} + {self.text(o['offset'])} * {o['element_bytes']})"
        if decoded.mnemonic == "add.matrix_descriptor":
            desc, offset = (
                self.text(decoded.operands["desc"]),
                self.text(decoded.operands["offset"]),
            )
            return f"add_low_half({desc}, {offset})"
        return self.out.instruction(decoded, site, wants_value=True)


def _space(buffer: ir.Buffer) -> str:
    return "shared" if buffer.scope.startswith("shared") else "global"


def _sum(base: int, offset: str) -> str:
    try:
        return repr(base + int(offset))
    except ValueError:
        return f"({base} + {offset})" if base else f"({offset})"
