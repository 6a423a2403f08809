"""The commands `conformance` and `benchmark`: the simulator against a GPU, and times of kernels on one.

Exit codes of `conformance`: 0 built, or equal in every bit, 1 something differs, 2 bad input, 3 harness error. Of
`benchmark`: 0 timed, 1 the kernel is wrong, 2 bad input, 3 harness error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phaseflip.cli import CLEAN, FAILED, Outcome
from phaseflip.devices import ARCHS, choose_device, first_gpu
from phaseflip.errors import BadInput

LARGEST_SCALE = 1000
LARGEST_ROUNDS = 10_000


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare both commands; `extent` parses a whole number."""
    conformance = commands.add_parser(
        "conformance",
        parents=[common],
        allow_abbrev=False,
        help="generated kernels, or those of your files, in the simulator and on a GPU: the same bits?",
        epilog="Builds what the folder lacks (needs nvcc), then compares if there is a GPU; else take the folder to one.",
    )
    conformance.add_argument("-o", "--output", metavar="DIR", required=True, help="its folder")
    conformance.add_argument("--seed", type=extent, default=0, help="of the programs (default: 0)")
    conformance.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one of the generated families (may be repeated)",
    )
    conformance.add_argument(
        "--programs",
        action="append",
        default=[],
        metavar="PATH",
        help="the programs of a file or folder: its PrimFuncs, and the factories that return one when called without"
        " arguments (may be repeated; without --family these alone)",
    )
    conformance.add_argument(
        "--percent", type=extent, default=100, help="of a full run's programs (default: 100)"
    )
    conformance.add_argument(
        "--arch",
        choices=sorted(ARCHS.values()),
        help="(default: that of the GPU here, else sm_90a)",
    )
    conformance.set_defaults(handler=_conformance)
    timing = commands.add_parser(
        "benchmark",
        parents=[common],
        allow_abbrev=False,
        help="time a kernel on the GPU, with cuBLAS beside it",
    )
    timing.add_argument("kernel", metavar="KERNEL", help="a name, or path/to/file.py:factory")
    for name in "MNK":
        timing.add_argument(name, type=extent, metavar=name)
    timing.add_argument("--prebuilt", metavar="DIR", help="what `build` made there")
    timing.add_argument("--rounds", type=extent, default=30, help="of about 10 ms (default: 30)")
    timing.add_argument("--cold", action="store_true", help="with a cold L2 cache (default: warm)")
    timing.set_defaults(handler=_benchmark)


