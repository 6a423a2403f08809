"""Compiled kernels timed on the GPU: alone on it, in interleaved rounds with cuBLAS and with an earlier build."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phaseflip.errors import BadInput
from phaseflip.gemm.inputs import make_inputs
from phaseflip.gpu import lock as gpu_lock
from phaseflip.gpu import runtime as cuda_runtime
from phaseflip.gpu.prebuilt import Prebuilt
from phaseflip.timing import rounds as benchmark
from phaseflip.timing.rounds import Machine, Ratio, Timing

CUBLAS, OLD = "cuBLAS", "old"


@dataclass(frozen=True)
class Timed:
    """Times of one compiled kernel, of cuBLAS and, if there was one, of an earlier build, round by round.

    `l2` is "warm" or "cold"; `before` and `after` are the machine then.
    """

    built: Prebuilt
    l2: str
    ours: Timing
    cublas: Timing
    old: Timing | None
    before: Machine
    after: Machine

    @property
    def to_cublas(self) -> Ratio:
        """Its time over cuBLAS's."""
        return benchmark.compare(self.ours.rounds_us, self.cublas.rounds_us)

    @property
    def to_old(self) -> Ratio | None:
        """Its time over that of the earlier build."""
        if self.old is None:
            return None
        return benchmark.compare(self.ours.rounds_us, self.old.rounds_us)

    @property
    def timings(self) -> list[Timing]:
        """All of them."""
        return [self.ours, *([self.old] if self.old else []), self.cublas]


def time_kernel(
    built: Prebuilt, against: Prebuilt | None = None, rounds: int = 30, cold: bool = False
) -> Timed:
    """Time a compiled kernel while nobody else of phaseflip runs on the GPU. Whether it is right, `verify` says before.

    Raises BadInput for a build with a poll limit: it is other code.
    """
    for one in filter(None, (built, against)):
        if one.poll_limit_ms:
            raise BadInput(
                f"{one.directory} holds {one.kernel} with a poll limit, which changes its code; build it without one"
            )
    with gpu_lock.exclusive():
        launches = {built.kernel: launch_of(built), CUBLAS: cublas_launch(built)}
        if against is not None:
            launches[OLD] = launch_of(against)
        before = benchmark.this_machine()
        M, N, K = built.shape
        timed = benchmark.measure(launches, rounds, 2.0 * M * N * K, cold)
        after = benchmark.this_machine()
    l2 = "cold" if cold else "warm"
    return Timed(built, l2, timed[built.kernel], timed[CUBLAS], timed.get(OLD), before, after)


def launch_of(built: Prebuilt) -> Callable[[], Any]:
    """A launch with operands of its own, made once already: TVM's runtime may ask for machine code no earlier.

    It asks by the source; another build of the same source, loaded before that, would be given to both.
    """
    import torch

    function = cuda_runtime.load(*built.code())["main"]
    A, B, D = _operands(built)
    function(A, B, D)
    torch.cuda.synchronize()
    return lambda: function(A, B, D)


def cublas_launch(built: Prebuilt) -> Callable[[], Any]:
    """PyTorch's product of the same operands, which is cuBLAS's."""
    import torch

    A, B, D = _operands(built)
    return lambda: torch.matmul(A, B.T, out=D)


def _operands(built: Prebuilt) -> tuple[Any, Any, Any]:
    """A, B and room for D, on the GPU."""
    A, B = (cuda_runtime.to_gpu(x) for x in make_inputs("normal", *built.shape, 0, built.dtype))
    return A, B, A.new_empty(built.shape[:2])
