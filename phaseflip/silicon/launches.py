"""On the GPU machine: launch one compiled mutant many times, or once under compute-sanitizer, and say what became of it.

A CUDA error sticks to its process, and a start of Python with PyTorch takes seconds. So a worker, which has imported
everything and never touches the GPU, forks a child that launches until it fails; then another child goes on.

A launch hung if it lasted as long as the poll limit, after which its waits go on, or had to be killed. One that CUDA stops
counts as an error: whether it hung before cannot be seen, for CUDA takes longer than the poll limit to say so.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from ..gemm import oracle
from ..gemm.inputs import make_inputs, numpy_dtype
from ..gemm.poison import fill_poison, unwritten_test
from ..gpu import lock as gpu_lock
from ..gpu.prebuilt import Prebuilt, find_prebuilt

Counts = dict[str, Any]
START_LIMIT_S, LAUNCH_LIMIT_S = 60.0, 2.0
"""Time that a child has until CUDA has started, and for each launch."""

ONE_CHANNEL = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
"""A child launches on one stream, and CUDA that opens one channel to the GPU instead of 8 starts and ends sooner: an H200
stopped 4.5 launches a second, each in a process of its own, and 1.4 without this (three workers)."""

OUTPUT, ERROR, HANG, KILLED, READY = "output", "error", "hang", "killed", "ready"
"""What a child says of a launch; the last one before the first."""
_COSTLY = (ERROR, KILLED)
"""After these the process cannot launch again."""

INPUTS = "normal"
TOOLS = ("racecheck", "synccheck", "memcheck", "initcheck")
HUNG, NO_VERDICT = "hung", "no verdict"
REACHED = "phaseflip: the launch lasted as long as its poll limit"
_SUMMARIES = (
    r"ERROR SUMMARY: (\d+) error",
    r"RACECHECK SUMMARY: (\d+) hazard",
)


def launch_many(call: dict[str, Any]) -> Counts:
    """In a worker: launch a mutant `launches` times, or until `restarts` launches in a row have cost their process.

    Returns {"asked", "restarts" (both as called), "launches" (how many there were), "hangs" (a poll limit or the time limit
    ended it), "killed" (of these, by the time limit), "errors" (CUDA's words -> times), "outputs" (for each D that came out:
    its digest, how often, and what the oracles say)}.
    """
    import torch  # noqa: F401 - before the fork, so that no child has to

    built = _built(call)
    operands = make_inputs(INPUTS, *built.shape, call["seed"], built.dtype)
    outputs: Counter[str] = Counter()
    arrays: dict[str, np.ndarray] = {}
    errors: Counter[str] = Counter()
    hangs, killed, in_a_row, left = 0, 0, 0, call["launches"]
    while left and in_a_row < call["restarts"]:
        with gpu_lock.shared(call["gpu"]):
            for kind, value in _child(built, operands, left):
                left -= 1
                hung = kind in (HANG, KILLED)
                in_a_row = in_a_row + 1 if kind in _COSTLY else 0
                hangs, killed = hangs + hung, killed + (kind == KILLED)
                if kind == OUTPUT:
                    digest, array = value
                    outputs[digest] += 1
                    if array is not None:
                        arrays[digest] = array
                elif kind == ERROR:
                    errors[value] += 1
    return {
        "asked": call["launches"],
        "restarts": call["restarts"],
        "launches": call["launches"] - left,
        "hangs": hangs,
        "killed": killed,
        "errors": dict(errors),
        "outputs": [
            {"digest": digest, "times": times} | _judged(arrays[digest], operands, built)
            for digest, times in outputs.most_common()
        ],
    }


def together(before: Counts, after: Counts) -> Counts:
    """The counts of one mutant's launches and of those that followed, which are all that had been left."""
    outputs: dict[str, dict[str, Any]] = {}
    for output in before["outputs"] + after["outputs"]:
        times = outputs.get(output["digest"], {"times": 0})["times"]
        outputs[output["digest"]] = output | {"times": times + output["times"]}
    return {
        "asked": before["asked"],
        "restarts": after["restarts"],
        **{name: before[name] + after[name] for name in ("launches", "hangs", "killed")},
        "errors": dict(Counter(before["errors"]) + Counter(after["errors"])),
        "outputs": sorted(outputs.values(), key=lambda output: -output["times"]),
    }


def _built(call: dict[str, Any]) -> Prebuilt:
    return find_prebuilt(call["folder"], call["stem"], tuple(call["shape"]), call["arch"])


def _hung(built: Prebuilt, seconds: float) -> bool:
    """Whether a launch that returned lasted as long as the poll limit."""
    return seconds * 1e3 >= built.poll_limit_ms


def _judged(
    D: np.ndarray, operands: tuple[np.ndarray, np.ndarray], built: Prebuilt
) -> dict[str, Any]:
    """What each oracle says of one D: True where it passes."""
    results = (
        oracle.seed_tolerance_test(D, *operands, built.as_kernel().tolerance, oracle.reference),
        oracle.bound_test(D, *operands),
        unwritten_test(D),
    )
    return {r.name: bool(r.passed) for r in results}


