"""The command `conformance`: the simulator against a GPU.

Exit codes: 0 built, or equal in every bit, 1 something differs, 2 bad input, 3 harness error.
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


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare the command; `extent` parses a whole number."""
    conformance = commands.add_parser(
        "conformance",
        parents=[common],
        allow_abbrev=False,
        help="generated kernels in the simulator and on a GPU: the same bits?",
        epilog="Builds what the folder lacks (needs nvcc), then compares if there is a GPU; else take the folder to one.",
    )
    conformance.add_argument("-o", "--output", metavar="DIR", required=True, help="its folder")
    conformance.add_argument("--seed", type=extent, default=0, help="of the programs (default: 0)")
    conformance.add_argument(
        "--family",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one (may be repeated)",
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


def _conformance(args: argparse.Namespace) -> Outcome:
    if args.seed < 0 or not 1 <= args.percent <= LARGEST_SCALE:
        raise BadInput(f"--seed is 0 or more, and --percent 1 to {LARGEST_SCALE}")
    from phaseflip.conformance import suite

    gpu = first_gpu()
    arch = args.arch or (ARCHS.get(gpu.capability, "") if gpu else "") or "sm_90a"
    wanted = suite.families_for(arch, args.family)
    built = (
        {m["family"] for m in suite.manifests(args.output)} if Path(args.output).is_dir() else set()
    )
    for family in wanted:
        if family.name not in built:
            count = max(1, family.programs * args.percent // 100)
            suite.build(args.output, family, arch, args.seed, count)
    found = [m for m in suite.manifests(args.output) if m["family"] in {f.name for f in wanted}]
    cases = sum(p["cases"] for m in found for p in m["programs"])
    report: dict[str, Any] = {"folder": args.output, "arch": arch, "cases": cases}
    rows = [("folder    ", str(args.output)), ("cases     ", f"{cases} for {arch}, simulated")]
    if gpu is None:
        rows.append(
            ("GPU       ", "none here; repeat the command with this folder where there is one")
        )
        return Outcome(CLEAN, report | {"device": None, "families": {}}, rows)
    choose_device("cuda")
    suite.manifests(args.output, ARCHS[gpu.capability])
    results = [r for r in suite.compare(args.output, arch) if r.family in {f.name for f in wanted}]
    families: dict[str, Any] = {}
    for r in results:
        of = families.setdefault(r.family, {"programs": 0, "cases": 0, "different": []})
        of["programs"] += 1
        of["cases"] += r.cases
        if r.difference:
            of["different"].append(
                {"program": r.number, "what": r.text, "difference": r.difference}
            )
    rows.append(("GPU       ", str(gpu)))
    for name, of in families.items():
        wrong = of["different"]
        state = f"{len(wrong)} of them differ" if wrong else "equal in every bit"
        rows.append((f"{name:<14}", f"{of['programs']} programs, {of['cases']} cases: {state}"))
        rows += [
            ("", f"  {d['program']}: {d['what'].splitlines()[0]}: {d['difference']}") for d in wrong
        ]
    different = any(of["different"] for of in families.values())
    return Outcome(
        FAILED if different else CLEAN, report | {"device": str(gpu), "families": families}, rows
    )
