"""Strong loads and stores: ld and st with .acquire, .release, .relaxed or .volatile, and a scope.

A load that finds at one place what it has found there before holds its threads until the bytes change, or until nothing
else can happen; a random schedule lets it go on at any time.

Source: PTX ISA 9.1, 9.7.9.8 ld, 9.7.9.11 st; 8.8 Release and Acquire Patterns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.arithmetic import from_memory, to_memory
from ...ir.instruction import instruction
from ..threads.registers import check_registers, write_registers
from .load_store import RAW, memory_of, observe, register_columns

if TYPE_CHECKING:
    from ...ir.place import Place
    from ...ordering.strong_order import Flag
    from ..threads.warp import Group


class StrongLoad:
    """A strong load of a group: where, of how many bytes, with which semantics, and where its value goes."""

    def __init__(
        self, g: Group, place: Place, addr: Any, nbytes: int, sem: str, scope: str, dst: Any, dtype: str, slot: int | None
    ) -> None:  # fmt: skip
        self.place, self.nbytes, self.sem, self.scope = place, nbytes, sem, scope
        self.dst, self.dtype, self.slot = dst, dtype, slot
        self.memory, offset = memory_of(g, addr)
        self.items = self.memory.items(offset, nbytes)
        self.offset = offset
        self.found = b""

    def now(self) -> bytes:
        """What stands there now."""
        return bytes(np.asarray(self.memory.view(RAW[self.nbytes])[self.items]).tobytes())

    def ready(self) -> bool:
        """The bytes have changed."""
        return self.now() != self.found

    def describe(self) -> str:
        """Where the load looks."""
        first = int(np.min(self.offset))
        return f"another thread has to store to {self.memory.name_at(first)} ({self.memory.kind} byte {first})"

    def finish(self, group: Group) -> None:
        """Load, and put the value where it goes."""
        self.execute(group)

    def execute(self, g: Group) -> bool:
        """Load; whether what stands there now was read."""
        raw = RAW[self.nbytes]
        values = np.array(self.memory.view(raw)[self.items])
        old = np.zeros(g.n, bool)
        if g.cta.detector is not None:
            values, old = self._judge(g, values)
        if self.dst is not None:
            column = register_columns(g, self.dst, self.nbytes)
            write_registers(g, column * self.nbytes, self.nbytes)
            g.cta.frame(raw)[g.sel if column.__class__ is int else g.lanes, column] = values
        elif self.slot is not None:
            found = values.reshape(-1).view(np.dtype(self.dtype))
            g.r[self.slot] = from_memory(found if values.ndim else found[0])
        return not old.any()

    def _judge(self, g: Group, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The values that the lanes read, and which of them are old; the race detector is told, and lanes learn."""
        detector, raw = g.cta.detector, RAW[self.nbytes]
        assert detector is not None
        observe(g, self.place, self.memory, self.offset, self.nbytes, False, strong=self.scope)
        offsets = np.broadcast_to(np.asarray(self.offset), (g.n,))
        old, learnt = np.zeros(g.n, bool), []
        for offset in np.unique(offsets).tolist():
            here = np.flatnonzero(offsets == offset)
            stale, flag = detector.flags.read(
                g, self.memory, offset, self.nbytes, g.lanes[here], self.scope
            )
            if flag is None:
                continue
            old[here] = stale
            if stale.any():
                values = np.array(np.broadcast_to(values, (g.n,)))
                values[here[stale]] = flag.before.view(raw)[0]
            learnt += _told(g.lanes[here], stale, flag)
        detector.flags.learn(detector, g, learnt, self.sem == "acquire", self.scope)
        return values, old


def _told(lanes: np.ndarray, stale: np.ndarray, flag: Flag) -> list[tuple[np.ndarray, Flag]]:
    """Lanes and the store whose bytes they have read."""
    found = [(lanes[~stale], flag)] if not stale.all() else []
    if stale.any() and flag.earlier is not None:
        found.append((lanes[stale], flag.earlier))
    return found


def _load(
    g: Group, place: Place, addr: Any, nbytes: int, sem: str, scope: str, dst: Any, dtype: str, result: int | None
) -> StrongLoad | None:  # fmt: skip
    load = StrongLoad(g, place, addr, nbytes, sem, scope, dst, dtype, result)
    g.cta.bytes[f"{load.memory.kind}_loaded"] += nbytes * g.n
    key, found = (g.cta.rank, int(g.lanes[0]), place.order), load.now()
    if g.cta.cluster.looks.get(key) == found:
        load.found = found
        return load
    if load.execute(g):
        g.cta.cluster.looks[key] = found
    return None


