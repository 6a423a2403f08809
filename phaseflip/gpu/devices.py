"""Where a kernel runs: ``sim``, the simulator, or ``cuda``, an NVIDIA GPU whose compute capability the kernel fits."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phaseflip.errors import BadInput

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel

DEVICE_CHOICES = ("auto", "sim", "cuda")
ARCHS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
"""Compute capability -> architecture to compile for. Code for one of these runs on that capability alone."""


@dataclass(frozen=True)
class Device:
    """Where kernels run: ``name`` is "sim" or "cuda"; ``note`` is for the user, or empty; ``arch`` that of the GPU."""

    name: str
    note: str = ""
    arch: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU that PyTorch sees: its name, and its compute capability."""

    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.name}, compute capability {self.capability[0]}.{self.capability[1]}"


def first_gpu() -> Gpu | None:
    """The first GPU that PyTorch sees, or None. CUDA_VISIBLE_DEVICES chooses among several."""
    if sys.platform == "linux" and not os.path.exists("/dev/nvidiactl"):
        return None  # no NVIDIA driver: spare the second that importing PyTorch takes
    import torch

    if not torch.cuda.is_available() or torch.cuda.device_count() == 0:
        return None
    major, minor = torch.cuda.get_device_capability(0)
    return Gpu(str(torch.cuda.get_device_name(0)), (int(major), int(minor)))


def gpu_uuid() -> str:
    """UUID of the first GPU that CUDA sees, as nvidia-smi takes it ("GPU-..."); "" without one.

    The driver says which that is: CUDA_VISIBLE_DEVICES holds numbers whose order is not nvidia-smi's, or UUIDs.
    """
    if first_gpu() is None:
        return ""
    import torch

    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def fits(needs: tuple[int, int], capability: tuple[int, int]) -> bool:
    """Whether a GPU of this capability runs kernels that need that one: the same major number, no smaller minor one."""
    return (
        capability in ARCHS and needs[0] == capability[0] and needs[1] <= capability[1]
    )  # tcgen05 and wgmma are specific to their architecture


def fits_here(kernel: Kernel) -> bool:
    """Whether the first GPU runs the kernel, or may, if only its instructions can tell; False where there is none."""
    gpu = first_gpu()
    return gpu is not None and (kernel.needs is None or fits(kernel.needs, gpu.capability))


def default_arch(needs: tuple[int, int]) -> str:
    """The architecture to compile for where no GPU says otherwise. BadInput if none is known for that capability."""
    if needs not in ARCHS:
        known = ", ".join(f"{major}.{minor}" for major, minor in ARCHS)
        raise BadInput(
            f"no architecture is known for compute capability {needs[0]}.{needs[1]}; known are {known}"
        )
    return ARCHS[needs]


def check_arch(kernel: Kernel, arch: str) -> None:
    """BadInput unless `arch` is one that the kernel, whose needs are known, can be compiled for."""
    assert kernel.needs is not None
    legal = [a for capability, a in ARCHS.items() if fits(kernel.needs, capability)]
    if arch not in legal:
        major, minor = kernel.needs
        raise BadInput(
            f"{kernel.name} needs compute capability {major}.{minor} and cannot be compiled for {arch!r};"
            f" use {' or '.join(legal) or 'a kernel for another one'}"
        )


def choose_device(
    choice: str = "auto", kernel: Kernel | None = None, gpu_only: bool = False
) -> Device:
    """Resolve ``--device`` for a kernel, or (without one) for whatever the first GPU runs.

    "auto" is "cuda" where the first GPU's compute capability fits the kernel, else "sim", with a note where a GPU is
    present. What only its instructions can tell fits for "cuda", and not for "auto". Raises BadInput for "cuda" without
    a GPU, or with one that does not fit, and for an unknown name. With `gpu_only` the simulator is no way out.
    """
    if choice not in DEVICE_CHOICES:
        raise BadInput(f"unknown device {choice!r}; choose one of {', '.join(DEVICE_CHOICES)}")
    gpu = None if choice == "sim" else first_gpu()
    if gpu is None:
        if choice == "cuda":
            if gpu_only:
                raise BadInput(
                    "this needs an NVIDIA GPU, and PyTorch sees none here; run it where there is one"
                )
            raise BadInput(
                "device 'cuda' needs an NVIDIA GPU, and PyTorch sees none here; use 'sim' (the simulator) or 'auto'"
            )
        return Device("sim")
    arch = ARCHS.get(gpu.capability, "")
    if kernel is not None and kernel.needs is None and choice == "auto":
        return Device(
            "sim", f"what {kernel.name} needs is not known, so the GPU here ({gpu}) is left alone"
        )
    if arch and (kernel is None or kernel.needs is None or fits(kernel.needs, gpu.capability)):
        return Device("cuda", str(gpu), arch)
    what, wanted = "these kernels need", "9.0, 10.0 or 10.3"
    if kernel is not None and kernel.needs is not None:
        what, wanted = f"{kernel.name} needs", "{}.{}".format(*kernel.needs)
    if choice == "cuda":
        way_out = (
            "use a kernel for it" if gpu_only else "use 'sim' (the simulator) or a kernel for it"
        )
        raise BadInput(f"{what} compute capability {wanted}, and the GPU here is {gpu}; {way_out}")
    return Device(
        "sim", f"{what} compute capability {wanted}, so the GPU here ({gpu}) is left alone"
    )
