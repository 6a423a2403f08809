"""Files of JSON that an interruption, a copy or an editor has damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaseflip.errors import BadInput
from phaseflip.system.json_files import (
    append_line,
    cut_unfinished,
    read_json,
    read_lines,
    read_object,
)


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"a": [1, 2', b'{"a": 1}}', b"\xff\xfe{}", b"[" * 200_000]
)
def test_what_is_no_json_is_bad_input_in_one_line(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(data)
    with pytest.raises(BadInput, match=r"x.json is damaged \(.*\); make it anew$") as error:
        read_json(file, "make it anew")
    assert "\n" not in str(error.value)


def test_what_cannot_be_read_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nothing cannot be read \(No such file"):
        read_json(tmp_path / "nothing", "make it anew")
    with pytest.raises(BadInput, match=r"cannot be read \(Is a directory"):
        read_lines(tmp_path, (), "line")


@pytest.mark.parametrize("text", ["[]", "null", "3", '"a"', "{}", '{"a": 1}'])
def test_what_lacks_a_key_is_damaged(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(BadInput, match=r"damaged \(it is no object with a, b\); make it anew"):
        read_object(file, ("a", "b"), "make it anew")
    file.write_text('{"b": 1, "a": 2, "c": 3}')
    assert read_object(file, ("a", "b"), "")["c"] == 3


def test_lines_survive_an_interruption_and_so_does_what_comes_after_it(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    assert read_lines(file, ("stem",), "line") == []
    append_line(file, {"stem": "a"})
    for unfinished in ('{"stem": "b", "laun', "{}"):
        with open(file, "a") as out:
            out.write(unfinished)
        assert read_lines(file, ("stem",), "line") == [{"stem": "a"}]
    append_line(file, {"stem": "c"})
    assert file.read_text() == '{"stem": "a"}\n{"stem": "c"}\n'
    file.write_text('{"stem"')
    cut_unfinished(file)
    assert file.read_text() == ""
    cut_unfinished(tmp_path / "nothing")


@pytest.mark.parametrize("line", ["", "{", "[]", "{}", "3"])
def test_a_line_between_others_is_not_passed_over(tmp_path: Path, line: str) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text(f'{{"stem": "a"}}\n{line}\n{{"stem": "b"}}\n')
    with pytest.raises(BadInput, match=r"line 2 of .*x.jsonl is no count of launches; remove"):
        read_lines(file, ("stem",), "count of launches")
