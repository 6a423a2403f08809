"""Cluster launch control: a running cluster cancels one that has not started, to do its work.

A request is an agent of its own, as a bulk load is: it writes a response of 16 bytes through the async proxy, and tells the
mbarrier that they have come. The response is opaque on hardware; here it is four words: the index of the first CTA of the
cancelled cluster, x, y and z, and whether one was cancelled.

Source: PTX ISA 9.1, clusterlaunchcontrol.try_cancel, clusterlaunchcontrol.query_cancel.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...errors import KernelFault
from ...findings import Finding, agree
from ...ir.instruction import instruction
from ...ir.traits import MBARRIER, family
from ..copies.bulk_copy import copy_to, start_load
from ..memory.load_store import memory_of, observe

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..cta import CTA
    from .warp import Group

RESPONSE_BYTES = 16
NONE_CANCELLED = 0xFFFFFFFF
"""What TVM's helper gives for a response that says that no cluster was cancelled."""


class LaunchControl(Protocol):
    """The clusters of a launch that have not started, as a running cluster sees them; the run decides."""

    waiting: list[tuple[int, int, int]]

    def cancel(self) -> tuple[int, ...] | None:
        """Cancel one of them: the index of its first CTA in the grid; None if it fails."""


class _Request:
    """One request; whether it succeeds, and for which cluster, is settled when it lands."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.words: np.ndarray | None = None

    def response(self) -> np.ndarray:
        """The four words of the response."""
        if self.words is None:
            launch = self.cta.cluster.launch_control
            first = None if launch is None else launch.cancel()
            self.words = np.array([*(first or (0, 0, 0)), first is not None], np.uint32)
        return self.words


class _Response:
    """Where a request's response goes in one CTA: the `Bytes` of a bulk load."""

    memory: Any = SimpleNamespace(kind="launch")
    nbytes = RESPONSE_BYTES

    def __init__(self, cta: CTA, offset: int, request: _Request) -> None:
        cta.shared.items(offset, RESPONSE_BYTES)
        self.cta, self.shared, self.request = cta, cta.shared, request
        self.units = np.array([offset // RESPONSE_BYTES])

    def touched(self) -> np.ndarray:
        """It reads no memory."""
        return np.zeros(0, np.int64)

    def load(self) -> None:
        """Write the response."""
        first = int(self.units[0]) * 4
        self.shared.view(np.dtype(np.uint32))[first : first + 4] = self.request.response()

    def store(self) -> None:
        """There is no way back."""
        raise NotImplementedError


family("clusterlaunchcontrol", archs=("sm_100a", "sm_103a"))


@instruction("clusterlaunchcontrol.try_cancel", completes=MBARRIER)
def try_cancel(g: Group, place: Place, addr: Any, mbar: Any) -> None:
    """clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast::cluster::all.b128
    [addr], [mbar].

    Each lane requests that a cluster be cancelled that has not started. The response (16 bytes, aligned) is written at the
    same offset in every CTA of the cluster, and counted on the mbarrier there. To ask again after a failure has been observed
    is undefined.
    """
    cluster = g.cta.cluster
    if g.cta.cancel_failed is not None:
        g.cta.report(_after_failure(g, place, g.cta.cancel_failed))
    everywhere = (1 << len(cluster.ctas)) - 1
    for thread, to, barrier in zip(
        g.lanes.tolist(), g.per_lane(addr), g.per_lane(mbar), strict=True
    ):
        for address in (to, barrier):
            if cluster.owner(address) is not g.cta:
                raise KernelFault(
                    "out-of-bounds",
                    "the response of clusterlaunchcontrol.try_cancel and its barrier are those of the thread's own CTA",
                    "pass the addresses as they are in the own CTA, without mapa",
                )
        request, copies = _Request(g.cta), []
        targets = zip(
            cluster.multicast(to, everywhere), cluster.multicast(barrier, everywhere), strict=True
        )
        for there, counted in targets:
            cta = cluster.owner(there)
            box = _Response(cta, there - cta.shared_base, request)
            copies.append(copy_to(g, place, thread, box, counted, (barrier, "cancel")))
        start_load(g, place, thread, copies)


def _after_failure(g: Group, place: Place, failed: Place) -> Finding:
    return Finding(
        "cancel-after-failure",
        f"line {failed.line} has observed that a request failed, and what a later request of the CTA does is undefined",
        place=place,
        other=failed,
        what=f"{g} {agree(g, 'requests', 'request')} again that a cluster be cancelled",
        fix="leave the loop once clusterlaunchcontrol.query_cancel gives no cluster (0xFFFFFFFF)",
    )


@instruction("clusterlaunchcontrol.query_cancel")
def query_cancel(g: Group, place: Place, addr: Any) -> Any:
    """ld.shared.b128 of a response, clusterlaunchcontrol.query_cancel.is_canceled and .get_first_ctaid::x of it, and
    fence.proxy.async.shared::cta, as TVM's helper has it.

    The x index of the first CTA of the cancelled cluster, 0xFFFFFFFF where none was.
    """
    memory, offset = memory_of(g, addr)
    items = memory.items(offset, RESPONSE_BYTES)
    observe(g, place, memory, offset, RESPONSE_BYTES, False)
    words = memory.view(np.dtype(np.uint32))
    cancelled = words[items * 4 + 3]
    if (cancelled == 0).any():
        g.cta.cancel_failed = g.cta.cancel_failed or place
    if g.cta.detector is not None:
        g.cta.detector.fence_proxy_async(g, "shared::cta")
    if isinstance(items, int):
        return int(words[items * 4]) if cancelled == 1 else NONE_CANCELLED
    return np.where(cancelled == 1, words[items * 4], np.uint32(NONE_CANCELLED)).astype(np.int64)
