"""What an instruction with `.sync` tells: every lane of the warp has come to it before one goes on.

That orders no memory ("waits until all threads in the warp execute the same instruction", PTX ISA 9.1, wgmma.wait_group,
tcgen05.wait, elect.sync, shfl.sync, ldmatrix); but what the lanes have done lies in the past of what each of them does next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .ordering import Ordering
from .vector_clock import Clock, Part, join, restrict


def warps_meet(ordering: Ordering, g: Any) -> None:
    """The lanes of each warp of the group have executed an instruction with `.sync`."""
    parts = []
    for warp in np.unique(g.lanes >> 5).tolist():
        inside = restrict(g.knowledge, g.lanes[g.lanes >> 5 == warp])
        past = ordering.release(g, inside)
        parts += [
            Part(p.lanes, p.clock.with_past(past), p.proxy_fence, p.after_fence) for p in inside
        ]
    g.knowledge = parts


def have_happened(g: Any, pasts: list[Clock]) -> None:
    """What released these clocks lies in the past of what the threads of the group do next, visible or not."""
    if pasts:
        past = join(pasts)
        g.knowledge = [
            Part(p.lanes, p.clock.with_past(past), p.proxy_fence, p.after_fence)
            for p in g.knowledge
        ]