def _conformance(args: argparse.Namespace) -> Outcome:
    if args.seed < 0 or not 1 <= args.percent <= LARGEST_SCALE:
        raise BadInput(f"--seed is 0 or more, and --percent 1 to {LARGEST_SCALE}")
    from phaseflip.conformance import programs, suite

    gpu = first_gpu()
    arch = args.arch or (ARCHS.get(gpu.capability, "") if gpu else "") or "sm_90a"
    own = {programs.family_name(path): path for path in args.programs}
    drawn = suite.families_for(arch, args.family) if args.family or not own else []
    folder = Path(args.output)
    built = {m["family"]: m for m in suite.manifests(folder)} if folder.is_dir() else {}
    for family in drawn:
        if family.name not in built:
            count = max(1, family.programs * args.percent // 100)
            suite.build(folder, family, arch, args.seed, count)
    for name, path in own.items():
        if built.get(name, {}).get("sources_sha256") != programs.digest(path):
            programs.build_programs(folder, path, arch)
    wanted = {*own, *(f.name for f in drawn)}
    if not args.family and not own:
        wanted |= {name for name, m in built.items() if "sources_sha256" in m}
    found = [m for m in suite.manifests(folder) if m["family"] in wanted]
    families: dict[str, Any] = {
        m["family"]: {
            "programs": len(m["programs"]), "cases": sum(p["cases"] for p in m["programs"]),
            "left_out": m.get("left_out", []),
        }
        for m in found
    }  # fmt: skip
    cases = sum(of["cases"] for of in families.values())
    report: dict[str, Any] = {"folder": args.output, "arch": arch, "cases": cases}
    rows = [("folder    ", str(args.output)), ("cases     ", f"{cases} for {arch}, simulated")]
    if gpu is not None:
        choose_device("cuda")
        suite.manifests(folder, ARCHS[gpu.capability])
        for of in families.values():
            of["different"] = []
        for r in suite.compare(folder, arch, wanted):
            if r.difference:
                wrong = {"program": r.number, "what": r.text, "difference": r.difference}
                families[r.family]["different"].append(wrong)
    for name, of in families.items():
        rows.append(
            (f"{name:<14}", f"{of['programs']} programs, {of['cases']} cases{_judgement(of)}")
        )
        for d in of.get("different", []):
            what = d["what"].splitlines()[0]
            rows.append(("", f"  {d['program']}: {what}: {d['difference']}"))
        rows += [("", f"  left out: {p['program']}: {p['reason']}") for p in of["left_out"]]
    device = "none here; repeat the command with this folder where there is one"
    rows.append(("GPU       ", str(gpu or device)))
    different = any(of.get("different") for of in families.values())
    report |= {"device": str(gpu) if gpu else None, "families": families}
    return Outcome(FAILED if different else CLEAN, report, rows)


def _judgement(of: dict[str, Any]) -> str:
    if "different" not in of:
        return ""
    wrong = len(of["different"])
    return f": {wrong} of them differ" if wrong else ": equal in every bit"


def _benchmark(args: argparse.Namespace) -> Outcome:
    if not 3 <= args.rounds <= LARGEST_ROUNDS:
        raise BadInput(f"argument --rounds: {args.rounds} is not 3 to {LARGEST_ROUNDS}")
    from phaseflip import benchmark, cuda_runtime
    from phaseflip.cli_gpu import chosen
    from phaseflip.finding import errors, render
    from phaseflip.inputs import make_inputs
    from phaseflip.verify import verify

    shape = (args.M, args.N, args.K)
    kernel, device, gpu = chosen(args.kernel, shape, "cuda", args.prebuilt)
    assert gpu is not None
    with gpu:
        verdict = verify(kernel, *shape, gpu=gpu)
        if not verdict.passed:
            said = [line for f in errors(verdict.findings) for line in render(f).splitlines()]
            rows = [("verdict   ", "FAILED, so it is not timed"), *[("", line) for line in said]]
            return Outcome(FAILED, verdict.to_json(), rows)
        built = gpu.compiled(kernel, shape)
        files = [str(built.file(suffix)) for suffix in (".so", ".cubin")]
        launch = cuda_runtime.load(*files, built.source_sha256)["main"]
    A, B = (cuda_runtime.to_gpu(x) for x in make_inputs("normal", *shape, 0, built.dtype))
    D, R = A.new_empty(shape[:2]), A.new_empty(shape[:2])
    import torch

    before = benchmark.this_machine()
    candidates = {
        kernel.name: lambda: launch(A, B, D),
        "cuBLAS": lambda: torch.matmul(A, B.T, out=R),
    }
    flops = 2.0 * shape[0] * shape[1] * shape[2]
    timed = benchmark.measure(candidates, args.rounds, flops, args.cold)
    ours, theirs = timed[kernel.name], timed["cuBLAS"]
    ratio = benchmark.compare(ours.rounds_us, theirs.rounds_us)
    after = benchmark.this_machine()
    cache = "cold" if args.cold else "warm"
    report = {
        "kernel": kernel.name, "shape": list(shape), "l2": cache, "device": device.note,
        "driver": before.driver, "cuda": before.cuda, "before": before.state, "after": after.state,
        "timings": [t.to_json() for t in timed.values()],
        "ratio_to_cublas": [ratio.ratio, ratio.low, ratio.high],
    }  # fmt: skip
    rows = [("device    ", device.note), ("L2        ", cache)]
    for t in (ours, theirs):
        text = f"median {t.median_us:.1f} us, spread {t.spread:.1%}, {t.tflops:.0f} TFLOPS"
        rows.append(
            (f"{t.name:<14}", f"{text} ({len(t.rounds_us)} rounds of {t.launches_per_round})")
        )
    text = f"{ratio.ratio:.3f} of cuBLAS's time, {ratio.low:.3f} to {ratio.high:.3f} with {ratio.confidence:.0%} confidence"
    return Outcome(CLEAN, report, [*rows, ("ratio     ", text)])
