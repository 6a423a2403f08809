"""Conformance programs: drawn from their seed alone, silent in the simulator; what is said where a GPU differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip import cli, cuda_runtime, lower, simulate
from phaseflip.conformance import suite
from phaseflip.conformance.case import FAMILIES
from phaseflip.errors import BadInput
from tests.test_build import needs_nvcc

NAMES = sorted(FAMILIES)
SCHEDULES = ("in-order", "lazy", "random:3")


def drawn(family: str, seed: int, index: int) -> Any:
    return FAMILIES[family].generate(suite.generator(family, seed, index))


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("family", NAMES)
def test_programs_are_silent_and_give_the_same_bits_under_every_schedule(
    family: str, index: int
) -> None:
    program = drawn(family, 5, index)
    lowered = lower(program.function, "sm_90a")
    results = []
    for schedule in SCHEDULES:
        run = simulate(lowered, program.arrays, schedule)
        assert [str(f) for f in run.findings] == []
        results.append([a.tobytes() for a in run.outputs.values()])
    assert results[0] == results[1] == results[2]
    arrays = [a.tobytes() for a in program.arrays]
    assert all(results[0][i] != arrays[i] for i in program.outputs[:1])  # it did something


@pytest.mark.parametrize("family", NAMES)
def test_a_seed_gives_one_program(family: str) -> None:
    one, again, other = drawn(family, 1, 0), drawn(family, 1, 0), drawn(family, 2, 0)
    assert one.text == again.text != other.text
    for a, b in zip(one.arrays, again.arrays, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_full_run_has_more_than_five_hundred_cases() -> None:
    counted = {name: f.programs * drawn(name, 0, 0).cases for name, f in FAMILIES.items()}
    assert sum(counted.values()) >= 500


def test_families_by_architecture() -> None:
    assert [f.name for f in suite.families_for("sm_90a", ["tma", "wgmma"])] == ["tma", "wgmma"]
    assert "wgmma" not in {f.name for f in suite.families_for("sm_100a")}
    with pytest.raises(BadInput, match="no family 'wgmma' for sm_100a; known are .*tma"):
        suite.families_for("sm_100a", ["wgmma"])


def test_what_is_said_of_a_difference() -> None:
    a = np.arange(12, dtype=np.uint32).reshape(3, 4)
    b = a.copy()
    assert suite.unequal(2, a, b) == []
    b[1, 2] = b[2, 3] = 99
    assert suite.unequal(2, a, b) == [
        "array 2: 2 of 12 elements differ in CTAs [1, 2], the first at [1, 2]:"
        f" GPU {a[1, 2]!r}, simulator {b[1, 2]!r}"
    ]
    zero, negative = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    assert len(suite.unequal(0, zero, negative)) == 1  # bits, not values


@needs_nvcc
def test_a_folder_is_built_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU played by what the simulator said, and one that gets a word wrong."""
    words = ["conformance", "-o", str(tmp_path), "--family", "matrix", "--percent", "20", "--json"]
    monkeypatch.setattr("phaseflip.cli_conformance.first_gpu", lambda: None)
    assert cli.main(words) == cli.CLEAN
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "folder": str(tmp_path), "arch": "sm_90a", "cases": 8, "device": None, "families": {},
    }  # fmt: skip
    with pytest.raises(BadInput, match="built for sm_90a, and the GPU here runs sm_100a"):
        suite.manifests(tmp_path, "sm_100a")
    arrays = np.load(tmp_path / "matrix.npz")
    monkeypatch.setattr(cuda_runtime, "load", lambda *files: files)
    off_by = 0

    def call(module: Any, given: list[np.ndarray], function: str) -> Any:
        index = function.removeprefix("program_")
        results = [arrays.get(f"{index}_out_{i}", a).copy() for i, a in enumerate(given)]
        results[2][0, 0, 0] += np.uint32(off_by)
        return results, 0.0

    monkeypatch.setattr(cuda_runtime, "call", call)
    assert suite.differences((str(tmp_path), "matrix", 1)) == ""
    off_by = 1
    assert "1 of" in suite.differences((str(tmp_path), "matrix", 1))


def test_bad_command_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, sentence in (
        (["conformance"], "-o/--output"),
        (["conformance", "-o", str(tmp_path), "--percent", "0"], "--percent 1 to 1000"),
        (["conformance", "-o", str(tmp_path), "--family", "x"], "no family 'x'"),
        (["benchmark", "hgemm_v3", "128", "128", "64", "--rounds", "1"], "--rounds: 1 is not 3"),
    ):
        assert cli.main(words) == cli.BAD_INPUT
        assert sentence in capsys.readouterr().err
