"""What the checks promise of the kernels, whole: silence where they are right, the cause where not.

The number of random shapes and schedules grows with PHASEFLIP_ACCEPTANCE=full: 50 shapes x 20 schedules of v1 to v3, and
30 x 10 of v4 to v9, which otherwise have their own tests in regression/.
"""

import functools
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.hgemm_v1 import KERNEL as V1
from kernels.hgemm_v2 import KERNEL as V2
from kernels.hgemm_v3 import KERNEL as V3
from phaseflip import find_kernel, lower, simulate
from phaseflip.findings import PROFILES, errors
from phaseflip.frontend.tirx.lowering import lower_once
from phaseflip.gemm.kernel import list_kernels
from phaseflip.gemm.verify import verify
from phaseflip.spelling import T

FULL = os.environ.get("PHASEFLIP_ACCEPTANCE") == "full"
SHAPES, SCHEDULES = (50, 20) if FULL else (4, 3)
CHAPTER = Path(__file__).parent / "data" / "chapter_kernels.py"
SOURCE = Path(__file__).parents[1] / "kernels" / "hgemm_v2.py"


def lowered(kernel, shape):
    return lower_once(kernel.build(*shape))


def operands(shape):
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (n, k)))
    return a, b, np.zeros((m, n), np.float16)


def some_shapes(kernel):
    """Legal shapes by a fixed seed: up to 12 tiles, or 60 chunks."""
    rng, found = random.Random(kernel.name), set()
    while len(found) < SHAPES:
        tiles = (1, 1) if kernel is not V3 else (rng.randint(1, 3), rng.randint(1, 4))
        chunks = 1 if kernel is V1 else rng.randint(1, 5 if kernel is V3 else 60)
        found.add((128 * tiles[0], 128 * tiles[1], 64 * chunks))
        if kernel is V1:  # takes one shape
            break
    return sorted(found)


@pytest.mark.parametrize(
    ("kernel", "shape"),
    [(k, s) for k in (V1, V2, V3) for s in some_shapes(k)],
    ids=lambda x: x.name if hasattr(x, "name") else "x".join(map(str, x)),
)
def test_the_kernels_are_silent_in_both_profiles(kernel, shape):
    a, b, d = operands(shape)
    for seed in range(SCHEDULES):
        run = simulate(lowered(kernel, shape), [a, b, d], f"random:{seed}", profile="ptx")
        assert [str(f) for f in errors(run.findings)] == []
    run = simulate(lowered(kernel, shape), [a, b, d], profile="practice")
    assert [str(f) for f in errors(run.findings)] == []


def later_cases():
    """(kernel, CTAs at most or None, shape) of v4 to v9 by a fixed seed: up to 8 tiles, 10 K chunks."""
    cases = []
    for kernel in list_kernels() if FULL else ():
        if kernel.name not in {f"hgemm_v{step}" for step in range(4, 10)}:
            continue
        rng, rule = random.Random(kernel.name), kernel.shape_rule
        for _ in range(30):
            tiles = rng.choice([(1, 1), (1, 2), (2, 1), (2, 2), (1, 5), (5, 1), (3, 2), (2, 4)])
            shape = (
                rule.m_multiple * tiles[0],
                rule.n_multiple * tiles[1],
                64 * rng.randint(1, 10),
            )
            persistent = kernel.name >= "hgemm_v6"
            cases.append((kernel, rng.choice([1, 2, 5, 148]) if persistent else None, shape))
    return cases


@pytest.mark.parametrize(
    ("kernel", "ctas", "shape"),
    later_cases(),
    ids=lambda x: x.name if hasattr(x, "name") else str(x).replace(", ", "x").strip("()"),
)
def test_the_later_kernels_are_right_and_silent_in_both_profiles(kernel, ctas, shape):
    if ctas is not None:
        kernel = replace(kernel, factory=functools.partial(kernel.factory, ctas=ctas))
    for seed in range(10):
        profile = PROFILES[seed % 2]
        verdict = verify(
            kernel,
            *shape,
            inputs="integers",
            gate="all",
            schedule=f"random:{seed}",
            profile=profile,
        )
        assert verdict.passed and verdict.findings == [], verdict.message
        assert [r.passed for r in verdict.oracles] == [True] * 4


