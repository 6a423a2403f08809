"""A folder of conformance programs that is there already: what it was made for, and whether its files are whole."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .family import Family

Manifest = Mapping[str, Any]
_STARTS = {".so": b"\x7fELF", ".cubin": b"\x7fELF", ".npz": b"PK"}
"""How the files of a family begin."""


def programs_of_percent(family: Family, percent: int) -> int:
    """How many programs `--percent` stands for."""
    return max(1, family.programs * percent // 100)


def check_made_for(
    directory: str | Path,
    there: Iterable[Manifest],
    arch: str,
    drawn: Sequence[Family],
    seed: int,
    percent: int,
) -> None:
    """BadInput where the families in a folder were built for another architecture or drawn by other options."""
    asked = {family.name: family for family in drawn}
    for manifest in there:
        name, count = manifest["family"], len(manifest["programs"])
        if manifest["arch"] != arch:
            made, wanted = f"--arch {manifest['arch']}", arch
        elif drawn and manifest.get("seed", seed) != seed:
            made, wanted = f"--seed {manifest['seed']}", str(seed)
        elif name in asked and count != programs_of_percent(asked[name], percent):
            made = f"another --percent ({count} of {asked[name].programs} programs of {name})"
            wanted = str(percent)
        else:
            continue
        raise BadInput(f"{directory} was made for {made}, not {wanted}; give another folder")


def check_files(directory: str | Path, manifest: Manifest) -> None:
    """BadInput unless the files of a family are there and whole, as far as can be seen without a GPU."""
    base = Path(directory, manifest["family"])
    for suffix, start in _STARTS.items():
        file = base.with_name(base.name + suffix)
        if not manifest["programs"] and suffix != ".npz":
            continue  # nothing was left to compile
        if not _is_whole(file, start):
            raise BadInput(
                f"{file} is missing or damaged; remove it and {base.name}.json and repeat the command where nvcc is"
            )


def _is_whole(file: Path, start: bytes) -> bool:
    try:
        with open(file, "rb") as opened:
            if opened.read(len(start)) != start:
                return False
        if file.suffix != ".npz":
            return True
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile):
        return False
