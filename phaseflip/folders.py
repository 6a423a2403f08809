"""Folders that commands write into: a new one, an empty one, or one of their own, never a folder of something else."""

from __future__ import annotations

import json
from pathlib import Path

from phaseflip.errors import BadInput


def check_output(
    directory: str | Path, what: str, *, names: tuple[str, ...] = (), keys: tuple[str, ...] = ()
) -> None:
    """BadInput where `directory` exists, is not empty and is no `what` ("study"): none of these names lies in it, and
    no .json file that holds an object with all of these keys."""
    folder = Path(directory)
    try:
        if not folder.exists():
            return
        there = {entry.name for entry in folder.iterdir()}
    except OSError as error:
        raise BadInput(f"the folder {directory} cannot be used: {error.strerror}") from error
    if there.isdisjoint(names) and there and not (keys and _holds_object(folder, keys)):
        raise BadInput(
            f"the folder {directory} is not empty and holds no {what}; give a new folder, or an empty one"
        )


def _holds_object(folder: Path, keys: tuple[str, ...]) -> bool:
    for file in folder.glob("*.json"):
        try:
            value = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict) and value.keys() >= set(keys):
            return True
    return False
