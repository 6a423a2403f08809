"""How long kernels take to simulate, warm; measured, not asserted.

`make benchmark` runs these (`pytest -n 0 --benchmark-only`, for pytest-benchmark takes any --dist
for parallel runs); `make test` skips them. To compare with an earlier run, add `--benchmark-save=NAME`,
later `--benchmark-compare`. Times on a GPU are in test_gpu_performance.py.
Extra info: `peak_memory_mb`, the MiB of a process that does nothing but this run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# VmHWM rather than ru_maxrss: a child's ru_maxrss starts at what its parent held when it forked.
PEAK_MEMORY = """
import resource, sys
import numpy, phaseflip

M, N, K = map(int, sys.argv[3:])
kernel = phaseflip.find_kernel(sys.argv[2]).build(M, N, K)
arrays = [numpy.ones(shape, numpy.float16) for shape in ((M, K), (N, K), (M, N))]
phaseflip.simulate(kernel, arrays, checks=sys.argv[1])
try:
    with open("/proc/self/status") as status:
        kib = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    unit = 1024 if sys.platform == "darwin" else 1
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
sys.stdout.write(str(kib // 1024))
"""


@pytest.fixture(autouse=True)
def only_when_asked(pytestconfig: pytest.Config) -> None:
    asked = pytestconfig.getoption("--benchmark-only") or pytestconfig.getoption(
        "--benchmark-enable"
    )
    if not asked:
        pytest.skip("a benchmark: `make benchmark` runs it")


def peak_memory_mb(checks: str, name: str, *shape: int) -> int:
    """MiB that a process which only runs a kernel once at `shape` (M, N, K) held at most."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK_MEMORY, checks, name, *map(str, shape)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


CASES = [("hgemm_v3", extent, checks) for extent in (256, 512, 1024) for checks in ("all", "none")]
CASES += [
    (name, extent, checks)
    for name in ("hgemm_v7", "hgemm_v8", "hgemm_v9")
    for extent, checks in ((1024, "all"), (2048, "none"))
]


@pytest.mark.parametrize(("name", "extent", "checks"), CASES)
def test_simulate_warm(benchmark: Any, name: str, extent: int, checks: str) -> None:
    """`simulate` of an already lowered and translated kernel, M = N = K = extent, in-order."""
    import numpy as np

    import phaseflip

    generator = np.random.default_rng(0)
    A, B = (generator.standard_normal((extent, extent)).astype(np.float16) for _ in "AB")
    D = np.empty((extent, extent), np.float16)
    lowered = phaseflip.lower(phaseflip.find_kernel(name).build(extent, extent, extent))

    def simulate() -> phaseflip.Run:
        return phaseflip.simulate(lowered, (A, B, D), checks=checks)

    simulate()  # translates
    run = benchmark.pedantic(simulate, rounds=5, warmup_rounds=1)
    error = np.abs(
        run.outputs["D"].astype(np.float32) - A.astype(np.float32) @ B.T.astype(np.float32)
    )
    assert np.isfinite(error).all()
    benchmark.extra_info["max_abs_error"] = float(error.max())
    benchmark.extra_info["counters"] = json.loads(json.dumps(run.counters, default=int))
    benchmark.extra_info["peak_memory_mb"] = peak_memory_mb(checks, name, extent, extent, extent)


def test_lower_and_translate_hgemm_v3(benchmark: Any) -> None:
    """From PrimFunc to a first result at 128x128x64, where the simulation itself is negligible."""
    import numpy as np

    import phaseflip

    shape = (128, 128, 64)
    arrays = [np.ones(s, np.float16) for s in ((128, 64), (128, 64), (128, 128))]
    kernel = phaseflip.find_kernel("hgemm_v3")
    seconds: list[dict[str, float]] = []

    def lower_and_translate() -> None:
        func = kernel.factory(*shape)  # a new PrimFunc each time, so that no cache answers
        seconds.append(dict(phaseflip.simulate(func, arrays).seconds))

    benchmark.pedantic(lower_and_translate, rounds=5, warmup_rounds=1)
    for part in ("lower", "translate", "simulate"):
        benchmark.extra_info[f"{part}_seconds"] = min(s[part] for s in seconds)
