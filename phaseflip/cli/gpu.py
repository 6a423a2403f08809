"""The command `build`, and what `run` does with `--device` and `--prebuilt`.

Exit codes of `build`: 0 compiled, 2 bad input, 3 harness error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from phaseflip.cli.main import CLEAN, Outcome
from phaseflip.cli.options import add_kernel_and_shape
from phaseflip.gpu import devices
from phaseflip.gpu.capability import needed
from phaseflip.gpu.devices import ARCHS, Device, choose_device
from phaseflip.system.folders import check_output

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel
    from phaseflip.gpu.worker import Gpu


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare the command; `extent` parses a whole number."""
    build = commands.add_parser(
        "build",
        parents=[common],
        allow_abbrev=False,
        help="compile a kernel for a GPU that need not be here (needs nvcc)",
    )
    add_kernel_and_shape(build, extent)
    build.add_argument(
        "--arch",
        choices=sorted(ARCHS.values()),
        help="of the GPU that will run it (default: the one that the kernel needs)",
    )
    build.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        required=True,
        help="folder for --prebuilt, made if need be",
    )
    build.add_argument(
        "--poll-limit",
        type=extent,
        default=0,
        metavar="MS",
        help="trap where a wait for an mbarrier takes longer (default: 0, wait for ever)",
    )
    build.set_defaults(handler=_build)


def _build(args: argparse.Namespace) -> Outcome:
    check_output(args.output, "compiled kernel", keys=("kernel", "source_sha256"))
    from phaseflip.gemm.kernel import find_kernel
    from phaseflip.gpu.build import build

    shape = (args.M, args.N, args.K)
    built = build(find_kernel(args.kernel), *shape, args.output, args.arch or "", args.poll_limit)
    report = {
        "kernel": built.kernel,
        "shape": list(built.shape),
        "arch": built.arch,
        "file": str(built.file(".so")),
        "resources": dict(built.resources),
        "versions": dict(built.versions),
    }
    rows: list[tuple[str, str]] = [
        ("kernel    ", built.kernel),
        ("shape     ", "  ".join(f"{a} {n}" for a, n in zip("MNK", built.shape, strict=True))),
        ("arch      ", built.arch),
        ("file      ", str(report["file"])),
    ]
    for used in built.resources.values():
        rows.append(("ptxas     ", ", ".join(f"{k} {v}" for k, v in used.items())))
    return Outcome(CLEAN, report, rows)


def chosen(
    name: str,
    shape: tuple[int, int, int],
    choice: str,
    directory: str | None,
    gpu_only: bool = False,
) -> tuple[Kernel, Device, Gpu | None]:
    """The kernel, where it runs, and (for "cuda") the GPU's worker, not started yet.

    With a folder of compiled kernels, the kernel is one of them, and neither TVM's compiler nor its source is needed.
    `gpu_only`: the command cannot do with the simulator.
    """
    if directory is None:
        if choice == "cuda":
            choose_device(choice, gpu_only=gpu_only)  # before the kernels are imported
        from phaseflip.gemm.kernel import find_kernel

        kernel = find_kernel(name)
        here = None if choice == "sim" else devices.first_gpu()
        if here is not None and choice == "auto" and not kernel.is_strict(*shape):
            choice, here = "sim", None  # a GPU runs what has A, B and D of one dtype
        if here is not None:
            arch = ARCHS.get(here.capability, "")
            kernel = replace(kernel, needs=needed(kernel, kernel.check_shape(*shape), arch))
        device = choose_device(choice, kernel, gpu_only)
        return kernel, device, _gpu(device, None)
    from phaseflip.gpu.prebuilt import check_not_simulated, find_prebuilt

    check_not_simulated(choice)
    built = find_prebuilt(directory, name, shape)
    kernel = built.as_kernel()
    device = choose_device("cuda", kernel, gpu_only=True)
    kernel = find_prebuilt(directory, name, shape, device.arch).as_kernel()
    return kernel, device, _gpu(device, directory)


def _gpu(device: Device, directory: str | None) -> Gpu | None:
    if device.name != "cuda":
        return None
    from phaseflip.gpu.worker import Gpu

    return Gpu(device.arch, directory)
