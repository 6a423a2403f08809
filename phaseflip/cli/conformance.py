"""The command `conformance`: the simulator against a GPU.

Exit codes: 0 built, or equal in every bit, 1 something differs, 2 bad input, 3 harness error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phaseflip.cli.main import CLEAN, FAILED, Outcome
from phaseflip.cli.options import Several, check_between, check_seed
from phaseflip.gpu import devices
from phaseflip.gpu.devices import ARCHS, choose_device
from phaseflip.grammar import counted
from phaseflip.system.folders import check_output

LARGEST_SCALE = 1000


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare the command; `extent` parses a whole number."""
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
        action=Several,
        default=[],
        metavar="NAME",
        help="only these of the generated families",
    )
    conformance.add_argument(
        "--programs",
        action=Several,
        default=[],
        metavar="PATH",
        help="the programs of a file or folder: its PrimFuncs, and the factories that return one when called without"
        " arguments (without --family these alone)",
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
    check_seed(args.seed)
    check_between("--percent", args.percent, 1, LARGEST_SCALE)
    check_output(args.output, "conformance programs", keys=("family", "programs"))
    from phaseflip.conformance import folder_checks as ready
    from phaseflip.conformance import suite
    from phaseflip.conformance import user_programs as programs

    gpu = devices.first_gpu()
    arch = args.arch or (ARCHS.get(gpu.capability, "") if gpu else "") or "sm_90a"
    own = programs.named(args.programs)
    drawn = suite.families_for(arch, args.family) if args.family or not own else []
    folder = Path(args.output)
    built = {m["family"]: m for m in suite.manifests(folder)} if folder.is_dir() else {}
    ready.check_made_for(folder, built.values(), arch, drawn, args.seed, args.percent)
    for family in drawn:
        if family.name not in built:
            count = ready.programs_of_percent(family, args.percent)
            suite.build(folder, family, arch, args.seed, count)
    for name, path in own.items():
        if built.get(name, {}).get("sources_sha256") != programs.digest(path):
            programs.build_programs(folder, path, arch)
    wanted = {*own, *(f.name for f in drawn)}
    if not args.family and not own:
        wanted |= {name for name, m in built.items() if "sources_sha256" in m}
    found = [m for m in suite.manifests(folder) if m["family"] in wanted]
    for manifest in found:
        ready.check_files(folder, manifest)
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
        choose_device("cuda", gpu_only=True)
        suite.manifests(folder, ARCHS[gpu.capability])
        for of in families.values():
            of["different"] = []
        for r in suite.compare(folder, arch, wanted):
            if r.difference:
                wrong = {"program": r.number, "what": r.text, "difference": r.difference}
                families[r.family]["different"].append(wrong)
    for name, of in families.items():
        rows.append(
            (
                f"{name:<14}",
                f"{counted(of['programs'], 'program')}, {counted(of['cases'], 'case')}{_judgement(of)}",
            )
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
