"""Device IR -> Program: control flow to basic blocks, statements to lines of Python, instructions to calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import UnsupportedInstruction
from ..ir import nodes as ir
from ..ir.instruction import INLINE, REGISTRY, Decoded
from ..ir.place import Place
from ..ir.program import EXIT, Program
from ..ir.queries import (
    constant_range,
    ends_block,
    plain,
    private_loads,
    same_value,
    shared_uses,
)
from . import vector_loops
from .block_source import Block, namespace, render
from .expressions import ExpressionWriter
from .layout import Layout


def translate(function: ir.Function, vectorise: bool = True) -> Program:
    """Translate a device function; `vectorise=False` keeps every loop a loop (the reference path).

    UnsupportedInstruction names what the simulator does not know, and its line.
    """
    return _Translator(function, vectorise).program()


class _Translator:
    """Implements `Emitter` for the expression writer."""

    def __init__(self, function: ir.Function, vectorise: bool) -> None:
        self.function, self.vectorise = function, vectorise
        self.layout = Layout()
        self.writer = ExpressionWriter(self, private_loads(function))
        self.loops: list[tuple[int, int]] = []  # (continue target, break target)
        self.iterations: list[int] = []  # slots of the iteration numbers of the enclosing loops
        self.extents: list[int] = []  # how often these loops run, 0 where that is not constant
        self.loop_places: dict[int, Place] = {}
        self.blocks: list[Block] = []
        self.block = self.new_block()
        self.indent = 1
        self.constants: dict[Any, str] = {}
        self.instructions: list[Place] = []
        self.barriers: dict[int, str] = {}
        self.branches: list[int] = []  # first blocks of the enclosing branches
        self.loaded_from_global: Any = None

    def program(self) -> Program:
        f, layout = self.function, self.layout
        layout.place(f.body)
        axis_slots = {axis: layout.slot(var) for axis, var in f.axes.items()}
        param_slots = [layout.slot(p) for p in f.params]
        self.statements(f.body)
        self.jump_to(EXIT)
        source, live = render(self.blocks)
        names = namespace(self.constants)
        exec(compile(source, f"<phaseflip {f.name}>", "exec"), names)
        return Program(
            name=f.name,
            blocks=[names[f"block_{b.number}"] for b in self.blocks],
            source=source,
            n_slots=len(layout.slots),
            live_in=[sorted(live[b.number]) for b in self.blocks],
            mutable_live_in=[sorted(live[b.number] & layout.mutable) for b in self.blocks],
            axis_slots=axis_slots,
            param_slots=param_slots,
            frame_bytes=layout.frame_bytes,
            static_shared_bytes=layout.static_bytes,
            instructions=self.instructions,
            extents=dict(f.extents),
            shared_views=layout.shared_views(f.body),
            barriers=self.barriers,
            flows=[b.flow() for b in self.blocks],
            loops=[b.loops for b in self.blocks],
            loop_places=self.loop_places,
            local_names=sorted((offset, buffer.name) for buffer, offset in layout.frame.items()),
        )

    # -- Emitter ----------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.block.lines.append((self.indent, None, text))

    def use(self, slot: int) -> str:
        if slot not in self.block.defined:
            self.block.used_first.add(slot)
        return f"v{slot}"

    def define(self, slot: int, text: str) -> str:
        self.block.lines.append((self.indent, slot, text))
        self.block.defined.add(slot)
        return f"v{slot}"

    def constant(self, value: Any) -> str:
        return self.constants.setdefault(value, f"K{len(self.constants)}")

    def shared_base(self) -> str:
        self.block.shared = True
        return "shared"

    def branch_value(self, select: ir.Select) -> str:
        slot = self.layout.slot(object())
        self.layout.mutable.add(slot)
        self.if_else(
            self.writer.condition(select.condition),
            lambda: self.define(slot, self.writer.text(select.a)),
            lambda: self.define(slot, self.writer.text(select.b)),
        )
        return self.use(slot)

    def instruction(self, decoded: Decoded, site: ir.Site, wants_value: bool) -> str:
        definition = REGISTRY[decoded.mnemonic]
        splits = ends_block(decoded)
        if splits:
            here = self.new_block()
            self.goto(here)
            after = self.new_block()
        operands = {name: self.operand(value) for name, value in decoded.operands.items()}
        for name in definition.uniform:
            if not operands[name].lstrip("-").isdigit():
                temp = self.define(self.layout.slot(object()), operands[name])
                self.line(f"if {temp}.__class__ is ndarray:")
                self.line(f"    {temp} = same({temp})")
                self.line(
                    f"    if {temp}.__class__ is ndarray: return split(g, {temp}, {here.number}, {after.number})"
                )
                operands[name] = temp
        place = self.counted(decoded.mnemonic, site)
        for buffer, _ in shared_uses(decoded.operands.get("mbar"))[:1]:
            self.barriers[len(self.instructions) - 1] = buffer.name
        arguments = ", ".join(f"{name}={text}" for name, text in operands.items())
        text = f"{self.constant(('instruction', decoded.mnemonic))}(g, {place}, {arguments})"
        self.block.mma |= decoded.mnemonic == "tcgen05.mma"
        if definition.waits:
            if wants_value:  # the instruction writes it when the wait is over
                slot = self.layout.slot(object())
                self.layout.mutable.add(slot)
                text = f"{text[:-1]}, result={slot})"
            self.end_block()
            self.line(f"wait = {text}")
            self.line(f"if wait is None: return {after.number}")
            self.line(f"g.pc = {after.number}; g.wait_site = {place}; return wait")
            self.block.successors.append(after.number)
            self.block = after
            return self.use(slot) if wants_value else "None"
        result = "None"
        if wants_value:
            slot = self.layout.slot(object())
            if splits:
                self.layout.mutable.add(slot)  # parts of the group that were split get it apart
            result = self.define(slot, text)
        else:
            self.line(text)
        if splits:
            self.goto(after)
        return result

    def counted(self, mnemonic: str, site: ir.Site, times: int = 1, private: str = "") -> str:
        """As `place`; a run counts the executions, by warp, at the position in the program's list."""
        name = self.place(mnemonic, site, private)
        repeat = f" * {times}" if times > 1 else ""
        self.line(f"g.cta.counts[{len(self.instructions) - 1}] += g.warps{repeat}")
        return name

    def place(self, mnemonic: str, site: ir.Site, private: str = "") -> str:
        """A new instruction or memory access of the program; name of the constant that holds its Place."""
        for slot in self.iterations:
            self.use(slot)  # keeps the iteration numbers in the group's registers
        around = tuple(self.iterations), private, tuple(self.branches), tuple(self.extents)
        place = Place(mnemonic, site.file, site.line, len(self.instructions), *around, site.callers)
        self.instructions.append(place)
        return self.constant(("place", place, place.order))

    def operand(self, value: Any) -> str:
        if isinstance(value, list):
            texts = [self.operand(v) for v in value]
            return (
                self.constant(tuple(map(int, texts)))
                if all(t.isdigit() for t in texts)
                else f"[{', '.join(texts)}]"
            )
        if value is None or isinstance(value, (int, str)):
            return repr(value)
        return self.writer.text(value)

    # -- blocks -----------------------------------------------------------------------------------------------------
    def new_block(self) -> Block:
        block = Block(len(self.blocks), tuple(self.iterations))
        self.blocks.append(block)
        return block

    def end_block(self) -> None:
        if self.block.end is None:
            self.block.end = len(self.block.lines)

    def jump_to(self, number: int) -> None:
        self.end_block()
        self.line(f"return {number}")
        self.block.successors.append(number)

    def goto(self, block: Block) -> None:
        self.jump_to(block.number)
        self.block = block

    def if_else(
        self, condition: str, then: Callable[[], Any], orelse: Callable[[], Any] | None
    ) -> None:
        taken, skipped, after = self.new_block(), self.new_block(), self.new_block()
        self.branch(condition, taken, skipped)
        for block, body in ((taken, then), (skipped, orelse)):
            self.block = block
            self.branches.append(block.number)
            if body is not None:
                body()
            self.branches.pop()
            self.jump_to(after.number)
        self.block = after

    def branch(self, condition: str, taken: Block, skipped: Block) -> None:
        here = self.block
        self.end_block()
        self.line(f"condition = {condition}")
        self.line("if condition.__class__ is ndarray:")
        self.line(
            f"    return branch(g, condition, {taken.number}, {skipped.number}, JOIN_{here.number})"
        )
        self.line(f"return {taken.number} if condition else {skipped.number}")
        here.successors += [taken.number, skipped.number]

    def loop_branch(self, condition: str, body: Block, after: Block) -> None:
        """A branch out of a loop. Lanes that leave go through a block of their own, so that they arrive at `after`."""
        leave = self.new_block()
        self.branch(condition, body, leave)
        self.block = leave
        self.jump_to(after.number)

    # -- statements -------------------------------------------------------------------------------------------------
    def statements(self, body: list[ir.Stmt]) -> None:
        for s in body:
            self.writer.site = s.site
            if isinstance(s, ir.Let):
                self.define(self.layout.slot(s.var), self.writer.text(s.value))
            elif isinstance(s, ir.Store):
                if s.buffer.root.scope == "local":
                    self.loaded_from_global = None
                self.writer.store(s)
            elif isinstance(s, ir.Evaluate):
                self.evaluate(s)
            elif isinstance(s, ir.If):
                self.conditional(s)
            elif isinstance(s, ir.For):
                self.loop(s)
            elif isinstance(s, ir.While):
                self.while_loop(s)
            elif isinstance(s, ir.Jump):
                target = (
                    EXIT if s.kind == "return" else self.loops[-1][0 if s.kind == "continue" else 1]
                )
                self.jump_to(target)
                self.block = self.new_block()  # what follows a jump is unreachable
            elif not isinstance(s, ir.Allocate):
                raise UnsupportedInstruction(
                    f"{s.site}: {type(s).__name__} in device code is not simulated"
                )

    def evaluate(self, s: ir.Evaluate) -> None:
        if not isinstance(s.call, ir.Call):
            return
        decoded = s.call.decoded
        if decoded.mnemonic in INLINE:
            return
        operands = decoded.operands
        loaded = self.loaded_from_global
        if decoded.mnemonic == "ld.global":
            self.loaded_from_global = operands["dst"]
        elif decoded.mnemonic == "st.shared":
            alike = loaded is not None and same_value(operands["src"], loaded)
            operands = operands | {"from_global": alike}
        elif loaded is not None and operands.get("dst") is not None:
            self.loaded_from_global = None  # it may write those registers
        self.instruction(Decoded(decoded.mnemonic, operands), s.site, wants_value=False)

    def conditional(self, s: ir.If) -> None:
        def body(statements: list[ir.Stmt]) -> Callable[[], None]:
            return lambda: self.statements(statements)

        self.if_else(
            self.writer.condition(s.condition), body(s.then), body(s.orelse) if s.orelse else None
        )

    def loop(self, s: ir.For) -> None:
        if isinstance(s.extent, ir.Const) and s.extent.value <= 0:
            return
        slot = self.layout.slot(s.var)
        steps = vector_loops.plan(s, self.layout) if self.vectorise else None
        if steps is not None:
            self.vector_loop(s, steps)
            return
        start = self.writer.text(s.start)
        if constant_range(s) and plain(s.body):
            extent, step = self.writer.text(s.extent), self.writer.text(s.step)
            self.line(f"for v{slot} in range({start}, {start} + {extent}, {step}):")
            self.block.defined.add(slot)
            self.indent += 1
            self.statements(s.body)
            self.line("pass")
            self.indent -= 1
            return
        self.define(slot, start)
        times = int(s.extent.value) if isinstance(s.extent, ir.Const) else 0
        iteration, header, body, latch, after = self.start_loop((s.body or [s])[0].site, times)
        # TVM's CUDA code evaluates start + extent before every iteration, so the body may change it.
        end = self.writer.text(ir.Binary("add", s.start, s.extent, s.var.dtype))
        self.loop_branch(f"({self.use(slot)} < {end})", body, after)
        self.block = body
        self.loops.append((latch.number, after.number))
        self.statements(s.body)
        self.loops.pop()
        self.iterations.pop()
        self.extents.pop()
        self.goto(latch)
        step = self.writer.text(s.step)
        self.define(slot, f"{self.use(slot)} + {step}")
        self.define(iteration, f"{self.use(iteration)} + 1")
        self.jump_to(header.number)
        self.block = after

    def start_loop(self, site: ir.Site, extent: int) -> tuple[int, Block, Block, Block, Block]:
        """The slot that counts the iterations, which the latch must raise; header, body, latch, and what follows.

        site: of the loop, or of its first statement where TVM drops the line of the loop itself.
        """
        slot = self.layout.slot(object())
        self.layout.mutable.add(slot)
        self.define(slot, "0")
        outside = tuple(self.iterations)
        self.iterations.append(slot)
        self.extents.append(extent)
        self.loop_places[slot] = Place("", site.file, site.line)
        header, body, latch, after = (self.new_block() for _ in range(4))
        after.loops = outside
        self.goto(header)
        return slot, header, body, latch, after

    def vector_loop(self, s: ir.For, steps: list[vector_loops.Step]) -> None:
        start, extent, step = (
            e.value for e in (s.start, s.extent, s.step) if isinstance(e, ir.Const)
        )
        self.define(self.layout.slot(s.var), self.constant(("iterations", start, extent, step)))
        for action in steps:
            if isinstance(action, vector_loops.Arithmetic):
                self.statements([action.statement])
            elif isinstance(action, vector_loops.Copy):
                moved = {"dst": action.load.operands["dst"], "addr": action.load.operands["addr"]}
                moved |= {"src": action.store.operands["src"], "to": action.store.operands["addr"]}
                moved |= {"nbytes": action.store.operands["nbytes"]}
                self.unrolled("copy", ("ld.global", "st.shared"), moved, action.site, extent)
            else:
                mnemonic = action.decoded.mnemonic
                self.unrolled(mnemonic, (mnemonic,), action.decoded.operands, action.site, extent)

    def unrolled(
        self,
        name: str,
        counted: tuple[str, ...],
        operands: dict[str, Any],
        site: ir.Site,
        iterations: int,
    ) -> None:
        places = [self.counted(mnemonic, site, iterations) for mnemonic in counted]
        operands = {key: self.operand(value) for key, value in operands.items()}
        arguments = ", ".join(f"{key}={value}" for key, value in operands.items())
        function = self.constant(("unrolled", name))
        self.line(f"{function}(g, {places[0]}, {places[-1]}, {iterations}, {arguments})")

    def while_loop(self, s: ir.While) -> None:
        iteration, header, body, latch, after = self.start_loop(s.site, 0)
        self.loop_branch(self.writer.condition(s.condition), body, after)
        self.block = body
        self.loops.append((latch.number, after.number))
        self.statements(s.body)
        self.loops.pop()
        self.iterations.pop()
        self.extents.pop()
        self.goto(latch)
        self.define(iteration, f"{self.use(iteration)} + 1")
        self.jump_to(header.number)
        self.block = after