def _child(
    built: Prebuilt, operands: tuple[np.ndarray, np.ndarray], launches: int
) -> Iterator[tuple[str, Any]]:
    """Launch in a forked process until it fails: (OUTPUT, its digest and array), (ERROR, words), (HANG or KILLED, None)."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_launch, args=(theirs, built, operands, launches))
    process.start()
    theirs.close()
    try:
        if not ours.poll(START_LIMIT_S):
            yield ERROR, f"CUDA did not start within {START_LIMIT_S:g} s"
            return
        for _ in range(launches):
            kind, value = _heard(ours, process)
            if kind == READY:
                kind, value = _heard(ours, process)
            yield kind, value
            if kind in _COSTLY:
                return
    finally:
        process.kill()
        process.join()
        ours.close()


def _heard(connection: Connection, process: Any) -> tuple[str, Any]:
    """What the child says next, within the time of a launch."""
    if not connection.poll(LAUNCH_LIMIT_S):
        return KILLED, None
    try:
        said: tuple[str, Any] = connection.recv()
    except EOFError:
        process.join()
        return ERROR, f"its process died ({process.exitcode})"
    return said


def _launch(
    out: Connection, built: Prebuilt, operands: tuple[np.ndarray, np.ndarray], launches: int
) -> None:
    """In the child: launch, and send every D that has not been sent yet."""
    import torch

    from ..gpu import runtime as cuda_runtime

    os.environ.update(ONE_CHANNEL)  # before CUDA starts, which reads it once
    try:
        launch = cuda_runtime.load(*built.code())["main"]
        unwritten = np.empty((built.shape[0], built.shape[1]), numpy_dtype(built.dtype))
        fill_poison(unwritten)
        A, B = map(cuda_runtime.to_gpu, operands)
        poison, D = cuda_runtime.to_gpu(unwritten), cuda_runtime.to_gpu(unwritten)

        def once() -> bool:
            """Whether it hung."""
            D.copy_(poison)
            torch.cuda.synchronize()
            started = time.perf_counter()
            launch(A, B, D)
            torch.cuda.synchronize()
            return _hung(built, time.perf_counter() - started)

        out.send((READY, None))
        sent = set()
        for number in range(launches):
            hung = once()
            if hung and number == 0:
                hung = once()  # the first one loads the code too, and does not count if it is slow
            if hung:
                out.send((HANG, None))
                continue
            array = cuda_runtime.from_gpu(D)
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            out.send((OUTPUT, (digest, None if digest in sent else array)))
            sent.add(digest)
    except Exception as error:
        out.send((ERROR, " ".join(str(error).split())[:300]))


def sanitize(call: dict[str, Any]) -> dict[str, Any]:
    """One launch under one of compute-sanitizer's tools.

    Returns {"tool", "errors" (how many, HUNG if it had to be killed, or NO_VERDICT), "first" (of its messages), "hung" (the
    launch lasted as long as its poll limit)}.
    """
    built = _built(call)
    words = ["compute-sanitizer", "--tool", call["tool"], "--print-limit", "1"]
    words += [sys.executable, "-m", "phaseflip.silicon.launches"]
    words += [call["folder"], call["stem"], *map(str, built.shape), call["arch"], str(call["seed"])]
    try:
        with gpu_lock.shared(call["gpu"]):
            done = subprocess.run(words, capture_output=True, text=True, timeout=call["limit_s"])
    except subprocess.TimeoutExpired:
        return {"tool": call["tool"], "errors": HUNG, "first": "", "hung": True}
    return {"tool": call["tool"]} | read_report(done.stdout + done.stderr)


def read_report(said: str) -> dict[str, Any]:
    """What a tool's output amounts to; that a launch hung is no error found by the tool."""
    lines = [line.removeprefix("=========").strip() for line in said.splitlines()]
    first = next(
        (
            x
            for x in lines
            if re.match(r"(Error|Unknown Error|Warning|Barrier error|Invalid|Uninit|Race)", x)
        ),
        "",
    )
    hung = REACHED in lines
    for pattern in _SUMMARIES:
        found = re.search(pattern, said)
        if found:
            return {"errors": int(found[1]), "first": first, "hung": hung}
    return {"errors": NO_VERDICT, "first": (lines or [""])[-1][:200], "hung": hung}


def main(folder: str, stem: str, M: str, N: str, K: str, arch: str, seed: str) -> None:
    """One launch in this process, under whatever watches it."""
    from ..gpu import runtime as cuda_runtime

    shape = (int(M), int(N), int(K))
    built = find_prebuilt(folder, stem, shape, arch)
    A, B = make_inputs(INPUTS, *shape, int(seed), built.dtype)
    D = np.zeros(shape[:2], numpy_dtype(built.dtype))
    _, seconds = cuda_runtime.call(cuda_runtime.load(*built.code()), [A, B, D])
    if _hung(built, seconds):
        sys.stdout.write(f"{REACHED}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
