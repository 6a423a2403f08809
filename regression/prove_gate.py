"""Does the gate on times tell 5% from nothing? Run on a GPU, with kernels that `phaseflip build` made:

    python -m phaseflip build hgemm_sm90 4096 4096 5120 -o DIR
    python -m phaseflip build hgemm_sm90 4096 4096 5376 -o DIR
    python -m regression.prove_gate DIR

The second kernel runs 84 K chunks instead of 80: the same code with 5% more work. Twenty times each, the reference is
compared with itself (loaded twice) and with the slower one; the gate stands at 3%.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from phaseflip import benchmark, cuda_runtime
from phaseflip.inputs import make_inputs
from phaseflip.prebuilt import find_prebuilt

REPEATS, THRESHOLD, ROUNDS = 20, 0.03, 30
M, N, K, MORE_K = 4096, 4096, 5120, 5376


def launcher(directory: str | Path, k: int) -> benchmark.Launch:
    """A launch of hgemm_sm90 at this K, with operands of its own."""
    built = find_prebuilt(directory, "hgemm_sm90", (M, N, k))
    files = [str(built.file(suffix)) for suffix in (".so", ".cubin")]
    function = cuda_runtime.load(*files, built.source_sha256)["main"]
    A, B = (cuda_runtime.to_gpu(x) for x in make_inputs("normal", M, N, k, 0, built.dtype))
    D = A.new_empty((M, N))
    return lambda: function(A, B, D)


def main(directory: str) -> dict[str, Any]:
    """Both experiments, as values for JSON."""
    with tempfile.TemporaryDirectory() as copy:
        for file in Path(directory).glob(f"hgemm_sm90-{M}x{N}x{K}-*"):
            shutil.copy(file, copy)
        reference, same = launcher(directory, K), launcher(copy, K)
        slower = launcher(directory, MORE_K)
        report: dict[str, Any] = {"before": asdict(benchmark.this_machine())}
        for name, candidate in (("unchanged", same), ("slower by 5%", slower)):
            ratios = []
            for repeat in range(REPEATS):
                candidates = {"candidate": candidate, "reference": reference}
                timed = benchmark.measure(candidates, ROUNDS, seed=repeat)
                ratio = benchmark.compare(
                    timed["candidate"].rounds_us, timed["reference"].rounds_us, seed=repeat
                )
                ratios.append(asdict(ratio) | {"flagged": ratio.is_slower(THRESHOLD)})
            report[name] = {"flagged": sum(r["flagged"] for r in ratios), "ratios": ratios}
        report["after"] = asdict(benchmark.this_machine())
    return report


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1]), indent=1) + "\n")
