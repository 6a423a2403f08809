"""What asynchronous operations that one thread issues have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..findings.finding import Place
    from .cta import CTA


class ThreadOperation:
    """An operation of one thread (index in its CTA), issued at a place of the program; `done` once it has landed."""

    __slots__ = ("cta", "place", "thread", "done")

    def __init__(self, cta: CTA, place: Place, thread: int) -> None:
        self.cta, self.place, self.thread = cta, place, thread
        self.done = False

    @property
    def issuer(self) -> str:
        """The thread, in words: "CTA 3 warp 0 lane 5"."""
        return f"CTA {self.cta.rank_in_grid} warp {self.thread >> 5} lane {self.thread & 31}"
