"""Does the gate on times tell 5% more work from nothing? Build here, run on a GPU:

    python -m regression.prove_gate build DIR     # needs TVM and nvcc
    python -m regression.prove_gate DIR           # needs an H100 or H200

DIR/reference holds hgemm_sm90, DIR/slower-4 and so on its mutants (regression/slower.py), which load and multiply 4 and
more K chunks besides their 80. Twenty times each, the reference is compared with itself (loaded twice) and with every
mutant; the gate stands at 3%. Each folder serves `python -m phaseflip benchmark --prebuilt ... --against ...` too.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phaseflip.errors import BadInput
from phaseflip.gpu import lock as gpu_lock
from phaseflip.gpu.prebuilt import find_prebuilt
from phaseflip.timing import rounds as benchmark
from phaseflip.timing.kernel_times import launch_of

KERNEL, SHAPE = "hgemm_sm90", (4096, 4096, 5120)
REPEATS, THRESHOLD, ROUNDS = 20, 0.03, 30
STRENGTHS = (4, 5, 6)
CHUNKS = SHAPE[2] // 64


def build(directory: str | Path, shape: tuple[int, int, int] = SHAPE) -> None:
    """Compile the reference and its mutants, each into a folder of its own."""
    from phaseflip.gemm.kernel import find_kernel
    from phaseflip.gpu.build import build as compiled
    from regression.slower import slower

    kernel = find_kernel(KERNEL)
    compiled(kernel, *shape, Path(directory, "reference"))
    for repeats in STRENGTHS:
        compiled(slower(kernel, repeats), *shape, mutants_folder(directory, repeats))


def mutants_folder(directory: str | Path, repeats: int) -> Path:
    """Where the mutant with so many repeated chunks is."""
    return Path(directory, f"slower-{repeats}")


def prove(directory: str | Path) -> dict[str, Any]:
    """Both experiments, as values for JSON: how often each candidate was flagged, and every ratio."""
    with tempfile.TemporaryDirectory() as copy, gpu_lock.exclusive():
        reference_folder = Path(directory, "reference")
        reference = launch_of(find_prebuilt(reference_folder, KERNEL, SHAPE))
        shutil.copytree(reference_folder, copy, dirs_exist_ok=True)
        folders: dict[str, str | Path] = {"unchanged": copy}
        for repeats in STRENGTHS:
            name = f"{repeats / CHUNKS:.2%} more chunks"
            folders[name] = mutants_folder(directory, repeats)
        candidates = {n: launch_of(find_prebuilt(f, KERNEL, SHAPE)) for n, f in folders.items()}
        report: dict[str, Any] = {"before": asdict(benchmark.this_machine())}
        for name, candidate in candidates.items():
            ratios = [_ratio(candidate, reference, repeat) for repeat in range(REPEATS)]
            flagged = sum(r.is_slower(THRESHOLD) for r in ratios)
            report[name] = {
                "flagged": flagged,
                "of": REPEATS,
                "ratios": [min(r.ratio for r in ratios), max(r.ratio for r in ratios)],
                "intervals": [min(r.low for r in ratios), max(r.high for r in ratios)],
                "all": [asdict(r) for r in ratios],
            }
        report["after"] = asdict(benchmark.this_machine())
    return report


def _ratio(candidate: benchmark.Launch, reference: benchmark.Launch, seed: int) -> benchmark.Ratio:
    both = {"candidate": candidate, "reference": reference}
    timed = benchmark.measure(both, ROUNDS, seed=seed)
    return benchmark.compare(timed["candidate"].rounds_us, timed["reference"].rounds_us, seed=seed)


def main(words: Sequence[str]) -> int:
    """The command line; 0 done, 2 bad input."""
    try:
        match words:
            case [word] if word in ("-h", "--help"):
                sys.stdout.write(__doc__ or "")
            case ["build", directory]:
                build(directory)
            case [directory] if directory != "build":
                sys.stdout.write(json.dumps(prove(directory), indent=1) + "\n")
            case _:
                raise BadInput("python -m regression.prove_gate takes DIR, or build DIR")
    except BadInput as error:
        sys.stderr.write(f"prove_gate: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
