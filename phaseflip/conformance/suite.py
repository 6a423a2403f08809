"""Build a conformance suite, with what the simulator says of each kernel, and compare it with a GPU.

A folder holds for each family a library and its machine code, `<family>.npz` with arrays before and after, and
`<family>.json`. Building needs TVM and nvcc, comparing a GPU and TVM's runtime; they may be two machines.
"""

from __future__ import annotations

import functools
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import gpu_lock
from ..cuda_compile import compile_cubin, find_nvcc
from ..errors import BadInput, SimulatorFault
from ..isolation import RETURNED, WorkerPool
from . import matrix, scalar, sync, tma, wgmma
from .case import FAMILIES, Family, Program

__all__ = ["build", "compare", "families_for", "matrix", "scalar", "sync", "tma", "wgmma"]

FORMAT = 1
CASE_LIMIT_S = 60.0
HOPPER_ONLY = ("wgmma",)
Progress = Callable[[int, int], None]


class Result(NamedTuple):
    """One program on the GPU: how many cases it holds, and in words what differs or went wrong ("" if nothing)."""

    family: str
    number: int
    cases: int
    text: str
    difference: str


def families_for(arch: str, names: Sequence[str] = ()) -> list[Family]:
    """The families that an architecture can run, or those named; BadInput for a name that is none of them."""
    possible = {n: f for n, f in FAMILIES.items() if arch == "sm_90a" or n not in HOPPER_ONLY}
    for name in names:
        if name not in possible:
            raise BadInput(f"no family {name!r} for {arch}; known are {', '.join(possible)}")
    return [possible[n] for n in names or possible]


def programs_of(family: Family, seed: int, count: int) -> Iterator[Program]:
    """The first programs of a family, each from a generator of its own: seed, family and number say which."""
    for index in range(count):
        yield family.generate(generator(family.name, seed, index))


def generator(family: str, seed: int, index: int) -> np.random.Generator:
    """The random generator of one program."""
    return np.random.default_rng([seed, zlib.crc32(family.encode()), index])


def build(
    directory: str | Path,
    family: Family,
    arch: str,
    seed: int,
    count: int,
    progress: Progress | None = None,
) -> int:
    """Draw `count` programs of a family, simulate and compile them; returns how many cases they hold.

    Raises SimulatorFault where a program, which is correct by construction, gives a finding.
    """
    find_nvcc()
    from ..lowering import export_library, lower
    from ..simulator import simulate

    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    described: list[dict[str, Any]] = []
    functions = {}
    for index, program in enumerate(programs_of(family, seed, count)):
        lowered = lower(program.function, arch)
        run = simulate(lowered, program.arrays)
        if run.findings:
            raise SimulatorFault(
                f"program {index} of {family.name} (seed {seed}) is correct, but gives {run.findings[0]}"
            )
        results = list(run.outputs.values())
        for position, array in enumerate(program.arrays):
            arrays[f"{index}_in_{position}"] = array
        for position in program.outputs:
            arrays[f"{index}_out_{position}"] = results[position]
        functions[f"program_{index}"] = program.function
        described.append(
            {
                "arrays": len(program.arrays),
                "outputs": program.outputs,
                "cases": program.cases,
                "text": program.text,
            }
        )
        if progress is not None:
            progress(index + 1, count)
    compiled = functools.cache(lambda text: compile_cubin(text, arch))
    library = folder / f"{family.name}.so"
    source = export_library(functions, arch, library, lambda text: compiled(text).code)
    cubin = compiled(source)
    (folder / f"{family.name}.cubin").write_bytes(cubin.code)
    np.savez_compressed(folder / f"{family.name}.npz", allow_pickle=False, **arrays)
    manifest = {
        "format": FORMAT, "family": family.name, "arch": arch, "seed": seed, "nvcc": cubin.nvcc,
        "source_sha256": hashlib.sha256(source.encode()).hexdigest(), "programs": described,
    }  # fmt: skip
    (folder / f"{family.name}.json").write_text(json.dumps(manifest) + "\n")
    return sum(p["cases"] for p in described)


def manifests(directory: str | Path, arch: str = "") -> list[dict[str, Any]]:
    """What `build` left in a folder; BadInput where it was built for another architecture."""
    found = [json.loads(f.read_text()) for f in sorted(Path(directory).glob("*.json"))]
    found = [m for m in found if isinstance(m, dict) and "family" in m and "programs" in m]
    for manifest in found:
        if arch and manifest["arch"] != arch:
            raise BadInput(
                f"{directory} was built for {manifest['arch']}, and the GPU here runs {arch}; build it anew"
            )
    return found


def compare(directory: str | Path, arch: str, limit_s: float = CASE_LIMIT_S) -> Iterable[Result]:
    """Run every program of a folder on the GPU, in a process that is replaced where one hangs or faults."""
    found = manifests(directory, arch)
    with WorkerPool("phaseflip.conformance.suite:differences", limit_s=limit_s) as pool:
        for manifest in found:
            for index, program in enumerate(manifest["programs"]):
                with gpu_lock.shared():
                    ended = pool.call((str(directory), manifest["family"], index))
                text = ended.value if ended.how == RETURNED else f"{ended.how}: {ended.value}"
                yield Result(manifest["family"], index, program["cases"], program["text"], text)
                if ended.how != RETURNED:
                    pool.close()  # a CUDA error sticks to its process


@functools.lru_cache(maxsize=2)
def _loaded(directory: str, family: str) -> tuple[dict[str, Any], Any, Any]:
    """In the worker: (manifest, arrays, module)."""
    from .. import cuda_runtime

    base = Path(directory, family)
    manifest = json.loads(base.with_suffix(".json").read_text())
    files = [str(base.with_suffix(suffix)) for suffix in (".so", ".cubin")]
    module = cuda_runtime.load(*files, manifest["source_sha256"])
    return manifest, np.load(base.with_suffix(".npz")), module


def differences(call: tuple[str, str, int]) -> str:
    """In the worker: run one program, and say what differs from the simulator ("" if nothing does)."""
    from .. import cuda_runtime

    directory, family, index = call
    manifest, arrays, module = _loaded(directory, family)
    program = manifest["programs"][index]
    given = [arrays[f"{index}_in_{i}"] for i in range(program["arrays"])]
    results, _ = cuda_runtime.call(module, given, f"program_{index}")
    said = []
    for position in program["outputs"]:
        said += unequal(position, results[position], arrays[f"{index}_out_{position}"])
    return "; ".join(said)


def unequal(position: int, gpu: np.ndarray, simulated: np.ndarray) -> list[str]:
    """One sentence if two arrays differ in any bit."""
    wrong = np.argwhere(
        gpu.view(np.uint8).reshape(*gpu.shape, -1)
        != simulated.view(np.uint8).reshape(*gpu.shape, -1)
    )[:, :-1]
    if not len(wrong):
        return []
    wrong = np.unique(wrong, axis=0)
    first = tuple(wrong[0].tolist())
    ctas = sorted({int(w[0]) for w in wrong}) if gpu.ndim > 1 else []
    where = f" in CTAs {ctas}" if ctas else ""
    return [
        f"array {position}: {len(wrong)} of {gpu.size} elements differ{where}, the first at {list(first)}:"
        f" GPU {gpu[first]!r}, simulator {simulated[first]!r}"
    ]
