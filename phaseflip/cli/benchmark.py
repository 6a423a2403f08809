"""The commands `benchmark` and `history`: times of a kernel on a GPU, now and over its commits.

Exit codes of `benchmark`: 0 timed, 1 the kernel is wrong, or slower than the earlier build of --against, 2 bad input, 3
harness error. Of `history`: 0 drawn, 2 bad input, 3 harness error.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phaseflip.cli.main import CLEAN, FAILED, Outcome
from phaseflip.cli.options import add_kernel_and_shape
from phaseflip.errors import BadInput
from phaseflip.gpu import devices
from phaseflip.grammar import counted

if TYPE_CHECKING:
    from phaseflip.timing.kernel_times import Timed
    from phaseflip.timing.rounds import Ratio

LARGEST_ROUNDS = 10_000
BASELINES = "regression/baselines"


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare both commands; `extent` parses a whole number."""
    timing = commands.add_parser(
        "benchmark",
        parents=[common],
        allow_abbrev=False,
        help="time a kernel on the GPU, with cuBLAS beside it",
    )
    add_kernel_and_shape(timing, extent)
    timing.add_argument("--prebuilt", metavar="DIR", help="what `build` made there")
    timing.add_argument("--rounds", type=extent, default=30, help="of about 10 ms (default: 30)")
    timing.add_argument("--cold", action="store_true", help="with a cold L2 cache (default: warm)")
    timing.add_argument(
        "--against",
        metavar="OLD_DIR",
        help="what `build` made of an earlier commit: timed in the same rounds; exit code 1 if the kernel is slower",
    )
    timing.add_argument(
        "--threshold",
        type=_part,
        default=0.03,
        metavar="PART",
        help="slower by more than this part counts, if beyond doubt (default: 0.03)",
    )
    timing.set_defaults(handler=_benchmark)
    history = commands.add_parser(
        "history",
        parents=[common],
        allow_abbrev=False,
        help="draw a kernel's recorded times over its commits",
    )
    history.add_argument("kernel", metavar="KERNEL", help="its name")
    history.add_argument(
        "--gpu",
        metavar="NAME",
        help="whose times (default: the GPU here, or the only one recorded)",
    )
    history.add_argument(
        "--baselines", metavar="DIR", default=BASELINES, help=f"(default: {BASELINES})"
    )
    history.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="a picture: .png, .svg or .pdf"
    )
    history.set_defaults(handler=_history)


def _part(text: str) -> float:
    """A part such as 0.03."""
    if not re.fullmatch(r"0?\.[0-9]{1,9}|0", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a part such as 0.03, at least 0 and below 1")  # fmt: skip
    return float(text)


def _benchmark(args: argparse.Namespace) -> Outcome:
    if not 3 <= args.rounds <= LARGEST_ROUNDS:
        raise BadInput(f"argument --rounds: {args.rounds} is not 3 to {LARGEST_ROUNDS}")
    from phaseflip.cli.gpu import chosen
    from phaseflip.findings.finding import errors, render
    from phaseflip.gemm.verify import verify
    from phaseflip.gpu.prebuilt import find_prebuilt
    from phaseflip.timing.kernel_times import time_kernel

    shape = (args.M, args.N, args.K)
    kernel, device, gpu = chosen(args.kernel, shape, "cuda", args.prebuilt, gpu_only=True)
    assert gpu is not None
    old = args.against and find_prebuilt(args.against, kernel.name, shape, device.arch)
    with gpu:
        verdict = verify(kernel, *shape, gpu=gpu)
        if not verdict.passed:
            said = [line for f in errors(verdict.findings) for line in render(f).splitlines()]
            rows = [("verdict   ", "FAILED, so it is not timed"), *[("", line) for line in said]]
            return Outcome(FAILED, verdict.to_json(), rows)
        timed = time_kernel(gpu.compiled(kernel, shape), old or None, args.rounds, args.cold)
    slower = timed.to_old is not None and timed.to_old.is_slower(args.threshold)
    report = _report(timed, device.note)
    if timed.to_old is not None and old:
        report["against"] = {
            "commit": dict(old.commit),
            "ratio": _values(timed.to_old),
            "threshold": args.threshold,
            "slower": slower,
        }
    rows = [("device    ", device.note), ("L2        ", timed.l2)]
    for t in timed.timings:
        text = f"median {t.median_us:.1f} us, spread {t.spread:.1%}, {t.tflops:.0f} TFLOPS"
        rows.append(
            (f"{t.name:<14}", f"{text} ({len(t.rounds_us)} rounds of {t.launches_per_round})")
        )
    rows.append(("ratio     ", _text(timed.to_cublas, "cuBLAS's time")))
    if timed.to_old is not None:
        rows.append(("against   ", _text(timed.to_old, "the earlier build's time")))
        words = "SLOWER by more than" if slower else "not beyond doubt slower by more than"
        rows.append(("verdict   ", f"{words} {args.threshold:.1%}"))
    return Outcome(FAILED if slower else CLEAN, report, rows)


def _report(timed: Timed, note: str) -> dict[str, Any]:
    """The object of --json."""
    return {
        "kernel": timed.built.kernel, "shape": list(timed.built.shape), "l2": timed.l2, "device": note,
        "driver": timed.before.driver, "cuda": timed.before.cuda,
        "before": timed.before.state, "after": timed.after.state,
        "timings": [t.to_json() for t in timed.timings],
        "ratio_to_cublas": _values(timed.to_cublas),
    }  # fmt: skip


def _values(ratio: Ratio) -> list[float]:
    return [ratio.ratio, ratio.low, ratio.high]


def _text(ratio: Ratio, of: str) -> str:
    low, high = f"{ratio.low:.3f}", f"{ratio.high:.3f}"
    return f"{ratio.ratio:.3f} of {of}, {low} to {high} with {ratio.confidence:.0%} confidence"


def _history(args: argparse.Namespace) -> Outcome:
    from phaseflip.timing import baselines
    from phaseflip.timing.history_picture import draw, steps

    gpu = args.gpu or _gpu_of(args.baselines)
    recorded = baselines.history(args.baselines, gpu)
    shapes = steps(recorded, args.kernel)
    draw(shapes, f"{args.kernel} on {recorded[-1].gpu['name']}", args.output)
    report = {
        "kernel": args.kernel, "gpu": recorded[-1].gpu["name"], "file": str(Path(args.output)),
        "runs": len(recorded), "shapes": {name: len(found) for name, found in shapes.items()},
    }  # fmt: skip
    rows = [("gpu       ", str(report["gpu"])), ("file      ", str(args.output))]
    rows += [(f"{name:<24}", counted(len(found), "run")) for name, found in shapes.items()]
    return Outcome(CLEAN, report, rows)


def _gpu_of(directory: str) -> str:
    """The GPU here if it was recorded, else the only one that was."""
    from phaseflip.timing.baselines import UPDATE, recorded_gpus, slug

    there, here = recorded_gpus(directory), devices.first_gpu()
    if here is not None and slug(here.name) in there:
        return here.name
    if not there:
        raise BadInput(f"there is no history of times in {directory}; {UPDATE}")
    if len(there) > 1:
        raise BadInput(f"{directory} has times of {', '.join(there)}; choose one with --gpu")
    return there[0]
