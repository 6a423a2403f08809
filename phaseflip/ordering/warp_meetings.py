"""What an instruction with `.sync` tells: every lane of the warp has come to it before one goes on.

That orders no memory ("waits until all threads in the warp execute the same instruction", PTX ISA 9.1, wgmma.wait_group,
tcgen05.wait, elect.sync, shfl.sync, ldmatrix); but what the lanes have done lies in the past of what each of them does next.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .happens_before import Ordering, Ticket
from .knowledge import PAST, Clock, Part, join, restrict


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


def warps_know(ordering: Ordering, g: Any, clock: Clock) -> bool:
    """Whether each warp of the group, with what any of its lanes knows or has done, knows that a clock's events have happened.

    For an instruction that waits for all threads of the warp, as a barrier does ("causes executing thread to wait for all
    non-exited threads from its warp").
    """
    parts = g.knowledge
    if all(part.clock is clock for part in parts) or ordering.knows_clock(g, clock):
        return True
    theirs = clock.rows[PAST]
    for warp in np.unique(g.lanes >> 5).tolist():
        lanes = g.lanes[g.lanes >> 5 == warp]
        mine = join([part.clock for part in restrict(parts, lanes)]).rows[PAST]
        known = np.zeros_like(theirs)
        size = min(mine.size, theirs.size)
        known[:size] = mine[:size]
        known[lanes + g.cta.first_component] = theirs[lanes + g.cta.first_component]
        if (theirs > known).any():
            return False
    return True


def products_done(
    ordering: Ordering, g: Any, products: list[tuple[int, Ticket | None, Clock | None]]
) -> None:
    """The threads of each warpgroup know that its products (warpgroup, ticket, what the issuers had done) are done.

    What the issuers had done lies in the past of what these threads do next, visible or not.
    """
    parts: list[Part] = []
    for warpgroup in np.unique(g.lanes >> 7).tolist():
        mine = [(ticket, past) for of, ticket, past in products if of == warpgroup]
        inside = g.view(g.lanes >> 7 == warpgroup)
        ordering.operations_done(inside, [ticket for ticket, _ in mine if ticket is not None])
        pasts = [past for _, past in mine if past is not None]
        for p in inside.knowledge:
            clock = p.clock.with_past(join(pasts)) if pasts else p.clock
            parts.append(Part(p.lanes, clock, p.proxy_fence, p.after_fence))
    g.knowledge = parts
