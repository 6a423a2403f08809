"""simulate(): run a lowered kernel on the machine model under a schedule.

Clusters run one after the other, in grid order: CTAs of different clusters cannot wait for each other in a grid launch.
Within a cluster the schedule picks the next step: a group of threads runs to its next stop, or an operation lands.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from ..errors import BadInput, Deadlock, FindingWarning, KernelFault, UncertainBarrier
from ..findings.finding import Finding, Findings
from ..ir.program import SHARED_START
from ..machine.copies.tensor_map import TensorMap
from ..machine.copies.tma import TENSOR_MAP_BASE, TENSOR_MAP_BYTES
from ..machine.cta import CTA, Cluster
from ..machine.memory.load_store import Memory, global_base
from ..machine.sync.mbarrier_report import report_uninitialised
from ..machine.threads.warp import WARP, Group
from ..races.detector import Launch as RaceLaunch
from ..races.detector import RaceDetector
from ..races.shadow import Shadow
from .arrays import check_writable, checked_arguments, copy_back, from_stored, stored_bytes
from .launch_control import LaunchControl
from .schedule import Schedule, check_delays, parse_schedule
from .stepper import Stepper

MAX_SHARED_BYTES = 227 * 1024
MAX_THREADS = 1024
MAX_CLUSTER_CTAS = 8
Progress = Callable[[int, int], None]


@dataclass
class Run:
    """Result of one simulation.

    `outputs` maps every buffer parameter to its contents afterwards; `counters` are exact and the same on every
    machine; `seconds` has lower, translate and simulate; `schedule` is the name that replays the run; `stopped` tells
    that a deadlock or a fault ended it early.
    """

    outputs: dict[str, np.ndarray]
    findings: list[Finding]
    counters: dict[str, int]
    seconds: dict[str, float]
    schedule: str
    stopped: bool = False
    trace: list[Any] = field(default_factory=list)


def simulate(
    kernel: Any,
    inputs: Sequence[Any],
    schedule: str = "in-order",
    checks: str = "all",
    progress: Progress | None = None,
    profile: str = "ptx",
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
    parse_schedule(schedule)
    arguments = checked_arguments(lowered.signature, inputs)
    arrays = [a for a in arguments if isinstance(a, np.ndarray)]
    started = time.perf_counter()
    lowered.program  # noqa: B018 - translates on first use, which is timed
    translated = time.perf_counter()
    try:
        machine = _Machine(lowered, arguments, parse_schedule(schedule), Findings(checks, profile))
        stopped = _run(machine, progress)
    except UncertainBarrier:
        machine = _Machine(lowered, arguments, parse_schedule(schedule), Findings(checks, profile))
        machine.late_barriers = True
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


def _run(machine: _Machine, progress: Progress | None) -> bool:
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


def _global_memories(
    parameters: list[tuple[str, str, tuple[int, ...]]], arrays: list[np.ndarray]
) -> list[Memory]:
    memories = []
    for i, ((name, _, _), array) in enumerate(zip(parameters, arrays, strict=True)):
        content = stored_bytes(array)
        memory = Memory("global", _always(name), global_base(i), len(content))
        memory.shadow = Shadow(len(content), initialised=True)
        memory.data[: len(content)] = content
        memories.append(memory)
    return memories


def _always(name: str) -> Callable[[int], str]:
    return lambda offset: name


class _Machine:
    """One launch: geometry, registers that every thread starts with, and the loop over clusters."""

    def __init__(
        self,
        lowered: Any,
        arguments: list[Any],
        schedule: Schedule,
        findings: Findings,
    ) -> None:
        program, launch = lowered.program, lowered.host.launch(arguments)
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        self.program, self.schedule, self.findings = program, schedule, findings
        self.memories = _global_memories(lowered.parameters, arrays)
        self.late_barriers = False
        """Whether named barriers complete late, since an earlier run has met an arrival that is not certain."""
        self.names = [name for name, _, _ in lowered.parameters]
        self.race_checks = RaceLaunch(findings) if findings.wants_races else None
        extents = program.extents | launch.extents
        self.grid = [extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]
        self.block = [extents.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
        self.cluster_shape = [extents.get(f"clusterCtaIdx.{axis}", 1) for axis in "xyz"]
        self.preferred = [
            extents.get(f"preferredClusterCtaIdx.{axis}", size)
            for axis, size in zip("xyz", self.cluster_shape, strict=True)
        ]
        self.threads = int(np.prod(self.block))
        self.cluster_ctas = int(np.prod(self.cluster_shape))
        shapes = zip(self.grid, self.cluster_shape, strict=True)
        self.clusters = tuple(n // size for n, size in shapes)
        self.shared_bytes = SHARED_START + program.static_shared_bytes + launch.dynamic_shared_bytes
        self.launch_control = LaunchControl(self.clusters, tuple(self.cluster_shape), schedule)
        self.tensor_maps: list[TensorMap] = []
        self.arguments = [self.argument(a) for a in launch.arguments]
        self.counts = [0] * len(program.instructions)
        self.bytes: Counter[str] = Counter()
        self.operand_cache: dict[Any, Any] = {}
        self.check_limits()
        check_delays(schedule, self.cluster_ctas, -(-self.threads // WARP))

    def check_limits(self) -> None:
        """BadInput for a launch that CUDA refuses."""
        used = self.shared_bytes - SHARED_START
        if used > MAX_SHARED_BYTES:
            raise BadInput(
                f"resource-limit: the kernel asks for {used} bytes of shared memory; a CTA has {MAX_SHARED_BYTES}"
            )
        if self.threads > MAX_THREADS:
            raise BadInput(
                f"resource-limit: the kernel asks for {self.threads} threads; a CTA has at most {MAX_THREADS}"
            )
        if self.cluster_ctas > MAX_CLUSTER_CTAS:
            raise BadInput(
                f"resource-limit: the kernel asks for clusters of {self.cluster_ctas} CTAs; "
                f"{MAX_CLUSTER_CTAS} is the most that every GPU can launch"
            )
        if 0 in self.grid:
            shape = " x ".join(map(str, self.grid))
            raise BadInput(
                f"resource-limit: a grid of {shape} CTAs has none; each extent is at least 1"
            )
        for kind, sizes in (
            ("clusters", self.cluster_shape),
            ("preferred clusters", self.preferred),
        ):
            uneven = [
                f"{n} along {axis}"
                for axis, n, size in zip("xyz", self.grid, sizes, strict=True)
                if n % size
            ]
            if uneven:
                shape = " x ".join(map(str, sizes))
                raise BadInput(
                    f"resource-limit: {kind} of {shape} CTAs do not divide the grid: it has {uneven[0]}"
                )
        if any(p % n for p, n in zip(self.preferred, self.cluster_shape, strict=True)):
            preferred, regular = (
                " x ".join(map(str, sizes)) for sizes in (self.preferred, self.cluster_shape)
            )
            raise BadInput(
                f"resource-limit: preferred clusters of {preferred} CTAs are no multiple of the clusters of {regular}"
            )

    def argument(self, value: Any) -> Any:
        """A kernel argument: the address of a buffer for a pointer, else the number."""
        if isinstance(value, str):
            return self.memories[self.names.index(value)].base
        if isinstance(value, TensorMap):
            self.tensor_maps.append(value)
            return TENSOR_MAP_BASE + TENSOR_MAP_BYTES * (len(self.tensor_maps) - 1)
        return value

    def run(self, progress: Progress | None) -> None:
        """All clusters, x fastest, but for those that running ones cancel."""
        total = int(np.prod(self.clusters))
        while waiting := self.launch_control.waiting:
            self.run_cluster(self.launch_control.start())
            if progress is not None:
                progress((total - len(waiting)) * self.cluster_ctas, total * self.cluster_ctas)

    def run_cluster(self, index: tuple[int, ...]) -> None:
        """The cluster at an index (x, y, z) of the grid of clusters, from launch to exit."""
        threads = self.threads * self.cluster_ctas
        detector = None
        if self.race_checks is not None:
            copies = any(place.mnemonic == "cp.async" for place in self.program.instructions)
            detector = RaceDetector(self.race_checks, threads, self.threads, copies)
        cluster = Cluster(
            self.program,
            self.memories,
            self.counts,
            self.bytes,
            self.operand_cache,
            self.schedule.eager,
            threads,
            self.findings,
            detector,
            self.tensor_maps,
        )
        cluster.launch_control = self.launch_control
        cluster.late_barriers = self.late_barriers
        for rank in range(self.cluster_ctas):
            self.start_cta(cluster, rank, index)
        try:
            Stepper(cluster, self.schedule).run()
            self.settle(cluster)
            cluster.check_exit()
        finally:
            self.settle(cluster)

    def settle(self, cluster: Cluster) -> None:
        """Threads have exited or stopped: report what could not be judged before."""
        report_uninitialised(cluster)
        for cta in cluster.ctas:
            cta.barriers.stopped()
        if cluster.detector is not None:
            cluster.detector.finish()

    def start_cta(self, cluster: Cluster, rank: int, cluster_index: tuple[int, ...]) -> None:
        """Add the CTA of a rank to its cluster, with its groups of threads."""
        width, height, _ = self.cluster_shape
        inside = (rank % width, rank // width % height, rank // (width * height))
        shapes = zip(cluster_index, self.cluster_shape, inside, strict=True)
        x, y, z = (first * size + offset for first, size, offset in shapes)
        axes = {
            "blockIdx": (x, y, z),
            "gridDim": tuple(self.grid),
            "clusterIdx": cluster_index,
            "clusterDim": self.clusters,
            "clusterCtaIdx": inside,
            "clusterCtaDim": tuple(self.cluster_shape),
            "preferredClusterCtaIdx": inside,
        }
        cta = CTA(cluster, rank, axes, self.threads, self.shared_bytes)
        cluster.ctas.append(cta)
        step = WARP if self.schedule.by_warp else self.threads
        for first in range(0, self.threads, step):
            lanes = np.arange(first, min(first + step, self.threads), dtype=np.int64)
            group = Group(cta, lanes, self.registers(lanes, axes), 0)
            if cluster.detector is not None:
                group.knowledge = cluster.detector.start(lanes)
            cluster.groups.append(group)

    def registers(self, lanes: np.ndarray, axes: dict[str, tuple[int, ...]]) -> list[Any]:
        """Initial registers of a group: thread indices, those of its CTA by kind of axis, kernel arguments."""
        r: list[Any] = [None] * self.program.n_slots
        bx, by, _ = self.block
        thread_index = {"x": lanes % bx, "y": lanes // bx % by, "z": lanes // (bx * by)}
        for axis, slot in self.program.axis_slots.items():
            kind, _, dimension = axis.partition(".")
            if kind == "threadIdx":
                value = thread_index[dimension]
                r[slot] = value if len(value) > 1 else int(value[0])
            else:
                r[slot] = axes[kind]["xyz".index(dimension)]
        for slot, value in zip(self.program.param_slots, self.arguments, strict=True):
            r[slot] = value
        return r

    def counters(self) -> dict[str, int]:
        """Instructions executed (by warp) under their mnemonics, bytes moved by path, waits by warp."""
        executed: Counter[str] = Counter()
        for place, count in zip(self.program.instructions, self.counts, strict=True):
            executed[place.mnemonic] += count
        result = {m: n for m, n in sorted(executed.items()) if n}
        for path in ("shared_to_global", "shared_to_shared"):
            if self.bytes[path]:
                result[f"bytes_{path}"] = self.bytes[path]
        for path in (
            "global_loaded",
            "global_stored",
            "shared_loaded",
            "shared_stored",
            "global_to_shared",
        ):
            result[f"bytes_{path}"] = self.bytes[path]
        result["barrier_waits"] = self.bytes["waits"]
        return result
