"""One launch: its geometry, the registers that threads start with, and its clusters, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import BadInput
from ..findings import Findings
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
from .arrays import stored_bytes
from .dependence import Recorder, RecordingDetector, Unheard
from .explore import Explorer
from .launch_control import LaunchControl
from .schedule import Choices, Schedule, check_delays
from .stepper import Stepper

MAX_SHARED_BYTES = 227 * 1024
MAX_THREADS = 1024
MAX_CLUSTER_CTAS = 8
Progress = Callable[[int, int], None]


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


class Grid:
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
        detector: RaceDetector | None = None
        policy = self.schedule
        recorder = Recorder() if isinstance(policy, Explorer) else Unheard()
        copies = any(place.mnemonic == "cp.async" for place in self.program.instructions)
        if self.race_checks is not None:
            known = (self.race_checks, threads, self.threads, copies)
            detector = (
                RecordingDetector(*known, recorder)
                if isinstance(policy, Explorer)
                else RaceDetector(*known)
            )
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
        if isinstance(policy, Choices):
            cluster.recorder, cluster.leader = recorder, policy.leader
        for rank in range(self.cluster_ctas):
            self.start_cta(cluster, rank, index)
        stepper = (
            policy.stepper(cluster) if isinstance(policy, Explorer) else Stepper(cluster, policy)
        )
        try:
            stepper.run()
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
