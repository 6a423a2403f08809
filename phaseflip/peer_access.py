"""Accesses to the shared memory, barriers and TMEM of a CTA that may have left by the time they happen.

A CTA's memory lasts until its last thread exits. An access is safe if some thread of the CTA exits after it, that is, if
it lies in the past of the exits of the CTA's threads, taken together. That a CTA has been launched is known to whoever has
anything that one of its threads did in its own past.

Source: PTX ISA 9.1, "Cluster of Cooperative Thread Arrays"; CUDA C++ Programming Guide 13.0, "Distributed Shared Memory".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .finding import Finding
from .vector_clock import PAST, Clock, Knowledge, join


@dataclass
class _Site:
    """What one instruction of the program accesses in one CTA: component -> its last epoch there, and who that was."""

    place: Any
    own: bool
    last: dict[int, tuple[int, Any]] = field(default_factory=dict)


class PeerAccesses:
    """The last access of every agent to every CTA of a cluster: threads' to others than their own, operations' to all."""

    def __init__(self) -> None:
        self.sites: dict[tuple[int, int, bool], _Site] = {}
        self.exits: dict[int, list[Clock]] = {}

    def threads(self, rank: int, threads: Any, epochs: Any, place: Any, who: Any) -> None:
        """Threads (components, with their epochs) access the CTA of a rank."""
        last = self.sites.setdefault((rank, place.order, False), _Site(place, False)).last
        for thread, epoch in zip(threads.tolist(), epochs.tolist(), strict=True):
            last[thread] = (epoch, who)

    def operation(self, rank: int, ticket: Any, own: bool) -> None:
        """An asynchronous operation accesses the CTA of a rank, which is its issuer's `own`, or another."""
        key = (rank, ticket.place.order, own)
        site = self.sites.setdefault(key, _Site(ticket.place, own))
        known = site.last.get(ticket.component, (0, None))
        if known[0] < ticket.number:  # operations of one queue may land in any order
            site.last[ticket.component] = (ticket.number, ticket.who)

    def exited(self, rank: int, clock: Clock) -> None:
        """Threads of a CTA have exited, knowing this."""
        self.exits.setdefault(rank, []).append(clock)

    def findings(self, names: list[str], own: bool) -> list[Finding]:
        """One finding for every instruction whose accesses may come after a CTA's exit; names of the CTAs by rank.

        `own`: also for operations that a CTA leaves in flight itself.
        """
        known = {rank: join(clocks).rows[PAST] for rank, clocks in self.exits.items()}
        found = []
        for (rank, _, _), site in sorted(self.sites.items(), key=lambda item: item[0]):
            if site.own and not own:
                continue
            past = known[rank]
            late = [
                who
                for component, (epoch, who) in site.last.items()
                if component >= past.size or past[component] < epoch
            ]
            if late:
                found.append(_peer_exited(site, str(late[0]), names[rank]))
        return found


def is_launched(knowledge: Knowledge, threads: slice) -> bool:
    """Whether one of several threads knows that a CTA, whose `threads` (components) are given, has been launched."""
    return any(part.clock.rows[PAST, threads].any() for part in knowledge)


def _peer_exited(site: _Site, who: str, cta: str) -> Finding:
    return Finding(
        "peer-exited",
        f"no thread of {cta} knows of it when it exits, so {cta} may have left, and its memory with it",
        place=site.place,
        what=f"{site.place.mnemonic} of {who} accesses memory of {cta}",
        fix="let a thread of the CTA wait for its completion before it exits (its mbarrier, or its bulk group)"
        if site.own
        else "before they exit, let all threads of the cluster pass a cluster barrier, after the last such access is known "
        "to have completed",
    )