@pytest.mark.parametrize("schedule", ["in-order", "eager", "lazy", "random:1"])
@pytest.mark.parametrize(
    ("name", "shape"),
    [("hgemm_v1", (128, 128, 64)), ("hgemm_v2", (128, 128, 192)), ("hgemm_v3", (256, 128, 128))],
)
def test_the_chapters_kernels_lack_two_kinds_of_fence(name, shape, schedule):
    kernel = find_kernel(f"{CHAPTER}:{name}")
    a, b, d = operands(shape)
    kinds = {}
    for profile in PROFILES:
        run = simulate(lowered(kernel, shape), [a, b, d], schedule, profile=profile)
        exact = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
        np.testing.assert_array_equal(run.outputs["D"], exact)
        kinds[profile] = {f.code for f in errors(run.findings)}
    assert kinds == {
        "ptx": {"missing-proxy-fence", "missing-tcgen05-fence"},
        "practice": {"missing-proxy-fence"},
    }


# -- v2 without its phase flip ----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def unflipped(tmp_path_factory):
    """(kernel without the flip, its source lines)."""
    text = SOURCE.read_text(encoding="utf-8")
    assert text.count("            phase_mma ^= 1\n") == 1
    path = tmp_path_factory.mktemp("kernels") / "unflipped.py"
    path.write_text(text.replace("            phase_mma ^= 1\n", ""), encoding="utf-8")
    kernel = find_kernel(f"{path}:hgemm_v2")
    return lower(kernel.build(128, 128, 192)), str(path)


def line_with(path, text):
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(i + 1 for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("schedule", ["in-order", "eager", "lazy", "random:1", "random:2"])
def test_the_missing_flip_is_named_with_the_accesses_that_collide(unflipped, schedule):
    kernel, path = unflipped
    findings = errors(simulate(kernel, operands((128, 128, 192)), schedule).findings)
    assert {f.code for f in findings} - {"tmem-freed-in-use"} == {"stale-wait", "race"}
    wait, mma = (line_with(path, text) for text in ("mbarrier.try_wait", "Tx.gemm_async"))
    stale = next(f for f in findings if f.code == "stale-wait")
    assert stale.line == wait and "phase ^= 1" in stale.fix
    copies = {line_with(path, f"Tx.cta.copy({name}smem") for name in "AB"}
    overwritten = [f for f in findings if (f.memory, f.kind) == ("shared", "war")]
    assert {(f.line, f.other.line) for f in overwritten} == {(copy, mma) for copy in copies}
    for race in findings:
        if race.code == "race":
            assert f"the wait at line {wait} was satisfied by phase" in race.why
            assert "flip the phase" in race.fix


# -- a missing arrival --------------------------------------------------------------------------------------------------
@T.prim_func
def one_of_two(D: T.Buffer((64,), "int32")):
    T.device_entry()
    bx = T.cta_id([1])
    tid = T.thread_id([64])
    pool = T.SMEMPool()
    bar = pool.alloc((1,), "uint64", align=8)
    pool.commit()
    if tid == 0:
        T.ptx.mbarrier.init(bar.ptr_to([0]), 2)
    T.cuda.cta_sync()
    if tid == 0:
        T.ptx.mbarrier.arrive(bar.ptr_to([0]))
    T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
    D[tid] = 1


def test_a_missing_arrival_is_told_in_two_seconds():
    started = time.perf_counter()
    (finding,) = simulate(lower(one_of_two), [np.zeros(64, np.int32)]).findings
    assert time.perf_counter() - started < 2
    assert finding.code == "deadlock" and "1 of 2 arrivals" in finding.message
