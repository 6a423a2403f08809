"""Programs from a user's files: which there are, what they are called with, and why one cannot be compared.

A program is a PrimFunc of a module, or what a factory of it returns when called without arguments. A factory's attribute
`variants`, a list of keyword arguments, stands for a program each instead.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadInput
from ..findings.finding import errors
from ..gpu.capability import foreign_instruction
from ..gpu.nvcc import find_nvcc
from ..system.folders import files_in
from ..system.user_code import load_file, one_line, returned, users_code
from .family import FAMILIES, Program
from .suite import Compile, Progress, Simulated, compiler, write

SCHEDULES = ("in-order", "lazy", "random:1")
"""Under which the outputs must agree: else what a GPU gives says nothing."""


class LeftOut(NamedTuple):
    """A program, or a file's functions, that cannot be compared, and the reason."""

    program: str
    reason: str


def family_name(path: str | Path) -> str:
    """The name of a file or folder, which its family bears; BadInput if there is no such, or a generated one has it."""
    if not Path(path).exists():
        raise BadInput(f"there is no file or folder of programs {path}")
    name = Path(path).resolve().name.removesuffix(".py").replace(".", "_")
    if name in FAMILIES:
        raise BadInput(f"{name!r} is the name of a generated family; rename {path}")
    return name


def named(paths: Iterable[str | Path]) -> dict[str, str | Path]:
    """Family name -> path, of several; BadInput if two bear one name."""
    own: dict[str, str | Path] = {}
    for path in paths:
        other = own.setdefault(family_name(path), path)
        if Path(other).resolve() != Path(path).resolve():
            raise BadInput(
                f"the programs of {other} and {path} would be one family, {family_name(path)}; rename one of them"
            )
    return own


def files_of(path: str | Path) -> list[Path]:
    """The file itself, or the Python files of the folder."""
    path = Path(path).resolve()
    return files_in(path, ".py") if path.is_dir() else [path]


def digest(path: str | Path) -> str:
    """SHA-256 of the files' text: what was built from another one is out of date. BadInput where one cannot be read."""
    try:
        return hashlib.sha256(b"\0".join(f.read_bytes() for f in files_of(path))).hexdigest()
    except OSError as error:
        raise BadInput(f"{error.filename} cannot be read: {error.strerror}") from error


def build_programs(
    directory: str | Path, path: str | Path, arch: str, progress: Progress | None = None
) -> None:
    """Simulate and compile the programs of a file or folder, as one family of `directory`."""
    find_nvcc()
    name, left_out, simulated = family_name(path), [], {}
    found = [item for file in files_of(path) for item in programs_of(file)]
    for index, (label, made) in enumerate(found):
        result = made if isinstance(made, str) else judged(label, made, arch)
        if isinstance(result, str):
            left_out.append(LeftOut(label, result))
        else:
            simulated[label] = result
        if progress is not None:
            progress(index + 1, len(found))
    compiled = compiler(arch)
    functions = {label: s.program.function for label, s in simulated.items()}
    for label, reason in refused(functions, arch, compiled):
        left_out.append(LeftOut(label, reason))
        del simulated[label]
    more = {"sources_sha256": digest(path), "left_out": [p._asdict() for p in left_out]}
    write(directory, name, arch, list(simulated.values()), more, compiled)


def programs_of(file: Path) -> Iterator[tuple[str, Any]]:
    """(label, PrimFunc, or in words why there is none) of a file, in its order; names with an underscore or `test` in
    front, and what is imported, are none of its programs."""
    module = _imported(file)
    need_arguments = []
    for name, value in list(vars(module).items()):
        label = f"{file.name}:{name}"
        if name.startswith(("_", "test")):
            continue
        if type(value).__name__ == "PrimFunc":
            yield label, value
        elif inspect.isfunction(value) and value.__module__ == module.__name__:
            for arguments in getattr(value, "variants", [{}]):
                said = ", ".join(f"{k}={v!r}" for k, v in arguments.items())
                try:
                    inspect.signature(value).bind(**arguments)
                except TypeError:
                    need_arguments.append(name)
                    break
                yield f"{label}({said})" if said else label, _called(value, arguments)
    if need_arguments:
        yield file.name, f"{', '.join(need_arguments)}: cannot be called without arguments"


