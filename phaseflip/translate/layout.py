"""Where a kernel's values live: register slots, offsets in a thread's frame, offsets in shared memory."""

from __future__ import annotations

from typing import Any

from ..errors import UnsupportedInstruction
from ..ir import nodes as ir
from ..ir.instruction import dtype_size
from ..ir.program import SHARED_START, View
from ..ir.queries import (
    children,
    collect_indexed,
    roots,
    shared_in_order,
    shared_reads,
    shared_uses,
    value_at_zero,
    walk,
)


class Layout:
    """Where things live: register slots, offsets in a thread's frame and in shared memory (all in bytes)."""

    def __init__(self) -> None:
        self.slots: dict[Any, int] = {}
        self.mutable: set[int] = set()
        self.frame: dict[ir.Buffer, int] = {}
        self.shared: dict[ir.Buffer, int] = {}
        self.scalars: set[ir.Buffer] = set()
        self.unset: set[int] = set()
        """Slots of register elements that some path may read before anything is stored to them."""
        self.frame_bytes, self.static_bytes = 0, 0

    def slot(self, key: Any) -> int:
        """The slot of a variable, or of (buffer, index) for an element of a local buffer kept in registers."""
        return self.slots.setdefault(key, len(self.slots))

    def place(self, body: list[ir.Stmt]) -> None:
        """Give every local buffer a register slot or an offset in the frame, every shared one an offset."""
        allocated: list[ir.Buffer] = []
        indexed: set[ir.Buffer] = set()  # not all of their elements are reached by constant indices
        for statement in walk(body):
            if isinstance(statement, ir.Allocate) and statement.buffer not in allocated:
                allocated.append(statement.buffer)
            for e in roots(statement):
                collect_indexed(e, indexed)
            if isinstance(statement, ir.Store):
                collect_indexed(
                    ir.Load(statement.buffer, statement.index, statement.buffer.dtype), indexed
                )
        for buffer in allocated:
            size = (buffer.elements or 0) * dtype_size(buffer.dtype)
            if buffer.scope == "local":
                if buffer not in indexed:
                    self.scalars.add(buffer)
                else:
                    self.frame[buffer] = self.frame_bytes
                    self.frame_bytes += -(-size // 64) * 64
            elif not buffer.scope.startswith("shared"):
                raise UnsupportedInstruction(
                    f"storage scope {buffer.scope} of {buffer.name} is not simulated"
                )
        self.place_shared(body)
        self.find_unset(body, set())

    def place_shared(self, body: list[ir.Stmt]) -> None:
        """Give shared buffers their offsets as nvcc and ptxas do: static ones in the order of the text, the dynamic one behind.

        Each starts at a multiple of what the CUDA text aligns it to, counted from SHARED_START. The buffers of a scope come
        before those of the scopes in it. nvcc drops those that nothing reads; one that is stored to comes last here. Seen
        with CUDA 13.0 and on an H200, whatever the names, sizes and order of use.
        """
        read = {root for s in walk(body) for root in shared_reads(s)}
        stored = {s.buffer.root for s in walk(body) if isinstance(s, ir.Store)}
        kept = [b for b in shared_in_order(body) if b in read | stored or b.scope == "shared.dyn"]
        for buffer in sorted(
            dict.fromkeys(kept), key=lambda b: (b.scope == "shared.dyn", b not in read)
        ):
            end, align = self.static_bytes, buffer.align_bytes
            self.static_bytes = -(-end // align) * align
            self.shared[buffer] = SHARED_START + self.static_bytes
            if buffer.scope != "shared.dyn":
                self.static_bytes += (buffer.elements or 0) * dtype_size(buffer.dtype)

    def find_unset(self, body: list[ir.Stmt], stored: set[int]) -> None:
        """Note the register elements read where not every path has stored to them; `stored` grows by what is stored."""
        for s in body:
            for e in roots(s):
                self.unset |= self.elements_read(e) - stored
            if isinstance(s, ir.Store) and s.buffer.root in self.scalars:
                stored.add(self.element(s.buffer, s.index))
            elif isinstance(s, ir.If):
                taken, skipped = set(stored), set(stored)
                self.find_unset(s.then, taken)
                self.find_unset(s.orelse, skipped)
                stored |= taken & skipped
            elif isinstance(s, (ir.For, ir.While)):
                self.find_unset(s.body, set(stored))

    def elements_read(self, e: Any) -> set[int]:
        """Slots of the register elements that an expression reads."""
        found = set().union(*(self.elements_read(child) for child in children(e)))
        if isinstance(e, ir.Load) and e.buffer.root in self.scalars:
            found.add(self.element(e.buffer, e.index))
        return found

    def element(self, buffer: ir.Buffer, index: Any) -> int:
        """The slot of an element of a local buffer kept in registers."""
        return self.slot((buffer.root, index.value))

    def stored(self, slot: int) -> int:
        """The slot that tells of each lane whether anything has been stored to one of `unset`."""
        found = self.slot(("stored", slot))
        self.mutable.add(found)
        return found

    def shared_views(self, body: list[ir.Stmt]) -> list[View]:
        """Every named view of shared memory, from the lowest byte offset that an address of it mentions, ascending.

        Of a view that is only stored to, the offset is that of one thread's first store.
        """
        lowest: dict[str, View] = {}
        lets: dict[ir.Var, ir.Expr] = {}
        stores: list[ir.Store] = []
        for s in walk(body):
            if isinstance(s, ir.Let):
                lets[s.var] = s.value
            elif isinstance(s, ir.Store) and s.buffer.root.own_shared:
                stores.append(s)
            for e in roots(s):
                for buffer, index in shared_uses(e):
                    if index is None or (buffer.elements == 1 and buffer.name.startswith("(")):
                        continue  # unknown, or what a tile copy starts at
                    view = self.view(buffer, index)
                    lowest[buffer.name] = min(view, lowest.get(buffer.name, view))
        named = {view.first for name, view in lowest.items() if not name.startswith("(")}
        for s in stores:
            if s.buffer.name not in lowest:
                stored = value_at_zero(s.index, lets)
                if stored is not None:
                    view = self.view(s.buffer, stored)
                    if view.first not in named:
                        lowest[s.buffer.name] = view
        return sorted(lowest.values())

    def view(self, buffer: ir.Buffer, index: int) -> View:
        """A view of shared memory, of which element `index` is taken for the first."""
        size = dtype_size(buffer.dtype)
        first = self.shared[buffer.root] + index * size
        return View(first, buffer.name, (buffer.elements or 0) * size)
