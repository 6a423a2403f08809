"""The wait-for picture of a cluster in which nothing can run: who waits, for what, and who should have supplied it."""

from __future__ import annotations

from typing import Any

from .finding import Finding
from .machine.cta import Cluster
from .machine.mbarrier import LanesWait, MbarrierWait
from .machine.warp import Group


def deadlock_finding(cluster: Cluster) -> Finding:
    """One finding: its details list every blocked group, its data holds the same for scripts."""
    waiting = sorted((g for g in cluster.groups if g.wait is not None), key=_place_in_program)
    blocked = [_blocked(cluster, g) for g in waiting]
    details = []
    for entry in blocked:
        details.append(
            f"{entry['who']} at {entry['file']}:{entry['line']} waits: {entry['waits_for']}"
        )
        details += [
            f"  supplied by {s['mnemonic']} at line {s['line']}: {s['why']}"
            for s in entry["suppliers"]
        ]
    first = waiting[0]
    assert first.wait_site is not None
    return Finding(
        "deadlock",
        _reason(blocked[0]),
        place=first.wait_site,
        what="no thread can run and nothing is in flight",
        details=tuple(details),
        data=blocked,
    )


def _place_in_program(g: Group) -> tuple[int, int]:
    assert g.wait_site is not None
    return g.wait_site.order, int(g.lanes[0])


def polling_finding(cluster: Cluster, g: Group) -> Finding:
    """A group that has run very long without waiting: a loop that polls for what never comes."""
    lines = [p for p, n in zip(cluster.program.instructions, cluster.counts, strict=True) if n]
    busiest = max(lines, key=lambda p: cluster.counts[p.order])
    return Finding(
        "deadlock",
        f"{g} runs a loop that does not end; the instruction executed most is at line {busiest.line}",
        place=busiest,
        what="the kernel makes no progress",
        fix="wait on an mbarrier; a loop that polls memory needs somebody who writes what it polls",
    )


def _reason(entry: dict[str, Any]) -> str:
    missing = [s for s in entry["suppliers"] if s["executed"] == 0]
    text = f"{entry['who']} waits: {entry['waits_for']}"
    if missing:
        return (
            f"{text}; {missing[0]['mnemonic']} at line {missing[0]['line']} has {missing[0]['why']}"
        )
    if not entry["suppliers"] and "mbarrier" in entry["waits_for"]:
        return f"{text}; the kernel has no instruction that arrives on it"
    return text


def _blocked(cluster: Cluster, g: Group) -> dict[str, Any]:
    assert g.wait is not None and g.wait_site is not None
    entry: dict[str, Any] = {
        "who": str(g),
        "threads": g.n,
        "instruction": g.wait_site.mnemonic,
        "file": g.wait_site.file,
        "line": g.wait_site.line,
        "waits_for": g.wait.describe(),
        "suppliers": [],
    }
    wait = g.wait
    if isinstance(wait, LanesWait):
        wait = next(w for _, w in wait.parts if w is not None and not w.ready())
    if isinstance(wait, MbarrierWait):
        b = wait.barrier
        entry["barrier"] = {
            "name": b.name,
            "phase": b.phase,
            "parity": wait.parity,
            "arrivals": b.expected - b.pending,
            "expected": b.expected,
            "bytes_missing": b.tx,
        }
        entry["suppliers"] = _suppliers(cluster, b.name.partition("[")[0])
    return entry


def _suppliers(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    """Instructions of the program that arrive on the barrier, and why they have not done more."""
    found = []
    waiting = {
        g.wait_site.line for g in cluster.groups if g.wait_site is not None and g.wait is not None
    }
    for order, barrier in cluster.program.arrivals:
        if barrier != name:
            continue
        place = cluster.program.instructions[order]
        executed = cluster.counts[order] - cluster.counts_before[order]
        if executed:
            why = f"executed {executed} times"
        elif waiting and place.line > max(waiting):
            why = "not been reached: every thread that could is blocked before it"
        else:
            why = "never been reached, or is in a branch that no thread took"
        found.append(
            {
                "mnemonic": place.mnemonic,
                "file": place.file,
                "line": place.line,
                "executed": executed,
                "why": why,
            }
        )
    return found
