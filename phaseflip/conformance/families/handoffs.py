"""Data handed on by newer means: cp.async, flags in memory, bar.red, and looks at an mbarrier; random rounds of each."""

from __future__ import annotations

import numpy as np

from ..family import Program, family
from ..generated_text import function_of

_HEAD = """from tvm.script import tirx as T
from phaseflip.conformance.helpers import helper
@T.prim_func
def kernel(A: T.Buffer(({threads}, 8), "int32"), D: T.Buffer(({threads},), "int32")):
    T.device_entry()
    cta = T.cta_id([1])
    warp = T.warp_id([{warps}])
    lane = T.lane_id([32])
    pool = T.SMEMPool()
    bars = pool.alloc((4,), "uint64", align=8)
    flags = pool.alloc((16,), "uint32", align=16)
    s = pool.alloc(({rows}, 8), "int32", align=16)
    pool.commit()
    t = T.meta_var(warp * 32 + lane)
    x: T.int32 = A[t, 0]
"""
_TAIL = "    D[t] = x\n"


def _program(
    name: str, lines: list[str], warps: int, rows: int, rng: np.random.Generator
) -> Program:
    threads = 32 * warps
    source = _HEAD.format(threads=threads, warps=warps, rows=rows)
    source += "".join(f"    {line}\n" for line in lines) + _TAIL
    A = rng.integers(-50, 50, (threads, 8)).astype(np.int32)
    function = function_of(source, f"{name}_{rng.integers(1 << 30)}")
    return Program(function, [A, np.zeros(threads, np.int32)], [1], 1, source)


def _read(rng: np.random.Generator, row: str) -> str:
    words = " + ".join(f"s[{row}, {int(i)}] * {int(rng.integers(1, 9))}" for i in range(8))
    return f"x = (x * 3 + {words}) % 10007"


@family("cp-async", programs=16)
def cp_async(rng: np.random.Generator) -> Program:
    """Rounds of copies of 4, 8 and 16 bytes, some predicated or filled with zeros, in groups of which some may be pending."""
    warps, rounds = int(rng.integers(1, 5)), int(rng.integers(2, 6))
    threads = 32 * warps
    lines = [
        line
        for number in range(rounds)
        for line in ["for i in T.serial(8):", f"    s[{number * threads} + t, i] = -{number + 1}"]
    ]
    lines += ["T.cuda.cta_sync()"]
    for number in range(rounds):
        size, turn = int(rng.choice([4, 8, 16])), int(rng.integers(threads))
        words, source = size // 4, f"(t + {turn}) % {threads}"
        extra = str(
            rng.choice(
                ["", ", predicate=T.if_then_else(lane % 3 == 0, 1, 0)"]
                + [", predicate=T.if_then_else(lane % 2 == 0, 1, 0), fill_mode='zero'"]
            )
        )
        for first in range(0, 8, words):
            dst = f"s.ptr_to([{number * threads} + t, {first}])"
            lines += [f"T.ptx.cp_async({dst}, A.ptr_to([{source}, {first}]), {size}{extra})"]
        lines += ["T.ptx.cp_async.commit_group()"]
    for number in range(rounds):
        lines += [f"T.ptx.cp_async.wait_group({rounds - 1 - number})"]
        lines += [_read(rng, f"{number * threads} + t"), "T.cuda.cta_sync()"]
        turn = int(rng.integers(threads))
        lines += [_read(rng, f"{number * threads} + (t + {turn}) % {threads}")]
    return _program("cp_async", lines, warps, rounds * threads, rng)