def _called(factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        with users_code():
            made = factory(**arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"the factory fails: {one_line(error)}"
    if type(made).__name__ != "PrimFunc":
        return f"returns {returned(made)}, not a PrimFunc"
    return made


def _imported(file: Path) -> ModuleType:
    """The module of a file; in a package, under its name there, so that it may import its neighbours."""
    root = file.parent
    while (root / "__init__.py").exists():
        root = root.parent
    if root == file.parent:
        stat = file.stat()
        return load_file(file, stat.st_mtime_ns, stat.st_size)
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    sys.path.insert(0, str(root))
    try:
        with users_code():
            module = importlib.import_module(name.removesuffix(".__init__"))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # anybody's code, as kernels are
        raise BadInput(f"{file} cannot be imported: {one_line(error)}") from error
    finally:
        sys.path.remove(str(root))
    if module.__file__ != str(file):
        raise BadInput(f"{file} cannot be imported: {module.__file__} has its name; rename one")
    return module


def judged(label: str, function: Any, arch: str) -> Simulated | str:
    """A program with what the simulator says of it, or why a GPU cannot be asked the same."""
    from ..frontend.tirx.lowering import lower
    from ..run.simulator import simulate

    try:
        lowered = lower(function, arch)
        lowered.program  # noqa: B018 - translates, which may refuse it
        if foreign := foreign_instruction(lowered.device, arch):
            return foreign
        for name, dtype, _ in lowered.parameters:
            if dtype != "bfloat16" and _numpy_dtype(dtype).isbuiltin != 1:
                return f"{name} is of dtype {dtype}, which cannot be compared"
        arrays = [integers(label, i, p) for i, p in enumerate(lowered.parameters)]
        runs = [simulate(lowered, arrays, schedule) for schedule in SCHEDULES]
    except BadInput as error:
        return str(error).splitlines()[0]
    for wrong in errors([f for run in runs for f in run.findings])[:1]:
        return f"not correct: {wrong.title} at {Path(wrong.place.file).name}:{wrong.place.line}"
    results = [list(run.outputs.values()) for run in runs]
    if any(
        a.tobytes() != b.tobytes() for r in results[1:] for a, b in zip(results[0], r, strict=True)
    ):
        return "its outputs depend on the schedule"
    return Simulated(Program(function, arrays, list(range(len(arrays))), 1, label), results[0])


def integers(label: str, position: int, parameter: tuple[str, str, tuple[int, ...]]) -> np.ndarray:
    """What a buffer holds before a run: small integers, exact in every dtype, so that no order of additions matters."""
    _, dtype, shape = parameter
    rng = np.random.default_rng([zlib.crc32(label.encode()), position])
    if dtype.startswith("uint"):
        values = rng.integers(0, 100, shape)
    elif dtype == "bool":
        values = rng.integers(0, 2, shape)
    else:
        values = rng.integers(-8, 9, shape) if "float" in dtype else rng.integers(-50, 100, shape)
    return values.astype(_numpy_dtype(dtype))


def _numpy_dtype(name: str) -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def refused(functions: dict[str, Any], arch: str, compiled: Compile) -> list[tuple[str, str]]:
    """(label, reason) of the programs that nvcc does not compile: halves are tried until one stands alone."""
    from ..frontend.tirx.lowering import export_library

    if not functions:
        return []
    labels = list(functions)
    with tempfile.TemporaryDirectory() as folder:
        try:
            numbered = {f"program_{i}": functions[label] for i, label in enumerate(labels)}
            file = Path(folder, "tried.so")
            compiled(export_library(numbered, arch, file, lambda text: compiled(text).code))
        except BadInput as error:
            if len(labels) == 1:
                return [(labels[0], str(error))]
            half = len(labels) // 2
            parts = [dict(list(functions.items())[s]) for s in (slice(half), slice(half, None))]
            return [item for part in parts for item in refused(part, arch, compiled)]
    return []
