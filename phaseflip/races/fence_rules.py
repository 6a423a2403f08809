"""Which fence a pair of ordered accesses lacks: between the generic and the async proxy, or between tcgen05 operations.

Source: PTX ISA 9.1, fence.proxy.async; "Memory Consistency Model for 5th generation of TensorCore operations".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..ir.instruction import traits_of
from ..ordering.happens_before import Actor
from ..ordering.knowledge import SEEN, TCGEN05
from .remedies import OWN_WAITS
from .shadow import Event, Region

Covers = Callable[[Any, Any], bool]
"""Whether the accesses of agents up to an epoch have been fenced for the async proxy, as far as an actor has seen."""


def missing_fence(
    old: Event, mask: Any, event: Event, actor: Actor, where: Region, covered: Covers, late: bool
) -> tuple[str, str] | None:
    """(code, rule variant) of a fence that the ordered pair lacks.

    `late`: a fence by the issuer of the later access, after the rendezvous, will do.
    """
    if old.proxy == "tmem":
        return _missing_tcgen05_fence(old, actor)
    if old.proxy == event.proxy or old.fenced:
        return None
    agents, epochs = old.agents, old.epochs
    variant = "" if old.writes else "read"
    if event.proxy == "async":
        if covered(agents, epochs):
            return None
        if old.units is not None and mask is not None:
            agents = np.unique(old.agents_of(where.indices[mask] * where.unit_bytes)[1])
            epochs = old.epoch_of(agents)
            if covered(agents, epochs):
                return None
        late = late and actor.proxy_fence.covers(SEEN, agents, epochs)
        return "missing-proxy-fence", "late" if late else variant
    return (
        None if actor.proxy_fence.covers(SEEN, agents, epochs) else ("missing-proxy-fence", variant)
    )


def _missing_tcgen05_fence(old: Event, actor: Actor) -> tuple[str, str] | None:
    ticket = actor.ticket
    assert ticket is not None
    if old.agents == ticket.component:
        return None
    same_warp = old.issuer >> 5 == ticket.issuer >> 5
    threads_only = traits_of(old.place.mnemonic).completes in OWN_WAITS
    if threads_only and same_warp:
        return None
    fenced_before = TCGEN05 if threads_only else SEEN  # a commit implies before_thread_sync
    if actor.after_fence.covers(fenced_before, old.agents, old.epochs):
        return None
    return "missing-tcgen05-fence", ""
