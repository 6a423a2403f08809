"""Every fault of the catalogue, in every kernel it is listed for, at up to three shapes: found, named, at the right lines.

The shapes are the smallest that can show the fault, one tile, and several tiles with several K chunks; of the pipelined
kernels, which take longer to lower, the first of these. Every fault is tried under every schedule in one of its kernels.
What each oracle says on its own is recorded in baselines/fault_detection.json: the difference of two versions of that file
is what a change of the simulator or of the oracles does to their power. To write it anew:

    python -m regression.test_fault_detection
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from phaseflip.faults import as_studied, catalogue, find_fault, is_title, matching, shapes_for
from phaseflip.findings.finding import errors
from phaseflip.gemm.kernel import find_kernel, list_kernels
from phaseflip.gemm.verify import Verdict, verify
from phaseflip.study.mutant_run import Mutant, make_mutant, oracles_alone

BASELINE = Path(__file__).parent / "baselines" / "fault_detection.json"
MOST_SECONDS = {True: 5.0, False: 10.0}
"""Whether the kernel is a quick one -> CPU seconds from the PrimFunc to the verdict."""
HANGS = {
    "expect-too-many": "32768 of 65536 bytes",
    "expect-without-arrive": "0 of 1 arrivals, 32768 of 32768 bytes",
    "arrive-by-one-thread": "1 of 128 arrivals|2 of 256 arrivals",
}
"""Fault -> what the report of the deadlock must name, as a regular expression."""
OTHER_SCHEDULES = ("eager", "lazy", "random:1")
Shape = tuple[int, int, int]
Case = tuple[str, str, int, Shape]


def all_cases() -> list[Case]:
    """(kernel, fault, site, shape) of the whole catalogue."""
    found = []
    for kernel in map(as_studied, list_kernels()):
        for fault in catalogue():
            if fault.applies_to(kernel.name):
                for shape in shapes_for(fault, kernel)[: None if kernel.quick else 1]:
                    sites = fault.sites(kernel.build(*shape))
                    assert sites, f"{fault.name} has no site in {kernel.name}"
                    found += [(kernel.name, fault.name, site.index, shape) for site in sites]
    return found


def name(case: Case) -> str:
    """hgemm_v2 missing-commit@0 128x128x64"""
    kernel, fault, site, shape = case
    return f"{kernel} {fault}@{site} {'x'.join(map(str, shape))}"


def case_of(name: str) -> Case:
    """The case of that name."""
    kernel, mutant, text = name.split()
    fault, _, site = mutant.partition("@")
    rows, columns, depth = map(int, text.split("x"))
    return kernel, fault, int(site), (rows, columns, depth)


@functools.cache
def baseline() -> dict[str, Any]:
    """The recorded results by the name of the case."""
    found: dict[str, Any] = json.loads(BASELINE.read_text())
    return found


@functools.cache
def mutant_of(case: Case) -> Mutant:
    """The mutant, the same one for all runs of it, so that it is lowered once."""
    return make_mutant(*case)


def run(case: Case, schedule: str = "in-order") -> Verdict:
    """The mutant on integer inputs, to which every oracle applies."""
    shape = case[3]
    return verify(
        mutant_of(case).kernel, *shape, seed=1, inputs="integers", gate="all", schedule=schedule
    )


def recorded(verdict: Verdict) -> dict[str, Any]:
    """What the baseline holds: titles of the errors, and what each oracle says alone."""
    found = errors(verdict.findings)
    return {
        "found": sorted({f.title for f in found}),
        "oracles": oracles_alone(found, verdict.oracles),
    }


CASES = [
    *map(case_of, baseline())
]  # the record, because finding the sites of all faults takes seconds
PARAMETERS = [
    pytest.param(case, id=name(case), marks=pytest.mark.xdist_group(case[0])) for case in CASES
]


@pytest.mark.parametrize("case", PARAMETERS)
def test_fault_is_reported_as_the_catalogue_says(case: Case, record_property: Any) -> None:
    started = time.process_time()
    verdict = run(case)
    seconds = time.process_time() - started
    mutant, fault = mutant_of(case), mutant_of(case).fault
    failed = [r.name for r in verdict.oracles if r.passed is False]
    found = errors(verdict.findings)
    titles = matching(fault, found, failed)
    assert titles, f"expected {fault.expected}, found {[f.title for f in found]}\n{verdict.message}"
    assert re.search(HANGS.get(fault.name, ""), verdict.message)
    kernel, _, _, shape = case
    lines = fault.lines(find_kernel(kernel).build(*shape), mutant.site)
    for title in titles:
        named = [f for f in found if is_title(f.title, title)]
        if named and not any(f.code in ("wrong-result", "unwritten-output") for f in named):
            assert any(f.line in lines and f.file == mutant.site.file for f in named), (
                f"{title} is reported at lines {sorted({f.line for f in named})}, not at {sorted(lines)}"
            )
    assert seconds < MOST_SECONDS[find_kernel(kernel).quick]
    for oracle, word in recorded(verdict)["oracles"].items():
        record_property(oracle, word)
    assert recorded(verdict) == baseline()[name(case)]
    for schedule in OTHER_SCHEDULES if under_every_schedule(case) else ():
        verdict = run(case, schedule)
        failed = [r.name for r in verdict.oracles if r.passed is False]
        assert matching(fault, errors(verdict.findings), failed), verdict.message


def under_every_schedule(case: Case) -> bool:
    """One kernel of each fault, at the smallest shape."""
    kernel, fault, _, shape = find_kernel(case[0]), find_fault(case[1]), *case[2:]
    one = "hgemm_v2" if "hgemm_v2" in fault.kernels else fault.kernels[0]
    return kernel.name.partition(":")[0] == one and shape == shapes_for(fault, kernel)[0]


@pytest.mark.parametrize(
    ("kernel", "shape"),
    sorted({(kernel, shape) for kernel, _, _, shape in CASES}),
    ids=lambda value: value if isinstance(value, str) else "x".join(map(str, value)),
)
def test_the_kernels_themselves_are_silent(kernel: str, shape: Shape) -> None:
    verdict = verify(find_kernel(kernel), *shape, seed=1, inputs="integers", gate="all")
    assert verdict.passed, verdict.message
    assert verdict.findings == []


def test_the_record_has_the_whole_catalogue_and_nothing_else() -> None:
    assert sorted(baseline()) == sorted(map(name, all_cases()))


def write_baseline() -> None:
    """Run every case and record it."""
    lines = [f"{json.dumps(name(c))}: {json.dumps(recorded(run(c)))}" for c in sorted(all_cases())]
    BASELINE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m regression.test_fault_detection",
        description=f"Run every case, which takes minutes, and write {BASELINE.name} anew.",
    ).parse_args()
    write_baseline()
