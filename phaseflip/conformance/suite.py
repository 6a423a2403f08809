"""Build a conformance suite, with what the simulator says of each kernel, and compare it with a GPU.

A folder holds for each family a library and its machine code, `<family>.npz` with arrays before and after, and
`<family>.json`. Building needs TVM and nvcc, comparing a GPU and TVM's runtime; they may be two machines. A family is
drawn, or the programs of a user's files (`programs.py`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..errors import BadInput, SimulatorFault
from ..gpu import lock as gpu_lock
from ..gpu.nvcc import Cubin, compile_cubin, find_nvcc
from ..system.folders import written_whole
from ..system.json_files import has_keys, read_json
from ..system.worker_pool import RAISED, RETURNED, WorkerPool
from .families import cluster, handoffs, matrix, scalar, sync, tma, wgmma
from .family import FAMILIES, Family, Program

__all__ = [
    "build",
    "cluster",
    "compare",
    "families_for",
    "handoffs",
    "matrix",
    "scalar",
    "sync",
    "tma",
    "wgmma",
]

FORMAT = 2
MANIFEST_KEYS, PROGRAM_KEYS = ("family", "programs"), ("arrays", "outputs", "cases", "text")
REMEDY = "remove it, and the same command builds its programs anew where there is nvcc"
START_LIMIT_S = 120.0
"""For PyTorch, CUDA and the library of a family in a fresh process."""
PROGRAM_LIMIT_S = 10.0
"""For one program, which takes milliseconds; what takes longer counts as hanging."""
HOPPER_ONLY = ("wgmma",)
Progress = Callable[[int, int], None]
Compile = Callable[[str], Cubin]


class Simulated(NamedTuple):
    """A program, and what the simulator leaves in each of its arrays."""

    program: Program
    results: list[np.ndarray]


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
    from ..frontend.tirx.lowering import lower
    from ..run.simulator import simulate

    simulated = []
    for index, program in enumerate(programs_of(family, seed, count)):
        run = simulate(lower(program.function, arch), program.arrays)
        if run.findings:
            raise SimulatorFault(
                f"program {index} of {family.name} (seed {seed}) is correct, but gives {run.findings[0]}"
            )
        simulated.append(Simulated(program, list(run.outputs.values())))
        if progress is not None:
            progress(index + 1, count)
    write(directory, family.name, arch, simulated, {"seed": seed}, compiler(arch))
    return sum(s.program.cases for s in simulated)


def write(
    directory: str | Path,
    name: str,
    arch: str,
    simulated: Sequence[Simulated],
    more: dict[str, Any],
    compiled: Compile,
) -> None:
    """Compile the programs of a family and leave them in a folder, all or none; `more` goes into the manifest."""
    with written_whole(directory) as folder:
        _write(folder, name, arch, simulated, more, compiled)


def _write(
    folder: Path,
    name: str,
    arch: str,
    simulated: Sequence[Simulated],
    more: dict[str, Any],
    compiled: Compile,
) -> None:
    from ..frontend.tirx.lowering import export_library

    arrays: dict[str, np.ndarray] = {}
    for index, (program, results) in enumerate(simulated):
        arrays |= {f"{index}_in_{i}": _plain(a) for i, a in enumerate(program.arrays)}
        arrays |= {f"{index}_out_{i}": _plain(results[i]) for i in program.outputs}
    manifest = {"format": FORMAT, "family": name, "arch": arch, **more}
    if simulated:
        functions = {f"program_{i}": s.program.function for i, s in enumerate(simulated)}
        source = export_library(functions, arch, folder / f"{name}.so", lambda t: compiled(t).code)
        cubin = compiled(source)
        (folder / f"{name}.cubin").write_bytes(cubin.code)
        digest = hashlib.sha256(source.encode()).hexdigest()
        manifest |= {"nvcc": cubin.nvcc, "source_sha256": digest}
    manifest["programs"] = [
        {
            "arrays": [a.dtype.name for a in p.arrays], "outputs": p.outputs, "cases": p.cases, "text": p.text,
        }
        for p, _ in simulated
    ]  # fmt: skip
    np.savez_compressed(folder / f"{name}.npz", allow_pickle=False, **arrays)
    (folder / f"{name}.json").write_text(json.dumps(manifest) + "\n")


def compiler(arch: str) -> Compile:
    """CUDA text to machine code, each text once."""
    return functools.cache(lambda text: compile_cubin(text, arch))


def _plain(array: np.ndarray) -> np.ndarray:
    """As NumPy's files hold it: bfloat16 as its bits."""
    return array.view(np.uint16) if array.dtype.name == "bfloat16" else array


