"""State of one CTA and of a cluster of CTAs: memories, barriers, and asynchronous operations in flight."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import KernelFault
from ..ir.arithmetic import numpy_dtype
from ..races.shadow import Shadow
from .memory.load_store import MBARRIER_BYTES, POISON_BYTE, RANK_SHIFT, SHARED_BASE, Memory
from .pipes import Pipes
from .sync.cluster_barrier import ClusterBarrier
from .sync.mbarrier import Mbarrier
from .sync.named_barrier import NamedBarriers
from .tcgen05.allocation import TensorMemory, check_pairs
from .tcgen05.mma import TensorCore
from .threads.registers import Bits, WrittenRegisters
from .threads.setmaxnreg import RegisterPool

if TYPE_CHECKING:
    from ..findings import Finding, Findings
    from ..ir.place import Place
    from ..ir.program import Program
    from ..races.detector import RaceDetector
    from .copies.bulk_copy import BulkGroups
    from .copies.cp_async import ThreadCopies
    from .copies.tensor_map import TensorMap
    from .tcgen05.allocation import PairAllocation
    from .tcgen05.ld_st import Transfer
    from .threads.launch_control import LaunchControl
    from .threads.warp import Group, Join
    from .wgmma.mma import WarpState


class AsyncOperation(Protocol):
    """An asynchronous operation: an agent of its own that acts when it lands."""

    done: bool
    place: Place

    @property
    def issuer(self) -> str:
        """Who issued it, in words."""

    def land(self) -> None:
        """Read, write and signal."""


class Recorder(Protocol):
    """Whoever is told what the steps of a run touch."""

    elections: bool
    """Whether elect.sync has had a choice."""

    def touch(self, key: Any, how: str, detail: Any = None) -> None:
        """An object is used."""


def land(operation: AsyncOperation) -> None:
    """Let an operation act; a KernelFault in it carries the line that issued it."""
    try:
        operation.land()
    except KernelFault as fault:
        if fault.site is None:
            fault.site, fault.agent = operation.place, f"asynchronous, issued by {operation.issuer}"
        raise


class CTA:
    """One cooperative thread array of `threads` threads; `rank` counts in its cluster, `rank_in_grid` in the grid.

    `axes` maps blockIdx, gridDim, clusterIdx, clusterDim, clusterCtaIdx and clusterCtaDim to (x, y, z).
    """

    def __init__(
        self, cluster: Cluster, rank: int, axes: dict[str, tuple[int, ...]], threads: int, shared_bytes: int
    ) -> None:  # fmt: skip
        program = cluster.program
        self.cluster, self.program = cluster, program
        self.rank, self.axes, self.threads = rank, axes, threads
        x, y, z = axes["blockIdx"]
        width, height, _ = axes["gridDim"]
        self.rank_in_grid = x + width * (y + height * z)
        self.live_threads = threads
        self.shared_base = SHARED_BASE + (rank << RANK_SHIFT)
        self.first_component = rank * threads
        self.shared = Memory("shared", program.shared_name, self.shared_base, shared_bytes, rank)
        self.shared.overlapping = program.overlapping
        self.detector = cluster.detector
        if self.detector is not None:
            self.shared.shadow = Shadow(shared_bytes, initialised=False)
        self.loading: dict[int, dict[Place, Bits]] = {}
        """Warp -> place of unfinished tcgen05.ld or wgmma.mma_async -> the bytes of registers that they will write."""
        self.transfers: dict[tuple[str, int], list[Transfer]] = {}
        """("ld" or "st", warp) -> its transfers since its last wait for them."""
        self.globals = cluster.globals
        self.frame_bytes = program.frame_bytes
        self._frame = np.full((threads, program.frame_bytes), POISON_BYTE, np.uint8)
        self._frames: dict[np.dtype, np.ndarray] = {}
        self.written = WrittenRegisters(threads) if cluster.findings.wants_memory else None
        self.tmem = TensorMemory(threads, rank)
        self.barriers = NamedBarriers(self)
        self.register_pool = RegisterPool(threads)
        self.bulk_groups: dict[int, BulkGroups] = {}
        """Thread -> its bulk groups."""
        self.cancel_failed: Place | None = None
        """Where a thread has observed that a request to cancel a cluster failed."""
        self.copies: dict[int, ThreadCopies] = {}
        """Thread -> its copies by cp.async."""
        self.warpgroup_mma: dict[int, WarpState] = {}
        """Warp -> its wgmma-groups."""
        self.counts = cluster.counts
        self.bytes = cluster.bytes
        self.tensor_core = TensorCore(self)

    def __str__(self) -> str:
        return f"CTA {self.rank_in_grid}"

    def frame(self, dtype: np.dtype) -> np.ndarray:
        """All threads' registers as items of `dtype`: (threads, items)."""
        found = self._frames.get(dtype)
        if found is None:
            found = self._frames[dtype] = self._frame.view(dtype)
        return found

    @staticmethod
    def dtype(name: str) -> np.dtype:
        """NumPy dtype by the IR's name."""
        return numpy_dtype(name)

    def shared_name(self, address: int) -> str:
        """Plain words for a shared address: the buffer there, if the program knows it."""
        return self.program.shared_name(address - self.shared_base)

    def barrier_name(self, address: int) -> str:
        """The name of an mbarrier of this CTA: "mma_bar", and for one of an array "mma_bar[0]", "mma_bar[1]" and so on."""
        offset = address - self.shared_base
        first, name, nbytes = self.program.shared_view(offset)
        alone = offset == first and nbytes <= MBARRIER_BYTES
        return name if alone else f"{name}[{(offset - first) // MBARRIER_BYTES}]"

    def report(self, finding: Finding) -> None:
        """Record a finding."""
        self.cluster.findings.add(finding)

    def groups_changed(self, old: Group | None, new: list[Group]) -> None:
        """A group was replaced by others (a split)."""
        self.cluster.groups_changed(old, new)