@family("flags", programs=16)
def flags(rng: np.random.Generator) -> Program:
    """One warp after the other writes, sets a flag, and the next polls it: releases and acquires, or fences."""
    warps = int(rng.integers(2, 5))
    lines = ["if warp == 0:", "    if lane < 16:", "        flags[lane] = T.uint32(0)"]
    lines += ["T.cuda.cta_sync()"]
    operands = 'scope="cta", space="shared"'
    for w in range(warps):
        lines += [f"if warp == {w}:"]
        if w:
            load = str(
                rng.choice(["acquire", "volatile"])
            )  # TVM cannot compile ld_relaxed as a value
            lines += [
                f"    seen_{w}: T.uint32 = T.uint32(0)",
                f"    while seen_{w} == T.uint32(0):",
            ]
            where = f'flags.ptr_to([{w - 1}]), "uint32", "u32"'
            space = operands if load == "acquire" else 'space="shared"'
            lines += [f"        seen_{w} = T.ptx.ld_{load}({where}, {space})"]
            lines += ['    T.ptx.fence("acq_rel", "cta")'] if load == "volatile" else []
            lines += [
                f"    {_read(rng, f'{32 * (w - 1)} + (lane + {int(rng.integers(32))}) % 32')}"
            ]
        lines += ["    for i in T.serial(8):", f"        s[{32 * w} + lane, i] = x + i * lane"]
        lines += ["    T.cuda.warp_sync()", "    if lane == 0:"]
        store = str(rng.choice(["release", "relaxed"]))
        lines += ['        T.ptx.fence("acq_rel", "cta")'] if store == "relaxed" else []
        where = f"flags.ptr_to([{w}]), T.uint32({int(rng.integers(1, 100))})"
        lines += [f'        T.ptx.st_{store}({where}, {operands}, ptx_type="u32")']
    return _program("flags", lines, warps, 32 * warps, rng)


@family("bar-red", programs=16)
def bar_red(rng: np.random.Generator) -> Program:
    """Rounds of reductions over all threads or those of some warps, which also order what was written before."""
    warps, rounds = int(rng.integers(2, 5)), int(rng.integers(3, 8))
    threads = 32 * warps
    lines: list[str] = []
    for number in range(rounds):
        low = int(rng.integers(1, warps))
        predicate = f"T.cast((x + lane * {int(rng.integers(1, 9))}) % {int(rng.integers(2, 40))} != 0, 'int32')"
        lines += [f"s[{number * threads} + t, 0] = x"]
        if rng.integers(2):
            op = str(rng.choice(["and", "or"]))
            lines += [f"r{number}: T.int32 = T.cuda.syncthreads_{op}({predicate})"]
            lines += [f"x = x + T.if_then_else(r{number} != 0, 5, 0)"]
            lines += [f"x = (x * 3 + s[{number * threads} + {threads - 1} - t, 0]) % 10007"]
            continue
        op = str(rng.choice(["and", "or", "popc"]))
        for at, (test, count) in enumerate(
            [(f"warp < {low}", low), (f"warp >= {low}", warps - low)]
        ):
            call = f'helper("ptx_bar_red_{op}", {1 + at}, {32 * count}, {predicate})'
            lines += [f"if {test}:", f"    x = (x * 3 + {call}) % 10007"]
        lines += ["T.cuda.cta_sync()"]
    return _program("bar_red", lines, warps, rounds * threads, rng)


@family("mbarrier-polls", programs=16)
def mbarrier_polls(rng: np.random.Generator) -> Program:
    """Rounds over mbarriers whose waiters poll: try_wait once, test_wait by parity, test_wait and try_wait by state."""
    warps, rounds = int(rng.integers(1, 5)), int(rng.integers(3, 8))
    threads = 32 * warps
    lines = ["if warp == 0:", "    if lane == 0:"]
    lines += [f"        T.ptx.mbarrier.init(bars.ptr_to([0]), {threads})"]
    lines += ["T.ptx.fence.mbarrier_init()", "T.cuda.cta_sync()"]
    for number in range(rounds):
        how = str(rng.choice(["try_wait_once", "test_wait_parity", "test_wait", "try_wait_state"]))
        lines += [f"s[{number * threads} + t, 0] = x * 2 + {number}"]
        if how in ("test_wait", "try_wait_state"):
            lines += [
                f'state_{number}: T.uint64 = helper("ptx_mbarrier_arrive_state", bars.ptr_to([0]))'
            ]
            look = f'helper("ptx_mbarrier_{how}", bars.ptr_to([0]), state_{number})'
        else:
            lines += ["T.ptx.mbarrier.arrive(bars.ptr_to([0]))"]
            look = f"T.ptx.mbarrier.try_wait_once(bars.ptr_to([0]), {number & 1}, 100)"
            if how == "test_wait_parity":
                look = f'helper("ptx_mbarrier_test_wait_parity", bars.ptr_to([0]), {number & 1})'
        lines += [f"while {look} == T.uint32(0):", "    T.cuda.nano_sleep(20)"]
        turn = int(rng.integers(threads))
        lines += [f"x = (x * 3 + s[{number * threads} + (t + {turn}) % {threads}, 0]) % 10007"]
    return _program("mbarrier_polls", lines, warps, rounds * threads, rng)
