"""Where a kernel runs: ``sim``, the simulator, or ``cuda``, a Blackwell GPU (not yet)."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from phaseflip.errors import BadInput

DEVICE_CHOICES = ("auto", "sim", "cuda")
BLACKWELL_MAJOR = 10
"""Compute capability 10.x is what the kernels' tcgen05 instructions need."""


@dataclass(frozen=True)
class Device:
    """Where kernels run: ``name`` is "sim" or "cuda"; ``note`` is for the user, or empty."""

    name: str
    note: str = ""


def blackwell_gpu() -> str | None:
    """The name of the first GPU of compute capability 10.x that PyTorch sees, or None."""
    if sys.platform == "linux" and not os.path.exists("/dev/nvidiactl"):
        return None  # no NVIDIA driver: spare the second that importing PyTorch takes
    import torch

    if not torch.cuda.is_available():
        return None
    for index in range(torch.cuda.device_count()):
        if torch.cuda.get_device_capability(index)[0] == BLACKWELL_MAJOR:
            return str(torch.cuda.get_device_name(index))
    return None


def choose_device(choice: str = "auto") -> Device:
    """Resolve ``--device``.

    "auto" will mean "cuda" where a Blackwell GPU is present; until kernels can run there it means
    "sim" everywhere, with a note on machines that have such a GPU.

    Raises BadInput for "cuda", which this release does not have, and for an unknown name.
    """
    if choice == "sim":
        return Device("sim")
    if choice == "cuda":
        raise BadInput(
            "device 'cuda' is not supported yet: running on a Blackwell GPU comes in a later"
            " release; use 'sim' (the simulator) or 'auto'"
        )
    if choice == "auto":
        gpu = blackwell_gpu()
        if gpu is None:
            return Device("sim")
        return Device(
            "sim",
            f"a Blackwell GPU ({gpu}) is present, but this release runs in the simulator only",
        )
    raise BadInput(f"unknown device {choice!r}; choose one of {', '.join(DEVICE_CHOICES)}")
