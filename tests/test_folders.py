"""Folders for output: what a command takes for its own, and that it leaves others as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaseflip.cli.main import main as cli
from phaseflip.errors import BadInput
from phaseflip.system.folders import UNFINISHED, check_output, written_whole

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


def test_what_is_written_is_whole_or_not_there(tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), written_whole(tmp_path / "a" / "new") as folder:
            (folder / "x.so").write_text("1")
            raise error
        assert not list(tmp_path.iterdir())
    with written_whole(tmp_path / "new") as folder:
        (folder / "x.json").write_text("1")
        (folder / "x.so").write_text("1")
        assert {f.name for f in (tmp_path / "new").iterdir()} == {folder.name}
    assert {f.name for f in (tmp_path / "new").iterdir()} == {"x.so", "x.json"}


def test_what_a_killed_process_left_does_not_fill_a_folder(tmp_path: Path) -> None:
    (tmp_path / f"{UNFINISHED}abc").mkdir()
    check_output(tmp_path, "study", names=("study.json",))


def test_a_folder_where_a_file_is_to_be_written(tmp_path: Path) -> None:
    (tmp_path / "x.so").mkdir()
    sentence = r"x\.so is a folder, where a file is to be written; remove it$"
    with pytest.raises(BadInput, match=sentence), written_whole(tmp_path) as folder:
        (folder / "x.cubin").write_text("1")
        (folder / "x.so").write_text("1")
    assert [f.name for f in tmp_path.iterdir()] == ["x.so"]
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file cannot be written to: File exists"):
        with written_whole(tmp_path / "file"):
            pass
