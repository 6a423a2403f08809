"""Folders that commands write into: a new one, an empty one, or one of their own, never a folder of something else."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from phaseflip.errors import BadInput

UNFINISHED = ".unfinished-"
"""What the name of a folder begins with whose files are not complete; a killed process leaves one."""


def check_output(
    directory: str | Path,
    what: str,
    *,
    names: tuple[str, ...] = (),
    keys: tuple[str, ...] = (),
    files: tuple[str, ...] = (),
    folders: tuple[str, ...] = (),
) -> None:
    """BadInput where `directory` exists, is not empty and is no `what` ("study"): none of these names lies in it, and
    no .json file that holds an object with all of these keys. Nor may a folder be where one of `files` is to be written,
    or a file where one of `folders` is.
    """
    folder = Path(directory)
    if not os.fspath(directory):
        raise BadInput("the name of the folder for output is empty; give one, such as build/new")
    try:
        if not folder.exists():
            return
        there = {e.name for e in folder.iterdir() if not e.name.startswith(UNFINISHED)}
    except OSError as error:
        raise BadInput(f"the folder {directory} cannot be used: {error.strerror}") from error
    if there.isdisjoint(names) and there and not (keys and _holds_object(folder, keys)):
        raise BadInput(
            f"the folder {directory} is not empty and holds no {what}; give a new folder, or an empty one"
        )
    for name in files:
        check_no_folder(folder / name)
    for name in folders:
        if (folder / name).exists() and not (folder / name).is_dir():
            raise BadInput(f"{folder / name} is a file, where a folder is to be made; remove it")


def files_in(directory: str | Path, suffix: str) -> list[Path]:
    """Its files that end so, by name. BadInput where it cannot be read, which `Path.glob` takes for empty."""
    try:
        names = sorted(os.listdir(directory))
    except OSError as error:
        raise BadInput(f"the folder {directory} cannot be read: {error.strerror}") from error
    return [Path(directory, name) for name in names if name.endswith(suffix)]


def check_no_folder(file: Path) -> None:
    """BadInput where a folder has the name of a file that is to be written."""
    if file.is_dir():
        raise BadInput(f"{file} is a folder, where a file is to be written; remove it")


@contextlib.contextmanager
def written_whole(directory: str | Path) -> Iterator[Path]:
    """A temporary folder whose files all move to `directory` at the end, the manifest last; after an error, none does.

    `directory` is made if need be, and removed again if nothing came of it. BadInput where it cannot be written to.
    """
    folder = Path(directory)
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder))
    except OSError as error:
        raise BadInput(f"the folder {directory} cannot be written to: {error.strerror}") from error
    try:
        yield made
        targets = {file: folder / file.name for file in sorted(made.iterdir(), key=_is_manifest)}
        for target in targets.values():
            check_no_folder(target)
        for target in filter(_is_manifest, targets.values()):
            target.unlink(missing_ok=True)  # what has a manifest is complete
        for file, target in targets.items():
            os.replace(file, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        for path in new:
            with contextlib.suppress(OSError):  # it is not empty
                path.rmdir()


def _is_manifest(file: Path) -> bool:
    return file.suffix == ".json"


def _holds_object(folder: Path, keys: tuple[str, ...]) -> bool:
    for file in folder.glob("*.json"):
        try:
            value = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(value, dict) and value.keys() >= set(keys):
            return True
    return False
