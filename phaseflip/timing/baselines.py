"""Times kept from earlier commits: one baseline for each GPU and, beside it, those that it replaced.

    regression/baselines/nvidia-h200.json                the baseline
    regression/baselines/nvidia-h200/0001_<commit>_<date>.json   what it was before, oldest first

All are pytest-benchmark's own files, and the folder is one that its storage reads. Raw times of two sessions do not
compare: clocks and temperature differ. What is compared is the ratio to cuBLAS, timed in the same rounds.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from phaseflip.errors import BadInput
from phaseflip.system.folders import files_in
from phaseflip.system.json_files import read_json
from phaseflip.timing import rounds as benchmark
from phaseflip.timing.rounds import Ratio

DIRECTORY = Path("regression", "baselines")
THRESHOLD = 0.03
"""Default of what counts as slower."""

COMPARED = {"name", "driver", "cuda", "limits"}
"""What a record says of its GPU, at least."""

UPDATE = "--update-baselines records one"
Key = tuple[str, tuple[int, int, int], str]


@dataclass(frozen=True)
class Entry:
    """Times of one kernel at one shape with a "warm" or "cold" L2 cache, in microseconds a launch, round by round."""

    kernel: str
    shape: tuple[int, int, int]
    l2: str
    rounds_us: tuple[float, ...]
    cublas_us: tuple[float, ...]

    @property
    def key(self) -> Key:
        """What it is compared by."""
        return self.kernel, self.shape, self.l2

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.kernel} {'x'.join(map(str, self.shape))} ({self.l2} L2)"

    @property
    def to_cublas(self) -> Ratio:
        """Its time over cuBLAS's."""
        return benchmark.compare(self.rounds_us, self.cublas_us)

    def change_from(self, before: Entry) -> Ratio:
        """How the ratio to cuBLAS has changed since another session: 1.05 is 5% slower."""
        return benchmark.change(
            (self.rounds_us, self.cublas_us), (before.rounds_us, before.cublas_us)
        )


@dataclass(frozen=True)
class Recorded:
    """One recorded session: its file, its entries, where and of what it was taken."""

    file: Path
    entries: Mapping[Key, Entry]
    gpu: Mapping[str, Any]
    commit: str
    time: datetime


def slug(gpu: str) -> str:
    """The GPU's name as the name of a file: "NVIDIA H200" -> "nvidia-h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


def baseline_file(directory: str | Path, gpu: str) -> Path:
    """Where the baseline of a GPU is."""
    return Path(directory, f"{slug(gpu)}.json")


def extra_info(entry: Entry) -> dict[str, Any]:
    """What `read` needs besides pytest-benchmark's own values, to be kept under "extra_info"."""
    ratio = entry.to_cublas
    return {
        "kernel": entry.kernel,
        "shape": list(entry.shape),
        "l2": entry.l2,
        "cublas_rounds_us": list(entry.cublas_us),
        "ratio_to_cublas": [ratio.ratio, ratio.low, ratio.high],
    }


