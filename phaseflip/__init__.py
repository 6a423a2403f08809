"""phaseflip: run TIRx GEMM kernels for NVIDIA Blackwell on a simulated one, and test them.

The names below are loaded on first use, so ``import phaseflip`` is cheap and needs no compiler:
``simulate(kernel, inputs, schedule="in-order") -> Run``, ``launch(kernel, *arrays)`` (in place, as
a compiled module does), ``lower(primfunc) -> LoweredKernel``, ``find_kernel``, ``list_kernels`` and
the errors. The verdict of the oracles comes from ``phaseflip.gemm.verify.verify``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phaseflip.errors import (
        BadInput,
        Deadlock,
        FindingWarning,
        KernelFault,
        UnsupportedInstruction,
    )
    from phaseflip.findings.finding import Finding
    from phaseflip.frontend.tirx.lowering import LoweredKernel, lower
    from phaseflip.gemm.kernel import Kernel, ShapeRule, Tolerance, find_kernel, list_kernels
    from phaseflip.run.simulator import Run, launch, simulate

__version__ = "0.1.0"

_MODULE_OF = {
    "BadInput": "errors",
    "Deadlock": "errors",
    "FindingWarning": "errors",
    "KernelFault": "errors",
    "UnsupportedInstruction": "errors",
    "Finding": "findings.finding",
    "Kernel": "gemm.kernel",
    "ShapeRule": "gemm.kernel",
    "Tolerance": "gemm.kernel",
    "find_kernel": "gemm.kernel",
    "list_kernels": "gemm.kernel",
    "LoweredKernel": "frontend.tirx.lowering",
    "lower": "frontend.tirx.lowering",
    "Run": "run.simulator",
    "launch": "run.simulator",
    "simulate": "run.simulator",
}

__all__ = [
    "BadInput",
    "Deadlock",
    "Finding",
    "FindingWarning",
    "Kernel",
    "KernelFault",
    "LoweredKernel",
    "Run",
    "ShapeRule",
    "Tolerance",
    "UnsupportedInstruction",
    "find_kernel",
    "launch",
    "list_kernels",
    "lower",
    "simulate",
]


def __getattr__(name: str) -> object:
    """Import the module that defines ``name`` and keep the value here for the next time."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'phaseflip' has no attribute {name!r}")
    value = getattr(import_module(f"phaseflip.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
