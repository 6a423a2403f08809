"""simulate(): run a lowered kernel on the machine model under a schedule.

Clusters run one after the other, in grid order: CTAs of different clusters cannot wait for each other in a grid launch.
Within a cluster the schedule picks the next step: a group of threads runs to its next stop, or an operation lands.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from ..errors import BadInput, Deadlock, FindingWarning, KernelFault, UncertainBarrier
from ..findings import Finding, Findings
from ..machine.copies.tensor_map import TensorMap
from .arrays import check_writable, checked_arguments, copy_back, from_stored
from .explore import Explored, Explorer, Redundant, check_limit, difference, explore
from .grid import Grid, Progress
from .schedule import DEFAULT_LIMIT, EXPLORE, Schedule, parse_schedule


@dataclass
class Run:
    """Result of one simulation.

    `outputs` maps every buffer parameter to its contents afterwards; `counters` are exact and the same on every
    machine; `seconds` has lower, translate and simulate; `schedule` is the name that replays the run; `stopped` tells
    that a deadlock or a fault ended it early. `explored` tells what schedule explore came to; the rest is then of its
    first run.
    """

    outputs: dict[str, np.ndarray]
    findings: list[Finding]
    counters: dict[str, int]
    seconds: dict[str, float]
    schedule: str
    stopped: bool = False
    explored: Explored | None = None


def simulate(
    kernel: Any,
    inputs: Sequence[Any],
    schedule: str = "in-order",
    checks: str = "all",
    progress: Progress | None = None,
    profile: str = "ptx",
    limit: int = DEFAULT_LIMIT,
) -> Run:
    """Run a kernel on the CPU.

    kernel: PrimFunc (lowered once, while it is among the latest) or LoweredKernel. inputs: one per parameter, in order: an
    array (NumPy, or torch on the CPU), never written to, or the value of a number. schedule: see `schedule.py`.
    progress: called with CTAs done and in all.
    checks: all, none, or some of the categories of `finding.CATEGORIES`. profile: how strictly findings are judged.
    What stops a kernel (a deadlock, a bad address) is a finding too, whatever checks are chosen; `Run.stopped` tells.
    Raises BadInput for arrays that do not fit, for unknown names, and for delays of threads that the kernel does not have.
    """
    lowered = _lowered(kernel)
    policy = parse_schedule(schedule)
    check_limit(limit)
    arguments = checked_arguments(lowered.signature, inputs)
    if schedule == EXPLORE:
        return _explore(lowered, arguments, checks, profile, limit)
    try:
        return _simulate(lowered, arguments, policy, checks, progress, profile)
    except UncertainBarrier:
        policy = parse_schedule(schedule)
        return _simulate(lowered, arguments, policy, checks, progress, profile, late_barriers=True)


def _explore(lowered: Any, arguments: list[Any], checks: str, profile: str, limit: int) -> Run:
    """The first of all interleavings, with what came of the others.

    Where an arrival at a named barrier is uncertain, it must be so in all of them; then those with barriers that complete
    late are explored.
    """
    if not Findings(checks, profile).wants_races:
        raise BadInput(
            "schedule explore needs the race checks, which see what steps touch; add races to the checks"
        )

    def run(explorer: Explorer) -> Run | str | None:
        try:
            return _simulate(lowered, arguments, explorer, checks, None, profile)
        except Redundant:
            return None
        except UncertainBarrier:
            return "an uncertain arrival at a named barrier"

    def run_late(explorer: Explorer) -> Run | None:
        try:
            return _simulate(
                lowered, arguments, explorer, checks, None, profile, late_barriers=True
            )
        except Redundant:
            return None

    first, explored = explore(run, difference, limit)
    if isinstance(first, str):
        tried = explored.tried if explored.complete else limit - 1
        first, late = explore(run_late, difference, max(limit - tried, 1))
        explored = explored.then(late)
    return replace(first, schedule=EXPLORE, explored=explored)


def _simulate(
    lowered: Any,
    arguments: list[Any],
    policy: Schedule,
    checks: str,
    progress: Progress | None,
    profile: str,
    late_barriers: bool = False,
) -> Run:
    """One run. UncertainBarrier where a schedule could matter to who meets at a named barrier."""
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    started = time.perf_counter()
    lowered.program  # noqa: B018 - translates on first use, which is timed
    translated = time.perf_counter()
    machine = Grid(lowered, arguments, policy, Findings(checks, profile))
    machine.late_barriers = late_barriers
    stopped = _run(machine, progress)
    results = {
        name: from_stored(memory.data[: memory.size], array)
        for (name, _, _), memory, array in zip(
            lowered.parameters, machine.memories, arrays, strict=True
        )
    }
    seconds = {
        "lower": lowered.seconds,
        "translate": translated - started,
        "simulate": time.perf_counter() - translated,
    }
    found = machine.findings.all()
    return Run(results, found, machine.counters(), seconds, machine.schedule.name, stopped)


def _run(machine: Grid, progress: Progress | None) -> bool:
    """Run a launch to its end, or until something stops it, which becomes a finding; whether something did."""
    # One BLAS thread: the tiles are too small to share, and sums then come out the same on every machine.
    with np.errstate(all="ignore"), _blas().limit(limits=1):
        try:
            machine.run(progress)
        except KernelFault as fault:
            stop = Finding(
                fault.code, fault.detail, place=fault.site, what=fault.agent, fix=fault.fix
            )
        except Deadlock as deadlock:
            stop = deadlock.finding
        else:
            return False
    machine.findings.add(stop, always=True)
    return True


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def launch(kernel: Any, *arrays: Any, schedule: str = "in-order", checks: str = "all") -> None:
    """Run a kernel as TVM's compiled module runs on a GPU: arrays and numbers positionally, results written in place.

    Raises BadInput for arrays that do not fit, and Deadlock or KernelFault for what would hang or stop a GPU; then no
    array has been changed. Other errors that the checks find (a race) change nothing on a GPU, so here the results are
    written, and each error is a `FindingWarning`.
    """
    lowered = _lowered(kernel)
    arguments = checked_arguments(lowered.signature, arrays)
    named = zip(lowered.signature, arguments, strict=True)
    views = {name: a for (name, _, _), a in named if isinstance(a, np.ndarray)}
    if not all(view.flags.writeable for view in views.values()):
        check_writable(views, outputs(lowered, arguments))
    run = simulate(lowered, arrays, schedule, checks)
    errors = [finding for finding in run.findings if finding.severity == "error"]
    if run.stopped:
        stop = next((f for f in errors if f.code == "deadlock"), errors[0])
        raise (
            Deadlock(stop)
            if stop.code == "deadlock"
            else KernelFault(stop.code, str(stop), stop.fix)
        )
    copy_back(views, run.outputs)
    for finding in errors:
        warnings.warn(FindingWarning(str(finding)), stacklevel=2)


def _lowered(kernel: Any) -> Any:
    from ..frontend.tirx.lowering import LoweredKernel, lower_once

    return kernel if isinstance(kernel, LoweredKernel) else lower_once(kernel)


def outputs(lowered: Any, arguments: list[Any]) -> set[str]:
    """The parameters that the kernel writes to, as far as its text tells without running it."""
    from ..ir.queries import written_parameters

    written = written_parameters(lowered.device)
    given = zip(lowered.device.params, lowered.host.launch(arguments).arguments, strict=True)
    return {a.buffer if isinstance(a, TensorMap) else str(a) for p, a in given if p in written}
