"""Moves of all iterations of a loop at once: the same meaning as in `load_store`, with iterations as a first axis.

Addresses come as (iterations, 1) or (iterations, lanes) arrays, or as one value for all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import located
from ...ir.arithmetic import rounded
from ..threads.registers import check_registers, write_registers
from .load_store import (
    GLOBAL_SHIFT,
    LOCAL_BASE,
    RANK_SHIFT,
    RAW,
    ld_global,
    memory_of,
    observe,
    register_columns,
    st_global,
    st_shared,
)

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..threads.warp import Group


def _flat(g: Group, value: Any, iterations: int) -> Any:
    """One address per (iteration, lane), iterations outermost."""
    return np.ascontiguousarray(np.broadcast_to(value, (iterations, g.n))).reshape(-1)


def _in_one_memory(addresses: np.ndarray) -> bool:
    """Whether addresses of several iterations lie in one global buffer, or in the shared memory of one CTA."""
    shift = GLOBAL_SHIFT if addresses[0] >> GLOBAL_SHIFT else RANK_SHIFT
    memories = addresses >> shift
    return bool((memories == memories[0]).all())


@located
def copy_all(
    g: Group,
    load: Place,
    store: Place,
    iterations: int,
    dst: Any,
    addr: Any,
    src: Any,
    to: Any,
    nbytes: int,
) -> None:
    """ld.global from `addr` to registers at `dst`, st.shared from there to `to`; the registers keep the last value."""
    addr, to = _flat(g, addr, iterations), _flat(g, to, iterations)
    if not (_in_one_memory(addr) and _in_one_memory(to)):
        for i in range(iterations):
            part = slice(i * g.n, (i + 1) * g.n)
            ld_global(g, load, dst, addr[part], nbytes)
            st_shared(g, store, to[part], src, nbytes, from_global=True)
        return
    g.cta.bytes["global_loaded"] += nbytes * g.n * iterations
    g.cta.bytes["shared_stored"] += nbytes * g.n * iterations
    g.cta.bytes["global_to_shared"] += nbytes * g.n * iterations
    raw = RAW[nbytes]
    source, source_offset = memory_of(g, addr)
    target, target_offset = memory_of(g, to)
    source_items, target_items = (
        source.items(source_offset, nbytes),
        target.items(target_offset, nbytes),
    )
    observe(g, load, source, source_offset, nbytes, False, g.tiled(iterations))
    observe(g, store, target, target_offset, nbytes, True, g.tiled(iterations))
    values = source.view(raw)[source_items]
    target.view(raw)[target_items] = values
    column = register_columns(g, dst, nbytes)
    write_registers(g, column * nbytes, nbytes)
    g.cta.frame(raw)[g.sel, column] = values[-g.n :]


@located
def st_global_all(
    g: Group, place: Place, _: Place, iterations: int, addr: Any, src: Any, nbytes: int
) -> None:
    """st.global from the registers at `src`."""
    addr, src = _flat(g, addr, iterations), _flat(g, src, iterations)
    if not _in_one_memory(addr):
        for i in range(iterations):
            part = slice(i * g.n, (i + 1) * g.n)
            st_global(g, place, addr[part], src[part], nbytes)
        return
    g.cta.bytes["global_stored"] += nbytes * g.n * iterations
    raw = RAW[nbytes]
    target, offset = memory_of(g, addr)
    items = target.items(offset, nbytes)
    columns = register_columns(g, src, nbytes)
    check_registers(g, place, columns * nbytes, nbytes)
    observe(g, place, target, offset, nbytes, True, g.tiled(iterations))
    target.view(raw)[items] = g.cta.frame(raw)[g.tiled(iterations), columns]


@located
def cvt_x2_all(
    g: Group, place: Place, _: Place, iterations: int, dst: Any, src: Any, source: str, target: str
) -> None:
    """cvt.x2 of the register pairs at `src` to those at `dst`, usually from consecutive registers."""
    a, b = g.cta.dtype(source), g.cta.dtype(target)
    from_columns, to_columns = _pair_columns(g, src, a.itemsize), _pair_columns(g, dst, b.itemsize)
    check_registers(g, place, _first_bytes(src), 2 * a.itemsize)
    write_registers(g, _first_bytes(dst), 2 * b.itemsize)
    pairs = g.cta.frame(a)[_rows(g, from_columns), from_columns]
    g.cta.frame(b)[_rows(g, to_columns), to_columns] = rounded(pairs, b)


def _first_bytes(address: np.ndarray) -> np.ndarray:
    """(iterations, 1) or (iterations, lanes) register addresses as bytes of the frame, flattened if they are many."""
    offset = address - LOCAL_BASE
    return offset if offset.ndim == 2 and offset.shape[1] == 1 else offset.reshape(-1)


def _rows(g: Group, columns: Any) -> Any:
    return g.sel if columns.__class__ is slice else g.lanes[:, None]


def _pair_columns(g: Group, address: Any, itemsize: int) -> Any:
    """Columns of the pairs at (iterations, 1) addresses: a slice where they are consecutive, else an index array."""
    address = (
        np.broadcast_to(address, (len(address), 1))
        if address.ndim == 2 and address.shape[1] == 1
        else address[:, :1]
    )
    first = (address[:, 0] - LOCAL_BASE) // itemsize
    register_columns(g, int(address.min()), itemsize)
    register_columns(g, int(address.max()) + itemsize, itemsize)
    if (np.diff(first) == 2).all():
        return slice(int(first[0]), int(first[-1]) + 2)
    return (first[:, None] + np.arange(2)).reshape(-1)[None, :]


UNROLLED = {"st.global": st_global_all, "cvt.x2": cvt_x2_all, "copy": copy_all}
