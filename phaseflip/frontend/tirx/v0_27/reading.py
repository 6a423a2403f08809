"""Calls of TVM 0.27 as statements and expressions of the device IR, decoded once, as the reader meets them.

PTX names its destinations among the operands, and so do calls of the table: where the simulator's instruction returns a
value, the statement becomes a store of that value; where it moves a vector between memory and registers, the registers
become one address. A predicate becomes a branch.
"""

from __future__ import annotations

from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import INLINE, REGISTRY, Decoded, dtype_size
from ..arguments import as_ptx
from .copies import GROUPS, is_register
from .effects import EFFECTS
from .helpers import EXPRESSIONS
from .mapped import MappedBarriers
from .results import RESULTS, Values, as_type
from .table import ADDRESS, PREFIX, TableCall, expressions, moved, table_call


class Reading:
    """What is read of one function; it keeps the addresses of registers, so that the same registers are the same object."""

    def __init__(self) -> None:
        self.addresses: dict[tuple[ir.Buffer, Any], ir.Address] = {}
        self.mapped = MappedBarriers()

    def stored(self, buffer: ir.Buffer, index: ir.Expr) -> None:
        """A plain store to a buffer."""
        self.mapped.stored(buffer, index)

    def bound(self, var: ir.Var, value: ir.Expr) -> None:
        """A variable is bound to a value."""
        self.mapped.bound(var, value)

    def expression(self, call: ir.Call) -> ir.Expr:
        """A call that is an operand, or one that stays as it is."""
        if call.name == ADDRESS:
            return moved(call.args[0], call.args[1], call.site)
        value = EXPRESSIONS.get(call.name)
        return value(call.args) if value is not None else call

    def statements(self, call: ir.Call) -> list[ir.Stmt]:
        """The statements that a call executes. What is not simulated is refused when it is decoded, not here."""
        if not call.name.startswith(PREFIX):
            return [ir.Evaluate(call, call.site)]
        try:
            c = table_call(call)
            found = self.executed(c, call)
        except UnsupportedInstruction as error:
            call.meaning = ir.Refused(as_ptx(call.name), f"{call.site}: {error}")
            return [ir.Evaluate(call, call.site)]
        if c.predicate is None:
            return found
        return [ir.If(as_type(c.predicate, "bool", bits=False), found, [], call.site)]

    def executed(self, c: TableCall, call: ir.Call) -> list[ir.Stmt]:
        """The statements of an instruction without its predicate."""
        if c.predicate is not None and c.written and not c.keeps and c.entry not in GROUPS:
            raise UnsupportedInstruction(
                f"{c.ptx} with a predicate is simulated where the destination keeps its value; add preserve_dst=True"
            )
        if c.entry in GROUPS:
            return self.vector_move(c, call)
        if c.entry in EFFECTS:
            executed = _decoded(call, EFFECTS[c.entry](c))
            self.mapped.resolve(executed)
            return [ir.Evaluate(executed, call.site)]
        if c.entry in RESULTS:
            values = RESULTS[c.entry](c)
            kept: list[ir.Stmt] = []
            for name in c.written:
                target, value = c.operands[name], values[name]
                if isinstance(value, Decoded) and value.mnemonic == "mapa":
                    kept = self.mapped.mapped(target, value, call.site)
                elif isinstance(target, ir.Load):
                    self.mapped.stored(target.buffer, target.index)
            return [*kept, *_stores(c, values, call)]
        raise UnsupportedInstruction(
            f"the simulator does not know the instruction {c.ptx}; CONTRIBUTING.md says how to add it"
        )

    def vector_move(self, c: TableCall, call: ir.Call) -> list[ir.Stmt]:
        """ld or st of registers. Those that are no neighbours are moved through an array of their own."""
        name = GROUPS[c.entry]
        given = c.operands[name]
        lanes = given if isinstance(given, list) else [given]
        address = self.neighbours(lanes)
        if address is not None:
            c.operands[name] = address
            return [ir.Evaluate(_decoded(call, EFFECTS[c.entry](c)), call.site)]
        loads = c.entry.startswith("ld")
        first = next(lane for lane in lanes if lane is not None)
        if any(lane is None for lane in lanes) and not loads:
            raise UnsupportedInstruction(f"{c.ptx} is not simulated with a lane that is not stored")
        if loads and not all(lane is None or is_register(lane) for lane in lanes):
            raise UnsupportedInstruction(f"{c.ptx} is simulated with registers as its destination")
        array = ir.Buffer("(registers)", first.dtype, len(lanes), "local")
        elements = [ir.Const(i, "int32") for i in range(len(lanes))]
        c.operands[name] = ir.Address(array, elements[0])
        move = ir.Evaluate(_decoded(call, EFFECTS[c.entry](c)), call.site)
        copies: list[ir.Stmt] = []
        for i, lane in zip(elements, lanes, strict=True):
            if loads and lane is not None:
                value = as_type(ir.Load(array, i, array.dtype), lane.dtype)
                copies.append(ir.Store(lane.buffer, lane.index, value, call.site))
            elif not loads:
                copies.append(ir.Store(array, i, as_type(lane, array.dtype), call.site))
        allocate = ir.Allocate(array, call.site)
        return [allocate, move, *copies] if loads else [allocate, *copies, move]

    def neighbours(self, lanes: list[Any]) -> ir.Address | None:
        """The address of the first of neighbouring elements of one register array; None for others."""
        if not all(is_register(lane) for lane in lanes):
            return None
        first = lanes[0]
        for i, lane in enumerate(lanes):
            if lane.buffer is not first.buffer or not _is_sum(lane.index, first.index, i):
                return None
        if not isinstance(first.index, ir.Const):
            return ir.Address(first.buffer, first.index)
        key = (first.buffer, first.index.value)
        return self.addresses.setdefault(key, ir.Address(first.buffer, first.index))


