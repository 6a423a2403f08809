"""mbarriers and named barriers: random rounds in which some warps write, synchronise, and read what others wrote."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..family import Program, family
from ..generated_text import function_of

_HEAD = """from phaseflip.spelling import T
@T.prim_func
def kernel(A: T.Buffer(({threads},), "int32"), D: T.Buffer(({threads},), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([{warps}])
    lane = T.lane_id([32])
    pool = T.SMEMPool()
    bars = pool.alloc((8,), "uint64", align=8)
    s = pool.alloc(({words},), "int32")
    pool.commit()
    x: T.int32 = A[warp * 32 + lane]
"""
_TAIL = "    D[warp * 32 + lane] = x\n"


@dataclass(frozen=True)
class _Barrier:
    """An mbarrier: which warps arrive, whether all of their lanes or lane 0 `times` times, who else waits."""

    arriving: tuple[int, ...]
    every_lane: bool
    times: int
    onlookers: tuple[int, ...]

    @property
    def count(self) -> int:
        return len(self.arriving) * (32 if self.every_lane else self.times)


def _subset(rng: np.random.Generator, warps: int, least: int) -> tuple[int, ...]:
    size = int(rng.integers(least, warps + 1))
    return tuple(sorted(int(w) for w in rng.permutation(warps)[:size]))


def _exchange(
    rng: np.random.Generator, writers: tuple[int, ...], readers: tuple[int, ...], at: int
) -> tuple[str, str]:
    """Lines that write x to the words of a round, and lines that mix into x what a writer wrote."""
    write = f"s[{at} + warp * 32 + lane] = x * 2 + {int(rng.integers(9))}"
    source, turn = int(rng.choice(writers)), int(rng.integers(32))
    read = f"x = (x * 3 + s[{at} + {32 * source} + (lane + {turn}) % 32]) % 10007"
    return write, read


def _program(
    name: str, lines: list[str], warps: int, rounds: int, rng: np.random.Generator
) -> Program:
    threads = 32 * warps
    source = _HEAD.format(threads=threads, warps=warps, words=rounds * threads)
    source += "".join(f"    {line}\n" for line in lines) + _TAIL
    A = rng.integers(-50, 50, threads).astype(np.int32)
    function = function_of(source, name)
    return Program(function, [A, np.zeros(threads, np.int32)], [1], 1, source)


def _any_of(warps: tuple[int, ...]) -> str:
    return " or ".join(f"warp == {w}" for w in warps)


@family("mbarrier", programs=30)
def mbarrier(rng: np.random.Generator) -> Program:
    """Rounds over up to three mbarriers with counts of their own, each used for several phases."""
    warps, rounds = int(rng.integers(2, 5)), int(rng.integers(4, 11))
    used = [int(b) for b in rng.integers(0, 3, rounds)]
    times_used = Counter(used)
    barriers = {}
    for b in range(3):
        arriving = _subset(rng, warps, 1)
        # Nothing keeps up with who only looks on, so that a barrier has onlookers for one phase only.
        once = times_used[b] == 1 and rng.random() < 0.7
        others = tuple(w for w in range(warps) if w not in arriving and once)
        every_lane, times = bool(rng.integers(2)), int(rng.integers(1, 5))
        barriers[b] = _Barrier(arriving, every_lane, times, others)
    lines = ["if warp == 0:", "    if lane == 0:"]
    lines += [
        f"        T.ptx.mbarrier.init(bars.ptr_to([{b}]), {barriers[b].count})" for b in range(3)
    ]
    lines += ["T.ptx.fence.mbarrier_init()", "T.cuda.cta_sync()"]
    phases: Counter[int] = Counter()
    for number, b in enumerate(used):
        barrier, at = barriers[b], 32 * warps * number
        write, read = _exchange(rng, barrier.arriving, barrier.arriving, at)
        lines += [f"if {_any_of(barrier.arriving)}:", f"    {write}"]
        if barrier.every_lane:
            lines += [f"    T.ptx.mbarrier.arrive(bars.ptr_to([{b}]))"]
        else:
            lines += ["    T.cuda.warp_sync()", "    if lane == 0:"]
            if rng.integers(2) or barrier.times == 1:
                one = f"        T.ptx.mbarrier.arrive(bars.ptr_to([{b}]))"
                lines += [one] * barrier.times
            else:
                lines += [
                    f"        T.ptx.mbarrier.arrive(bars.ptr_to([{b}]), count={barrier.times})"
                ]
        waiting = tuple(sorted(barrier.arriving + barrier.onlookers))
        wait = f"    T.ptx.mbarrier.try_wait(bars.ptr_to([{b}]), {phases[b] & 1})"
        lines += [f"if {_any_of(waiting)}:", wait, f"    {read}"]
        phases[b] += 1
    return _program(f"mbarrier_{rng.integers(1 << 30)}", lines, warps, rounds, rng)


@family("named-barrier", programs=24)
def named_barrier(rng: np.random.Generator) -> Program:
    """Rounds of bar.sync among some warps, some of which only arrive."""
    warps, rounds = int(rng.integers(2, 9)), int(rng.integers(4, 13))
    lines: list[str] = []
    for number in range(rounds):
        taking_part, at = _subset(rng, warps, 2), 32 * warps * number
        arriving = tuple(w for w in taking_part[:-1] if rng.random() < 0.3)
        syncing = tuple(w for w in taking_part if w not in arriving)
        write, read = _exchange(rng, taking_part, syncing, at)
        barrier, count = 1 + number, 32 * len(taking_part)
        call = str(rng.choice(["bar.sync", "barrier.sync"]))
        if arriving:
            lines += [
                f"if {_any_of(arriving)}:",
                f"    {write}",
                f"    T.ptx.bar.arrive({barrier}, {count})",
            ]
            call = "bar.sync"
        lines += [
            f"if {_any_of(syncing)}:",
            f"    {write}",
            f"    T.ptx.{call}({barrier}, {count})",
            f"    {read}",
        ]
    return _program(f"named_barrier_{rng.integers(1 << 30)}", lines, warps, rounds, rng)
