"""Compiling a kernel gives the same code whatever the process compiled before it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {"hgemm_v1": (128, 128, 64), "hgemm_v2": (128, 128, 256), "hgemm_v3": (256, 384, 128)}
ORDERS = list(itertools.permutations(SHAPES))

COMPILE = """
import json, sys
sys.modules["torch"] = None  # TVM imports it where it can: most of the start, and it compiles nothing
import phaseflip
from phaseflip.frontend.tirx.lowering import cuda_source

shapes = json.loads(sys.argv[1])
sources = []
for name in [*shapes, *reversed(shapes)]:
    func = phaseflip.find_kernel(name).build(*shapes[name])
    sources.append((name, cuda_source(func)))
sys.stdout.write(json.dumps(sources))
"""


def compile_in_fresh_process(order: tuple[str, ...]) -> list[tuple[str, str]]:
    """(kernel, CUDA source) of a new process that compiles `order`, then the same backwards."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps({name: SHAPES[name] for name in order})],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "random"},
    )
    assert done.returncode == 0, done.stderr
    return [(name, source) for name, source in json.loads(done.stdout)]


def test_any_compile_order_gives_the_code_of_fresh_processes() -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        runs = dict(zip(ORDERS, pool.map(compile_in_fresh_process, ORDERS), strict=True))
    # The first compilation of each process is that of a process which compiled nothing before.
    fresh = {order[0]: sources[0][1] for order, sources in runs.items()}
    assert set(fresh) == set(SHAPES)
    assert all("tcgen05" in source for source in fresh.values())
    assert len({hashlib.sha256(source.encode()).digest() for source in fresh.values()}) == 3
    for order, sources in runs.items():
        for position, (name, source) in enumerate(sources):
            assert source == fresh[name], f"{name} differs as number {position + 1} of {order}"
