"""A call of TVM 0.27's instruction table as PTX writes it: mnemonic, modifiers, and operands by the table's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.backend.cuda.ptx.table import TABLE, mods, operand_layout, operand_space

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded
from ....machine.memory.load_store import SHARED_BASE
from ..arguments import text_of

PREFIX = "tirx.ptx."
ADDRESS = "tirx.ptx.addr"
_TO_SHARED = "tirx.cuda.cvta_generic_to_shared"


@dataclass(frozen=True)
class TableCall:
    """One instruction: entry of the table, modifier slot -> token ("" where it is left out), operand name -> expression.

    An operand of several lanes, or of none or one as the modifiers say, is a list; a lane that is sunk (`_`) is None.
    `written` are the operands that the instruction writes, `predicate` is that of @p, and `keeps` says that a destination
    keeps its value where the predicate is false.
    """

    entry: str
    ptx: str
    modifiers: dict[str, str]
    operands: dict[str, Any]
    written: tuple[str, ...]
    predicate: Any
    keeps: bool

    def one(self, name: str) -> Any:
        """The operand of a list that holds one or none; None for none."""
        found = self.operands[name]
        return found[0] if found else None

    def has(self, *tokens: str) -> bool:
        """Whether one of these modifiers is written."""
        return any(token in self.modifiers.values() for token in tokens)


def table_call(call: ir.Call) -> TableCall:
    """Read a call of the table. Its arguments: operands, predicate if any, one token for each slot, flags."""
    entry = TABLE.get(call.name.removeprefix(PREFIX))
    if entry is None:
        raise UnsupportedInstruction(
            f"the simulator does not know {call.name.removeprefix('tirx.')}, which TVM's table of instructions has not"
        )
    *args, last = call.args
    first_token = len(args) - len(entry.slots)
    flags = text_of(last).split(",")
    modifiers = mods(entry, [text_of(a) for a in args[first_token:]])
    values = args[:first_token]
    predicate = values.pop() if "pred" in flags else None
    sunk = {int(flag[1:]) for flag in flags if flag[:1] == "s" and flag[1:].isdigit()}
    operands: dict[str, Any] = {}
    given = iter(values)
    written = []
    for slot, first, lanes in operand_layout(entry, modifiers):
        found = [None if first + i in sunk else next(given) for i in range(lanes)]
        if slot.kind == "addr" and operand_space(slot, modifiers).startswith("shared"):
            found = [shared_address(e) for e in found]
        operands[slot.name] = found[0] if slot.lanes == 1 else found
        if slot.kind == "reg" and slot.rw != "r":
            written.append(slot.name)
    ptx = ".".join([entry.ptx_name, *filter(None, modifiers.values())])
    return TableCall(
        entry.name, ptx, modifiers, operands, tuple(written), predicate, "keep" in flags
    )


def expressions(meaning: Decoded) -> list[Any]:
    """The expressions among the operands of an instruction."""
    args: list[Any] = []
    for operand in meaning.operands.values():
        for item in operand if isinstance(operand, list) else [operand]:
            if not isinstance(item, (int, str, type(None))):
                args.append(item)
    return args


def moved(base: Any, offset: Any, site: ir.Site) -> ir.Call:
    """The address `offset` bytes further."""
    meaning = Decoded("add.pointer", {"pointer": base, "offset": offset, "element_bytes": 1})
    return ir.Call(ADDRESS, [base, offset], getattr(base, "dtype", "handle"), site, meaning)


def shared_address(e: Any) -> Any:
    """The generic address of shared memory that a 32-bit address of it stands for."""
    if isinstance(e, ir.Call) and e.name == _TO_SHARED:
        return e.args[0]
    if isinstance(e, ir.Call) and e.name == ADDRESS:
        return moved(shared_address(e.args[0]), e.args[1], e.site)
    if getattr(e, "dtype", "") in ("uint32", "int32"):
        wide = ir.Cast(e, "uint64")
        return ir.Binary("bitor", wide, ir.Const(SHARED_BASE, "uint64"), "uint64")
    return e


def narrowed(e: Any) -> Any:
    """The 32-bit address of which `shared_address` has made a generic one; any other expression as it is."""
    if isinstance(e, ir.Binary) and e.op == "bitor" and isinstance(e.b, ir.Const):
        if e.b.value == SHARED_BASE and isinstance(e.a, ir.Cast):
            return e.a.a
    return e
