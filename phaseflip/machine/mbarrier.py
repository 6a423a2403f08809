"""mbarrier: phase, pending arrivals and transaction bytes of a barrier object in shared memory, and waiting on it.

Source: PTX ISA 9.1, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import KernelFault
from ..instructions import instruction

if TYPE_CHECKING:
    from ..device_ir import Site
    from .cta import CTA
    from .warp import Group

MAX_COUNT = (1 << 20) - 1


class Mbarrier:
    """One barrier object.

    `expected` arrivals a phase; `pending` of them still missing in the current phase; `tx` bytes still to come; `phase`
    the number of phases completed since init, whose lowest bit is the parity of the current phase.
    """

    __slots__ = ("name", "offset", "expected", "pending", "tx", "phase")

    def __init__(self, name: str, offset: int, expected: int) -> None:
        self.name, self.offset = name, offset
        self.expected = self.pending = expected
        self.tx = 0
        self.phase = 0

    def arrive(self, count: int = 1) -> None:
        """`count` arrivals on the current phase, which completes when none is pending and no byte is due."""
        if count > self.pending:
            raise KernelFault(
                "over-arrival",
                f"{count} arrivals on {self.name}, whose phase {self.phase} expects {self.pending} more "
                f"of {self.expected}",
            )
        self.pending -= count
        self._complete()

    def expect_tx(self, nbytes: int) -> None:
        """Raise the number of bytes that must arrive in this phase."""
        self.tx += nbytes

    def complete_tx(self, nbytes: int) -> None:
        """`nbytes` have arrived."""
        self.tx -= nbytes
        self._complete()

    def _complete(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected

    def passes(self, parity: int) -> bool:
        """test_wait.parity: whether the phase of this parity is the preceding one, hence complete."""
        return (self.phase & 1) != parity

    def __str__(self) -> str:
        arrivals = f"{self.expected - self.pending} of {self.expected} arrivals"
        return f"{self.name} (phase {self.phase}, {arrivals}, {self.tx} bytes to come)"


class MbarrierWait:
    """A group blocked in try_wait.parity."""

    __slots__ = ("barrier", "parity")

    def __init__(self, barrier: Mbarrier, parity: int) -> None:
        self.barrier, self.parity = barrier, parity

    def ready(self) -> bool:
        """The awaited phase is complete."""
        return self.barrier.passes(self.parity)

    def finish(self, group: Group) -> None:
        """Nothing to do: passing consumes nothing."""

    def describe(self) -> str:
        """What is waited for, and the state of the barrier."""
        return f"mbarrier {self.barrier}: waits for the phase of parity {self.parity} to complete"


def barrier_at(cta: CTA, address: int, mnemonic: str) -> Mbarrier:
    """The live barrier object at a shared address; KernelFault where none was initialised."""
    found = cta.cluster.mbarriers.get(address)
    if found is None:
        raise KernelFault(
            "barrier-not-initialised",
            f"{mnemonic} on {cta.shared_name(address)}, which no init has reached",
        )
    return found


@instruction("mbarrier.init", uniform=("mbar", "count"))
def mbarrier_init(g: Group, site: Site, mbar: int, count: int) -> None:
    """mbarrier.init.shared.b64 [addr], count: a new object in phase 0 that expects `count` (1 to 2^20-1) arrivals."""
    if not 1 <= count <= MAX_COUNT:
        raise KernelFault(
            "over-arrival", f"mbarrier.init with count {count}, which must be 1 to {MAX_COUNT}"
        )
    memory = g.cta.shared
    memory.items(mbar - memory.base, 8)
    g.cta.cluster.mbarriers[mbar] = Mbarrier(g.cta.shared_name(mbar), mbar - memory.base, count)


@instruction("mbarrier.try_wait.parity", waits=True, uniform=("mbar", "parity"))
def mbarrier_try_wait_parity(g: Group, site: Site, mbar: int, parity: int) -> MbarrierWait | None:
    """mbarrier.try_wait.parity p, [addr], phaseParity, looped until true: waits until that phase has completed.

    `parity` names the current phase or the immediately preceding one; a barrier in phase 0 has a complete phase of
    parity 1 before it.
    """
    g.cta.bytes["waits"] += g.warps
    wait = MbarrierWait(barrier_at(g.cta, mbar, "mbarrier.try_wait"), parity & 1)
    return None if wait.ready() else wait


@instruction("fence.mbarrier_init")
def fence_mbarrier_init(g: Group, site: Site) -> None:
    """fence.mbarrier_init.release.cluster: makes earlier inits of this thread visible in the cluster; no value changes."""
