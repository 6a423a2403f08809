"""Inner loops whose iterations are independent, recognised so that all iterations run as one NumPy operation.

TVM's tile copies and casts are loops of 8 to 64 iterations of address arithmetic and one or two moves. A NumPy operation
on 8 x 128 values costs little more than one on 128, so such a loop becomes one step with the loop variable as a second
axis. The plain path (`translate(..., vectorise=False)`) stays as the reference; a test holds both to the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir import nodes as ir
from ..ir.instruction import INLINE, Decoded, traits_of
from ..ir.queries import children, same_value
from .layout import Layout


@dataclass
class Arithmetic:
    """A binding, or an assignment to a register that only this iteration uses."""

    statement: ir.Let | ir.Store


@dataclass
class Copy:
    """ld.global into registers, then st.shared out of the same registers."""

    load: Decoded
    store: Decoded
    site: ir.Site


@dataclass
class Single:
    """One instruction that may stand alone (`Traits.alone`)."""

    decoded: Decoded
    site: ir.Site


Step = Arithmetic | Copy | Single


def plan(loop: ir.For, layout: Layout) -> list[Step] | None:
    """The steps of a loop that can run all iterations at once; None for any other loop."""
    if not all(isinstance(e, ir.Const) for e in (loop.start, loop.extent, loop.step)):
        return None
    steps: list[Step] = []
    private: set[ir.Buffer] = set()
    loaded: tuple[Decoded, Any] | None = None
    moves = 0
    for s in loop.body:
        if isinstance(s, ir.Allocate):
            private.add(s.buffer)
        elif isinstance(s, ir.Let) and _arithmetic(s.value, layout):
            steps.append(Arithmetic(s))
        elif (
            isinstance(s, ir.Store)
            and s.buffer.root in private & layout.scalars
            and _arithmetic(s.value, layout)
        ):
            steps.append(Arithmetic(s))
        elif isinstance(s, ir.Evaluate) and isinstance(s.call, ir.Call):
            decoded = s.call.decoded
            if not all(
                _arithmetic(e, layout)
                for e in decoded.operands.values()
                if not isinstance(e, (int, str, type(None)))
            ):
                return None
            moves += 1
            if (
                decoded.mnemonic == "ld.global"
                and decoded.operands["dst"] is not None
                and loaded is None
            ):
                loaded = (decoded, decoded.operands["dst"])
            elif (
                decoded.mnemonic == "st.shared"
                and loaded is not None
                and same_value(decoded.operands["src"], loaded[1])
                and not _varies(loop, steps, loaded[1])
            ):
                steps.append(Copy(loaded[0], decoded, s.site))
                loaded = None
            elif (
                traits_of(decoded.mnemonic).alone
                and loaded is None
                and (decoded.mnemonic != "cvt.x2" or _same_registers(decoded, loop, steps))
            ):
                steps.append(Single(decoded, s.site))
            else:
                return None
        else:
            return None
    # One kind of move only: two kinds in one loop could depend on each other across iterations.
    complete = loaded is None and sum(not isinstance(step, Arithmetic) for step in steps) == 1
    return steps if complete and moves else None


def _varies(loop: ir.For, steps: list[Step], e: Any) -> bool:
    """Whether the value of an expression may depend on the iteration."""
    varying: set[Any] = {loop.var}

    def mentions(e: Any) -> bool:
        return isinstance(e, ir.Load) or e in varying or any(map(mentions, children(e)))

    for step in steps:
        if isinstance(step, Arithmetic) and isinstance(step.statement, ir.Let):
            if mentions(step.statement.value):
                varying.add(step.statement.var)
    return mentions(e)


def _same_registers(decoded: Decoded, loop: ir.For, steps: list[Step]) -> bool:
    """Whether all lanes convert the same registers: the addresses depend on the iteration only."""
    known: set[Any] = {loop.var}
    for step in steps:
        if isinstance(step, Arithmetic) and isinstance(step.statement, ir.Let):
            if _depends_only_on(known, step.statement.value):
                known.add(step.statement.var)
    return all(_depends_only_on(known, decoded.operands[name]) for name in ("dst", "src"))


def _depends_only_on(known: set[Any], e: Any) -> bool:
    if isinstance(e, ir.Var):
        return e in known
    if isinstance(e, (ir.Load, ir.Call)):
        return False
    return all(_depends_only_on(known, child) for child in children(e))


def _arithmetic(e: Any, layout: Layout) -> bool:
    """Whether an expression is arithmetic on variables and registers only."""
    if isinstance(e, ir.Load):
        return e.buffer.root in layout.scalars
    if isinstance(e, ir.Call):
        return e.decoded.mnemonic in INLINE and all(
            _arithmetic(a, layout) for a in e.decoded.operands.values() if not isinstance(a, int)
        )
    if isinstance(e, ir.Vector):
        return False
    return all(_arithmetic(child, layout) for child in children(e))
