"""Compile kernels for a GPU on a machine that need not have one: TVM's host part, and machine code from nvcc."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseflip import __version__
from phaseflip.errors import BadInput
from phaseflip.gemm.kernel import Kernel
from phaseflip.gpu.capability import foreign_instruction, needed
from phaseflip.gpu.devices import check_arch, default_arch
from phaseflip.gpu.nvcc import compile_cubin, find_nvcc
from phaseflip.gpu.poll_limit import TRAP, check_poll_limit, limit_polls
from phaseflip.gpu.prebuilt import Prebuilt
from phaseflip.system.folders import written_whole

if TYPE_CHECKING:
    from phaseflip.frontend.tirx.lowering import LoweredKernel


def build(
    kernel: Kernel,
    M: int,
    N: int,
    K: int,
    directory: str | Path,
    arch: str = "",
    poll_limit_ms: int = 0,
    at_limit: str = TRAP,
) -> Prebuilt:
    """Compile `kernel` at one shape for `arch` (default: the one that it needs) into a folder, made if need be.

    With a poll limit, waits for an mbarrier give up after so many milliseconds: TRAP, or GO_ON. Raises BadInput for a bad
    shape, architecture or limit, where TVM or nvcc refuse the kernel, and where nvcc is missing.
    """
    if kernel.needs is not None:
        check_arch(kernel, arch or default_arch(kernel.needs))
    check_poll_limit(poll_limit_ms)
    find_nvcc()  # before TVM works for a second
    from phaseflip.frontend.tirx.lowering import lower_once

    shape = kernel.check_shape(M, N, K)
    operands = kernel.operands(*shape)
    needs = needed(kernel, shape, arch)
    arch = arch or default_arch(needs)
    lowered = lower_once(kernel.build(*shape), arch)
    if foreign := foreign_instruction(lowered.device, arch):
        raise BadInput(f"{kernel.name} {foreign}")
    with written_whole(directory) as folder:
        built = Prebuilt(
            kernel=kernel.name,
            shape=shape,
            arch=arch,
            needs=needs,
            operands=operands.names,
            dtype=operands.dtype,
            rtol=kernel.tolerance.rtol,
            atol=kernel.tolerance.atol,
            source_sha256="",
            poll_limit_ms=poll_limit_ms,
            at_limit=at_limit,
            directory=folder,
        )
        finished = _compile(built, lowered)
        finished.write_manifest()
    return replace(finished, directory=Path(directory))


def _compile(built: Prebuilt, lowered: LoweredKernel) -> Prebuilt:
    """Write library and machine code, and return what the manifest says then."""
    import tvm

    compiled = functools.cache(
        lambda text: compile_cubin(
            limit_polls(text, built.poll_limit_ms, built.at_limit), built.arch
        )
    )
    source = lowered.export(built.file(".so"), lambda text: compiled(text).code)
    cubin = compiled(source)
    built.file(".cubin").write_bytes(cubin.code)
    return replace(
        built,
        source_sha256=hashlib.sha256(source.encode()).hexdigest(),
        versions={"phaseflip": __version__, "tvm": tvm.__version__, "nvcc": cubin.nvcc},
        commit=_commit(),
        resources=cubin.resources,
    )


def _commit() -> dict[str, Any]:
    """What is checked out in the current folder, as pytest-benchmark finds it; empty outside of a repository."""
    from pytest_benchmark.utils import get_commit_info

    found = get_commit_info("phaseflip")
    if found["time"] is None:
        return {}
    return {key: found[key] for key in ("id", "time", "dirty")}
