"""Findings about named barriers: which arrivals a schedule could put into another phase, and aligned forms that part.

Source: PTX ISA 9.1, bar / barrier.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from ...findings.finding import Finding, Place, agree
from ...ordering.knowledge import holds
from ..threads.warp import Agents

if TYPE_CHECKING:
    from .named_barrier import Arrival, NamedBarrier


def judge_pending(barrier: NamedBarrier) -> None:
    """Everybody has come who can without a phase: report what lets more than one set of threads make the next.

    That are arrivals with different counts, a second arrival of the same threads, and more threads than the count, among
    the pending ones and, for those who do not know the last phase to be over, those of that phase.
    """
    last, pending = barrier.last, barrier.pending
    unaware = [
        a
        for a in pending
        if last is not None and a.clock is not None and not holds(a.clock, last.clock())
    ]
    before = last.arrivals if last is not None and unaware else []
    for finding in (
        *_clashes(barrier, [*pending, *before], pending),
        *_repeats(barrier, before, unaware),
        *_crowds(barrier, before, unaware),
    ):
        barrier.cta.report(finding)


def _clashes(
    barrier: NamedBarrier, arrivals: list[Arrival], pending: list[Arrival]
) -> Iterable[Finding]:
    """Uses with different counts, one of which at least is pending."""
    uses = dict.fromkeys((a.place, barrier.named(a.count)) for a in arrivals)
    now = {(a.place, barrier.named(a.count)) for a in pending}
    ordered = sorted(uses, key=lambda use: (use[0].line, use[0].order, use[1]))
    for i, first in enumerate(ordered):
        for second in ordered[i + 1 :]:
            if first[1] != second[1] and (first in now or second in now):
                yield _clash(barrier, first, second)


def _repeats(
    barrier: NamedBarrier, before: list[Arrival], unaware: list[Arrival]
) -> Iterable[Finding]:
    """Threads that arrive again and do not know the phase of their earlier arrival to be over."""
    latest: dict[int, Arrival] = {}
    again: dict[tuple[Place, Place], list[np.ndarray]] = {}
    late = set(map(id, unaware))
    known = set(map(id, before))
    for arrival in [*before, *barrier.pending]:
        lanes = arrival.lanes.tolist()
        for earlier in {id(latest[n]): latest[n] for n in lanes if n in latest}.values():
            if id(earlier) not in known or id(arrival) in late:
                again.setdefault((arrival.place, earlier.place), []).append(arrival.lanes)
        latest.update(dict.fromkeys(lanes, arrival))
    for (place, earlier_place), found in again.items():
        who = str(Agents(barrier.cta, np.unique(np.concatenate(found))))
        yield _repeated(barrier, who, place, earlier_place)


def _crowds(
    barrier: NamedBarrier, before: list[Arrival], unaware: list[Arrival]
) -> Iterable[Finding]:
    """More threads than the count, each counted once; those of the last phase with those who do not know it to be over."""
    for count in dict.fromkeys(a.count for a in barrier.pending):
        if count is None:
            continue
        there = _threads(before)
        late = [a for a in unaware if a.count == count and not _threads([a]) & there]
        together = [a for a in barrier.pending if a.count == count]
        alike = [a for a in before if a.count == count]
        for arrivals in ([*alike, *late] if late and alike else [], together):
            threads = _threads(arrivals)
            if len(threads) > count:
                yield _crowd(barrier, count, arrivals, len(threads))


def _threads(arrivals: Iterable[Arrival]) -> set[int]:
    return {lane for a in arrivals for lane in a.lanes.tolist()}


def judge_phase(barrier: NamedBarrier, arrivals: list[Arrival], complete: bool = True) -> None:
    """Arrivals make a phase, or wait for it at the end of the run: report aligned forms from several places."""
    if len(arrivals) > 1:
        for mnemonic in ("bar.sync", "bar.arrive", "bar.red"):
            aligned = [a for a in arrivals if a.place.mnemonic == mnemonic]
            places = _places(aligned)
            for other in places[1:]:
                _report_parted(barrier, aligned, places[0], other)
    if not complete or any(a.count is not None for a in arrivals):
        return
    threads = sum(len(a.lanes) for a in arrivals)
    if threads < barrier.cta.threads:
        barrier.cta.cluster.findings.add(_exited(barrier, _places(arrivals)[0], threads), "exited")


def _places(arrivals: Iterable[Arrival]) -> list[Place]:
    """Where they stand, by line; copies of one instruction that TVM has unrolled are one place."""
    ordered = sorted((a.place for a in arrivals), key=lambda place: (place.line, place.order))
    return list(dict.fromkeys(ordered))


def _report_parted(
    barrier: NamedBarrier, aligned: list[Arrival], first: Place, second: Place
) -> None:
    """An aligned form is reached from two places by threads of one phase."""
    counts = [a.count for a in aligned if a.place in (first, second)]
    if None in counts:
        barrier.cta.report(_whole_cta_parted(barrier, first, second))
    else:
        count = max(n for n in counts if n is not None)
        whole = count == barrier.cta.threads
        parted = _parted(barrier, first, second, count)
        barrier.cta.cluster.findings.add(parted, "parted" if whole else "parted-few")


def _lines(places: list[Place]) -> str:
    """ "lines 74 and 128"; "line 74" where they are on one."""
    lines = [str(line) for line in dict.fromkeys(place.line for place in places)]
    if len(lines) == 1:
        return f"line {lines[0]}"
    return f"lines {', '.join(lines[:-1])} and {lines[-1]}"


def _crowd(barrier: NamedBarrier, count: int, arrivals: list[Arrival], threads: int) -> Finding:
    """More threads than the count may be in one phase, from one place or from several."""
    places, n = _places(arrivals), barrier.number
    fix = (
        "make the count the number of threads that execute it, or give each group an id of its own"
    )
    if len(places) == 1:
        return Finding(
            "barrier-mismatch",
            f"{count} threads complete a phase of it, but more of them come to this instruction, and nothing orders them",
            place=places[0],
            what=f"barrier {n} is entered with count {count} by {threads} threads",
            fix=fix,
        )
    if all(a.waits for a in arrivals):
        both = "both" if len(places) == 2 else "all"
        fix = f"give each group an id of its own; or, if all {threads} threads are to meet, {both} lines the same count: "
        fix += f"T.ptx.barrier.sync({n}, {threads})"
    return Finding(
        "barrier-mismatch",
        f"{count} threads complete a phase of it, and nothing makes one group wait until the other is through: which threads "
        "meet depends on who comes first",
        place=places[-1],
        other=places[0],
        what=f"{threads} threads enter barrier {n}, which takes {count}, from {_lines(places)}",
        fix=fix,
    )


def _repeated(barrier: NamedBarrier, who: str, place: Place, earlier: Place) -> Finding:
    """Threads that have only arrived come to the barrier again."""
    n, verb = barrier.number, agree(who, "it has", "they have")
    return Finding(
        "barrier-mismatch",
        f"{verb} arrived for a phase at line {earlier.line}, and nothing makes {agree(who, 'it', 'them')} wait for its end, so "
        "this arrival may count in that phase too",
        place=place,
        other=earlier,
        what=f"{who} {agree(who, 'comes', 'come')} to barrier {n} again",
        fix=f"let those who wait at barrier {n} arrive at another one, and wait for that before this line (T.ptx.bar.sync); or"
        f" wait at line {earlier.line} (T.ptx.barrier.sync in place of T.ptx.bar.arrive)",
    )


def _clash(barrier: NamedBarrier, one: tuple[Place, int], another: tuple[Place, int]) -> Finding:
    """Two uses of one barrier with different counts, in the order of the program."""
    (first, few), (second, many) = one, another
    return Finding(
        "barrier-mismatch",
        f"line {first.line} enters it with count {few}, and nothing orders the two uses",
        place=second,
        other=first,
        what=f"barrier {barrier.number} is entered with count {many}",
        fix="enter a barrier with one count, or give the second use an id of its own",
    )


def _parted(barrier: NamedBarrier, first: Place, second: Place, count: int) -> Finding:
    """Threads of one phase of a counted barrier have come to an aligned form at two instructions.

    The text asks for "all threads in CTA", which a barrier of fewer threads cannot have anyway: there it is a note.
    """
    n, form = barrier.number, first.mnemonic
    fix = f"T.ptx.barrier.sync({n}, {count}) at both lines: it is not .aligned"
    if form != "bar.sync":
        fix = f"let one {form} serve both: move it in front of the branches, or behind them"
    return Finding(
        "divergent-collective",
        f"{form} is .aligned: one instruction that all threads of the CTA execute",
        place=first,
        other=second,
        what=f"some threads of barrier {n} come to {form} at line {first.line}, others at line {second.line}",
        fix=fix,
    )


def _whole_cta_parted(barrier: NamedBarrier, first: Place, second: Place) -> Finding:
    """Threads of one phase have entered a barrier of the whole CTA at two instructions."""
    n, all_threads = barrier.cta.barriers.unused(), barrier.cta.live_threads
    return Finding(
        "divergent-collective",
        "bar.sync without a thread count is one instruction that all threads of the CTA execute",
        place=first,
        other=second,
        what=f"some threads enter barrier {barrier.number} at line {first.line}, others at line {second.line}",
        fix=f"if the two are to meet, T.ptx.barrier.sync({n}, {all_threads}) at both lines; if not, in the branch a"
        " T.ptx.bar.sync with the number of threads that come there, and an id that no other group uses",
    )


def _exited(barrier: NamedBarrier, place: Place, threads: int) -> Finding:
    """Threads of the CTA had exited when the others met at a barrier of the whole CTA.

    The text has it both ways: bar.sync is `.aligned`, "all threads in CTA will execute the same" instruction; but it waits
    for threads that have not exited, and `exit` releases barriers that wait for all.
    """
    return Finding(
        "divergent-collective",
        "bar.sync is .aligned, executed by all threads of the CTA; that exited threads are excused is a rule of `exit`",
        place=place,
        what=f"{threads} of {barrier.cta.threads} threads meet at barrier {barrier.number}; the others have exited",
        fix="let every thread of the CTA stay until its last barrier, or give the barrier a thread count",
    )