def _stores(c: TableCall, values: Values, call: ir.Call) -> list[ir.Stmt]:
    """The values stored to the destinations, all computed before any is stored."""
    stores: list[tuple[Any, Any]] = []
    for name in c.written:
        given, value = c.operands[name], values[name]
        targets = given if isinstance(given, list) else [given]
        results = value if isinstance(value, list) else [value]
        stores += [(t, v) for t, v in zip(targets, results, strict=True) if t is not None]
    out: list[ir.Stmt] = []
    computed: list[ir.Store] = []
    for target, value in stores:
        if not isinstance(target, ir.Load):
            raise UnsupportedInstruction(f"{c.ptx} is simulated with a register as its destination")
        if isinstance(value, Decoded):
            value = _decoded(call, value, _carrier(target.dtype))
        value = as_type(
            value, target.dtype, bits=dtype_of(value) in _FLOATS or target.dtype in _FLOATS
        )
        if len(stores) > 1:
            held = ir.Var(target.buffer.name, target.dtype)
            out.append(ir.Let(held, value, call.site))
            value = held
        computed.append(ir.Store(target.buffer, target.index, value, call.site))
    return [*out, *computed]


_FLOATS = ("float32", "float16", "bfloat16", "float64")


def dtype_of(e: Any) -> str:
    """The dtype of an expression, "" where it has none."""
    return getattr(e, "dtype", "")


def _carrier(dtype: str) -> str:
    """What an instruction returns is an integer as wide as a pointer; a narrower register takes its low bits."""
    return dtype if dtype_size(dtype) == 8 or dtype in _FLOATS else "int64"


def _decoded(call: ir.Call, meaning: Decoded, dtype: str = "void") -> ir.Call:
    """The call with its meaning; its arguments are the expressions among the operands."""
    if meaning.mnemonic not in REGISTRY and meaning.mnemonic not in INLINE:
        raise UnsupportedInstruction(
            f"the simulator does not know the instruction {meaning.mnemonic}; CONTRIBUTING.md says how to add it"
        )
    return ir.Call(call.name, expressions(meaning), dtype, call.site, meaning)


def _is_sum(index: Any, first: Any, i: int) -> bool:
    """Whether an index is `first + i`."""
    if isinstance(first, ir.Const):
        return isinstance(index, ir.Const) and index.value == first.value + i
    if i == 0:
        return equal(index, first)
    if isinstance(index, ir.Binary) and index.op == "add" and isinstance(index.b, ir.Const):
        if index.b.value == i and equal(index.a, first):
            return True
        if isinstance(first, ir.Binary) and first.op == "add" and isinstance(first.b, ir.Const):
            return index.b.value == first.b.value + i and equal(index.a, first.a)
    return False


def equal(a: Any, b: Any) -> bool:
    """Whether two expressions are the same, part by part."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, ir.Const):
        return bool(a == b)
    if isinstance(a, ir.Binary):
        return a.op == b.op and equal(a.a, b.a) and equal(a.b, b.b)
    if isinstance(a, ir.Load):
        return a.buffer is b.buffer and equal(a.index, b.index)
    if isinstance(a, ir.Cast):
        return a.dtype == b.dtype and a.bits == b.bits and equal(a.a, b.a)
    return False
