"""simulate(): run a lowered kernel on the machine model under a schedule.

Clusters run one after the other, in grid order: CTAs of different clusters cannot wait for each other in a grid launch.
Within a cluster the schedule picks the next step: a group of threads runs to its next stop, or an operation lands.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from .arrays import checked_arrays, copy_back
from .control_flow import EXIT
from .errors import BadInput, Deadlock, KernelFault
from .finding import Finding
from .host import Launch
from .machine.cta import CTA, Cluster, land
from .machine.divergence import PARTED
from .machine.memory import GLOBAL_SHIFT, Memory
from .machine.warp import WARP, Group
from .program import DYNAMIC_SHARED_BASE, Program
from .schedule import Schedule, parse_schedule

MAX_SHARED_BYTES = 227 * 1024
MAX_THREADS = 1024
Progress = Callable[[int, int], None]


@dataclass
class Run:
    """Result of one simulation.

    `outputs` maps every buffer parameter to its contents afterwards; `counters` are exact and the same on every
    machine; `seconds` has lower, translate and simulate; `schedule` is the name that replays the run.
    """

    outputs: dict[str, np.ndarray]
    findings: list[Finding]
    counters: dict[str, int]
    seconds: dict[str, float]
    schedule: str
    trace: list[Any] = field(default_factory=list)


def simulate(
    kernel: Any,
    inputs: Sequence[Any],
    schedule: str = "in-order",
    checks: str = "all",
    progress: Progress | None = None,
) -> Run:
    """Run a kernel on the CPU.

    kernel: PrimFunc or LoweredKernel. inputs: one array per buffer parameter, in order (NumPy, or torch on the CPU),
    never written to. schedule: see `schedule.py`. progress: called with CTAs done and in all.
    What stops a kernel (a deadlock, a bad address) ends the run and is its last finding. Raises BadInput for arrays that
    do not fit.
    """
    from .lowering import LoweredKernel, lower

    lowered = kernel if isinstance(kernel, LoweredKernel) else lower(kernel)
    policy = parse_schedule(schedule)
    arrays = checked_arrays(lowered.parameters, inputs)
    started = time.perf_counter()
    program: Program = lowered.program
    translated = time.perf_counter()
    launch = lowered.host.launch(arrays)
    memories = _global_memories(lowered.parameters, arrays)
    machine = _Machine(program, launch, memories, policy)
    # One BLAS thread: the tiles are too small to share, and sums then come out the same on every machine.
    findings = []
    with np.errstate(all="ignore"), _blas().limit(limits=1):
        try:
            machine.run(progress)
        except KernelFault as fault:
            message = fault.detail + (f" ({fault.agent})" if fault.agent else "")
            findings.append(Finding(fault.code, message, "error", fault.site.file, fault.site.line))
        except Deadlock as deadlock:
            findings.append(
                Finding("deadlock", str(deadlock), "error", deadlock.site.file, deadlock.site.line)
            )
    outputs = {
        name: memory.data[: memory.size].view(array.dtype).reshape(array.shape)
        for (name, _, _), memory, array in zip(lowered.parameters, memories, arrays, strict=True)
    }
    seconds = {
        "lower": lowered.seconds,
        "translate": translated - started,
        "simulate": time.perf_counter() - translated,
    }
    return Run(outputs, findings, machine.counters(), seconds, policy.name)


@functools.cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def launch(kernel: Any, *arrays: Any, schedule: str = "in-order") -> None:
    """Run a kernel as TVM's compiled module runs on a GPU: arrays positionally, results written in place.

    Raises BadInput for arrays that do not fit, Deadlock where nothing can run, KernelFault for any other error; then no
    array has been changed.
    """
    run = simulate(kernel, arrays, schedule)
    for finding in run.findings:
        if finding.severity == "error":
            raise (
                Deadlock(finding.message)
                if finding.code == "deadlock"
                else KernelFault(finding.code, str(finding))
            )
    copy_back(arrays, list(run.outputs.values()))


def _global_memories(
    parameters: list[tuple[str, str, tuple[int, ...]]], arrays: list[np.ndarray]
) -> list[Memory]:
    memories = []
    for i, ((name, _, _), array) in enumerate(zip(parameters, arrays, strict=True)):
        memory = Memory(name, "global buffer", (i + 1) << GLOBAL_SHIFT, array.nbytes)
        memory.data[: array.nbytes] = array.reshape(-1).view(np.uint8)
        memories.append(memory)
    return memories


class _Machine:
    """One launch: geometry, registers that every thread starts with, and the loop over clusters."""

    def __init__(
        self, program: Program, launch: Launch, memories: list[Memory], schedule: Schedule
    ) -> None:
        self.program, self.memories, self.schedule = program, memories, schedule
        extents = program.extents | launch.extents
        self.grid = [extents.get(f"blockIdx.{axis}", 1) for axis in "xyz"]
        self.block = [extents.get(f"threadIdx.{axis}", 1) for axis in "xyz"]
        self.cluster_shape = [extents.get(f"clusterCtaIdx.{axis}", 1) for axis in "xyz"]
        self.threads = int(np.prod(self.block))
        self.shared_bytes = (
            DYNAMIC_SHARED_BASE + program.static_shared_bytes + launch.dynamic_shared_bytes
        )
        self.arguments = [self.argument(a) for a in launch.arguments]
        self.counts = [0] * len(program.instructions)
        self.bytes: Counter[str] = Counter()
        self.operand_cache: dict[Any, Any] = {}
        self.check_limits()

    def check_limits(self) -> None:
        """BadInput for a launch that CUDA refuses."""
        used = self.shared_bytes - DYNAMIC_SHARED_BASE
        if used > MAX_SHARED_BYTES:
            raise BadInput(
                f"resource-limit: the kernel asks for {used} bytes of shared memory; a CTA has {MAX_SHARED_BYTES}"
            )
        if self.threads > MAX_THREADS:
            raise BadInput(
                f"resource-limit: the kernel asks for {self.threads} threads; a CTA has at most {MAX_THREADS}"
            )
        if np.prod(self.cluster_shape) != 1:
            raise BadInput(
                "the kernel launches clusters of several CTAs, which are not simulated yet"
            )

    def argument(self, value: Any) -> Any:
        """A kernel argument: the address of a buffer for a pointer, else the number."""
        if isinstance(value, str):
            return next(m.base for m in self.memories if m.name == value)
        return value

    def run(self, progress: Progress | None) -> None:
        """All CTAs, x fastest."""
        total = int(np.prod(self.grid))
        for index in range(total):
            x, rest = index % self.grid[0], index // self.grid[0]
            self.run_cluster(index, {"x": x, "y": rest % self.grid[1], "z": rest // self.grid[1]})
            if progress is not None:
                progress(index + 1, total)

    def run_cluster(self, index: int, block_index: dict[str, int]) -> None:
        """One cluster from launch to exit."""
        program = self.program
        cluster = Cluster(
            program, self.memories, self.counts, self.bytes, self.operand_cache, self.schedule.eager
        )
        cta = CTA(cluster, 0, index, self.threads, self.shared_bytes)
        cluster.ctas.append(cta)
        step = WARP if self.schedule.by_warp else self.threads
        for first in range(0, self.threads, step):
            lanes = np.arange(first, min(first + step, self.threads), dtype=np.int64)
            cluster.groups.append(Group(cta, lanes, self.registers(lanes, block_index), 0))
        _Scheduler(cluster, self.schedule).run()

    def registers(self, lanes: np.ndarray, block_index: dict[str, int]) -> list[Any]:
        """Initial registers of a group: thread and block indices, kernel arguments."""
        r: list[Any] = [None] * self.program.n_slots
        bx, by, _ = self.block
        thread_index = {"x": lanes % bx, "y": lanes // bx % by, "z": lanes // (bx * by)}
        for axis, slot in self.program.axis_slots.items():
            kind, _, dimension = axis.partition(".")
            if kind == "threadIdx":
                value = thread_index[dimension]
                r[slot] = value if len(value) > 1 else int(value[0])
            else:
                r[slot] = block_index[dimension] if kind == "blockIdx" else 0
        for slot, value in zip(self.program.param_slots, self.arguments, strict=True):
            r[slot] = value
        return r

    def counters(self) -> dict[str, int]:
        """Instructions executed (by warp) under their mnemonics, bytes moved by path, waits by warp."""
        executed: Counter[str] = Counter()
        for (mnemonic, _), count in zip(self.program.instructions, self.counts, strict=True):
            executed[mnemonic] += count
        result = {m: n for m, n in sorted(executed.items()) if n}
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


class _Scheduler:
    """The loop over steps of one cluster."""

    def __init__(self, cluster: Cluster, schedule: Schedule) -> None:
        self.cluster, self.schedule = cluster, schedule
        self.single_blocks = schedule.by_warp

    def run(self) -> None:
        """Until every thread has exited and nothing is in flight."""
        cluster = self.cluster
        while True:
            runnable = [g for g in cluster.groups if g.wait is None or g.wait.ready()]
            pipes = [p for p in cluster.pipes.values() if p]
            if runnable or pipes:
                choice = self.schedule.pick(len(runnable), len(pipes))
                if choice < len(runnable):
                    self.step(runnable[choice])
                else:
                    land(pipes[choice - len(runnable)].popleft())
            elif not self.release_a_join():
                if not cluster.groups:
                    return
                raise Deadlock(describe_deadlock(cluster.groups), cluster.groups[0].wait_site)

    def step(self, g: Group) -> None:
        """Run a group until it waits, parts, meets others or exits; by single blocks where the schedule interleaves."""
        if g.wait is not None:
            wait, g.wait = g.wait, None
            wait.finish(g)
        blocks = self.cluster.program.blocks
        while True:
            result = blocks[g.pc](g)
            if result.__class__ is int:
                g.pc = result
                if result == EXIT:
                    self.exit(g)
                    return
                if g.joins and g.joins[-1].pc == result:
                    merged = self.meet(g)
                    if merged is None:
                        return
                    g = merged
                if self.single_blocks:
                    return
            elif result is PARTED:
                return
            else:
                g.wait = result
                if not result.ready():
                    return
                g.wait = None
                result.finish(g)

    def meet(self, g: Group) -> Group | None:
        """A group at its join: the whole group if it was the last part, through as many joins as end here."""
        while g.joins and g.joins[-1].pc == g.pc:
            merged = g.joins[-1].arrive(g)
            if merged is None:
                self.cluster.groups.remove(g)
                self.waiting_joins(g.joins[-1])
                return None
            self.cluster.groups_changed(g, [merged])
            g = merged
        return g

    def waiting_joins(self, join: Any) -> None:
        if join not in self.cluster.joins:
            self.cluster.joins.append(join)

    def release_a_join(self) -> bool:
        """Nothing can run: let the warps go on that only wait to meet others. False if there are none."""
        self.cluster.joins = [join for join in self.cluster.joins if join.arrived]
        for join in self.cluster.joins:
            freed = join.release()
            if freed is not None:
                self.cluster.groups.append(freed)
                merged = self.meet(freed)
                return merged is not None or self.release_a_join()
        return False

    def exit(self, g: Group) -> None:
        """Threads have returned; barriers that wait for all threads no longer wait for them."""
        self.cluster.groups.remove(g)
        g.cta.live_threads -= g.n
        for barrier in g.cta.barriers:
            barrier.settle()


def describe_deadlock(groups: list[Group]) -> str:
    """One line a blocked group: who, where, on what, what is missing."""
    lines = ["deadlock: no thread can run and nothing is in flight"]
    for g in groups:
        lines.append(f"  {g} at {g.wait_site} waits: {g.wait.describe() if g.wait else 'nothing'}")
    return "\n".join(lines)


__all__ = ["KernelFault", "Run", "launch", "simulate"]
