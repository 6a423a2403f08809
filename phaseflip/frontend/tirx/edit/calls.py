"""Calls in a PrimFunc under the names and in the order of arguments that edits and faults use: those of TVM 0.26."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..version import installed_series

EXPECT_TX_SOURCE = """
__device__ __forceinline__ void ptx_mbarrier_expect_tx(void* barrier, int bytes) {
  unsigned int address = __cvta_generic_to_shared(barrier);
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(address), "r"(bytes) : "memory");
}
"""


class Calls(Protocol):
    """How calls of one function are read and rewritten."""

    def note(self, node: Any) -> None:
        """Every statement passes here once, in program order."""

    def name(self, call: Any) -> str:
        """The name of a call, without "tirx."."""

    def arguments(self, call: Any) -> list[Any]:
        """Its arguments in the order of that name."""

    def with_arguments(self, call: Any, values: Mapping[int, Any]) -> list[Any]:
        """All arguments as TVM wants them, with those at the given positions replaced."""

    def own_arrival(self, call: Any) -> tuple[str, list[Any]]:
        """An arrival at another CTA's barrier, made one at its own with the default scope: name and arguments."""

    def expectation(self, call: Any) -> tuple[str, list[Any]]:
        """Of an arrival that expects bytes, the expectation alone: name and arguments."""


class PlainCalls:
    """TVM 0.26: calls as they stand."""

    def note(self, node: Any) -> None:
        """Nothing is to be followed."""

    def name(self, call: Any) -> str:
        """The intrinsic's."""
        return str(getattr(call.op, "name", "call")).removeprefix("tirx.")

    def arguments(self, call: Any) -> list[Any]:
        """The intrinsic's."""
        return list(call.args)

    def with_arguments(self, call: Any, values: Mapping[int, Any]) -> list[Any]:
        """With some replaced."""
        return [values.get(i, old) for i, old in enumerate(call.args)]

    def own_arrival(self, call: Any) -> tuple[str, list[Any]]:
        """[mbar, sem, scope, space, has_count, has_remote, has_pred]"""
        from .expressions import int32, text

        local = [*map(text, ("", "", "shared")), *map(int32, (0, 0, 0))]
        return "ptx.mbarrier_arrive", [call.args[0], *local]

    def expectation(self, call: Any) -> tuple[str, list[Any]]:
        """TVM 0.26 has no intrinsic for it: a function in CUDA C++."""
        from .expressions import text

        name, source = text("ptx_mbarrier_expect_tx"), text(EXPECT_TX_SOURCE)
        return "cuda.func_call", [name, *call.args[:2], source]


def new_calls() -> Calls:
    """The calls of a function in the dialect of the installed TVM."""
    if installed_series() == "0.27":
        from ..v0_27.statements import TableCalls

        return TableCalls()
    return PlainCalls()
