"""The command `silicon`: a kernel's mutants on a GPU, many launches each, beside what the simulator says.

Exit codes: 0 prepared, or launched and the unchanged kernel always passed; 1 it did not, or a mutant that the simulator
calls equivalent failed; 2 bad input, 3 harness error.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phaseflip.cli.main import CLEAN, FAILED, Outcome
from phaseflip.cli.options import (
    Several,
    add_kernel_and_shape,
    check_between,
    check_seed,
    worker_processes,
)
from phaseflip.errors import BadInput
from phaseflip.gpu import devices
from phaseflip.gpu.capability import needed
from phaseflip.gpu.devices import ARCHS, choose_device, default_arch
from phaseflip.system.folders import check_output
from phaseflip.system.output import write_error

MOST_LAUNCHES = 100_000
REPORT = "report.md"


def add_commands(
    commands: Any, common: argparse.ArgumentParser, extent: Callable[[str], int]
) -> None:
    """Declare the command; `extent` parses a whole number."""
    silicon = commands.add_parser(
        "silicon",
        parents=[common],
        allow_abbrev=False,
        help="launch a kernel's mutants many times on a GPU, beside what the simulator says",
        epilog="Builds what the folder lacks (needs TVM and nvcc), then launches if there is a GPU; else take the folder"
        " to one and repeat the command.",
    )
    add_kernel_and_shape(silicon, extent)
    silicon.add_argument("-o", "--output", metavar="DIR", required=True, help="its folder")
    silicon.add_argument(
        "--faults",
        action=Several,
        default=["catalogue", "mutations"],
        metavar="FAULT",
        help="catalogue, mutations, and names that `list --faults` shows (default: the first two)",
    )
    silicon.add_argument(
        "--launches", type=extent, default=100, metavar="N", help="of each mutant (default: 100)"
    )
    silicon.add_argument(
        "--restarts",
        type=extent,
        default=None,
        metavar="N",
        help="launch a mutant no further after so many launches in a row that cost their process: CUDA stops them, or they"
        " must be killed (default: launch on)",
    )
    silicon.add_argument("--seed", type=extent, default=0, help="of the inputs (default: 0)")
    silicon.add_argument(
        "--jobs",
        type=extent,
        default=None,
        metavar="N",
        help="processes (default: one per core)",
    )
    silicon.add_argument(
        "--sanitizer",
        action="store_true",
        help="also launch the faults of the catalogue once under each tool of compute-sanitizer",
    )
    silicon.set_defaults(handler=_silicon)


def _silicon(args: argparse.Namespace) -> Outcome:
    check_seed(args.seed)
    check_between("--launches", args.launches, 1, MOST_LAUNCHES)
    args.restarts = args.launches if args.restarts is None else args.restarts
    check_between("--restarts", args.restarts, 1, MOST_LAUNCHES)
    args.jobs = worker_processes(args.jobs)
    manifest = _prepared(args)
    mutants = manifest["mutants"]
    refused = sum(bool(m["refused"]) for m in mutants)
    rows = [
        ("folder    ", args.output),
        (
            "mutants   ",
            f"{len(mutants) - 1} for {manifest['arch']}, simulated; {refused} do not compile",
        ),
    ]
    gpu = devices.first_gpu()
    if gpu is None:
        note = "none here; repeat the command with this folder where there is one"
        return Outcome(
            CLEAN, {"folder": args.output, "device": None}, [*rows, ("GPU       ", note)]
        )
    choose_device("cuda", gpu_only=True)
    if ARCHS.get(gpu.capability) != manifest["arch"]:
        raise BadInput(f"{args.output} was built for {manifest['arch']}, and the GPU here is {gpu}")
    return _launched(args, manifest, str(gpu), rows)


def _prepared(args: argparse.Namespace) -> dict[str, Any]:
    """The manifest of the folder, which is prepared if it is not; BadInput where it is of something else."""
    from phaseflip.silicon import mutants_on_gpu as silicon

    check_output(
        args.output,
        "mutants",
        names=(silicon.MANIFEST, silicon.SIMULATED),
        files=(silicon.MANIFEST, silicon.LAUNCHES, silicon.SANITIZER, REPORT),
        folders=(silicon.SIMULATED, *silicon.POLL_LIMIT_MS),
    )
    shape = [args.M, args.N, args.K]
    manifest = silicon.read_manifest(args.output)
    if manifest is None:
        from phaseflip.gemm.kernel import find_kernel

        kernel = find_kernel(args.kernel)
        arch = default_arch(needed(kernel, kernel.check_shape(*shape)))
        return silicon.prepare(
            args.output, args.kernel, (args.M, args.N, args.K), args.faults, arch,
            seed=args.seed, jobs=args.jobs, progress=_progress(),
        )  # fmt: skip
    asked = {"kernel": args.kernel, "shape": shape, "faults": args.faults, "seed": args.seed}
    for key, value in asked.items():
        if manifest[key] != value and not (
            key == "kernel" and manifest[key].startswith(f"{value}:")
        ):
            raise BadInput(
                f"{args.output} was prepared for {key} {manifest[key]}, not {value}; give another folder"
            )
    for mutant in manifest["mutants"]:
        if mutant["kind"] == "control" and mutant["refused"]:
            raise BadInput(
                f"{args.output} holds no kernel to launch: {mutant['refused']}; give another folder"
            )
    silicon.check_compiled(args.output, manifest)
    return manifest


def _launched(
    args: argparse.Namespace, manifest: dict[str, Any], device: str, rows: list[tuple[str, str]]
) -> Outcome:
    from phaseflip.silicon import mutants_on_gpu as silicon
    from phaseflip.silicon import report as silicon_report

    folder = Path(args.output)
    silicon.launch_all(folder, manifest, args.launches, args.restarts, args.jobs, _progress())
    if args.sanitizer:
        silicon.sanitize_all(folder, manifest, args.jobs, _progress())
    runs, verdicts = silicon.read_launches(folder), silicon.read_verdicts(folder)
    table = silicon_report.merged(manifest, runs, verdicts)
    report = silicon_report.summary(table)
    page = folder / REPORT
    tables = (
        silicon_report.catalogue_table(table),
        silicon_report.operator_table(table),
        silicon_report.missed_table(table),
    )
    page.write_text("\n".join(tables))
    passed, launches = report["control"][0]
    always = report["reported_and_always_pass"]
    wrong = report["equivalent_and_not_always_pass"]
    rows += [
        ("GPU       ", device),
        ("control   ", f"passes in {passed} of {launches} launches"),
        ("reported  ", f"{report['reported']} of {report['mutants']} mutants, by the simulator"),
        ("missed    ", f"{len(always)} of these pass the numeric tests in all {launches} launches"),
        ("", f"{len(report['reported_and_sometimes_pass'])} pass in some"),
        *[("unexplained", f"{stem}: equivalent to the simulator, and fails") for stem in wrong],
        ("tables    ", str(page)),
    ]
    code = CLEAN if passed == launches and not wrong else FAILED
    return Outcome(code, report | {"device": device, "rows": table}, rows)


def _progress() -> Callable[[str, int, int], None]:
    """One line on standard error for every tenth part of the work."""

    def tell(what: str, done: int, of: int) -> None:
        if done == of or done % max(1, of // 10) == 0:
            write_error(f"phaseflip: {what} {done} of {of}\n")

    return tell
