"""The wait-for picture of a cluster in which nothing can run: who waits, for what, and who should have supplied it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from ..findings import Finding, agree
from ..ir.instruction import with_trait
from ..ir.place import Place
from ..machine.cta import Cluster
from ..machine.sync.bar import BarrierWait
from ..machine.sync.cluster_barrier import ClusterWait
from ..machine.sync.mbarrier import NEVER, Mbarrier
from ..machine.sync.mbarrier_report import ALL_BYTES, to_each_bit
from ..machine.sync.mbarrier_wait import LanesWait, MbarrierWait
from ..machine.tcgen05.allocation import AllocationWait, PairWait
from ..machine.threads.setmaxnreg import RegistersWait
from ..machine.threads.warp import Agents, Group, Wait

NEVER_TAKEN = "never been reached, or is in a branch that no thread took"
BLOCKED = "not been reached: every thread that could is blocked before it"


class _Waiter(NamedTuple):
    place: Place
    agents: Agents

    def __str__(self) -> str:
        return f"{self.agents} at line {self.place.line}"

    def would_reach(self, place: Place) -> bool:
        """Whether it comes to an instruction if it goes on: one that follows, or shares a loop, in no other branch.

        Branches that follow each other are taken for roles, of which a thread has one, unless they are of one loop's body.
        """
        here, there = self.place, place
        ahead = there.order > here.order or there.loops[:1] == here.loops[:1] != ()
        pairs = zip(there.branches, here.branches, strict=False)
        parting = next(((a, b) for a, b in pairs if a != b), None)
        if parting is None:
            return ahead
        arms_of_one_if = abs(parting[0] - parting[1]) == 1  # numbered so by the translator
        return ahead and here.loops == there.loops != () and not arms_of_one_if


def deadlock_finding(cluster: Cluster) -> Finding:
    """One finding: its details list every blocked group, its data holds the same for scripts."""
    waiting = sorted((g for g in cluster.groups if g.wait is not None), key=_place_in_program)
    alike: dict[Any, list[Group]] = {}
    for g in waiting:
        alike.setdefault((g.cta.rank, g.wait_site, _waits_for(g)), []).append(g)
    groups = list(alike.values())
    waiters = [_Waiter(found[0].wait_site or Place(), _together(found)[0]) for found in groups]
    entries = [_blocked(cluster, found, waiters) for found in groups]
    held_up_by = [_held_up_by(i, groups, waiters, entries) for i in range(len(groups))]
    behind = [_behind(i, held_up_by) for i in range(len(groups))]
    cause = _cause(entries, behind)
    circle = [j for j in sorted(behind[cause]) if j != cause and cause in behind[j]]
    fix = _remedy(entries[cause], groups[cause][0], [(waiters[j], groups[j][0]) for j in circle])
    groups.insert(0, groups.pop(cause))
    entries.insert(0, entries.pop(cause))
    details = _supplied(entries[0])
    for entry in entries[1:]:
        verb = agree(entry["who"], "waits", "wait")
        at = f"{entry['file']}:{entry['line']}"
        details.append(f"{entry['who']} {verb} at {at} ({entry['instruction']})")
        details += [f"  {line}" for line in (entry["waits_for"], *_supplied(entry))]
    first, site = entries[0], groups[0][0].wait_site
    assert site is not None
    return Finding(
        "deadlock",
        _reason(first),
        place=site,
        what=f"{first['who']} {agree(first['who'], 'waits', 'wait')} for ever; no thread can run, nothing is in flight",
        fix=fix,
        details=tuple(details),
        data=entries,
    )


def _held_up_by(
    i: int, groups: list[list[Group]], waiters: list[_Waiter], entries: list[dict[str, Any]]
) -> list[int]:
    """Who keeps others from supplying what entry i waits for, by number."""
    first, wait = groups[i][0], _wait(groups[i][0])
    if not isinstance(wait, MbarrierWait):  # whoever waits elsewhere may be missing
        mine, local = _waits_for(first), isinstance(wait, (BarrierWait, RegistersWait))
        others = [
            j
            for j, (other, *_) in enumerate(groups)
            if _waits_for(other) != mine and (other.cta is first.cta or not local)
        ]
        supplies = with_trait(lambda t: t.supplies is not None and isinstance(wait, t.supplies))
        if not supplies:
            return others
        places = [p for p in first.cta.program.instructions if p.mnemonic in supplies]
        supply = [j for j in others if any(waiters[j].would_reach(p) for p in places)]
        # Of a barrier that nobody would reach, those that have left the way to it may be the missing ones.
        return supply if supply or isinstance(wait, RegistersWait) else others
    suppliers = entries[i]["suppliers"]
    missing = [s for s in suppliers if s["executed"] == 0] or suppliers
    return [j for j, w in enumerate(waiters) if any(str(w) in s["held_by"] for s in missing)]


def _cause(entries: list[dict[str, Any]], behind: list[set[int]]) -> int:
    """Number of the entry to name first: whom none of the others holds up, or one of those that wait for each other.

    Those that only wait for such a circle are its victims. In the circle it is one whose arrivals went to other CTAs, else
    one to whom bytes have come that nobody announced, else one whose phase has begun and lacks something, else the first one
    of the program.
    """
    concerned = sorted({0} | behind[0])
    roots = [i for i in concerned if all(i in behind[j] for j in behind[i])]

    def turn(i: int) -> tuple[bool, ...]:
        entry = entries[i]
        return bool(behind[i]), not _astray(entry), not _unannounced(entry), not _has_begun(entry)

    return min(roots, key=turn)


def _behind(i: int, held_up_by: list[list[int]]) -> set[int]:
    """Who holds up entry i, directly or through others."""
    found: set[int] = set()
    waiting = [*held_up_by[i]]
    while waiting:
        j = waiting.pop()
        if j not in found:
            found.add(j)
            waiting += held_up_by[j]
    return found


def _has_begun(entry: dict[str, Any]) -> bool:
    """Whether some of the arrivals of the phase have come, but not all of what it expects."""
    return bool(entry.get("barrier", {}).get("arrivals"))


def _unannounced(entry: dict[str, Any]) -> int:
    """Bytes that have come in the phase beyond those that arrivals have announced."""
    return max(-int(entry.get("barrier", {}).get("bytes_missing", 0)), 0)


def _astray(entry: dict[str, Any]) -> list[str]:
    """CTAs on whose barriers of the name others have arrived, but never on the one that is waited for."""
    found: list[str] = entry["barrier"]["arrived_in"] if "barrier" in entry else []
    return found if any(s["executed"] for s in entry["suppliers"]) else []


def _place_in_program(g: Group) -> tuple[int, int, int]:
    assert g.wait_site is not None
    return g.wait_site.order, g.cta.rank, int(g.lanes[0])


def polling_finding(runnable: list[Group], loop: Place, instruction: Place) -> Finding:
    """Groups that run without end: they poll for what never comes. instruction: the first that the loop executes."""
    who = " and ".join(str(agents) for agents in _together(runnable))
    elsewhere = (instruction.file, instruction.line) != (loop.file, loop.line)
    where = f"; its first instruction is at line {instruction.line}" if elsewhere else ""
    why = f"it repeats itself: nobody who can still run changes what it reads{where}"
    fix = "wait on an mbarrier, or let somebody write what the loop polls"
    if later := runnable[0].cta.cluster.to_come():
        ctas = later * len(runnable[0].cta.cluster.ctas)
        rest = f"{ctas} CTAs have" if ctas > 1 else "1 CTA has"
        why = "it repeats itself: nobody who has started changes what it reads, and the simulator runs clusters one after the "
        why += f"other: {rest} not started{where}"
        fix = (
            "if one of those writes what the loop polls, the simulator cannot run the kernel so (README, Limits): let an "
            f"earlier CTA of the grid write it; else {fix}"
        )
    return Finding(
        "deadlock",
        why,
        place=loop,
        what=f"{who} {agree(who, 'runs', 'run')} a loop that does not end",
        fix=fix,
    )


def _together(groups: Iterable[Group]) -> list[Agents]:
    """The threads of these groups, those of a CTA in one."""
    lanes: dict[Any, list[np.ndarray]] = {}
    for g in groups:
        lanes.setdefault(g.cta, []).append(g.lanes)
    return [Agents(cta, np.sort(np.concatenate(found))) for cta, found in lanes.items()]


def _wait(g: Group) -> Wait:
    """What a group waits for; of lanes that wait for different phases, the first that has not come."""
    wait = g.wait
    assert wait is not None
    if isinstance(wait, LanesWait):
        return next(w for _, w in wait.parts if w is not None and not w.ready())
    return wait


def _waits_for(g: Group) -> str:
    assert g.wait is not None
    return g.wait.describe()


def _reason(entry: dict[str, Any]) -> str:
    missing = [s for s in entry["suppliers"] if s["executed"] == 0]
    text: str = entry["waits_for"]
    if missing:
        return (
            f"{text}; {missing[0]['mnemonic']} at line {missing[0]['line']} has {missing[0]['why']}"
        )
    if not entry["suppliers"] and "barrier" in entry:
        return f"{text}; the kernel has no instruction that arrives on it"
    if more := _unannounced(entry):
        return f"{text}; {more} bytes have come that no arrival has announced"
    if astray := _astray(entry):
        (line, *_) = (s["line"] for s in entry["suppliers"] if s["executed"])
        return f"{text}; line {line} has arrived on that of {' and '.join(astray)} instead"
    return text


def _remedy(entry: dict[str, Any], g: Group, circle: list[tuple[_Waiter, Group]]) -> str:
    """What would let the first waiter go on; circle: those that hold it up and that it holds up."""
    wait = _wait(g)
    if isinstance(wait, MbarrierWait):
        return _phase_remedy(entry, wait, g, [str(waiter) for waiter, _ in circle])
    if isinstance(wait, RegistersWait):
        return f"let other warps give up more before it (setmaxnreg.dec), or ask for {wait.most()} at most"
    if isinstance(wait, BarrierWait):
        others = [
            (w, _waits_for(other)) for w, other in circle if isinstance(_wait(other), BarrierWait)
        ]
        if others:
            other, text = others[0]
            return (
                f"{entry['who']} and {other} ({text.partition(':')[0]}) hold each other up: let one of them arrive at the "
                "barrier of the other before it waits (T.ptx.bar.arrive), all enter them in one order, or lower the count"
            )
        return "let as many threads reach the barrier as it expects, all barriers in one order, or lower its count"
    if isinstance(wait, ClusterWait):
        return "let every thread of the cluster that does not exit arrive at the cluster barrier"
    if isinstance(wait, PairWait) or (
        isinstance(wait, AllocationWait) and wait.pair is not None and not wait.pair.complete
    ):
        return "let one warp of each CTA of the pair execute it"
    if isinstance(wait, AllocationWait) and wait.by_several():
        return (
            "let one warp of the CTA allocate: guard tcgen05.alloc with the warp (if warp_id == 0)"
        )
    if isinstance(wait, AllocationWait):
        return "let tcgen05.dealloc free the columns before it, or ask for fewer"
    return "let what is waited for happen before the wait"


def _phase_remedy(entry: dict[str, Any], wait: MbarrierWait, g: Group, circle: list[str]) -> str:
    """What would let the phase of an mbarrier complete; circle: those that wait for the waiter as it waits for them."""
    b, suppliers = wait.barrier, entry["suppliers"]
    missing = [s for s in suppliers if s["executed"] == 0]
    if not b.pending:
        return f"{ALL_BYTES}, and issue each of them{to_each_bit(b)}"
    if not suppliers:
        return f"let a thread, tcgen05.commit or a bulk copy arrive on {b.full_name}"
    if missing and missing[0]["held_by"]:
        line, held_by = missing[0]["line"], missing[0]["held_by"]
        text = f"let line {line} come before the wait, or leave it to threads that do not wait"
        holder = next((w for w in held_by if w in circle), None)
        if holder is not None and _here(entry) not in held_by:
            text = f"{entry['who']} and {holder} hold each other up: let one of them go first"
        if _has_begun(entry):
            text += ", or give mbarrier.init the number of arrivals that come"
        elif wait.phase == 0 and (b.consumed[g.lanes + g.cta.first_component] == NEVER).all():
            text += "; who fills a stage waits first with parity 1, which a fresh barrier lets pass"
        return text
    if missing:
        return f"let the threads that should arrive reach line {missing[0]['line']}"
    if _unannounced(entry):
        lines = [str(s["line"]) for s in suppliers if "expect_tx" in s["mnemonic"]]
        announces = f"line {' or '.join(lines)}" if lines else "an mbarrier.arrive.expect_tx"
        text = f"let {announces} announce, on {b.full_name} too, the bytes of all copies that come to it"
        return text + to_each_bit(b)
    if _astray(entry):
        arrives = next(s for s in suppliers if s["executed"])
        to = _addressed(arrives["mnemonic"], b.cta.rank)
        line, instead = arrives["line"], f"or let no thread of {b.cta} wait for it"
        return f"let line {line} arrive on {b.full_name} ({to}), {instead}"
    if not _has_begun(entry):
        lines = list(dict.fromkeys(str(s["line"]) for s in suppliers))
        several = f"lines {' and '.join(lines)} were" if len(lines) > 1 else f"line {lines[0]} was"
        return f"this wait is one too many, or {several} executed too seldom or arrived on another barrier"
    need = f"{b.expected} arrivals" if b.expected > 1 else "1 arrival"
    return f"let {need} come in every phase, or give mbarrier.init the number that do"


def _addressed(mnemonic: str, rank: int) -> str:
    """How an instruction names the CTA of a rank in the cluster, on whose barrier it is to arrive."""
    if mnemonic == "tcgen05.commit":
        return f"bit {rank} of cta_mask"
    return f"remote={rank}" if mnemonic == "mbarrier.arrive" else f"the address in CTA {rank}"


def _blocked(cluster: Cluster, groups: list[Group], waiters: list[_Waiter]) -> dict[str, Any]:
    """Groups of one CTA that wait at one place for the same."""
    first, (agents,) = groups[0], _together(groups)
    assert first.wait_site is not None
    entry: dict[str, Any] = {
        "who": str(agents),
        "threads": len(agents.lanes),
        "instruction": first.wait_site.mnemonic,
        "file": first.wait_site.file,
        "line": first.wait_site.line,
        "waits_for": _waits_for(first),
        "suppliers": [],
    }
    wait = _wait(first)
    if isinstance(wait, MbarrierWait):
        b = wait.barrier
        entry["barrier"] = {
            "name": b.name,
            "cta": b.cta.rank_in_grid,
            "phase": b.phase,
            "parity": wait.parity,
            "arrivals": b.expected - b.pending,
            "expected": b.expected,
            "bytes_missing": b.tx,
            "arrived_in": _arrived_in(cluster, b, waiters),
        }
        entry["suppliers"] = _suppliers(cluster, b.name, waiters, _here(entry))
    return entry


def _arrived_in(cluster: Cluster, barrier: Mbarrier, waiters: list[_Waiter]) -> list[str]:
    """The other CTAs whose barrier of this name has been arrived on, if this one never has.

    None if a thread of this CTA may yet arrive: then it is but late.
    """
    own = [w for w in waiters if w.agents.cta is barrier.cta]
    places = cluster.program.arrivals_on(barrier.name)
    if not barrier.never_arrived_on() or any(w.would_reach(p) for w in own for p in places):
        return []
    same = [b for _, b in sorted(cluster.mbarriers.items()) if b.name == barrier.name]
    return [str(b.cta) for b in same if not b.never_arrived_on()]


def _here(entry: dict[str, Any]) -> str:
    """Who waits, and where, as a `_Waiter` is written."""
    return f"{entry['who']} at line {entry['line']}"


def _supplied(entry: dict[str, Any]) -> list[str]:
    """A line for each instruction that arrives; copies of one that TVM has unrolled are told once."""
    lines = [
        f"{s['mnemonic']} at line {s['line']}, which arrives on {s['on']}, {'was' if s['executed'] else 'has'} {s['why']}"
        for s in entry["suppliers"]
    ]
    return list(dict.fromkeys(lines))


def _suppliers(
    cluster: Cluster, name: str, waiters: list[_Waiter], here: str
) -> list[dict[str, Any]]:
    """Instructions of the program that arrive on the barrier that `here` waits for, and why they have not done more.

    Those of an array of barriers are told together, as are all CTAs of the cluster.
    """
    found = []
    for place in cluster.program.arrivals_on(name):
        executed = cluster.counts[place.order] - cluster.counts_before[place.order]
        held_by = [str(w) for w in waiters if w.would_reach(place)]
        if executed:
            why = "executed once" if executed == 1 else f"executed {executed} times"
        elif held_by:
            others = [w for w in held_by if w != here]
            why = f"{BLOCKED} ({', '.join(others)})" if others else BLOCKED
        else:
            why = NEVER_TAKEN
        found.append(
            {
                "mnemonic": place.mnemonic,
                "file": place.file,
                "line": place.line,
                "on": name.partition("[")[0],
                "executed": executed,
                "held_by": held_by,
                "why": why,
            }
        )
    return found
