"""Barriers of another CTA in a PrimFunc of TVM 0.27: which local barrier a view stands for.

`MBarrier.remote_view(rank)` maps the address of the barriers into another CTA, binds it to a pointer, and declares a
buffer there. 0.26 names the CTA with the arrival, so that the barrier of an arrival is the local one.
"""

from __future__ import annotations

from typing import Any

_MAPA = "tirx.ptx.mapa"


class RemoteViews:
    """The views of a function, found statement by statement in program order."""

    def __init__(self) -> None:
        self._mapped: list[
            tuple[Any, Any]
        ] = []  # register that holds a mapped address, its local buffer
        self._pointers: list[tuple[Any, Any]] = []  # pointer to it, the local buffer
        self.local: list[tuple[Any, Any]] = []  # view, the local buffer

    def note(self, node: Any) -> None:
        """Follow one statement."""
        kind = type(node).__name__
        name = str(getattr(getattr(getattr(node, "value", None), "op", None), "name", ""))
        if kind == "Evaluate" and name.startswith(_MAPA):
            destination, address = node.value.args[:2]
            if (local := _buffer_behind(address)) is not None:
                self._mapped.append((destination.source, local))
        elif kind == "Bind" and name.endswith(".reinterpret"):
            register = getattr(node.value.args[0], "source", None)
            if (local := _of(self._mapped, register)) is not None:
                self._pointers.append((node.var, local))
        elif kind == "DeclBuffer" and (local := _of(self._pointers, node.data)) is not None:
            self.local.append((node.buffer, local))

    def local_of(self, buffer: Any) -> Any:
        """The local buffer that a view stands for; None for a buffer that is no view."""
        return _of(self.local, buffer)


def _of(pairs: list[tuple[Any, Any]], key: Any) -> Any:
    return next((value for k, value in pairs if key is not None and k.same_as(key)), None)


def _buffer_behind(address: Any) -> Any:
    """The buffer of address_of(buffer[...]), perhaps converted to a shared address; None for another expression."""
    while getattr(address, "op", None) is not None:
        if str(address.op.name) == "tirx.address_of":
            return address.args[0].source
        address = address.args[0]
    return None
