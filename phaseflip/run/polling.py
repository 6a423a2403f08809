"""Loops that poll memory for what never comes: noticed once a cluster goes round in circles.

A group of threads that runs on and on is no mistake in itself: it may compute, or poll what another one will write. It is
one if every group that can run has been where it is now before, with the same registers, and memory has not changed: from
then on all repeat. Registers that only count (how often a loop has polled) decide nothing and are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..findings.finding import Place

if TYPE_CHECKING:
    from ..ir.program import Program
    from ..machine.cta import Cluster
    from ..machine.threads.warp import Group

MAX_STATES = 10_000
"""States to remember; more than any loop that polls has."""


@dataclass
class Polling:
    """What the groups of a cluster have been seen doing since memory was last looked at."""

    cluster: Cluster
    seen: set[Any] = field(default_factory=set)
    memory: bytes = b""
    deciding: dict[int, list[int]] = field(default_factory=dict)
    """Block -> the registers live there that decide what the loop around it does."""
    counts: list[int] = field(default_factory=list)
    rounds: dict[Any, Any] = field(default_factory=dict)
    """(CTA, first lane, loop) -> its iteration number when it was last looked at."""
    turning: set[int] = field(default_factory=set)
    """The loops that have gone round between the last two looks."""

    def look(self, runnable: Iterable[Group]) -> None:
        """Note which loops go round, by the slots of their iteration numbers."""
        before, loops = self.rounds, self.cluster.program.loops
        self.rounds = {
            (g.cta.rank, int(g.lanes[0]), loop): np.max(g.r[loop])
            for g in runnable
            for loop in loops[g.pc]
        }
        turned = {key[-1] for key, number in self.rounds.items() if before.get(key) != number}
        self.turning = turned or {key[-1] for key in self.rounds}

    def nothing_changes(self, runnable: Iterable[Group]) -> bool:
        """Whether these groups, all that can run, do but repeat what they did. Asked again and again."""
        states = {self.state(g) for g in runnable}
        if not states <= self.seen and len(self.seen) < MAX_STATES:
            self.seen |= states
            return False
        self.seen = states
        before, self.memory = self.memory, contents(self.cluster)
        if before == self.memory:
            return True
        self.counts = list(self.cluster.counts)
        return False

    def state(self, g: Group) -> Any:
        """Which threads, where, and with which registers."""
        values = []
        for slot in self.registers(g.pc):
            value = g.r[slot]
            values.append(value.tobytes() if isinstance(value, np.ndarray) else value)
        return g.cta.rank, g.lanes.tobytes(), g.pc, tuple(values)

    def registers(self, block: int) -> list[int]:
        """See `deciding`."""
        if block not in self.deciding:
            program = self.cluster.program
            decide = deciding_slots(program, block)
            self.deciding[block] = [slot for slot in program.live_in[block] if slot in decide]
        return self.deciding[block]

    def endless_loop(self) -> tuple[Place, Place]:
        """Where the loop stands that goes round, the outermost one, and the first instruction that it executes.

        Each stands for the other where there is none: a loop need execute no instruction, and work without end in sight
        may be left in no loop.
        """
        program, now = self.cluster.program, self.cluster.counts
        before = self.counts or self.cluster.counts_before
        executed = [
            place
            for place, count, old in zip(program.instructions, now, before, strict=True)
            if count > old
        ]
        if not self.turning:
            first = next(iter(executed), Place())
            return first, first
        loop = min(self.turning)  # slots are numbered in program order
        place = program.loop_places[loop]
        return place, next((p for p in executed if loop in p.loops), place)


def deciding_slots(program: Program, block: int) -> set[int]:
    """Slots that decide where the loop around a block goes, or what its instructions do."""
    loop = _reached(program, block) & {
        b for b in range(len(program.flows)) if block in _reached(program, b)
    }
    flows = [program.flows[b] for b in loop | {block}]
    found = set().union(*(flow.effects for flow in flows))
    grown = True
    while grown:
        size = len(found)
        for flow in flows:
            for slot, uses in flow.definitions:
                if slot in found:
                    found |= uses
        grown = len(found) > size
    return found


def _reached(program: Program, block: int) -> set[int]:
    """Blocks that may run after a block."""
    found: set[int] = set()
    rest = list(program.flows[block].successors)
    while rest:
        b = rest.pop()
        if b not in found and b >= 0:
            found.add(b)
            rest += program.flows[b].successors
    return found


def contents(cluster: Cluster) -> bytes:
    """A digest of all that the threads of a cluster can observe besides their registers."""
    digest = hashlib.blake2b()
    for memory in cluster.globals:
        digest.update(memory.data)
    for cta in cluster.ctas:
        for array in (cta.shared.data, cta.tmem.words, cta.frame(np.dtype(np.uint8))):
            digest.update(np.ascontiguousarray(array))
    mbarriers = [(b.phase, b.pending, b.tx) for b in cluster.mbarriers.values()]
    named = [(b.number, b.arrived) for cta in cluster.ctas for b in cta.barriers]
    in_flight = cluster.pipes.in_flight
    digest.update(repr((mbarriers, named, in_flight, len(cluster.groups))).encode())
    return digest.digest()
