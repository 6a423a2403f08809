"""What one step of a run touches, and which steps may change places without a difference.

A step touches bytes of memory, which it reads or writes, and synchronisation objects, which it uses in some way. Two steps
are independent if either order of the two leads to the same state. What is not known to be so counts as dependent: that
costs runs, and loses nothing. The objects, by key, and why uses of them commute:

mbarrier  Arrivals and bytes of one phase add up, so their order is the same to the object whichever ends the phase; not if
          one of them was one too many, or bytes came for another phase ("fault"). "use": to look up the object, or to begin
          a wait that does not pass at once: which phase is awaited follows from what the thread knows, not from how far the
          barrier has come. "finish" of a wait for phase p takes what was released up to the end of p, so what comes in
          later phases is no matter to it, unless it ends one (`lapped-wait` looks for that). "issue" of a load holds the end
          of its phase off; "expect" without an arrival is not in time once the phase has ended.
bar       Arrivals of one round commute, since the round knows the threads as a set. A wait ends with its own round.
cluster   The same; exits count as arrivals, and change the number that is waited for.
live      The threads of a CTA that have not exited: exits commute.
pool      setmaxnreg.dec only adds to the pool, and to ask changes nothing. Nobody gives back what was taken by a first
          setmaxnreg, so whether all get theirs follows from the sums; if not, who does without is open. The second
          setmaxnreg of a warp ("again") looks at what its siblings have executed.
async     One operation: it lands before the waits for it end. Its registers may not be read before, so when it writes
          them is no matter to the threads (a read is `uninitialised-read`, whether it has landed or not).
alloc     The columns of a CTA that are taken: to look for free ones commutes with itself, taking and freeing do not.
permit    The requests of a CTA: nothing commutes.

Reads of the same bytes commute: they change no value, and the race detector keeps both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..races.detector import RaceDetector

Touch = tuple[Any, str, Any]
"""Key of an object, how it is used, and the phase or round."""


class Footprint(NamedTuple):
    """What a step touches: objects, and for each memory the bits of the bytes that it reads and writes."""

    touches: list[Touch]
    memory: dict[Any, tuple[int, int]]


def independent(a: Footprint, b: Footprint) -> bool:
    """Whether two steps of different agents lead to the same state in either order."""
    return memory_independent(a, b) and not any(
        one[0] == other[0] and not commute(one, other) for one in a.touches for other in b.touches
    )


def memory_independent(a: Footprint, b: Footprint) -> bool:
    """Whether neither writes what the other reads or writes."""
    for key, (reads, writes) in a.memory.items():
        other = b.memory.get(key)
        if other and (writes & (other[0] | other[1]) or reads & other[1]):
            return False
    return True


ARRIVALS = ("arrive", "end")


def commute(a: Touch, b: Touch) -> bool:
    """Whether two uses of one object commute; see above."""
    return _COMMUTE[a[0][0]](a, b) and _COMMUTE[a[0][0]](b, a)


def _mbarrier(a: Touch, b: Touch) -> bool:
    (_, how, phase), (_, other, other_phase) = a, b
    if how == "use":
        return other != "init"
    if how in ARRIVALS:
        if other in ARRIVALS:
            return bool(phase == other_phase)
        return other == "use" or (other == "finish" and how == "arrive" and phase > other_phase)
    if how == "finish" and other in ARRIVALS:
        return other == "arrive" and bool(other_phase > phase)
    if how in ("finish", "pass"):
        return other in ("finish", "pass", "use", "issue")
    return how == "issue" and other in ("issue", "finish", "pass", "use")


def _rounds(a: Touch, b: Touch) -> bool:
    (_, how, of), (_, other, another) = a, b
    if how == "finish":
        return other in ("finish", "exit") or (other == "arrive" and of != another)
    if how == "arrive":
        return (other == "arrive" and of == another) or (other == "finish" and of != another)
    return how == "exit" and other in ("exit", "finish")


def _alike(a: Touch, b: Touch) -> bool:
    return a[1] == b[1]


def _pool(a: Touch, b: Touch) -> bool:
    return "again" not in (a[1], b[1])


def _looks(a: Touch, b: Touch) -> bool:
    return a[1] == b[1] == "look"


def _never(a: Touch, b: Touch) -> bool:
    return False


_COMMUTE = {
    "mbarrier": _mbarrier, "bar": _rounds, "cluster": _rounds, "live": _alike, "pool": _pool, "async": _alike,
    "alloc": _looks, "permit": _never,
}  # fmt: skip


def enables(first: Touch, second: Touch) -> bool:
    """Whether the second could not have come before the first: a wait, and an arrival that its phase or round needed."""
    if second[1] != "finish":
        return False
    if first[0][0] == "mbarrier":
        return first[1] in ARRIVALS and bool(first[2] <= second[2])
    if first[0][0] == "async":
        return True
    return first[0][0] in ("bar", "cluster") and first[1] == "arrive" and first[2] == second[2]


class Recorder:
    """Collects what the step that runs now touches."""

    def __init__(self) -> None:
        self.now = Footprint([], {})
        self.elections = False
        """Whether elect.sync has had a choice."""

    def take(self) -> Footprint:
        """What has been touched since the last call."""
        taken, self.now = self.now, Footprint([], {})
        return taken

    def touch(self, key: Any, how: str, detail: Any = None) -> None:
        """An object is used."""
        touch = (key, how, detail)
        if touch not in self.now.touches:
            self.now.touches.append(touch)

    def access(self, key: Any, units: np.ndarray, writes: bool, reads: bool) -> None:
        """Units of a memory (bytes, or parts of TMEM) are read or written."""
        bits = np.zeros(int(units.max()) + 1, bool)
        bits[units] = True
        mask = int.from_bytes(np.packbits(bits, bitorder="little").tobytes(), "little")
        read, written = self.now.memory.get(key, (0, 0))
        self.now.memory[key] = (read | mask * reads, written | mask * writes)


class Unheard(Recorder):
    """For a run that is cut into the same steps, and whose steps nobody asks about."""

    def touch(self, key: Any, how: str, detail: Any = None) -> None:
        """Nothing is kept."""


class RecordingDetector(RaceDetector):
    """A race detector that also tells a recorder of every access."""

    def __init__(
        self, launch: Any, threads: int, cta_threads: int, copies: bool, recorder: Recorder
    ) -> None:
        super().__init__(launch, threads, cta_threads, copies)
        self.recorder = recorder

    def thread_access(
        self, g: Any, place: Any, memory: Any, offset: Any, nbytes: int, writes: bool, lanes: Any = None,
        strong: str = "", equal: Any = None,
    ) -> None:  # fmt: skip
        """See RaceDetector."""
        units = np.atleast_1d(offset).reshape(-1, 1) + np.arange(nbytes)
        self.recorder.access((memory.kind, memory.base), units, writes, not writes)
        super().thread_access(g, place, memory, offset, nbytes, writes, lanes, strong, equal)

    def told(self, memory: Any, offset: np.ndarray, nbytes: int, event: Any, actor: Any) -> None:
        """See RaceDetector."""
        units = np.atleast_1d(offset).reshape(-1, 1) + np.arange(nbytes)
        self.recorder.access((memory.kind, memory.base), units, event.writes, not event.writes)
        super().told(memory, offset, nbytes, event, actor)

    def operation_access(
        self, ticket: Any, memory: Any, units: np.ndarray, writes: bool, fenced: bool = False
    ) -> None:
        """See RaceDetector."""
        self._chunks(memory, units, writes)
        super().operation_access(ticket, memory, units, writes, fenced)

    def late_write(self, ticket: Any, memory: Any, units: np.ndarray, end: int) -> None:
        """See RaceDetector."""
        self._chunks(memory, units, True)
        super().late_write(ticket, memory, units, end)

    def _chunks(self, memory: Any, units: np.ndarray, writes: bool) -> None:
        if units.size:
            touched = (units.reshape(-1, 1) << 4) + np.arange(16)
            self.recorder.access((memory.kind, memory.base), touched, writes, not writes)

    def tmem_access(
        self, ticket: Any, tmem: Any, lanes: slice, columns: slice, writes: bool, reads: bool = False,
        lane: int | None = None,
    ) -> None:  # fmt: skip
        """See TensorMemoryJudge."""
        bands = range(lanes.start >> 4, -(-lanes.stop // 16))
        self._rectangle(tmem, bands, columns, writes, reads or not writes)
        super().tmem_access(ticket, tmem, lanes, columns, writes, reads, lane)

    def tmem_free(self, g: Any, place: Any, tmem: Any, columns: slice) -> None:
        """See TensorMemoryJudge."""
        self._rectangle(tmem, range(8), columns, True, True)
        super().tmem_free(g, place, tmem, columns)

    def tmem_free_in_peer(self, g: Any, place: Any, tmem: Any, columns: slice) -> None:
        """See TensorMemoryJudge."""
        self._rectangle(tmem, range(8), columns, True, True)
        super().tmem_free_in_peer(g, place, tmem, columns)

    def _rectangle(
        self, tmem: Any, bands: range, columns: slice, writes: bool, reads: bool
    ) -> None:
        units = np.array(bands).reshape(-1, 1) + 8 * np.arange(columns.start, columns.stop)
        self.recorder.access(("tmem", tmem.rank), units, writes, reads)