class Cluster:
    """CTAs that run together, their barriers by shared address, and what is in flight.

    `threads` counts those of all `size` CTAs. `eager` makes asynchronous operations land when issued; otherwise they
    wait in pipes, in order within a pipe, until the schedule lets them land.
    """

    def __init__(
        self, program: Program, memories: list[Memory], counts: list[int], byte_counts: Counter[str],
        operand_cache: dict[Any, Any], eager: bool, threads: int, findings: Findings, detector: RaceDetector | None,
        tensor_maps: list[TensorMap],
    ) -> None:  # fmt: skip
        self.program, self.globals, self.counts, self.bytes = program, memories, counts, byte_counts
        self.operand_cache = operand_cache
        self.counts_before = list(counts)
        self.tensor_maps = tensor_maps
        self.eager, self.threads, self.findings, self.detector = eager, threads, findings, detector
        self.ctas: list[CTA] = []
        self.groups: list[Group] = []
        self.joins: list[Join] = []
        self.mbarriers: dict[int, Mbarrier] = {}
        self.pipes: Pipes[AsyncOperation] = Pipes()
        self.barrier = ClusterBarrier(self, threads)
        self.leader = 0
        """Which of the active lanes of a warp elect.sync elects, from the lowest."""
        self.recorder: Recorder | None = None
        """Told what every step touches, where a schedule has to know."""
        self.launch_control: LaunchControl | None = None
        """The clusters of the launch that have not started."""
        self.looks: dict[tuple[int, int, int], bytes] = {}
        """(Rank of the CTA, first lane, instruction) -> what a strong load has found there."""
        self.late_barriers = False
        """Whether named barriers complete only when nothing else can happen."""
        self.multicasts: set[Place] = set()
        """Bulk loads with a cta_mask that have been issued."""
        self.cta_groups: dict[int, Place] = {}
        self.pair_allocations: dict[int, PairAllocation] = {}
        """Even rank -> the tcgen05.alloc of a CTA pair that only one of its CTAs has reached."""

    def touch(self, key: Any, how: str, detail: Any = None) -> None:
        """The step that runs uses a synchronisation object; see `dependence.py`."""
        if self.recorder is not None:
            self.recorder.touch(key, how, detail)

    def to_come(self) -> int:
        """Clusters of the launch that start once this one has ended: one runs after the other."""
        return 0 if self.launch_control is None else len(self.launch_control.waiting)

    def live_threads(self) -> int:
        """Threads that have not exited."""
        return sum(cta.live_threads for cta in self.ctas)

    def check_exit(self) -> None:
        """All threads have exited: nothing may be left allocated, and nothing come after the exit of its CTA.

        What a CTA leaves in flight itself is told only if nothing else is wrong: mostly it is the same missing wait.
        """
        for cta in self.ctas:
            cta.tmem.check_freed(cta)
            cta.register_pool.check_exit(cta)
        check_pairs(self.ctas)
        if self.detector is not None:
            names, own = [str(cta) for cta in self.ctas], not self.findings.errors()
            for finding, rule in self.detector.peers.findings(names, own):
                self.findings.add(finding, rule)

    def use_cta_group(self, place: Place, cta_group: int) -> None:
        """A tcgen05 instruction names its cta_group; KernelFault if the kernel has used another one."""
        known = self.cta_groups.setdefault(cta_group, place)
        others = [(other, n) for n, other in self.cta_groups.items() if n != cta_group]
        if others:
            (second, this), (first, that) = sorted(
                [(known, cta_group), others[0]], key=lambda pair: pair[0].order, reverse=True
            )
            fault = KernelFault(
                "resource-limit",
                f"{second.mnemonic} has cta_group::{this}, but {first.mnemonic} at line {first.line} has "
                f"cta_group::{that}; all tcgen05 instructions of a kernel must have the same",
                "give every tcgen05 instruction the same cta_group: 2 for MMAs of a CTA pair, else 1",
            )
            fault.site = second  # whichever comes first under this schedule
            raise fault

    def multicasts_on(self, array: str) -> list[int]:
        """Lines of the bulk loads with a cta_mask that count on barriers of a name, or of that array."""
        on = [p.line for p in self.multicasts if self.program.barriers.get(p.order) == array]
        return sorted(set(on))

    def owner(self, address: int) -> CTA:
        """The CTA whose shared memory an address lies in; KernelFault for one outside the cluster's."""
        rank = (address | SHARED_BASE) - SHARED_BASE >> RANK_SHIFT
        if not 0 <= rank < len(self.ctas):
            raise KernelFault(
                "out-of-bounds",
                f"address {address:#x} lies in no shared memory of the cluster",
                "pass the address of a shared buffer, for another CTA as mapa gives it",
            )
        return self.ctas[rank]

    def multicast(self, address: int, mask: int) -> list[int]:
        """The corresponding shared addresses in all CTAs whose bit is set in a mask."""
        ranks = [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
        if not ranks or ranks[-1] >= len(self.ctas):
            raise KernelFault(
                "out-of-bounds",
                f"the CTA mask {mask:#x} must name CTAs of the cluster, which has {len(self.ctas)}",
                f"set a bit from 0 to {len(self.ctas) - 1} for each CTA that receives",
            )
        offset = address & (1 << RANK_SHIFT) - 1
        return [self.ctas[rank].shared_base + offset for rank in ranks]

    def pair(self, cta: CTA) -> list[CTA]:
        """The CTA pair of cta_group::2 that a CTA belongs to, the even rank first; KernelFault where it has no peer."""
        even = cta.rank & ~1
        if even + 1 >= len(self.ctas):
            raise KernelFault(
                "resource-limit",
                "cta_group::2 needs a cluster with an even number of CTAs",
                "launch clusters of an even number of CTAs (T.cta_id_in_cluster), or use cta_group=1",
            )
        return self.ctas[even : even + 2]

    def issue(self, pipe: Any, operation: AsyncOperation) -> None:
        """An asynchronous operation starts; operations of one pipe land in order, those of pipe None in any."""
        if self.eager:
            land(operation)
        else:
            self.pipes.issue(pipe, operation)

    def groups_changed(self, old: Group | None, new: list[Group]) -> None:
        """Replace a group in the run list by others, at its place."""
        at = len(self.groups) if old is None else self.groups.index(old)
        self.groups[at : at + (old is not None)] = new
