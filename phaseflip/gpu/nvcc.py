"""CUDA C++ to machine code with nvcc: the code itself, and what ptxas says that it uses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phaseflip.errors import BadInput

# As TVM calls it, without --use_fast_math: what is compared with a reference should not flush subnormals.
_OPTIONS = (
    "-cubin", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "--expt-extended-lambda", "-w", "-Xptxas=-v",
    "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-U__CUDA_NO_BFLOAT162_OPERATORS__", "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
)  # fmt: skip


@dataclass(frozen=True)
class Cubin:
    """Machine code for one architecture. `resources`: function -> registers, stack, spill and static shared bytes."""

    code: bytes
    arch: str
    resources: Mapping[str, Mapping[str, int]]
    nvcc: str


def find_nvcc() -> str:
    """Path of nvcc, from CUDA_HOME or PATH; BadInput says how to come by one."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found is None:
        raise BadInput(
            "compiling for a GPU needs nvcc, and there is none in CUDA_HOME or on PATH; install the CUDA toolkit,"
            " or build where there is one (python -m phaseflip build) and pass --prebuilt here"
        )
    return found


def compile_cubin(source: str, arch: str) -> Cubin:
    """Compile CUDA C++ text for an architecture such as "sm_90a". BadInput holds nvcc's first error."""
    nvcc = find_nvcc()
    number = arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as directory:
        text, target = Path(directory, "kernel.cu"), Path(directory, "kernel.cubin")
        text.write_text(source)
        target_options = (f"-gencode=arch=compute_{number},code={arch}", str(text), "-o")
        done = subprocess.run(
            [nvcc, *_OPTIONS, *target_options, str(target)], capture_output=True, text=True
        )
        said = done.stdout + done.stderr
        if done.returncode or not target.exists():
            errors = [line for line in said.splitlines() if "error" in line or "fatal" in line]
            reason = (errors or said.splitlines() or ["it said nothing"])[0]
            raise BadInput(f"nvcc cannot compile the kernel for {arch}: {reason.strip()}")
        code = target.read_bytes()
    return Cubin(code, arch, parse_resources(said), nvcc_version(nvcc))


def nvcc_version(nvcc: str) -> str:
    """ "13.0.88"."""
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"\bV(\d+\.\d+\.\d+)", said)
    return found[1] if found else "of unknown version"


def parse_resources(said: str) -> dict[str, dict[str, int]]:
    """What `ptxas -v` reports of each entry function."""
    found: dict[str, dict[str, int]] = {}
    name = ""
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack_bytes": r"(\d+) bytes stack frame",
        "spill_store_bytes": r"(\d+) bytes spill stores",
        "spill_load_bytes": r"(\d+) bytes spill loads",
        "static_shared_bytes": r"(\d+) bytes smem",
    }
    for line in said.splitlines():
        entry = re.search(r"Compiling entry function '([^']+)'", line)
        if entry:
            name = entry[1]
            found[name] = {}
        if name:
            for key, pattern in patterns.items():
                match = re.search(pattern, line)
                if match:
                    found[name][key] = int(match[1])
    return found
