"""An H200 for tests of what is done with times: PyTorch's CPU computes, and how long launches take is made up.

A compiled kernel takes the microseconds that its manifest names under `versions`, cuBLAS 100. Rounds vary by 1%, and all
together by 5% as clocks do. What an environment variable FAKE_<FACT> says of the machine is believed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from phaseflip.gpu import devices
from phaseflip.gpu import lock as gpu_lock
from phaseflip.gpu import runtime as cuda_runtime
from phaseflip.gpu import worker as gpu_run
from phaseflip.gpu.devices import Gpu
from phaseflip.gpu.prebuilt import Prebuilt, read_directory
from phaseflip.gpu.worker import GpuRun
from phaseflip.timing import rounds as benchmark
from phaseflip.timing.rounds import Machine
from tests.test_build import made

CUBLAS_US = 100.0
SHAPE = (128, 256, 64)
COMMIT = {"id": "ab12" * 10, "time": "2026-01-01T12:00:00+00:00", "dirty": False}
_rng = np.random.default_rng(0)
_rounds = 0


def kernel(directory: Path, us: float, name: str = "mine", **others: Any) -> Prebuilt:
    """A "compiled" kernel that takes so long."""
    directory.mkdir(exist_ok=True)
    return made(directory, name, versions={"us": str(us)}, commit=COMMIT, **others)


def install(patch: Any) -> None:
    """Put it in place, each time with the same times; `patch` is pytest's MonkeyPatch."""
    import torch

    global _rng, _rounds
    _rng, _rounds = np.random.default_rng(0), 0
    patch.setattr(devices, "first_gpu", lambda: Gpu("NVIDIA H200", (9, 0)))
    for module in (gpu_lock, benchmark):
        patch.setattr(module, "gpu_uuid", lambda: "GPU-fake")
    patch.setattr(benchmark, "this_machine", machine)
    patch.setattr(benchmark, "_round_us", round_us)
    patch.setattr(gpu_run.Gpu, "run", run)
    patch.setattr(cuda_runtime, "load", load)
    patch.setattr(cuda_runtime, "to_gpu", torch.from_numpy)
    patch.setattr(torch.cuda, "synchronize", lambda: None)


def machine() -> Machine:
    fact = {name: os.environ.get(f"FAKE_{name.upper()}") for name in ("driver", "cuda")}
    limits = {"power.limit": "700.00 W"}
    return Machine(
        "NVIDIA H200", fact["driver"] or "580.1", fact["cuda"] or "13.0", "2.11.0", limits, {}
    )


def round_us(launch: Any, launches: int) -> float:
    global _rounds
    _rounds += 1
    took = launch()
    us = took if isinstance(took, float) else CUBLAS_US
    return float(us * (1 + 0.05 * np.sin(_rounds / 50)) * (1 + 0.01 * _rng.standard_normal()))


def load(library: str, cubin: str, digest: str) -> dict[str, Any]:
    """The module: its function computes nothing, and returns the microseconds."""
    [built] = [b for b in read_directory(Path(library).parent) if b.file(".so") == Path(library)]
    return {"main": lambda A, B, D: float(built.versions["us"])}


def run(self: Any, kernel: Any, shape: tuple[int, int, int], arrays: Any) -> GpuRun:
    A, B, _ = arrays
    product = A.astype(np.float32) @ B.astype(np.float32).T
    if os.environ.get("FAKE_WRONG"):
        product += 1
    outputs = {"A": A, "B": B, "D": product.astype(np.float16)}
    return GpuRun(outputs, [], {}, {"launch": 0.0})
