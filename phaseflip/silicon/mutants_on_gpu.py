"""Faults on silicon: every mutant of a kernel launched many times on a GPU, beside what the simulator says of it once.

A folder is prepared with TVM and nvcc, and launched where there is a GPU; they may be two machines.

    simulated/      a study of all mutants in the simulator, one run each
    launched/       the mutants compiled with a poll limit, so that most hangs end by themselves and leave the process intact
    sanitized/      those of the catalogue again, with a limit that suits compute-sanitizer's pace
    mutants.json    what they are, and what became of them when they were built and simulated
    launches.jsonl  what became of their launches, a line for each mutant; sanitizer.jsonl: what the tools said
"""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import BadInput
from ..gpu.devices import gpu_uuid
from ..gpu.poll_limit import GO_ON
from ..gpu.prebuilt import read_directory
from ..system.json_files import append_line, has_keys, read_lines, read_object
from ..system.worker_pool import RAISED, RETURNED, WorkerPool
from .launches import TOOLS, sanitize, together

FORMAT = 2
SIMULATED = "simulated"
OUTCOME_KEYS = (
    "kernel", "fault", "site_index", "site", "kind", "sentence", "fate", "codes", "oracles", "reason",
)  # fmt: skip
MUTANT_KEYS = (*OUTCOME_KEYS, "stem", "refused")
MANIFEST_KEYS = ("kernel", "shape", "arch", "seed", "faults", "mutants")
LAUNCH_KEYS = ("stem", "asked", "restarts", "launches", "hangs", "killed", "errors", "outputs")
VERDICT_KEYS = ("stem", "tool", "errors", "hung")
MANIFEST, LAUNCHES, SANITIZER = "mutants.json", "launches.jsonl", "sanitizer.jsonl"
POLL_LIMIT_MS = {"launched": 200, "sanitized": 10_000}
"""Folder -> limit of the waits of its kernels, which go on then."""
_STOPPED_BY_CUDA = {
    "over-arrival", "barrier-not-initialised", "out-of-bounds", "resource-limit", "uninitialised-read"
}  # fmt: skip
_ENDS_BY_A_KILL = {"barrier-mismatch", "divergent-collective"}
"""Findings that often mean a CUDA error, and a hang elsewhere than in a wait for an mbarrier."""

COSTLY_JOBS = 3
"""Processes at a time for what is expected to cost them: eight that start CUDA again and again get no more done, and CUDA
then takes more than the time of a launch to say that it has stopped one."""

LAUNCHER = "phaseflip.silicon.launches:launch_many"
BUILD_LIMIT_S, SANITIZER_LIMIT_S, LAUNCHER_LIMIT_S = 600.0, 60.0, 86_400.0
"""For one build, one launch under a tool, and all launches of a mutant: each of those has a limit of its own."""

Mutant = dict[str, Any]
Progress = Callable[[str, int, int], None]


