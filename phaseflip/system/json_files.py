"""JSON files of earlier runs, which may have been cut off, copied in part or edited: read, or refused in words.

A `.jsonl` file holds one object a line. Each is appended as it is known, so that an interruption costs the last line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phaseflip.errors import BadInput


def read_json(file: Path, remedy: str) -> Any:
    """What a file holds. BadInput where it cannot be read or is no JSON; `remedy` ends the sentence."""
    try:
        return json.loads(file.read_bytes())
    except OSError as error:
        raise BadInput(f"{file} cannot be read ({error.strerror}); {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is damaged ({error}); {remedy}") from error


def read_object(file: Path, keys: Iterable[str], remedy: str) -> dict[str, Any]:
    """As `read_json`, for an object with these keys."""
    value = read_json(file, remedy)
    if not has_keys(value, keys):
        wanted = f"it is no object with {', '.join(keys)}"
        raise BadInput(f"{file} is damaged ({wanted}); {remedy}")
    return value


def has_keys(value: Any, keys: Iterable[str]) -> bool:
    """Whether a value is an object with all of these keys."""
    return isinstance(value, dict) and value.keys() >= set(keys)


def read_lines(file: Path, keys: Iterable[str], what: str) -> list[dict[str, Any]]:
    """The objects of a .jsonl file, none if there is no file; an unfinished last line is left out.

    BadInput where a line is no object with these keys, which make it `what`.
    """
    try:
        data = file.read_bytes() if file.exists() else b""
    except OSError as error:
        raise BadInput(f"{file} cannot be read ({error.strerror})") from error
    found = []
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not has_keys(value, keys):
            raise bad_line(file, number, what)
        found.append(value)
    return found


def bad_line(file: Path, number: int, what: str) -> BadInput:
    """That a line is not what it should be, and what to do."""
    return BadInput(
        f"line {number} of {file} is no {what}; remove the line, and the run is repeated"
    )


def append_line(file: Path, value: dict[str, Any]) -> None:
    """Write one more object, so that it outlives this process; an unfinished line before it is cut off."""
    cut_unfinished(file)
    with open(file, "a") as out:
        out.write(json.dumps(value) + "\n")


def cut_unfinished(file: Path) -> None:
    """Cut off a last line that was not finished: what is appended would become a part of it."""
    if not file.exists():
        return
    with open(file, "rb+") as there:
        size = there.seek(0, os.SEEK_END)
        there.seek(max(size - 1, 0))
        if there.read() not in (b"", b"\n"):
            there.seek(0)
            there.truncate(there.read().rfind(b"\n") + 1)
