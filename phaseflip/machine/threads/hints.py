"""Instructions that change nothing here: prefetches, sleeping, and the control of dependent grids.

One launch is simulated by itself: no grid comes before it, and none depends on it.

Source: PTX ISA 9.1, cp.async.bulk.prefetch.tensor, prefetch.tensormap, nanosleep, griddepcontrol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir.instruction import instruction

if TYPE_CHECKING:
    from ...ir.place import Place
    from .warp import Group


@instruction("prefetch.tensormap")
def prefetch_tensormap(g: Group, place: Place, tensor_map: Any) -> None:
    """prefetch.tensormap [a]: a hint; nothing changes."""


@instruction("cp.async.bulk.prefetch.tensor")
def cp_async_bulk_prefetch_tensor(g: Group, place: Place) -> None:
    """cp.async.bulk.prefetch.tensor.Nd.L2.global.tile [map, coords]: a hint; nothing changes."""


@instruction("nanosleep")
def nanosleep(g: Group, place: Place, t: Any) -> None:
    """nanosleep.u32 t: suspends the thread for up to 2t nanoseconds; there is no time here."""


@instruction("griddepcontrol.launch_dependents", synchronises=True)
def griddepcontrol_launch_dependents(g: Group, place: Place) -> None:
    """griddepcontrol.launch_dependents: lets grids that depend on this one start; there are none here."""


@instruction("griddepcontrol.wait", synchronises=True)
def griddepcontrol_wait(g: Group, place: Place) -> None:
    """griddepcontrol.wait: waits for the grids before this one, whose memory is visible from the start here.

    So a kernel that forgets it is not found out.
    """
