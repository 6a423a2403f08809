"""From two colliding accesses to a finding in words: which is first, why nothing orders them, what would."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..findings.finding import ONLY_THEN, Finding, Place, agree, flip, phase_name
from ..ir.place import comes_first
from ..ordering.knowledge import SEEN
from .remedies import REMOTE_ARRIVAL, act, meeting, ordering_words, same_cta
from .shadow import Event

Cause = Place | str | None
"""Why arrivals after an access do not tell of it: "lanes", one arrives for its warp; a place, where they are relaxed."""


def race_report(
    old: Event | None,
    new: Event,
    where: tuple[Any, int, int],
    code: str = "",
    rule: str = "",
    stale: Mapping[int, Any] = MappingProxyType({}),
    fresh: Mapping[int, Any] = MappingProxyType({}),
    arrival: Cause = None,
    first: Event | None = None,
    homes: Mapping[int, int] = MappingProxyType({}),
) -> Finding:
    """The finding for a pair of accesses (or for one, where there is no other).

    code: "" for a race, else the code; rule: its variant. where: memory, first and last byte (or TMEM column). stale:
    thread -> (place, phase, barrier) of waits that were satisfied by a consumed phase, and fresh: thread -> a wait that
    passed at once on a fresh barrier: likely causes of a race. arrival: why arrivals after `old` do not tell of it. first:
    which of the two the other one knows to have been issued; None: neither, and the order of the program is taken for theirs.
    homes: component of a bulk load -> rank of the CTA of the mbarrier that it completes on.
    """
    memory, low, high = where
    region = memory.describe(low, high)
    if old is None:
        return Finding(
            "uninitialised-read",
            f"nothing has written {region} before {act(new)} reads it",
            place=new.place,
            memory=memory.kind,
            what=f"{act(new)} of {new.who} reads {region}",
            fix="write the data, or set accumulate to false for the first product"
            if memory.kind == "tmem"
            else "write the data first",
        )
    if first is None:
        first = old if comes_first(old, new) else new
    second = new if first is old else old
    what = f"{act(second)} of {second.who} {_does(second)} {region} that {act(first)} of {first.who} {_did(first)}"
    if code == "tmem-freed-in-use":
        free, use = (new, old) if new.place.mnemonic == "tcgen05.dealloc" else (old, new)
        what = f"{free.who} {agree(free.who, 'frees', 'free')} {region} that {act(use)} of {use.who} {_did(use)}"
        why, fix = _free_words(free, use)
        return Finding(
            code, why, place=free.place, other=use.place, memory="tmem", what=what, fix=fix
        )
    if code == "tmem-unallocated":
        return Finding(
            code,
            f"line {old.place.line} has freed them before",
            place=new.place,
            other=old.place,
            memory="tmem",
            what=f"{act(new)} of {new.who} {_does(new)} {region}",
            fix="free TMEM after its last use",
        )
    kind = "waw" if first.writes and second.writes else "raw" if first.writes else "war"
    if code == "barrier-reinitialised":
        return Finding(
            code,
            f"the mbarrier that line {old.place.line} initialised is live: no mbarrier.inval came before",
            place=new.place,
            other=old.place,
            memory=memory.kind,
            kind="waw",
            what=f"{act(new)} of {new.who} overwrites {region}",
            fix="keep the bytes of a barrier apart from data",
        )
    if code == "duplicate-issue":
        return Finding(
            code,
            "one thread issues it for the whole tile; here several threads issue the same one",
            place=second.place,
            other=first.place,
            memory=memory.kind,
            what=f"{first.who} and {second.who} both issue the {act(first)} that writes {region}",
            fix="guard the issue with one warp and T.ptx.elect_sync()",
        )
    if code:
        why, fix = _fence_words(code, rule, first, second, memory)
        return Finding(
            code,
            why,
            place=second.place,
            other=first.place,
            memory=memory.kind,
            kind=kind,
            what=what,
            fix=fix,
        )
    if memory.kind == "global" and kind == "waw" and _of_two_tiles(first, second):
        return Finding(
            "output-overwritten",
            f"{first.who} and {second.who} write the same elements and nothing orders them",
            place=second.place,
            other=first.place,
            memory=memory.kind,
            kind=kind,
            what=what,
            fix="give every CTA a tile of its own: check the tile index",
        )
    if arrival is not None and first is old:
        why, fix = _arrival_words(first, second, arrival)
    else:
        why, fix = ordering_words(first, second, kind, homes)
    wrong_phase = False
    cause = stale.get(second.issuer) or stale.get(first.issuer)
    if cause is not None:
        place, phase, name = cause
        wrong_phase = True
        why += f": the wait at line {place.line} was satisfied by {phase_name(phase)}, which this thread had consumed already"
        fix = flip(name) + ONLY_THEN
    elif kind == "raw" and (early := fresh.get(second.issuer)) is not None:
        if early.meant(second.issuer, first.place.mnemonic):
            why += f": the wait at line {early.place.line} passed at once: "
            why += "parity 1 of a fresh barrier means the phase before the first"
            wrong_phase = True
            fix = "wait for the first phase with parity 0, and then for each phase in turn"
    if memory.kind == "shared" and (names := memory.overlapping(low, high)):
        why += f"; as far as addresses tell, {' and '.join(names)} overlap there"
        fix += f", or place {' and '.join(names)} apart"
    return Finding(
        "race",
        why,
        place=second.place,
        other=first.place,
        memory=memory.kind,
        kind=kind,
        what=what,
        fix=fix,
        wrong_phase=wrong_phase,
    )


def private_load_report(old: Event, load: Event, where: tuple[Any, int, int]) -> Finding:
    """The finding for a plain load after another agent's write to memory that nvcc takes for the thread's own.

    where: memory, first and last byte.
    """
    memory, low, high = where
    region, line = memory.describe(low, high), load.place.line
    name = memory.name_at(low)
    if load.place.private == "read-only":
        why = f"the kernel never stores through the pointer {name}, so nvcc loads through the read-only path (ld.global.nc)"
        why += ", which PTX allows only for data that nothing writes while the kernel runs"
    else:
        why = f"TVM declares the pointer {name} __restrict__, so nvcc assumes that only the thread's own stores through it "
        why += f"change the data: it may load before the barrier, or give at line {line} what the thread loaded or stored last"
    return Finding(
        "race",
        why,
        place=load.place,
        other=old.place,
        memory=memory.kind,
        kind="raw",
        what=f"{act(load)} of {load.who} reads {region} that {act(old)} of {old.who} writes",
        fix=f"load it with T.ptx.ld({name}.ptr_to(...), ...), an ld.global that stays where it is, or in another kernel",
    )


def _of_two_tiles(first: Event, second: Event) -> bool:
    """Whether two CTAs write what each takes for its own: those of two clusters, or one instruction of two CTAs of one."""
    if first.owner is not second.owner:
        return True
    return first.place == second.place and not same_cta(first, second)


def _does(e: Event) -> str:
    if e.place.mnemonic == "tcgen05.dealloc":
        return "frees"
    return "writes" if e.writes else "reads"


def _did(e: Event) -> str:
    return "writes" if e.writes else "reads"


def _free_words(free: Event, use: Event) -> tuple[str, str]:
    """Why TMEM is freed too early: its use has been issued before, but is not known to be done; or not even that."""
    verb, line = act(use), use.place.line
    operation = not isinstance(use.agents, np.ndarray)
    same_warp = operation and use.owner is free.owner and use.issuer >> 5 == free.issuer >> 5
    if operation and (same_warp or free.clock.covers(SEEN, use.issuer, use.issued)):
        why = f"{verb} at line {line} is asynchronous, and the freeing warp does not know that it has completed"
        if use.place.mnemonic in ("tcgen05.ld", "tcgen05.st"):
            wait = use.place.mnemonic.removeprefix("tcgen05.")
            return (
                why,
                f"T.ptx.tcgen05.wait.{wait}() by the warp that executes it, before the barrier that precedes tcgen05.dealloc",
            )
        fix = "wait for the mbarrier of its tcgen05.commit before the threads synchronise for tcgen05.dealloc"
        return why, fix
    why = f"nothing orders {verb} at line {line} before the deallocation"
    return why, f"put {meeting(free, use)} between the last use and tcgen05.dealloc"


def _arrival_words(first: Event, second: Event, arrival: Cause) -> tuple[str, str]:
    """Why, and what would order a pair where an arrival comes between that does not tell of the first."""
    line = first.place.line
    if isinstance(arrival, Place):
        of_cluster = arrival.mnemonic.startswith("barrier.cluster")
        scope = "cta" if same_cta(first, second) and not of_cluster else "cluster"
        release = "sem='release'" + ("" if of_cluster or scope == "cta" else ", scope='cluster'")
        return (
            f"the {arrival.mnemonic} at line {arrival.line} is relaxed, and so orders nothing that comes before it",
            f"give it {release}, or put T.ptx.fence('acq_rel', '{scope}') directly before it, in each thread that arrives",
        )
    return (
        f"a lane that arrives after line {line} tells nothing of what the other lanes of its warp did there",
        f"T.cuda.warp_sync() between line {line} and the arrival of one lane for its warp",
    )


def _fence_words(code: str, rule: str, first: Event, second: Event, memory: Any) -> tuple[str, str]:
    """Why, and which fence or scope an ordered pair lacks."""
    if code == "scope-too-narrow" and rule == "flag":
        why = (
            "both accesses are strong, but a scope of .cta does not include a thread of another CTA"
        )
        return why, "give both scope='cluster', or 'gpu'"
    if code == "scope-too-narrow":
        why = "what orders the accesses leads through another CTA, and an arrive, wait or fence on the way has scope .cta"
        return why, REMOTE_ARRIVAL
    if code == "missing-tcgen05-fence":
        if first.place.mnemonic in ("tcgen05.ld", "tcgen05.st"):
            why = "a barrier orders the accesses, but tcgen05.fence::before_thread_sync and after_thread_sync "
            why += "are not on both sides of it"
        else:
            why = "its completion was observed, but no tcgen05.fence::after_thread_sync follows the wait"
        return (
            why,
            "T.ptx.tcgen05.fence.after_thread_sync() after the wait (and before_thread_sync before the arrive)",
        )
    if rule == "late":
        why = "the proxy fence comes after the rendezvous, by the issuing thread; the proven form fences each writer before it"
        return (
            why,
            "move T.ptx.fence.proxy_async to the writing threads, after their last write and before the barrier",
        )
    if second.proxy == "async":
        why = "the accesses are ordered, but through different proxies, and no thread that made the first one fenced it"
        return (
            why,
            f"every such thread: {_proxy_fence(first, memory)} between its access and the barrier",
        )
    why = f"the {act(first)} read through the async proxy, and the thread that overwrites has not fenced since it was done"
    return (
        why,
        f"{_proxy_fence(second, memory)} between the wait for the {act(first)} and the next store",
    )


def _proxy_fence(event: Event, memory: Any) -> str:
    """The fence by which the threads of an access cover what they accessed."""
    space = "global"
    if memory.kind == "shared":
        own = memory.rank == event.issuer // event.owner.cta_threads
        space = "shared::cta" if own else "shared::cluster"
    return f"T.ptx.fence.proxy_async('{space}')"
