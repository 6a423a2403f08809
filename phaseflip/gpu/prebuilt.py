"""Kernels compiled elsewhere: a folder with, for each kernel, shape and architecture, a library, its code and a manifest.

    hgemm_sm90-256x256x512-sm_90a.json    what it is, and how it was made
    hgemm_sm90-256x256x512-sm_90a.so      TVM's host part, with the CUDA source
    hgemm_sm90-256x256x512-sm_90a.cubin   that source, compiled

Reading one needs no compiler and does not import TVM.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from phaseflip.errors import BadInput
from phaseflip.gemm.kernel import Kernel, Operands, Tolerance
from phaseflip.system.folders import files_in
from phaseflip.system.json_files import read_json

FORMAT = 1


@dataclass(frozen=True)
class Prebuilt:
    """One kernel of a folder; `shape` is (M, N, K), `source_sha256` that of the CUDA text in the library.

    Its waits for an mbarrier give up after `poll_limit_ms`, unless that is 0, and then `at_limit`: "trap" or "go on".
    `commit` is what was checked out where it was built: `id`, `time`, `dirty`, or empty.
    """

    kernel: str
    shape: tuple[int, int, int]
    arch: str
    needs: tuple[int, int]
    operands: tuple[str, str, str]
    dtype: str
    rtol: float
    atol: float
    source_sha256: str
    poll_limit_ms: int = 0
    at_limit: str = "trap"
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    commit: Mapping[str, Any] = field(default_factory=dict, hash=False)
    resources: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    directory: Path = Path()

    @property
    def stem(self) -> str:
        """Name of its files, without suffix."""
        name = re.sub(r"[^A-Za-z0-9_.]+", "_", self.kernel).strip("_")
        return f"{name}-{'x'.join(map(str, self.shape))}-{self.arch}"

    def file(self, suffix: str) -> Path:
        """Path of its .so, .cubin or .json."""
        return self.directory / (self.stem + suffix)

    @property
    def is_whole(self) -> bool:
        """Whether library and machine code are there."""
        return all(self.file(suffix).is_file() for suffix in (".so", ".cubin"))

    def write_manifest(self) -> None:
        """Write the .json, last of its files: what has one is complete."""
        found = {k: v for k, v in asdict(self).items() if k != "directory"}
        text = json.dumps({"format": FORMAT} | found, indent=1)
        self.file(".json").write_text(text + "\n")

    def code(self) -> tuple[str, str, str]:
        """What `cuda_runtime.load` takes: library, machine code, digest of the source."""
        return str(self.file(".so")), str(self.file(".cubin")), self.source_sha256

    def as_kernel(self) -> Kernel:
        """A kernel that can be run on a GPU but not built; its reference is the plain product."""
        return _PrebuiltKernel(
            name=self.kernel,
            factory=functools.partial(_no_factory, self.kernel),
            shape_rule=None,
            tolerance=Tolerance(self.rtol, self.atol),
            summary="compiled ahead of time",
            needs=self.needs,
            dtype=self.dtype,
            built=self,
        )


def _no_factory(name: str, M: int, N: int, K: int) -> NoReturn:
    raise BadInput(f"{name} was compiled ahead of time and has no source here")


@dataclass(frozen=True)
class _PrebuiltKernel(Kernel):
    built: Prebuilt | None = None

    def operands(self, M: Any, N: Any, K: Any) -> Operands:
        assert self.built is not None
        return Operands(self.built.operands, self.built.dtype, self.built.dtype)


def read_directory(directory: str | Path) -> list[Prebuilt]:
    """Every kernel of a folder, by name of file. BadInput if it is no such folder or one of them cannot be read."""
    if not os.path.isdir(directory):
        raise BadInput(
            f"there is no folder {directory}; python -m phaseflip build ... -o makes one"
        )
    return [_read(file) for file in files_in(directory, ".json")]


def _read(file: Path) -> Prebuilt:
    values = read_json(file, "build the kernel again")
    try:
        version = values.pop("format")
        if version != FORMAT:
            raise BadInput(
                f"{file} has format {version}, and this release reads {FORMAT}; build the kernel again"
            )
        for key in ("shape", "needs", "operands"):
            values[key] = tuple(values[key])
        return Prebuilt(**values, directory=file.parent)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{file} is not the manifest of a compiled kernel ({error})") from error


def check_not_simulated(choice: str) -> None:
    """BadInput where the device of choice runs no compiled code."""
    if choice == "sim":
        raise BadInput("--prebuilt is code for a GPU, which --device sim does not run")


def compiled_in(directory: str | Path) -> list[Prebuilt]:
    """The compiled kernels of a folder. BadInput if there are none."""
    built = read_directory(directory)
    if not built:
        raise BadInput(
            f"{directory} holds no compiled kernel; python -m phaseflip build ... -o makes one"
        )
    return built


def find_prebuilt(
    directory: str | Path, kernel: str, shape: tuple[int, int, int], arch: str = ""
) -> Prebuilt:
    """The kernel of that name, shape and (unless empty) architecture. BadInput says what there is instead."""
    built = compiled_in(directory)
    same_name = [b for b in built if b.kernel == kernel]
    same_shape = [b for b in same_name if b.shape == shape]
    matching = [b for b in same_shape if arch in ("", b.arch)]
    wanted = "x".join(map(str, shape))
    if matching:
        for suffix in (".so", ".cubin"):
            if not matching[0].file(suffix).is_file():
                raise BadInput(f"{matching[0].file(suffix)} is missing; build the kernel again")
        return matching[0]
    if same_shape:
        there = " and ".join(b.arch for b in same_shape)
        raise BadInput(
            f"{kernel} {wanted} in {directory} was built for {there}, and the GPU here runs {arch};"
            f" build it with --arch {arch}"
        )
    there = ", ".join(sorted({"x".join(map(str, b.shape)) for b in same_name}))
    if same_name:
        raise BadInput(f"{directory} holds {kernel} for MxNxK = {there}, not {wanted}")
    names = ", ".join(sorted({b.kernel for b in built}))
    raise BadInput(f"{directory} holds {names}, not {kernel}")
