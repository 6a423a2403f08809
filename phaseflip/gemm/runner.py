"""Where `verify` runs a kernel, if not in the simulator: a runner that is given to it, or the current one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from .kernel import Kernel


class Runner(Protocol):
    """A GPU, or whatever stands for one. `directory` holds kernels compiled ahead of time, if not None."""

    directory: str | Path | None

    def run(self, kernel: Kernel, shape: tuple[int, int, int], arrays: Sequence[np.ndarray]) -> Any:
        """Run on copies of the arrays (A, B, D); returns what has the attributes of `simulator.Run`."""


_CURRENT: ContextVar[Runner | None] = ContextVar("phaseflip_runner", default=None)


def current_runner() -> Runner | None:
    """Where `verify` runs kernels unless it is told: the runner of `running_on`, else (None) the simulator."""
    return _CURRENT.get()


@contextlib.contextmanager
def running_on(runner: Runner | None) -> Iterator[None]:
    """Make a runner, or the simulator, the place where `verify` runs kernels."""
    token = _CURRENT.set(runner)
    try:
        yield
    finally:
        _CURRENT.reset(token)
