"""Accesses to the shared memory, barriers and TMEM of a CTA that may have left by the time they happen.

A CTA's memory lasts until its last thread exits. An access is safe if some thread of the CTA exits after it, that is, if
it lies in the past of the exits of the CTA's threads, taken together. That a CTA has been launched is known to whoever has
anything that one of its threads did in its own past.

Source: PTX ISA 9.1, "Cluster of Cooperative Thread Arrays"; CUDA C++ Programming Guide 13.0, "Distributed Shared Memory".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..findings.finding import Finding
from ..ordering.knowledge import PAST, Clock, Knowledge, join


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
        self.commits: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """(CTA, issuing thread) -> (component, number) of the tcgen05.commits that arrive there, in the order of issue."""

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
        if (
            ticket.place.mnemonic == "tcgen05.commit"
        ):  # those of a thread land in the order of issue
            issued = self.commits.setdefault((rank, ticket.issuer), [])
            issued.append((ticket.component, ticket.number))

    def exited(self, rank: int, clock: Clock) -> None:
        """Threads of a CTA have exited, knowing this."""
        self.exits.setdefault(rank, []).append(clock)

    def findings(self, names: list[str], own: bool) -> list[tuple[Finding, str]]:
        """One finding, and its rule, for every instruction whose accesses may come after a CTA's exit; names by rank.

        `own`: also for operations that a CTA leaves in flight itself. Rule "commit": tcgen05.commits of which the CTA
        knows nothing, but knows that later ones of their threads have arrived.
        """
        known = {rank: join(clocks).rows[PAST] for rank, clocks in self.exits.items()}
        overtaken = {rank: self._overtaken(rank, past) for rank, past in known.items()}
        found = []
        for (rank, _, _), site in sorted(self.sites.items(), key=lambda item: item[0]):
            if site.own and not own:
                continue
            past = known[rank]
            late = [
                ((component, epoch) in overtaken[rank], who)
                for component, (epoch, who) in site.last.items()
                if not _knows(past, component, epoch)
            ]
            for is_overtaken, who in late:
                if is_overtaken == all(passed for passed, _ in late):
                    rule = "commit" if is_overtaken else ""
                    found.append((_peer_exited(site, str(who), names[rank], is_overtaken), rule))
                    break
        return found

    def _overtaken(self, rank: int, past: Any) -> set[tuple[int, int]]:
        """The commits to a CTA that are followed by one of the same thread which it knows to have arrived."""
        found: set[tuple[int, int]] = set()
        for (to, _), issued in self.commits.items():
            if to == rank:
                last = max((i for i, commit in enumerate(issued) if _knows(past, *commit)), default=0)  # fmt: skip
                found.update(issued[:last])
        return found


def _knows(past: Any, component: int, epoch: int) -> bool:
    return bool(component < past.size and past[component] >= epoch)


def is_launched(knowledge: Knowledge, threads: slice) -> bool:
    """Whether one of several threads knows that a CTA, whose `threads` (components) are given, has been launched."""
    return any(part.clock.rows[PAST, threads].any() for part in knowledge)


def _peer_exited(site: _Site, who: str, cta: str, overtaken: bool) -> Finding:
    later = (
        "; only a later commit of its thread is known there, and commits may arrive in any order"
    )
    return Finding(
        "peer-exited",
        f"no thread of {cta} knows of it when it exits, so {cta} may have left, and its memory with it"
        + (later if overtaken else ""),
        place=site.place,
        what=f"{site.place.mnemonic} of {who} accesses memory of {cta}",
        fix="let a thread of the CTA wait for its completion before it exits (its mbarrier, or its bulk group)"
        if site.own
        else "before they exit, let all threads of the cluster pass a cluster barrier, after the last such access is known "
        "to have completed",
    )
