"""What of the reader depends on the installed TVM: how its calls become statements and expressions of the device IR."""

from __future__ import annotations

from typing import Protocol

from ... import machine
from ...ir import nodes as ir
from .version import installed_series


class Reading(Protocol):
    """What is read of one function."""

    def expression(self, call: ir.Call) -> ir.Expr: ...
    def statements(self, call: ir.Call) -> list[ir.Stmt]: ...
    def stored(self, buffer: ir.Buffer, index: ir.Expr) -> None: ...
    def bound(self, var: ir.Var, value: ir.Expr) -> None: ...


class PlainReading:
    """Calls stay as they are: 0.26's are decoded by `decode`, whenever it is asked."""

    def expression(self, call: ir.Call) -> ir.Expr:
        """The call."""
        return call

    def statements(self, call: ir.Call) -> list[ir.Stmt]:
        """The call, for its effect."""
        return [ir.Evaluate(call, call.site)]

    def stored(self, buffer: ir.Buffer, index: ir.Expr) -> None:
        """Stores need no following."""

    def bound(self, var: ir.Var, value: ir.Expr) -> None:
        """Nor do bindings."""


def new_reading() -> Reading:
    """A reading of a function in the dialect of the installed TVM."""
    if installed_series() == "0.27":
        machine.load()  # it decodes as it reads
        from .v0_27.reading import Reading as Reading027

        return Reading027()
    return PlainReading()
