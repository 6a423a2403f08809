"""Times of kernels on a GPU, beside cuBLAS, against the baseline of that GPU.

    pytest -n 0 --benchmark-only regression/test_gpu_performance.py [--prebuilt DIR] [--update-baselines]

Without --prebuilt every kernel that fits the GPU is compiled and timed at SHAPES; with it, what DIR holds for the GPU.
A kernel is judged before it is timed. docs/silicon.md says what is compared and what is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phaseflip.gemm.verify import verify
from phaseflip.gpu.devices import ARCHS, Gpu, first_gpu, fits
from phaseflip.gpu.prebuilt import read_directory
from phaseflip.timing.kernel_times import Timed, time_kernel

SHAPES = ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192))
ROUNDS = 30


def why_not(config: pytest.Config) -> str:
    """Why nothing is timed here, or ""."""
    if not (config.getoption("--benchmark-only") or config.getoption("--benchmark-enable")):
        return "a benchmark: run it with -n 0 --benchmark-only"
    if hasattr(config, "workerinput"):
        return "times are not taken in an xdist worker: run it with -n 0"
    if config.getoption("--device") == "sim":
        return "times are taken on a GPU, not with --device sim"
    return "" if first_gpu() else "times need an NVIDIA GPU, and PyTorch sees none here"


def cases(gpu: Gpu, directory: str | None) -> list[tuple[str, tuple[int, int, int]]]:
    """(kernel, shape) of what is timed."""
    if directory is not None:
        built = read_directory(directory)
        return [(b.kernel, b.shape) for b in built if b.arch == ARCHS.get(gpu.capability)]
    from phaseflip.gemm.kernel import list_kernels

    fitting = [k for k in list_kernels() if k.shape_rule and fits(k.needs, gpu.capability)]
    return [
        (k.name, shape)
        for k in fitting
        if k.shape_rule
        for shape in dict.fromkeys(k.shape_rule.nearest(*s) for s in SHAPES)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    config = metafunc.config
    reason, found = why_not(config), []
    if not reason:
        gpu, directory = first_gpu(), config.getoption("--prebuilt")
        assert gpu is not None
        found = cases(gpu, directory)
        reason = "" if found else f"no kernel {f'in {directory} ' if directory else ''}fits {gpu}"
    names = [f"{name}-{'x'.join(map(str, shape))}" for name, shape in found]
    skipped = [pytest.param("", (0, 0, 0), marks=pytest.mark.skip(reason=reason), id="none")]
    metafunc.parametrize(("name", "shape"), found or skipped, ids=names or None)


@pytest.mark.filterwarnings(  # a kernel that is wrong fails before it is timed
    "ignore:Benchmark fixture was not used:pytest_benchmark.logger.PytestBenchmarkWarning"
)
def test_time(
    gpu_benchmark: Callable[[Timed], None],
    pytestconfig: pytest.Config,
    name: str,
    shape: tuple[int, int, int],
) -> None:
    from phaseflip.cli.gpu import chosen

    kernel, _, gpu = chosen(name, shape, "cuda", pytestconfig.getoption("--prebuilt"))
    assert gpu is not None
    with gpu:
        verdict: Any = verify(kernel, *shape, gpu=gpu)
        assert verdict.passed, verdict.message
        gpu_benchmark(time_kernel(gpu.compiled(kernel, shape), rounds=ROUNDS))
