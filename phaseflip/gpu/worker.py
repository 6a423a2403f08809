"""One run of a kernel on the GPU, in a process of its own: a hang or a bad address costs that process, not this one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from phaseflip.errors import BadInput
from phaseflip.findings import Finding
from phaseflip.gpu import lock as gpu_lock
from phaseflip.gpu.poll_limit import TRAPPED
from phaseflip.gpu.prebuilt import Prebuilt, find_prebuilt
from phaseflip.ir.place import Place
from phaseflip.system.worker_pool import CRASHED, RAISED, RETURNED, TIMED_OUT, Ended, WorkerPool

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel

SCHEDULE = "hardware"
"""What stands for the schedule of a run on a GPU: nobody chooses it."""

LAUNCH_LIMIT_S = 60.0
"""Wall time for one run, the start of CUDA included."""


@dataclass
class GpuRun:
    """Result of one launch, as `simulator.Run` describes one of the simulator's; the counters come from ptxas."""

    outputs: dict[str, np.ndarray]
    findings: list[Finding]
    counters: dict[str, int]
    seconds: dict[str, float]
    schedule: str = SCHEDULE
    stopped: bool = False


class Gpu:
    """A worker process with the GPU. Use as a context manager, or `close` it; it starts with the first run.

    `directory` holds kernels compiled ahead of time; without one they are compiled here, into a temporary folder.
    """

    def __init__(
        self, arch: str, directory: str | Path | None = None, limit_s: float = LAUNCH_LIMIT_S
    ) -> None:
        self.arch, self.directory = arch, directory
        self._pool = WorkerPool("phaseflip.gpu.worker:launch_in_worker", limit_s=limit_s)
        self._made: tempfile.TemporaryDirectory | None = None

    def __enter__(self) -> Gpu:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        self._pool.close()
        if self._made is not None:
            self._made.cleanup()
            self._made = None

    def compiled(self, kernel: Kernel, shape: tuple[int, int, int]) -> Prebuilt:
        """The compiled kernel: from the folder, or made now. BadInput if it is in neither form to be had."""
        if self.directory is not None:
            return find_prebuilt(self.directory, kernel.name, shape, self.arch)
        if self._made is None:
            self._made = tempfile.TemporaryDirectory(prefix="phaseflip-")
        try:
            return find_prebuilt(self._made.name, kernel.name, shape, self.arch)
        except BadInput:
            from phaseflip.gpu.build import build

            return build(kernel, *shape, self._made.name, self.arch)

    def run(
        self, kernel: Kernel, shape: tuple[int, int, int], arrays: Sequence[np.ndarray]
    ) -> GpuRun:
        """Launch on copies of the arrays (A, B, D). What stops the launch is a finding; BadInput for anything else."""
        built = self.compiled(kernel, shape)
        with gpu_lock.shared():
            ended = self._pool.call((*built.code(), list(arrays)))
        counters = {
            f"ptxas_{name}": count
            for used in built.resources.values()
            for name, count in used.items()
        }
        outputs, seconds = ended.value if ended.how == RETURNED else ("", ended.seconds)
        if isinstance(outputs, list):
            named = dict(zip(built.operands, outputs, strict=True))
            return GpuRun(named, [], counters, {"launch": seconds})
        finding = _failure(ended, outputs, seconds, built.poll_limit_ms)
        unchanged = {name: np.array(a) for name, a in zip(built.operands, arrays, strict=True)}
        self._pool.close()  # a CUDA error sticks to its process
        return GpuRun(unchanged, [finding], counters, {"launch": seconds}, stopped=True)


def _failure(ended: Ended, stopped_by: str, seconds: float, poll_limit_ms: int) -> Finding:
    """What a launch that did not return is reported as; BadInput where it was no fault of the kernel.

    stopped_by: CUDA's words, said so many seconds after the start. A wait at its limit is stopped with the words that a
    fault of the mbarrier has too; but sooner than the limit no wait can have come to it.
    """
    kind, message = ended.value if ended.how == RAISED else ("", stopped_by or ended.value)
    waited = ""
    if ended.how == TIMED_OUT:
        waited = f"it did not end ({ended.value}) and was killed"
    elif poll_limit_ms and TRAPPED in stopped_by and seconds * 1e3 >= poll_limit_ms:
        waited = f"a wait for an mbarrier took more than {poll_limit_ms} ms"
    if waited:
        return Finding(
            "deadlock",
            waited,
            place=Place(),
            what="the launch on the GPU",
            fix="run it in the simulator (--device sim), which names who waits for what",
        )
    if kind == "BadInput":
        raise BadInput(message)
    return Finding(
        "launch-failure",
        f"its process died ({message})" if ended.how == CRASHED else message,
        place=Place(),
        what="the launch on the GPU",
        fix="run it in the simulator (--device sim), which names the access, or the arrivals too many on an mbarrier",
    )


def launch_in_worker(
    call: tuple[str, str, str, list[np.ndarray]],
) -> tuple[list[np.ndarray] | str, float]:
    """In the worker: (library, cubin, digest of the source, arrays) -> (arrays afterwards, or CUDA's error; seconds)."""
    from phaseflip.gpu import runtime as cuda_runtime

    library, cubin, digest, arrays = call
    module = cuda_runtime.load(library, cubin, digest)
    try:
        return cuda_runtime.call(module, arrays)
    except cuda_runtime.LaunchStopped as stopped:
        return str(stopped), stopped.seconds