def read(file: str | Path) -> Recorded:
    """A recorded session. BadInput if the file is none."""
    path = Path(file)
    data = read_json(path, UPDATE)
    try:
        entries = [_entry(b) for b in data["benchmarks"]]
        gpu = dict(data["machine_info"]["gpu"])
        if not gpu.keys() >= COMPARED:
            raise ValueError(f"its GPU is not described by {', '.join(sorted(COMPARED))}")
        return Recorded(
            path,
            {e.key: e for e in entries},
            gpu,
            str(data["commit_info"]["id"]),
            datetime.fromisoformat(data["datetime"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        wrong = {
            KeyError: f"it lacks {error}",
            ValueError: str(error),
        }.get(type(error), "its values are not of the kinds that pytest-benchmark writes")
        raise BadInput(f"{file} is not a record of times on a GPU ({wrong}); {UPDATE}") from error


def _entry(b: Mapping[str, Any]) -> Entry:
    info = b["extra_info"]
    M, N, K = info["shape"]
    rounds = tuple(1e6 * seconds for seconds in b["stats"]["data"])
    cublas = tuple(map(float, info["cublas_rounds_us"]))
    if not rounds or len(rounds) != len(cublas):
        raise ValueError(f"{len(rounds)} rounds, and {len(cublas)} of cuBLAS")
    return Entry(info["kernel"], (M, N, K), info["l2"], rounds, cublas)


def find_baseline(directory: str | Path, gpu: str) -> Recorded:
    """The baseline of a GPU. BadInput if there is none."""
    file = baseline_file(directory, gpu)
    if not file.exists():
        raise BadInput(f"there is no baseline for {gpu} ({file}); {UPDATE}")
    return read(file)


def other_machine(here: Mapping[str, Any], there: Mapping[str, Any]) -> tuple[str, list[str]]:
    """(why times taken here do not compare with those taken there, or ""; what else differs).

    Refused is what may change cuBLAS, or the GPU under both: the GPU, the driver's major number, PyTorch's CUDA. The rest
    of the driver's and PyTorch's version, and limits of clocks and power, are mentioned. TVM and nvcc may differ: what
    they do to a kernel is to be seen.
    """
    facts = [
        ("the GPU", here["name"], there["name"]),
        ("driver", _major(here["driver"]), _major(there["driver"])),
        ("PyTorch's CUDA", here["cuda"], there["cuda"]),
    ]
    refused = ", ".join(f"{what} is {a} here and {b} there" for what, a, b in facts if a != b)
    if refused:
        refused = f"the baseline is of another machine: {refused}; {UPDATE}"
    facts = [(what, here.get(what), there.get(what)) for what in ("driver", "torch")]
    limits = {*here["limits"], *there["limits"]}
    facts += [(n, here["limits"].get(n), there["limits"].get(n)) for n in sorted(limits)]
    return refused, [f"{what} is {a} here and {b} there" for what, a, b in facts if a != b]


def _major(version: str) -> str:
    return str(version).partition(".")[0]


def write(directory: str | Path, gpu: str, data: Mapping[str, Any]) -> tuple[Path, Path | None]:
    """Make pytest-benchmark's output the baseline of a GPU; returns its file, and where the one before it now is.

    BadInput if it lacks a time that the one before it has, or if nothing can be written; then all is as it was.
    """
    from pytest_benchmark.utils import safe_dumps

    file, kept = baseline_file(directory, gpu), None
    new = {_entry(b).key for b in data["benchmarks"]}
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        if file.exists():
            old = read(file)
            missing = [entry.name for key, entry in old.entries.items() if key not in new]
            if missing:
                raise BadInput(
                    f"the baseline {file} has times of {', '.join(missing)}, which were not taken now;"
                    " take all, or remove the file first"
                )
            kept = _keep(directory, old)
        _replace(file, safe_dumps(data, ensure_ascii=True, indent=4))
    except OSError as error:
        raise BadInput(f"the baseline {file} cannot be written: {error.strerror}") from error
    return file, kept


def _keep(directory: str | Path, old: Recorded) -> Path:
    """Copy a baseline into the history, once, under pytest-benchmark's next number."""
    text = old.file.read_text()
    earlier = _history_files(directory, old.file.stem)
    if earlier and earlier[-1].read_text() == text:
        return earlier[-1]
    number = int(earlier[-1].name.partition("_")[0]) + 1 if earlier else 1
    name = f"{number:04}_{old.commit}_{old.time:%Y%m%d_%H%M%S}.json"
    target = _storage(directory, old.file.stem).get(name)
    _replace(target, text)
    return Path(target)


def _replace(file: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one."""
    with tempfile.NamedTemporaryFile(
        "w", dir=file.parent, prefix=f".{file.name}.", delete=False
    ) as new:
        try:
            new.write(text)
            new.flush()
            os.fsync(new.fileno())
            os.chmod(new.name, 0o644)
            os.replace(new.name, file)
        except BaseException:
            os.unlink(new.name)
            raise


def history(directory: str | Path, gpu: str) -> list[Recorded]:
    """What was recorded on a GPU, oldest first; the last is the baseline. BadInput if nothing was."""
    files = _history_files(directory, slug(gpu))
    baseline = baseline_file(directory, gpu)
    found = [read(f) for f in [*files, *([baseline] if baseline.exists() else [])]]
    if not found:
        raise BadInput(f"there is no history of times on {gpu} in {directory}; {UPDATE}")
    return found


def recorded_gpus(directory: str | Path) -> list[str]:
    """The GPUs, as names of files, of which anything was recorded. Other files there are named otherwise."""
    if not os.path.isdir(directory):
        return []
    found = {f.stem for f in files_in(directory, ".json")}
    found |= {f.name for f in files_in(directory, "") if f.is_dir()}
    return sorted(name for name in found if name == slug(name))


def _history_files(directory: str | Path, machine: str) -> list[Path]:
    if not Path(directory, machine).is_dir():
        return []
    return list(_storage(directory, machine).query("[0-9][0-9][0-9][0-9]_*"))


def _storage(directory: str | Path, machine: str) -> Any:
    from pytest_benchmark.logger import Logger
    from pytest_benchmark.storage.file import FileStorage

    return FileStorage(str(directory), Logger(Logger.QUIET), default_machine_id=machine)
