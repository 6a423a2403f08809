"""Instructions of a warp: shuffle, election, bar.warp.sync, and where a thread is in its CTA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...findings import Finding, agree
from ...ir.instruction import instruction
from ...ordering.warp_meetings import warps_meet
from .warp import WARP, same

if TYPE_CHECKING:
    from ...ir.place import Place
    from .warp import Group

FULL_MASK = 0xFFFFFFFF
_OUT_OF_THE_BRANCH = {
    "bar.warp.sync": "move T.cuda.warp_sync() out of the branch",
    "elect.sync": "move T.ptx.elect_sync() out of the branch: it chooses one lane by itself",
    "shfl.sync.idx": "move the shuffle out of the branch, or give it the mask of the lanes that execute it",
}


@instruction("shfl.sync.idx")
def shfl_sync_idx(g: Group, place: Place, mask: Any, value: Any, source: Any, width: Any) -> Any:
    """shfl.sync.idx.b32 d, a, b, c, membermask: each lane gets `value` of lane `source` of its segment of `width`.

    A source lane that is not in the group gives the lane's own value, as hardware does for an inactive source.
    """
    _meet(g, place, mask)
    if value.__class__ is not np.ndarray:
        return value
    segment = g.lanes - (g.lanes & (width - 1))
    wanted = segment + (source & (width - 1))
    if g.sel.__class__ is slice and g.n % WARP == 0 and not g.lanes[0] % WARP:
        result = value[wanted - g.lanes[0]]
    else:
        position = np.minimum(np.searchsorted(g.lanes, wanted), g.n - 1)
        result = np.where(g.lanes[position] == wanted, value[position], value)
    return same(result) if g.warps == 1 else result


@instruction("elect.sync")
def elect_sync(g: Group, place: Place) -> Any:
    """elect.sync d|p, membermask: true in one lane of each warp; the lowest active one, as on today's hardware.

    PTX leaves open which lane that is, but it is the same one every time for the same mask. A schedule that explores tries
    the highest too. The mask is of all lanes (TVM's): each waits until all of them execute an elect.sync.
    """
    _meet(g, place, FULL_MASK)
    if g.n == 1:
        return 1
    cluster, warp = g.cta.cluster, g.lanes >> 5
    if cluster.recorder is not None:
        cluster.recorder.elections = True
    leader = np.zeros(g.n, np.int64)
    _, first, count = np.unique(warp, return_index=True, return_counts=True)
    leader[first + np.minimum(cluster.leader, count - 1)] = 1
    return leader


@instruction("thread_rank")
def thread_rank(g: Group, place: Place) -> Any:
    """cooperative_groups::thread_block::thread_rank(): the thread's index in its CTA (from %tid and %ntid)."""
    return int(g.lanes[0]) if g.n == 1 else g.lanes


@instruction("bar.warp.sync", synchronises=True)
def bar_warp_sync(g: Group, place: Place) -> None:
    """bar.warp.sync membermask: orders the lanes of a warp; the mask is of all (TVM's __syncwarp()).

    Lanes of a warp meet at joins, so none has to be awaited; where only some come, the others are awaited for ever.
    """
    _check_members(g, place, FULL_MASK)
    if g.cta.detector is not None:
        g.cta.detector.synchronise_warps(g)


def _meet(g: Group, place: Place, mask: Any) -> None:
    """The lanes of each warp that a membermask names wait for each other: none goes on before the others have come."""
    _check_members(g, place, mask)
    if g.cta.detector is not None:
        warps_meet(g.cta.detector, g)


def _check_members(g: Group, place: Place, mask: Any) -> None:
    """Report that lanes which a membermask names are not here."""
    if g.whole_warps():
        return
    loose = g.in_partial_warps()
    masks = np.broadcast_to(np.asarray(mask), (g.n,))[np.isin(g.lanes, loose)]
    for warp in np.unique(loose >> 5):
        here = loose >> 5 == warp
        named = int(np.bitwise_or.reduce(masks[here])) & FULL_MASK
        if named & ~int((1 << (loose[here] & 31)).sum()) & _lanes_of_cta(g, int(warp)):
            g.cta.report(
                Finding(
                    "divergent-collective",
                    "it waits until all lanes of the warp execute it, and the others are not in this branch"
                    if named == FULL_MASK
                    else f"it waits until all lanes of its mask {named:#x} execute it, and not all are in this branch",
                    place=place,
                    what=f"{g} {agree(g, 'executes', 'execute')} {place.mnemonic}",
                    fix=_OUT_OF_THE_BRANCH[place.mnemonic],
                )
            )
            return


def _lanes_of_cta(g: Group, warp: int) -> int:
    """The mask of the lanes that a warp has: the last one of a CTA may lack some."""
    return (1 << min(WARP, g.cta.threads - WARP * warp)) - 1
