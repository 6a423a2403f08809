"""Folders for output: what a command takes for its own, and that it leaves others as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaseflip import cli
from phaseflip.errors import BadInput
from phaseflip.folders import check_output

COMMANDS = {
    "study": (["study", "--kernels", "hgemm_v1", "--faults", "missing-commit"], "study"),
    "silicon": (["silicon", "hgemm_sm90", "128", "128", "64"], "mutants"),
    "conformance": (["conformance", "--family", "matrix"], "conformance programs"),
    "build": (["build", "hgemm_sm90", "128", "128", "64"], "compiled kernel"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_of_something_else_is_refused_and_left_alone(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, what = COMMANDS[command]
    contents = {
        "notes.md": "mine",
        "package.json": '{"name": "x"}',
        "list.json": "[]",
        "a.json": "{",
    }
    for name, text in contents.items():
        (tmp_path / name).write_text(text)
    assert cli.main([*words, "-o", str(tmp_path)]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert f"{tmp_path} is not empty and holds no {what}; give a new folder" in error
    assert error.count("\n") == 1
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == contents
    assert cli.main([*words, "-o", str(tmp_path / "notes.md")]) == cli.BAD_INPUT
    assert "notes.md cannot be used: Not a directory" in capsys.readouterr().err


def test_a_new_an_empty_and_an_own_folder_are_taken(tmp_path: Path) -> None:
    check_output(tmp_path / "new", "study", names=("study.json",))
    check_output(tmp_path, "study", names=("study.json",))
    (tmp_path / "x.json").write_text('{"family": "x", "programs": [], "format": 1}')
    check_output(tmp_path, "suite", keys=("family", "programs"))
    check_output(tmp_path, "study", names=("study.json", "x.json"))
    for wrong in ({"keys": ("family", "kernel")}, {"names": ("study.json",)}):
        with pytest.raises(BadInput, match="is not empty"):
            check_output(tmp_path, "study", **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("command", "name", "text"),
    [
        ("study", "study.json", "{"),
        ("study", "results.jsonl", ""),
        ("silicon", "mutants.json", "{"),
    ],
)
def test_an_own_folder_is_judged_by_what_it_holds(
    command: str, name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert cli.main([*COMMANDS[command][0], "-o", str(tmp_path)]) == cli.BAD_INPUT
    assert "is damaged" in (error := capsys.readouterr().err) or "is not this study's" in error