def manifests(directory: str | Path, arch: str = "") -> list[dict[str, Any]]:
    """What `build` left in a folder; BadInput where it was built for another architecture or by another release."""
    files = sorted(Path(directory).glob("*.json"))
    found = [m for m in (read_json(f, REMEDY) for f in files) if has_keys(m, MANIFEST_KEYS)]
    for manifest in found:
        if manifest.get("format") != FORMAT:
            raise BadInput(f"{directory} was built by another release; build it anew elsewhere")
        if not _is_whole(manifest):
            raise BadInput(
                f"the manifest of {manifest['family']} in {directory} is damaged; {REMEDY}"
            )
        if arch and manifest["arch"] != arch:
            raise BadInput(
                f"{directory} was built for {manifest['arch']}, and the GPU here runs {arch}; build it anew"
            )
    return found


def _is_whole(manifest: dict[str, Any]) -> bool:
    """Whether it says what a comparison asks of it; one without programs has no library."""
    programs = manifest["programs"]
    if not isinstance(programs, list) or not all(has_keys(p, PROGRAM_KEYS) for p in programs):
        return False
    return has_keys(manifest, ("arch", "source_sha256") if programs else ("arch",))


def compare(
    directory: str | Path, arch: str, names: Iterable[str], limit_s: float = PROGRAM_LIMIT_S
) -> Iterator[Result]:
    """Run every program of the named families on the GPU, in a process that is replaced where one hangs or faults."""
    found = [m for m in manifests(directory, arch) if m["family"] in set(names)]
    with WorkerPool("phaseflip.conformance.suite:differences", limit_s=limit_s) as pool:
        for manifest in found:
            ready = False
            for index, program in enumerate(manifest["programs"]):
                call = (str(directory), manifest["family"])
                with gpu_lock.shared():
                    ended = None if ready else pool.call((*call, None), START_LIMIT_S)
                    if ended is not None and ended.how == RAISED and ended.value[0] == "BadInput":
                        raise BadInput(ended.value[1])
                    if ended is None or ended.how == RETURNED:
                        ended = pool.call((*call, index))
                ready = ended.how == RETURNED
                text = ended.value if ready else f"{ended.how}: {ended.value}"
                yield Result(manifest["family"], index, program["cases"], program["text"], text)
                if not ready:
                    pool.close()  # a CUDA error sticks to its process


@functools.lru_cache(maxsize=2)
def _loaded(directory: str, family: str) -> tuple[dict[str, Any], Any, Any]:
    """In the worker: (manifest, arrays, module)."""
    from ..gpu import runtime as cuda_runtime

    base = Path(directory, family)
    manifest = read_json(base.with_suffix(".json"), REMEDY)
    files = [str(base.with_suffix(suffix)) for suffix in (".so", ".cubin")]
    module = cuda_runtime.load(*files, manifest["source_sha256"])
    saved = base.with_suffix(".npz")
    try:
        with open(saved, "rb") as file, np.load(file) as arrays:
            return manifest, dict(arrays), module
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise BadInput(f"{saved} is damaged ({error}); build {family} anew") from error


def differences(call: tuple[str, str, int | None]) -> str:
    """In the worker: run one program, and say what differs from the simulator ("" if nothing does).

    Without a number it only prepares: CUDA starts, and the library is loaded.
    """
    from ..gpu import runtime as cuda_runtime

    directory, family, index = call
    manifest, arrays, module = _loaded(directory, family)
    if index is None:
        cuda_runtime.to_gpu(np.zeros(1, np.int32))
        return ""
    program = manifest["programs"][index]
    given = [arrays[f"{index}_in_{i}"].view(_dtype(d)) for i, d in enumerate(program["arrays"])]
    results, _ = cuda_runtime.call(module, given, f"program_{index}")
    said = []
    for position in program["outputs"]:
        simulated = arrays[f"{index}_out_{position}"]
        said += unequal(
            position, results[position], simulated.view(results[position].dtype), program["cases"]
        )
    return "; ".join(said)


def _dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else name


def unequal(position: int, gpu: np.ndarray, simulated: np.ndarray, cases: int = 1) -> list[str]:
    """One sentence if two arrays differ in any bit; it names CTAs where the first dimension counts the cases."""
    wrong = np.argwhere(
        gpu.view(np.uint8).reshape(*gpu.shape, -1)
        != simulated.view(np.uint8).reshape(*gpu.shape, -1)
    )[:, :-1]
    if not len(wrong):
        return []
    wrong = np.unique(wrong, axis=0)
    first = tuple(wrong[0].tolist())
    by_cta = gpu.ndim > 1 and 1 < cases == gpu.shape[0]
    ctas = sorted({int(w[0]) for w in wrong}) if by_cta else []
    where = f" in CTAs {ctas}" if ctas else ""
    return [
        f"array {position}: {len(wrong)} of {gpu.size} elements differ{where}, the first at {list(first)}:"
        f" GPU {gpu[first]!r}, simulator {simulated[first]!r}"
    ]
