"""Compiling for a GPU without one: nvcc's words, the folder of compiled kernels, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from phaseflip.cli.main import main as cli
from phaseflip.errors import BadInput
from phaseflip.gemm.kernel import find_kernel, list_kernels
from phaseflip.gpu import nvcc as cuda_compile
from phaseflip.gpu import prebuilt
from phaseflip.gpu.build import build
from phaseflip.gpu.nvcc import compile_cubin, find_nvcc, parse_resources
from phaseflip.gpu.prebuilt import Prebuilt, find_prebuilt, read_directory

HAS_NVCC = any(shutil.which("nvcc", path=path) for path in (None, "/usr/local/cuda/bin"))
needs_nvcc = pytest.mark.skipif(not HAS_NVCC, reason="no nvcc on this machine")

PTXAS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 90 registers, used 16 barriers, 8 bytes stack frame, 1024 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Used 16 registers
"""


def test_what_ptxas_says_by_function() -> None:
    assert parse_resources(PTXAS) == {
        "first": {
            "stack_bytes": 8,
            "spill_store_bytes": 4,
            "spill_load_bytes": 12,
            "registers": 90,
            "static_shared_bytes": 1024,
        },
        "second": {"registers": 16},
    }


def test_without_nvcc_one_sentence_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(cuda_compile.shutil, "which", lambda name, path=None: None)
    with pytest.raises(BadInput, match="needs nvcc, .* install the CUDA toolkit, or build where"):
        find_nvcc()
    with pytest.raises(BadInput, match="needs nvcc"):
        build(find_kernel("hgemm_sm90"), 128, 128, 64, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_nvcc_comes_from_cuda_home_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvcc"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.9, V12.9.41'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert find_nvcc() == str(tool)
    assert cuda_compile.nvcc_version(str(tool)) == "12.9.41"
    with pytest.raises(BadInput, match="nvcc cannot compile the kernel for sm_90a: Cuda compil"):
        compile_cubin("", "sm_90a")


@needs_nvcc
def test_an_error_of_nvcc_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="nvcc cannot compile the kernel for sm_90a: .*error"):
        compile_cubin("__global__ void f() { nonsense(); }", "sm_90a")


def made(
    directory: Path, kernel: str = "mine.py:f", arch: str = "sm_90a", **others: Any
) -> Prebuilt:
    """A folder's entry, with empty files."""
    values: dict[str, Any] = {
        "kernel": kernel, "shape": (128, 256, 64), "arch": arch, "needs": (9, 0), "operands": ("A", "B", "D"),
        "dtype": "float16", "rtol": 0.02, "atol": 0.01, "source_sha256": "0" * 64, "directory": directory,
    }  # fmt: skip
    entry = Prebuilt(**values | others)
    for suffix in (".so", ".cubin"):
        entry.file(suffix).write_bytes(b"")
    entry.write_manifest()
    return entry


def test_a_folder_gives_back_what_was_written(tmp_path: Path) -> None:
    one, two = made(tmp_path), made(tmp_path, arch="sm_100a", resources={"f": {"registers": 9}})
    assert read_directory(tmp_path) == [two, one]
    assert find_prebuilt(tmp_path, "mine.py:f", (128, 256, 64), "sm_100a") == two
    assert one.file(".so").name == "mine.py_f-128x256x64-sm_90a.so"
    kernel = one.as_kernel()
    assert kernel.check_shape(128, 256, 64) == (128, 256, 64)
    assert kernel.operands(128, 256, 64) == (("A", "B", "D"), "float16", "float16")
    assert kernel.needs == (9, 0) and kernel.tolerance.rtol == 0.02
    with pytest.raises(BadInput, match="compiled ahead of time and has no source here"):
        kernel.build(128, 256, 64)


def test_what_a_folder_does_not_hold(tmp_path: Path) -> None:
    made(tmp_path)
    for arguments, sentence in (
        (
            ("mine.py:f", (128, 256, 64), "sm_100a"),
            "built for sm_90a, and the GPU here runs sm_100a",
        ),
        (("mine.py:f", (128, 128, 64)), "holds mine.py:f for MxNxK = 128x256x64, not 128x128x64"),
        (("other", (128, 256, 64)), "holds mine.py:f, not other"),
    ):
        with pytest.raises(BadInput, match=sentence):
            find_prebuilt(tmp_path, *arguments)
    made(tmp_path).file(".cubin").unlink()
    with pytest.raises(BadInput, match=r"\.cubin is missing; build the kernel again"):
        find_prebuilt(tmp_path, "mine.py:f", (128, 256, 64))
    with pytest.raises(BadInput, match="there is no folder .*nowhere; python -m phaseflip build"):
        read_directory(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "x.json is damaged .*; build the kernel again"),
        ("[]", "is not the manifest of a compiled kernel"),
        ('{"format": 1, "shape": [], "needs": [], "operands": []}', "is not the manifest"),
        ('{"format": 99}', "has format 99, and this release reads 1; build the kernel again"),
    ],
)
def test_a_manifest_that_cannot_be_read(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadInput, match=sentence):
        read_directory(tmp_path)


def test_the_command_line_refuses_before_it_compiles(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made(tmp_path)
    for words, sentence in (
        (["build", "hgemm_sm90", "128", "128", "64"], "-o/--output"),
        (
            ["build", "hgemm_sm90", "128", "128", "64", "-o", "x", "--arch", "sm_80"],
            "invalid choice",
        ),
        (
            ["build", "hgemm_sm90", "128", "128", "64", "-o", "x", "--arch", "sm_100a"],
            "cannot be compiled for 'sm_100a'; use sm_90a",
        ),
        (["run", "x", "128", "128", "64", "--prebuilt", str(tmp_path)], "holds mine.py:f, not x"),
        (
            [
                "run",
                "mine.py:f",
                "128",
                "256",
                "64",
                "--prebuilt",
                str(tmp_path),
                "--device",
                "sim",
            ],
            "--prebuilt is code for a GPU",
        ),
    ):
        assert cli.main(words) == cli.BAD_INPUT
        assert sentence in capsys.readouterr().err


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    if not HAS_NVCC:
        pytest.skip("no nvcc on this machine")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="the folder .*file cannot be written to"):
        build(find_kernel("hgemm_v1"), 128, 128, 64, tmp_path / "file")


@needs_nvcc
@pytest.mark.parametrize(
    "name", [pytest.param(k.name, marks=pytest.mark.xdist_group(k.name)) for k in list_kernels()]
)
def test_every_kernel_compiles_without_spills(name: str, tmp_path: Path) -> None:
    """By nvcc, for the architecture it needs; hgemm_v3 through the command line."""
    rule = find_kernel(name).shape_rule
    assert rule is not None
    shape = rule.nearest(1, 1, 1)
    if name == "hgemm_v3":
        assert cli.main(["build", name, *map(str, shape), "-o", str(tmp_path)]) == cli.CLEAN
        entry = find_prebuilt(tmp_path, name, shape)
    else:
        entry = build(find_kernel(name), *shape, tmp_path)
    (used,) = entry.resources.values()
    assert 16 <= used["registers"] <= 255
    assert used["spill_store_bytes"] == used["spill_load_bytes"] == 0
    assert entry.arch == ("sm_90a" if name == "hgemm_sm90" else "sm_100a")
    assert read_directory(tmp_path) == [entry]
    assert entry.file(".cubin").read_bytes()[:4] == b"\x7fELF"
    assert json.loads(entry.file(".json").read_text())["versions"]["tvm"].startswith("0.26")
    assert os.access(entry.file(".so"), os.R_OK) and prebuilt.FORMAT == 1
