"""What orders two accesses that nothing orders, in words: waits for asynchronous operations, barriers, mbarriers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..findings import CLUSTER_BARRIER
from ..ir.instruction import traits_of
from ..ir.traits import MBARRIER
from ..ordering.copy_order import same_threads, threads_of, waited_for
from ..ordering.knowledge import SEEN
from .shadow import Event

COMMIT_ARRIVAL, BULK_GROUP, COPY_GROUP = (
    "tcgen05.commit", "cp.async.bulk.wait_group", "cp.async.wait_group",
)  # fmt: skip
OWN_WAITS = ("tcgen05.wait::ld", "tcgen05.wait::st")
"""What completes operations (`Traits.completes`): with these, MBARRIER, and groups of wgmma, a report has words of its own."""

REMOTE_ARRIVAL = (
    "T.ptx.mbarrier.arrive(..., sem='release', scope='cluster', remote=...) and "
    "T.ptx.mbarrier.try_wait_acquire_cluster"
)
"""What orders accesses of two CTAs by an mbarrier."""

COMMIT = "wait for the mbarrier that a later tcgen05.commit of the issuing thread arrives on"
BIT = ", with the bit of the waiting CTA in its cta_mask"


def completes(e: Event) -> str:
    """What tells that the operation of an access is complete; "" for one of threads."""
    return traits_of(e.place.mnemonic).completes


def between(first: Event, second: Event) -> tuple[str, str]:
    """Two accesses by their lines: ("line 3", "line 5"); where the line is one, by what tells them apart."""
    one, other = f"line {first.place.line}", f"line {second.place.line}"
    if one != other:
        return one, other
    if first.place.mnemonic != second.place.mnemonic:
        return f"the {act(first)} of {one}", f"the {act(second)} there"
    if str(first.who) == str(second.who):
        return one, f"{one} is executed again"
    return f"{one} of {first.who}", f"{one} of {second.who}"


def ordering_words(
    first: Event, second: Event, kind: str, homes: Mapping[int, int]
) -> tuple[str, str]:
    """Why, and what would order the pair; homes: as for `race_report`."""
    line = first.place.line
    one, other = between(first, second)
    at_once = first.place == second.place and first.issuer != second.issuer
    if first.place == second.place and first.place.mnemonic == "tcgen05.mma":
        if first.issuer == second.issuer:
            return (
                f"two MMAs at line {line} have accumulators that overlap but are not the same",
                "give each accumulator columns of its own: at least as many apart as one of them has",
            )
        return (
            f"two threads issue MMAs at line {line} whose accumulators overlap",
            "give the accumulator of each issuing thread columns of its own",
        )
    if at_once and completes(first) == BULK_GROUP and first.position[0] == second.position[0]:
        return (
            f"several threads issue the copy at line {line}, and what they write overlaps",
            "give the copy of each thread bytes of its own, or let one thread issue it",
        )
    if first.proxy in ("async", "tmem") and completes(first) == COMMIT_ARRIVAL:
        if kind == "war":
            why = f"the {act(first)} issued at line {line} may still read when {other} overwrites"
        else:
            why = f"the {act(first)} issued at line {line} may not have finished when {_reached(other)}"
        return why, COMMIT if same_cta(first, second) else COMMIT + BIT
    if completes(first) in OWN_WAITS:
        return _transfer_words(first, second, other)
    if completes(first) == COPY_GROUP and first.owner is second.owner and not waited_for(first):
        return _copy_words(first, second)
    fix = _remedy(first, second, homes)
    if kind == "war" and first.proxy == "generic" and not _same_warp(first, second):
        fix += f"; an arrive that gives the bytes back comes after {one}, which reads them"
    return f"no barrier orders {one} before {other}", fix


def _reached(other: str) -> str:
    return other if other.endswith("again") else f"{other} is executed"


def _transfer_words(first: Event, second: Event, other: str) -> tuple[str, str]:
    """As `ordering_words`, where a tcgen05.ld or tcgen05.st comes first: the wait of its warp is what tells that it is done."""
    line, loads = first.place.line, completes(first) == OWN_WAITS[0]
    if loads:
        why = f"the tcgen05.ld at line {line} may still read TMEM when {other} overwrites it"
    else:
        why = f"the tcgen05.st at line {line} may not have finished when {_reached(other)}"
    wait = "ld" if loads else "st"
    if _one_warp(first, second):
        return why, f"T.ptx.tcgen05.wait.{wait}() after line {line}, before {other}"
    scope = "" if same_cta(first, second) else f" ({REMOTE_ARRIVAL})"
    if loads:
        return (
            why,
            "each warp that loads: tcgen05.wait::ld, tcgen05.fence::before_thread_sync, then arrive on the barrier the MMA "
            f"waits for{scope}",
        )
    issued = second.clock is not None and second.clock.covers(SEEN, first.issuer, first.issued)
    then = "arrive" if issued else f"arrive on a barrier that {other} waits for"
    return (
        f"{why}: no T.ptx.tcgen05.wait.st() comes before what orders the threads"
        if issued
        else why,
        f"each warp that stores, after line {line}: T.ptx.tcgen05.wait.st(), "
        f"T.ptx.tcgen05.fence.before_thread_sync(), then {then}{scope}",
    )


def _one_warp(first: Event, second: Event) -> bool:
    """Whether the threads that issued two operations are of one warp."""
    return first.owner is second.owner and first.issuer >> 5 == second.issuer >> 5


def _remedy(first: Event, second: Event, homes: Mapping[int, int]) -> str:
    """What would order a pair that nothing orders."""
    if first.owner is not second.owner:
        return "no barrier reaches CTAs of two clusters: give each memory of its own, or read in another kernel"
    if completes(first) == BULK_GROUP:
        waits = "T.ptx.cp_async.bulk.wait_group(0) after the commit_group of the copy at line"
        return f"{waits} {first.place.line}, by the thread that issues it, then {meeting_after_copy(first, second)}"
    if completes(first) == "wgmma.wait_group":
        wait = f"let T.ptx.wgmma.wait_group complete the wgmma at line {first.place.line}"
        return f"{wait} before its warps arrive on what the thread that overwrites waits for"
    if completes(first) == MBARRIER and completes(second) == MBARRIER:
        return "let the fill wait, by the empty barrier of its stage, until what was there has been read"
    if completes(second) == MBARRIER:
        return f"let the thread that fills wait for an mbarrier (empty) on which the use at line {first.place.line} arrives"
    home = homes.get(first.agents) if isinstance(first.agents, int) else None
    if completes(first) == MBARRIER and home not in (
        None,
        second.issuer // second.owner.cta_threads,
    ):
        return (
            f"the copy completes on an mbarrier of CTA {home}: let a thread there wait for it, then arrive on an mbarrier "
            f"that line {second.place.line} waits for: {REMOTE_ARRIVAL}"
        )
    if completes(first) == MBARRIER:
        return f"wait, before line {second.place.line}, for the mbarrier and phase on which the copy completes"
    meet = f"put {meeting(first, second)}"
    if completes(first):
        awaited = f"{completes(first)} after the {act(first)} at line {first.place.line}"
        where = f"before line {second.place.line}"
        if same_threads(first, second):
            return f"{awaited}, {where}"
        return f"{awaited}, by the threads that issue it, then {meeting(first, second)} {where}"
    if _same_warp(first, second):
        return f"{meet} between them"
    if same_cta(first, second):
        return f"{meet}, or an mbarrier arrive and wait, between them"
    one, other = between(first, second)
    arrive = (
        f"let every thread arrive after {one} (or one lane of each warp, after T.cuda.warp_sync())"
    )
    return (
        f"{meet} between them, or {arrive} on an mbarrier that {other} waits for: {REMOTE_ARRIVAL}"
    )


def _copy_words(first: Event, second: Event) -> tuple[str, str]:
    """Why, and what would order an access after a cp.async whose threads have not waited for it."""
    line = first.place.line
    why = f"the cp.async at line {line} is asynchronous, and its threads have not waited for it before line {second.place.line}"
    wait = f"T.ptx.cp_async.commit_group() and T.ptx.cp_async.wait_group(0) after line {line}"
    if completes(second) == COPY_GROUP or same_threads(first, second):
        return why, f"{wait}, before line {second.place.line}"
    return (
        why,
        f"{wait}, by the threads that copy, then {meeting(first, second)} before line {second.place.line}",
    )


def meeting(first: Event, second: Event) -> str:
    """The barrier that all threads of both accesses, of one cluster, can meet at."""
    if _same_warp(first, second):
        return "T.cuda.warp_sync()"
    return "a CTA barrier (T.cuda.cta_sync)" if same_cta(first, second) else CLUSTER_BARRIER


def same_cta(first: Event, second: Event) -> bool:
    """Whether the threads of two accesses of one cluster, or those that issued them, are of one CTA."""
    size = first.owner.cta_threads
    return bool(first.issuer // size == second.issuer // size)


def _same_warp(first: Event, second: Event) -> bool:
    """Whether all threads of two accesses are of one warp."""
    threads = [threads_of(e) for e in (first, second) if isinstance(e.agents, np.ndarray)]
    return len(threads) == 2 and len(np.unique(np.concatenate(threads) >> 5)) == 1


def meeting_after_copy(copy: Event, later: Event) -> str:
    """Where the thread that waits for its copy can meet those of a later access."""
    return "a barrier" if same_cta(copy, later) else CLUSTER_BARRIER


def act(e: Event) -> str:
    """An access in words."""
    return traits_of(e.place.mnemonic).called or e.place.mnemonic
