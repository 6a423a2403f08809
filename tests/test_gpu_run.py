"""What becomes of a launch in its process: outputs, a hang, a crash, a CUDA error. No GPU is needed: the worker is told."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip.errors import BadInput
from phaseflip.findings.finding import render
from phaseflip.gemm.verify import verify
from phaseflip.gpu import worker as gpu_run
from phaseflip.gpu.worker import Gpu, current_gpu, running_on
from phaseflip.system.worker_pool import WorkerPool
from tests.test_build import made

SHAPE = (128, 256, 64)


def launched(call: tuple[str, str, str, list[np.ndarray]]) -> tuple[list[np.ndarray] | str, float]:
    """In the worker, in place of a GPU: what to do is the first element of A."""
    _, _, _, (A, B, D) = call
    order = int(A[0, 0]) - 100
    if order == 1:
        time.sleep(60)
    if order == 2:
        os.abort()
    if order == 3:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if order == 4:
        raise BadInput("there is no driver")
    if order in (5, 6):
        return "CUDA error: unspecified launch failure", 0.4 if order == 5 else 1.4
    product = A.astype(np.float32) @ B.astype(np.float32).T
    return [A, B, product.astype(D.dtype)], 0.25


@pytest.fixture
def gpu(tmp_path: Path) -> Any:
    made(tmp_path, resources={"f": {"registers": 90}})
    with Gpu("sm_90a", tmp_path) as gpu:
        gpu._pool = WorkerPool("tests.test_gpu_run:launched", limit_s=10.0)
        yield gpu


def arrays(order: int) -> list[np.ndarray]:
    A, B = np.ones((128, 64), np.float16), np.ones((256, 64), np.float16)
    A[0, 0] = 100 + order
    return [A, B, np.zeros(SHAPE[:2], np.float16)]


def kernel_of(gpu: Gpu) -> Any:
    return gpu_run.find_prebuilt(str(gpu.directory), "mine.py:f", SHAPE).as_kernel()


def test_a_launch_gives_outputs_and_leaves_the_arrays_alone(gpu: Gpu) -> None:
    given = arrays(0)
    run = gpu.run(kernel_of(gpu), SHAPE, given)
    assert list(run.outputs) == ["A", "B", "D"] and (given[2] == 0).all()
    assert run.outputs["D"][1, 1] == 64 and run.outputs["D"][0, 0] == 163
    assert run.findings == [] and not run.stopped and run.schedule == "hardware"
    assert run.counters == {"ptxas_registers": 90} and run.seconds == {"launch": 0.25}


@pytest.mark.parametrize(
    ("order", "title", "words"),
    [
        (1, "deadlock", "did not end (over 2 s) and was killed"),
        (2, "launch-failure", "its process died (signal SIGABRT)"),
        (3, "launch-failure", "an illegal memory access was encountered"),
    ],
)
def test_what_stops_a_launch_is_a_finding_and_the_next_runs_clean(
    gpu: Gpu, order: int, title: str, words: str
) -> None:
    kernel = kernel_of(gpu)
    assert not gpu.run(kernel, SHAPE, arrays(0)).stopped  # the worker has started
    gpu._pool._limit_s = 2.0
    run = gpu.run(kernel, SHAPE, arrays(order))
    assert run.stopped and [f.title for f in run.findings] == [title]
    assert words in render(run.findings[0]) and "--device sim" in run.findings[0].fix
    assert (run.outputs["D"] == 0).all()
    gpu._pool._limit_s = 10.0
    assert not gpu.run(kernel, SHAPE, arrays(0)).stopped


@pytest.mark.parametrize(
    ("order", "limit_ms", "title"),
    [
        (5, 0, "launch-failure"),
        (6, 0, "launch-failure"),
        (5, 1000, "launch-failure"),  # one arrival too many on an mbarrier, say
        (6, 1000, "deadlock"),
    ],
)
def test_only_after_the_poll_limit_can_a_wait_have_come_to_it(
    gpu: Gpu, tmp_path: Path, order: int, limit_ms: int, title: str
) -> None:
    made(tmp_path, poll_limit_ms=limit_ms)
    run = gpu.run(kernel_of(gpu), SHAPE, arrays(order))
    assert run.stopped and [f.title for f in run.findings] == [title]
    assert run.seconds == {"launch": 0.4 if order == 5 else 1.4}


def test_what_is_no_fault_of_the_kernel_is_bad_input(gpu: Gpu) -> None:
    with pytest.raises(BadInput, match="there is no driver"):
        gpu.run(kernel_of(gpu), SHAPE, arrays(4))


def test_verify_judges_by_the_same_oracles_and_replays_on_the_gpu(gpu: Gpu) -> None:
    assert current_gpu() is None
    with running_on(gpu):
        verdict = verify(kernel_of(gpu), *SHAPE, inputs="integers", gate="all")
    assert current_gpu() is None
    assert verdict.passed and [o.passed for o in verdict.oracles] == [True] * 4
    assert verdict.device == "cuda" and verdict.schedule == "hardware"
    assert verdict.replay == (
        f"python -m phaseflip run mine.py:f 128 256 64 --seed 0 --device cuda --prebuilt {gpu.directory}"
        " --inputs integers"
    )
    assert verdict.to_json()["counters"] == {"ptxas_registers": 90}


def test_a_kernel_that_is_not_prebuilt_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[str] = []

    def build(kernel: Any, M: int, N: int, K: int, directory: str, arch: str) -> Any:
        built.append(arch)
        return made(Path(directory), kernel.name, arch)

    monkeypatch.setattr("phaseflip.gpu.build.build", build)
    kernel = made(tmp_path).as_kernel()
    with Gpu("sm_90a") as gpu:
        first, second = gpu.compiled(kernel, SHAPE), gpu.compiled(kernel, SHAPE)
        folder = first.directory
    assert first == second and built == ["sm_90a"] and not folder.exists()
