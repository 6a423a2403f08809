"""Fault and mutation studies: which mutants of which kernels, run where, and what becomes of each.

A plan is a list of work items (see `mutant.py`) in groups: the schedules of one mutant on one shape, which share what is
lowered once. Each item runs in a worker process under a time limit, here or on a dask cluster, and every outcome is
written as it is known, so a study goes on where it was interrupted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..gemm.kernel import Kernel, find_kernel, list_kernels
from ..system.worker_pool import CRASHED, RETURNED, TIMED_OUT, Ended, WorkerPool
from .mutant_run import (
    CONTROL,
    HARNESS_ERROR,
    OTHERWISE,
    TIME_OUT,
    Item,
    Outcome,
    blank_outcome,
    place_text,
    run_item,
)
from .results import Results, key_of

if TYPE_CHECKING:
    from ..faults import Fault

__all__ = ["LIMIT_S", "RUNNER", "Plan", "make_plan", "outcome_of", "run_item", "run_study"]

RUNNER = "phaseflip.study.mutant_run:run_item"
LIMIT_S = 120.0
"""Time limit of one run. Most mutants of the seed's kernels take a second, lowering included; where 128 threads issue
what one should, ten."""

SHOWN_CHARACTERS = 2000
Shape = tuple[int, int, int]
Progress = Callable[[int, int, Outcome | None], None]


@dataclass(frozen=True)
class Plan:
    """The groups of items to run, and what identifies the study: two plans with equal `about` are the same study.

    `without_site` are the chosen faults that no chosen kernel has a site for.
    """

    groups: tuple[tuple[Item, ...], ...]
    about: dict[str, Any]
    without_site: tuple[str, ...] = ()

    @property
    def items(self) -> list[Item]:
        """All items, in order."""
        return [item for group in self.groups for item in group]


def schedules(count: int) -> list[str]:
    """The first `count` schedules: in-order, eager, lazy, then random:1, random:2 and so on; BadInput below 1."""
    if count < 1:
        raise BadInput(f"a study needs at least 1 schedule, got {count}")
    simple = ["in-order", "eager", "lazy"]
    return simple[:count] + [f"random:{seed}" for seed in range(1, count - 2)]


def make_plan(
    kernels: Sequence[str] = (),
    faults: Sequence[str] = ("catalogue",),
    shapes: Sequence[Shape] = (),
    *,
    n_schedules: int = 3,
    seed: int = 0,
) -> Plan:
    """Enumerate the mutants. Imports TVM.

    kernels: names or path:factory; none means all. faults: "catalogue", "mutations" and names; the control is always
    added. shapes: those that a kernel's rule allows are used; none means up to three per fault. BadInput for unknown
    names, for a kernel that takes none of the shapes, and where nothing is left to do. A persistent kernel has one CTA
    unless its name says otherwise.
    """
    from ..faults import as_studied

    order = schedules(n_schedules)
    chosen_kernels = [find_kernel(k) for k in kernels] or list_kernels()
    chosen_kernels = _distinct([as_studied(k) for k in chosen_kernels])
    legal = {kernel.name: _legal_shapes(kernel, shapes) for kernel in chosen_kernels}
    groups: list[tuple[Item, ...]] = []
    with_site: set[str] = set()
    chosen_faults = _chosen_faults(faults)
    scripts = hashlib.sha256()
    for kernel, (fault, by_name) in itertools.product(chosen_kernels, chosen_faults):
        if not by_name and fault.kind == "catalogue" and not _meant_for(fault, kernel):
            continue
        for shape in legal[kernel.name] or _default_shapes(fault, kernel):
            func = kernel.build(*shape)
            scripts.update(func.script().encode())
            for site in fault.sites(func):
                with_site.add(fault.name)
                mutant = {
                    "kernel": kernel.name,
                    "fault": fault.name,
                    "site": site.index,
                    "shape": list(shape),
                    "seed": seed,
                    "kind": fault.kind,
                    "place": place_text(site.file, site.line),
                    "text": site.text,
                }
                groups.append(tuple(mutant | {"schedule": s} for s in order))
    named = [fault.name for fault, by_name in chosen_faults if by_name]
    missing = [name for name in named if name not in with_site]
    if missing:
        names = ", ".join(k.name for k in chosen_kernels)
        raise BadInput(f"{' and '.join(missing)}: no site in {names}")
    if with_site <= {CONTROL} and [f for f, _ in chosen_faults if f.name != CONTROL]:
        raise BadInput("none of these faults has a site in these kernels at these shapes")
    about = {
        "kernels": [k.name for k in chosen_kernels],
        "faults": list(faults),
        "shapes": [list(shape) for shape in shapes],
        "schedules": order,
        "seed": seed,
        "kernel sources": scripts.hexdigest()[:16],
        "phaseflip sources": _own_sources(),
    }
    without = [f.name for f, _ in chosen_faults if f.name not in with_site]
    return Plan(_by_mutant(groups), about, tuple(without))


def run_study(
    plan: Plan,
    directory: Path,
    *,
    jobs: int = 1,
    limit_s: float = LIMIT_S,
    dask: str = "",
    progress: Progress | None = None,
    runner: str = RUNNER,
) -> list[Outcome]:
    """Run what `directory` does not hold yet; returns all outcomes in the order of the plan.

    dask: address of a scheduler, instead of `jobs` processes here. progress: called with runs done, runs in all and the
    latest outcome. BadInput if the directory holds another study or the cluster does not answer.
    """
    items = plan.items
    with Results(Path(directory), plan.about) as results:
        todo = [[i for i in g if key_of(i) not in results.known] for g in plan.groups]
        todo = [group for group in todo if group]
        done = len(items) - sum(map(len, todo))
        if progress is not None:
            progress(done, len(items), None)
        for item, ended in _run(todo, jobs, limit_s, dask, runner):
            outcome = outcome_of(item, ended)
            results.append(outcome)
            done += 1
            if progress is not None:
                progress(done, len(items), outcome)
        return results.finish(items)


def outcome_of(item: Item, ended: Ended) -> Outcome:
    """What a run amounts to, whether it returned or not.

    A mutant that does not end within the limit is killed, with the code "time-out": a test suite has a limit too. One
    that brings the simulator down is an error of the harness.
    """
    if ended.how == RETURNED:
        return ended.value
    outcome = blank_outcome(item) | {"seconds": round(ended.seconds, 4)}
    if ended.how == TIMED_OUT:
        return outcome | {
            "fate": OTHERWISE,
            "codes": [TIME_OUT],
            "reason": f"did not end: {ended.value}",
        }
    if ended.how == CRASHED:
        reason = f"the simulator crashed ({ended.value})"
    else:
        reason = f"{ended.value[0]}: {ended.value[1]}"
    detail = ended.detail[-SHOWN_CHARACTERS:]
    return outcome | {
        "fate": HARNESS_ERROR,
        "reason": reason[:SHOWN_CHARACTERS],
        "messages": {"harness": detail} if detail else {},
    }


# --- parts ---------------------------------------------------------------------------------------


def _run(
    groups: list[list[Item]], jobs: int, limit_s: float, dask: str, runner: str
) -> Iterator[tuple[Item, Ended]]:
    if not groups:
        return
    if dask:
        from .dask_cluster import run_on_cluster

        yield from run_on_cluster(groups, dask, limit_s, runner)
        return
    with WorkerPool(runner, jobs=jobs, limit_s=limit_s) as pool:
        yield from pool.run(groups)


def _chosen_faults(names: Sequence[str]) -> list[tuple[Fault, bool]]:
    """(fault, whether it was chosen by its own name), the control first."""
    from ..faults import catalogue, find_fault, mutations, no_op

    chosen: dict[str, tuple[Fault, bool]] = {CONTROL: (no_op(), False)}
    for name in names:
        sections = {"catalogue": catalogue, "mutations": mutations}
        if name in sections:
            for fault in sections[name]():
                chosen.setdefault(fault.name, (fault, False))
        else:
            fault = find_fault(name)
            chosen[fault.name] = (fault, fault.name != CONTROL)
    return list(chosen.values())


def _meant_for(fault: Fault, kernel: Kernel) -> bool:
    """Whether a catalogue study includes it: where it is catalogued, and any kernel found by path."""
    return kernel.by_path or fault.applies_to(kernel.name)


def _legal_shapes(kernel: Kernel, shapes: Sequence[Shape]) -> list[Shape]:
    if not shapes or kernel.shape_rule is None:
        return list(dict.fromkeys(shapes))
    legal = [shape for shape in shapes if kernel.shape_rule.is_legal(*shape)]
    if not legal:
        kernel.check_shape(*shapes[0])
    return list(dict.fromkeys(legal))


def _default_shapes(fault: Fault, kernel: Kernel) -> list[Shape]:
    from ..faults import shapes_for

    if kernel.shape_rule is None:
        raise BadInput(f"{kernel.name} has no shape rule; give the shapes with --shapes")
    return shapes_for(fault, kernel)


def _distinct(kernels: list[Kernel]) -> list[Kernel]:
    return list({kernel.name: kernel for kernel in kernels}.values())


def _by_mutant(groups: list[tuple[Item, ...]]) -> tuple[tuple[Item, ...], ...]:
    """The groups with all shapes of a mutant next to each other, as tables and pages list them."""
    sorted_groups: dict[tuple[Any, ...], list[tuple[Item, ...]]] = {}
    for group in groups:
        first = group[0]
        sorted_groups.setdefault((first["kernel"], first["fault"], first["site"]), []).append(group)
    return tuple(itertools.chain.from_iterable(sorted_groups.values()))


def _own_sources() -> str:
    """A digest of this package: outcomes of two simulators do not belong into one table."""
    digest = hashlib.sha256()
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(json.dumps(str(path.relative_to(package))).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