def prepare(
    directory: str | Path,
    kernel: str,
    shape: tuple[int, int, int],
    faults: Sequence[str],
    arch: str,
    *,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Simulate every mutant once, compile it, and return the manifest. What is done already is not done again.

    faults: "catalogue", "mutations" and names, as a study takes them; the control is always among them. BadInput for
    unknown names and shapes, where the kernel itself does not compile, and where the folder was prepared for something
    else.
    """
    from ..study.plan import make_plan, run_study

    _try_to_build(kernel, shape, arch)
    plan = make_plan([kernel], faults, [shape], n_schedules=1, seed=seed)
    folder = Path(directory)
    simulated = run_study(
        plan,
        folder / SIMULATED,
        jobs=jobs,
        progress=lambda done, of, _: progress("simulated", done, of) if progress else None,
    )
    mutants = [_mutant(outcome) for outcome in simulated]
    todo = [
        {"mutant": m, "shape": list(shape), "arch": arch, "folder": str(folder / name), "limit_ms": limit}
        for m in mutants
        for name, limit in POLL_LIMIT_MS.items()
        if name == "launched" or m["kind"] != "mutation"
    ]  # fmt: skip
    for name in POLL_LIMIT_MS:
        (folder / name).mkdir(exist_ok=True)  # once for all workers
    with WorkerPool(
        "phaseflip.silicon.mutants_on_gpu:build_mutant", jobs=jobs, limit_s=BUILD_LIMIT_S
    ) as pool:
        for done, (call, ended) in enumerate(pool.run([[call] for call in todo]), 1):
            mutant = call["mutant"]  # one of `mutants`: the pool hands back what it was given
            if ended.how == RAISED and ended.value[0] == "BadInput":
                mutant["refused"] = ended.value[1]
            elif ended.how != RETURNED:
                raise RuntimeError(f"{mutant['stem']} cannot be built: {ended.value}")
            if progress is not None:
                progress("built", done, len(todo))
    manifest = {
        "format": FORMAT, "kernel": mutants[0]["kernel"], "shape": list(shape), "arch": arch, "seed": seed,
        "faults": list(faults), "sources": plan.about["phaseflip sources"], "mutants": mutants,
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return manifest


def _try_to_build(kernel: str, shape: tuple[int, int, int], arch: str) -> None:
    """BadInput where the unchanged kernel does not compile: then its mutants say nothing."""
    from ..gemm.kernel import find_kernel
    from ..gpu.build import build

    with tempfile.TemporaryDirectory(prefix="phaseflip-") as folder:
        build(find_kernel(kernel), *shape, folder, arch)


def _mutant(outcome: dict[str, Any]) -> Mutant:
    """What is kept of a simulated mutant; `stem` names it among the compiled ones."""
    found = {key: outcome[key] for key in OUTCOME_KEYS}
    return found | {
        "stem": f"{found['kernel']} {found['fault']} {found['site_index']}",
        "refused": "",
    }


def build_mutant(call: dict[str, Any]) -> None:
    """In a worker: compile one mutant, unless it is there."""
    from ..gpu.build import build
    from ..gpu.prebuilt import find_prebuilt
    from ..study.mutant_run import make_mutant

    mutant, (M, N, K) = call["mutant"], call["shape"]
    try:
        there = find_prebuilt(call["folder"], mutant["stem"], (M, N, K), call["arch"])
    except BadInput:
        there = None
    if there is None or (there.poll_limit_ms, there.at_limit) != (call["limit_ms"], GO_ON):
        made = make_mutant(mutant["kernel"], mutant["fault"], mutant["site_index"], (M, N, K))
        kernel = replace(made.kernel, name=mutant["stem"])
        build(kernel, M, N, K, call["folder"], call["arch"], call["limit_ms"], GO_ON)


def launch_all(
    directory: str | Path,
    manifest: dict[str, Any],
    launches: int,
    restarts: int,
    jobs: int = 1,
    progress: Progress | None = None,
) -> None:
    """Launch every mutant so many times, less those of earlier calls, and write its counts when they are known.

    After `restarts` launches in a row that cost their process, a CUDA error or a kill, it is launched no further, until a
    call allows more of them. What is expected to cost processes comes after all others, for their starts and ends hold up
    the whole GPU; and what hung in some launches only is launched once more at the end, with nothing beside it, since it
    may just have been held up.
    """
    folder = Path(directory)
    known = {run["stem"]: run for run in read_launches(folder) if run["asked"] == launches}
    left = {m["stem"]: _left(known.get(m["stem"]), launches, restarts) for m in built(manifest)}
    todo = sorted((m for m in built(manifest) if left[m["stem"]]), key=_turn)
    asked = _about(manifest) | {"folder": str(folder / "launched"), "restarts": restarts}
    numbers = itertools.count(1)

    def launch(stems: Iterable[str], at_once: int, alone: bool = False) -> None:
        calls = [asked | {"stem": s, "launches": launches if alone else left[s]} for s in stems]
        with WorkerPool(LAUNCHER, jobs=at_once, limit_s=LAUNCHER_LIMIT_S) as pool:
            for call, ended in pool.run([[call] for call in calls]):
                stem = call["stem"]
                if ended.how == RAISED and ended.value[0] == "BadInput":
                    raise BadInput(ended.value[1])
                if ended.how != RETURNED:
                    raise RuntimeError(f"launching {stem} {ended.how}: {ended.value}")
                counts = {"alone": True} | ended.value if alone else ended.value
                if call["launches"] < launches:
                    counts = together(known[stem], counts)
                append_line(folder / LAUNCHES, {"stem": stem} | counts)
                if progress is not None and not alone:
                    progress("launched", next(numbers), len(todo))

    for turn, group in itertools.groupby(todo, key=_turn):
        launch([m["stem"] for m in group], min(jobs, COSTLY_JOBS) if turn > 1 else jobs)
    last = {run["stem"]: run for run in read_launches(folder)}
    sometimes = [s for s, run in last.items() if 0 < run["hangs"] < run["launches"]]
    launch([s for s in sometimes if not last[s].get("alone")], 1, alone=True)


def _left(run: dict[str, Any] | None, launches: int, restarts: int) -> int:
    """How many launches a mutant still gets: none if it had been given up and no more restarts are allowed now."""
    if run is None:
        return launches
    return launches - run["launches"] if run["restarts"] < restarts else 0


def _turn(mutant: Mutant) -> int:
    """When it is launched: the more of the GPU's time its failures are expected to cost, the later."""
    codes = {code.partition(" ")[0] for code in mutant["codes"]}
    expected = ({"deadlock"}, _STOPPED_BY_CUDA, _ENDS_BY_A_KILL)
    return max((turn for turn, those in enumerate(expected, 1) if codes & those), default=0)


def _about(manifest: dict[str, Any]) -> dict[str, Any]:
    """What every launch is told: the GPU too, for a process that asked CUDA for it could not fork."""
    return {key: manifest[key] for key in ("shape", "arch", "seed")} | {"gpu": gpu_uuid()}


def sanitize_all(
    directory: str | Path,
    manifest: dict[str, Any],
    jobs: int = 1,
    progress: Progress | None = None,
) -> None:
    """Launch the control and the faults of the catalogue once under each of compute-sanitizer's tools.

    What has been told is not asked again, and what may hang comes last. BadInput if there is no compute-sanitizer.
    """
    if shutil.which("compute-sanitizer") is None:
        raise BadInput("there is no compute-sanitizer on PATH; it comes with the CUDA toolkit")
    folder = Path(directory)
    done = {(said["stem"], said["tool"]) for said in read_verdicts(folder)}
    about = _about(manifest)
    calls = [
        about | {"stem": m["stem"], "tool": tool, "folder": str(folder / "sanitized"), "limit_s": SANITIZER_LIMIT_S}
        for m in sorted(built(manifest, ("control", "catalogue")), key=_turn)
        for tool in TOOLS
        if (m["stem"], tool) not in done
    ]  # fmt: skip
    with ThreadPoolExecutor(jobs) as threads:
        running = {threads.submit(sanitize, call): call["stem"] for call in calls}
        for number, future in enumerate(as_completed(running), 1):
            append_line(folder / SANITIZER, {"stem": running[future]} | future.result())
            if progress is not None:
                progress("sanitized", number, len(calls))


def read_manifest(directory: str | Path) -> dict[str, Any] | None:
    """The manifest of a folder, or None where nothing has been prepared. BadInput if it cannot be read."""
    file = Path(directory) / MANIFEST
    if not file.exists():
        return None
    remedy = f"remove {directory} and prepare it anew"
    manifest = read_object(file, ("format",), remedy)
    if manifest["format"] != FORMAT:
        raise BadInput(
            f"{file} has format {manifest['format']}, and this release reads {FORMAT}; prepare it anew"
        )
    mutants = manifest.get("mutants")
    if not (
        has_keys(manifest, MANIFEST_KEYS)
        and isinstance(mutants, list)
        and all(has_keys(m, MUTANT_KEYS) for m in mutants)
    ):
        raise BadInput(f"{file} is damaged; {remedy}")
    return manifest


def check_compiled(directory: str | Path, manifest: dict[str, Any]) -> None:
    """BadInput unless the folder still has the compiled mutants."""
    for name in POLL_LIMIT_MS:
        folder = Path(directory, name)
        there = {b.kernel for b in read_directory(folder) if b.is_whole} if folder.is_dir() else ()
        kinds = ("catalogue", "control") + (("mutation",) if name == "launched" else ())
        for mutant in built(manifest, kinds):
            if mutant["stem"] not in there:
                raise BadInput(
                    f"{folder} lacks the compiled {mutant['stem']!r}; remove {Path(directory, MANIFEST)} and repeat the"
                    " command where TVM and nvcc are"
                )


def read_launches(directory: str | Path) -> list[dict[str, Any]]:
    """What became of the launches so far; of a mutant launched again the last entry counts."""
    return read_lines(Path(directory, LAUNCHES), LAUNCH_KEYS, "count of launches")


def read_verdicts(directory: str | Path) -> list[dict[str, Any]]:
    """What the tools of compute-sanitizer have said so far."""
    return read_lines(Path(directory, SANITIZER), VERDICT_KEYS, "verdict of a tool")


def built(
    manifest: dict[str, Any], kinds: Iterable[str] = ("catalogue", "mutation", "control")
) -> list[Mutant]:
    """The mutants of a manifest that were compiled, those of the given kinds."""
    return [m for m in manifest["mutants"] if not m["refused"] and m["kind"] in kinds]