@instruction("ld.acquire", waits=True, looks=StrongLoad)
def ld_acquire(
    g: Group, place: Place, addr: Any, nbytes: int, scope: str, dst: Any = None, dtype: str = "", result: int | None = None
) -> StrongLoad | None:  # fmt: skip
    """ld.acquire.scope{.ss}{.vec}.type d, [a]: what the store that it reads has released comes before what follows."""
    return _load(g, place, addr, nbytes, "acquire", scope, dst, dtype, result)


@instruction("ld.relaxed", waits=True, looks=StrongLoad)
def ld_relaxed(
    g: Group, place: Place, addr: Any, nbytes: int, scope: str, dst: Any = None, dtype: str = "", result: int | None = None
) -> StrongLoad | None:  # fmt: skip
    """ld.relaxed.scope{.ss}{.vec}.type d, [a]: orders nothing, but with a fence after it (fence.acq_rel, fence.sc)."""
    return _load(g, place, addr, nbytes, "relaxed", scope, dst, dtype, result)


@instruction("ld.volatile", waits=True, looks=StrongLoad)
def ld_volatile(
    g: Group,
    place: Place,
    addr: Any,
    nbytes: int,
    dst: Any = None,
    dtype: str = "",
    result: int | None = None,
) -> StrongLoad | None:
    """ld.volatile{.ss}{.vec}.type d, [a]: as ld.relaxed.sys."""
    return _load(g, place, addr, nbytes, "relaxed", "sys", dst, dtype, result)


def _store(
    g: Group, place: Place, addr: Any, nbytes: int, src: Any, value: Any, dtype: str, sem: str, scope: str
) -> None:  # fmt: skip
    """Lane by lane: each releases what it knows itself."""
    memory, offset = memory_of(g, addr)
    memory.items(offset, nbytes)
    g.cta.bytes[f"{memory.kind}_stored"] += nbytes * g.n
    values = _stored(g, place, nbytes, src, value, dtype)
    offsets = np.broadcast_to(np.asarray(offset), (g.n,)).tolist()
    detector, parts = g.cta.detector, []
    for i, at in enumerate(offsets):
        if detector is not None:
            one = g.view(np.arange(g.n) == i)
            one.r = g.r
            clock = (
                detector.snapshot(one, int(g.lanes[i]))
                if sem == "release"
                else detector.released_by_fences(one, "cluster")
            )
            observe(one, place, memory, at, nbytes, True, strong=scope)
            detector.flags.store(detector, one, memory, at, nbytes, scope, clock)
            detector.tick(one)
            parts.append(one.knowledge)
        memory.view(RAW[nbytes])[at // nbytes] = values[i]


def _stored(g: Group, place: Place, nbytes: int, src: Any, value: Any, dtype: str) -> np.ndarray:
    """What each lane stores, as raw items."""
    if src is None:
        typed = np.broadcast_to(
            np.asarray(to_memory(value, np.dtype(dtype)), np.dtype(dtype)), (g.n,)
        )
        return np.ascontiguousarray(typed).view(RAW[nbytes])
    column = register_columns(g, src, nbytes)
    check_registers(g, place, column * nbytes, nbytes)
    rows = g.sel if column.__class__ is int else g.lanes
    return np.asarray(g.cta.frame(RAW[nbytes])[rows, column])


@instruction("st.release", stores_global=True)
def st_release(
    g: Group, place: Place, addr: Any, nbytes: int, scope: str, src: Any = None, value: Any = None, dtype: str = ""
) -> None:  # fmt: skip
    """st.release.scope{.ss}{.vec}.type [a], b: releases what its thread did before to whoever acquires what it stores."""
    _store(g, place, addr, nbytes, src, value, dtype, "release", scope)


@instruction("st.relaxed", stores_global=True)
def st_relaxed(
    g: Group, place: Place, addr: Any, nbytes: int, scope: str, src: Any = None, value: Any = None, dtype: str = ""
) -> None:  # fmt: skip
    """st.relaxed.scope{.ss}{.vec}.type [a], b: releases what a fence of its thread has released before."""
    _store(g, place, addr, nbytes, src, value, dtype, "relaxed", scope)


@instruction("st.volatile", stores_global=True)
def st_volatile(
    g: Group,
    place: Place,
    addr: Any,
    nbytes: int,
    src: Any = None,
    value: Any = None,
    dtype: str = "",
) -> None:
    """st.volatile{.ss}{.vec}.type [a], b: as st.relaxed.sys."""
    _store(g, place, addr, nbytes, src, value, dtype, "relaxed", "sys")
