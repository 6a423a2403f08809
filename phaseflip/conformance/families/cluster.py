"""Clusters: rounds in which CTAs exchange words through each other's shared memory, each way of ordering them in turn.

Every round has shared memory of its own, so that only what carries its data needs an order. An mbarrier serves again, for
its next phase, once a cluster barrier lies behind all who waited on it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..family import Program, family
from ..generated_text import function_of

_HEAD = """from phaseflip.spelling import T
from phaseflip.conformance.generated_text import in_cta
@T.prim_func
def kernel(
    A: T.Buffer(({ctas}, {threads}), "int32"),
    G: T.Buffer(({rows}, 32), "int32"),
    D: T.Buffer(({ctas}, {threads}), "int32"),
):
    G_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
    T.call_packed(
        "runtime.cuTensorMapEncodeTiled", G_map, "int32", 2, G.data,
        32, {rows}, 128, 32, {box}, 1, 1, 0, 0, 0, 0,
    )
    T.device_entry()
    cluster = T.cluster_id([{clusters}])
    rank = T.cta_id_in_cluster([{size}])
    warp = T.warp_id([{warps}])
    lane = T.lane_id([32])
    pool = T.SMEMPool()
    bars = pool.alloc(({bars},), "uint64", align=8)
    s = pool.alloc(({words},), "int32", align=128)
    pool.commit()
    word = T.alloc_local((1,), "int32")
    x: T.int32 = A[cluster * {size} + rank, warp * 32 + lane]
"""
_CLUSTER_SYNC = (
    'T.ptx.barrier.cluster.arrive(sem="release")',
    "T.ptx.barrier.cluster.wait(acquire=True)",
)
"""Not T.cuda.cluster_sync: TVM 0.26 emits it without a memory clobber, so nvcc may move loads and stores across it."""
_CLUSTERS = 2
_MAX_BARRIERS = 8


class _Writer:
    """Writes the rounds of one kernel, `size` CTAs of `warps` warps each."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.size = int(rng.choice([2, 4]))
        self.warps = int(rng.integers(1, 4))
        self.box = int(rng.integers(1, 5))
        self.lines: list[str] = []
        self.counts: list[int] = []
        self.phases: list[list[int]] = []
        self.dirty: set[int] = set()
        self.half = 32 * max(self.warps, self.box)
        kinds: list[Callable[[int], None]] = [
            self.barrier, self.fenced, self.relaxed, self.shift, self.gather, self.multicast, self.send,
        ]  # fmt: skip
        drawn = [int(k) for k in rng.integers(0, len(kinds), rng.integers(5, 10))]
        self.rounds = [kinds[k].__name__ for k in drawn]
        for number, kind in enumerate(drawn):
            kinds[kind](2 * self.half * number)

    # -- the parts of a round ---------------------------------------------------------------------------------------------
    def put(self, *lines: str, indent: int = 0) -> None:
        """Add lines."""
        self.lines += ["    " * indent + line for line in lines]

    def coin(self) -> bool:
        """One of two."""
        return bool(self.rng.integers(2))

    def of(self, distance: int) -> str:
        """The buffer of the CTA that many ranks after this one."""
        return f"peer{distance % self.size}" if distance % self.size else "s"

    def write(self, at: int, into: int) -> None:
        """All threads write x, into the CTA that many ranks on."""
        buffer, index = self.of(into), f"{at} + warp * 32 + lane"
        value = f"x * 2 + {self.rng.integers(9)}"
        if self.coin():
            self.put(f"{buffer}[{index}] = {value}")
        else:
            space = "shared::cluster"
            self.put(f"word[0] = {value}")
            self.put(
                f'T.ptx.st({buffer}.ptr_to([{index}]), ptx_type="b32", src=word.ptr_to([0]), space="{space}")'
            )

    def read(self, at: int, of: int, rows: int, indent: int = 0) -> None:
        """Mix into x a word of the first `rows` rows of 32, of the CTA that many ranks on."""
        row, turn = int(self.rng.integers(rows)), int(self.rng.integers(32))
        index = f"{at + 32 * row} + (lane + {turn}) % 32"
        source = f"{self.of(of)}[{index}]"
        if self.coin():
            source = "word[0]"
            self.put(
                f'T.ptx.ld({self.of(of)}.ptr_to([{index}]), "int32", "b32", dst=word.ptr_to([0]), space="shared::cluster")',
                indent=indent,
            )
        self.put(f"x = (x * 3 + {source}) % 10007", indent=indent)

    def meet(self, sem: str) -> None:
        """Arrive at the cluster barrier, do something else, and wait."""
        aligned = self.coin()
        self.put(
            f'T.ptx.barrier.cluster.arrive(sem="{sem}", aligned={aligned})',
            f"x = (x * 5 + {self.rng.integers(99)}) % 10007",
            f"T.ptx.barrier.cluster.wait(acquire={self.coin()}, aligned={aligned})",
        )

    def mbarrier(self, count: int, ranks: list[int]) -> tuple[int, str]:
        """An mbarrier with that count, used or new, and the parity of the phase that it completes now in these CTAs."""
        fitting = [b for b, c in enumerate(self.counts) if c == count]
        if len(self.counts) < _MAX_BARRIERS and (not fitting or self.coin()):
            self.counts.append(count)
            self.phases.append([0] * self.size)
            fitting = [len(self.counts) - 1]
        if not fitting:
            return -1, ""
        b = int(self.rng.choice(fitting))
        if b in self.dirty:
            self.put(*_CLUSTER_SYNC)
            self.dirty.clear()
        self.dirty.add(b)
        parities = [p & 1 for p in self.phases[b]]
        for r in ranks:
            self.phases[b][r] += 1
        used = {parities[r] for r in ranks}
        if len(used) == 1:
            return b, str(used.pop())
        return b, f"{sum(p << r for r, p in enumerate(parities))} >> rank & 1"

    def arrive(self, b: int, remote: str, times: int) -> None:
        """Every lane arrives (`times` 0), or lane 0 of every warp that many times: a release, or relaxed behind a fence."""
        if times:
            self.put("T.cuda.warp_sync()", "if lane == 0:")
        sem, indent = "release", 1 if times else 0
        if self.rng.random() < 0.3:
            sem = "relaxed"
            self.put('T.ptx.fence("acq_rel", "cluster")', indent=indent)
        count = f"count={times}, " if times else ""
        self.put(
            f"T.ptx.mbarrier.arrive(bars.ptr_to([{b}]), {count}"
            f'sem="{sem}", scope="cluster", remote={remote})',
            indent=indent,
        )

    def wait(self, b: int, parity: str, indent: int = 0) -> None:
        """Wait, acquiring at cluster scope."""
        self.put(
            f"T.ptx.mbarrier.try_wait_acquire_cluster(bars.ptr_to([{b}]), {parity})", indent=indent
        )

    # -- rounds -----------------------------------------------------------------------------------------------------------
    def barrier(self, at: int) -> None:
        """The cluster barrier, which releases and acquires."""
        self.write(at, int(self.rng.integers(self.size)))
        self.meet(str(self.rng.choice(["release", ""])))
        self.dirty.clear()
        self.read(at, int(self.rng.integers(self.size)), self.warps)

    def fenced(self, at: int) -> None:
        """A relaxed arrival behind a fence."""
        self.write(at, int(self.rng.integers(self.size)))
        self.put('T.ptx.fence("acq_rel", "cluster")')
        self.meet("relaxed")
        self.dirty.clear()
        self.read(at, int(self.rng.integers(self.size)), self.warps)

    def relaxed(self, at: int) -> None:
        """A relaxed barrier, through which no data go."""
        self.meet("relaxed")

    def shift(self, at: int) -> None:
        """Every CTA tells the one some ranks on, through an mbarrier there, that it has written."""
        k, times = int(self.rng.integers(1, self.size)), int(self.rng.integers(0, 4))
        b, parity = self.mbarrier(self.warps * (times or 32), list(range(self.size)))
        if b < 0:
            return self.barrier(at)
        home = self.coin()
        self.write(at, 0 if home else k)
        self.arrive(b, f"(rank + {k}) % {self.size}", times)
        onlookers = int(self.rng.integers(0, self.warps))
        self.put(f"if warp >= {onlookers}:")
        self.wait(b, parity, 1)
        self.read(at, -k if home else 0, self.warps, 1)

    def gather(self, at: int) -> None:
        """All CTAs tell one of them, which reads from any."""
        target, times = int(self.rng.integers(self.size)), int(self.rng.integers(0, 4))
        b, parity = self.mbarrier(self.size * self.warps * (times or 32), [target])
        if b < 0:
            return self.barrier(at)
        self.write(at, 0)
        self.arrive(b, str(target), times)
        self.put(f"if rank == {target}:")
        self.wait(b, parity, 1)
        for _ in range(2):
            self.read(at, int(self.rng.integers(self.size)), self.warps, 1)

    def multicast(self, at: int) -> None:
        """One CTA loads a box into several, whose mbarriers count the bytes that they, or it for them, expect."""
        issuer = int(self.rng.integers(self.size))
        ranks = [
            int(r) for r in self.rng.permutation(self.size)[: self.rng.integers(1, self.size + 1)]
        ]
        b, parity = self.mbarrier(1, ranks)
        if b < 0:
            return self.barrier(at)
        mask, nbytes = sum(1 << r for r in ranks), 128 * self.box
        receives = " or ".join(f"rank == {r}" for r in sorted(ranks))
        row = f"cluster + {self.rng.integers(0, 4)}"
        expect = f"T.ptx.mbarrier.arrive.expect_tx(bars.ptr_to([{b}]), {nbytes}"
        load = (
            f"T.ptx.cp_async.bulk.tensor.g2s_cluster(2, s.ptr_to([{at}]), bars.ptr_to([{b}]),"
            f' T.address_of(G_map), {mask}, 1, "", 0, {row}, multicast=True)'
        )
        self.put("if warp == 0:", "    if lane == 0:")
        if self.coin():
            self.put(f"if {receives}:", f"    {expect})", indent=2)
            self.put(f"if rank == {issuer}:", f"    {load}", indent=2)
        else:
            self.put(f"if rank == {issuer}:", indent=2)
            for r in ranks:
                self.put(f'{expect}, sem="release", scope="cluster", remote={r})', indent=3)
            self.put(load, indent=3)
        self.put(f"if {receives}:")
        self.wait(b, parity, 1)
        self.read(at, 0, self.box, 1)

    def send(self, at: int) -> None:
        """Every CTA copies what it has written into the one some ranks on, where the bytes are counted."""
        k, nbytes = int(self.rng.integers(1, self.size)), 128 * self.warps
        b, parity = self.mbarrier(1, list(range(self.size)))
        if b < 0:
            return self.barrier(at)
        self.write(at, 0)
        self.put('T.ptx.fence.proxy_async("shared::cta")', "T.cuda.cta_sync()")
        self.put("if warp == 0:", "    if lane == 0:")
        self.put(
            f"T.ptx.mbarrier.arrive.expect_tx(bars.ptr_to([{b}]), {nbytes})",
            "T.ptx.cp_async_bulk_s2s_cluster(",
            f"    T.ptx.map_shared_rank(s.ptr_to([{at + self.half}]), (rank + {k}) % {self.size}),",
            f"    s.ptr_to([{at}]), {nbytes},",
            f"    T.ptx.map_shared_rank(bars.ptr_to([{b}]), (rank + {k}) % {self.size}),",
            ")",
            indent=2,
        )
        self.wait(b, parity)
        self.read(at + self.half, 0, self.warps)

    # -- the kernel -------------------------------------------------------------------------------------------------------
    def source(self) -> str:
        """Head, inits, rounds, and a cluster barrier before anyone leaves."""
        counts = self.counts or [1]
        head = _HEAD.format(
            ctas=_CLUSTERS * self.size, threads=32 * self.warps, rows=self.rows, box=self.box, clusters=_CLUSTERS,
            size=self.size, warps=self.warps, bars=len(counts), words=2 * self.half * len(self.rounds),
        )  # fmt: skip
        lines = [f"peer{k} = in_cta(s, (rank + {k}) % {self.size})" for k in range(1, self.size)]
        lines += ["if warp == 0:", "    if lane == 0:"]
        lines += [
            f"        T.ptx.mbarrier.init(bars.ptr_to([{b}]), {c})" for b, c in enumerate(counts)
        ]
        lines += ["T.ptx.fence.mbarrier_init()", *_CLUSTER_SYNC, *self.lines, *_CLUSTER_SYNC]
        lines += [f"D[cluster * {self.size} + rank, warp * 32 + lane] = x"]
        return head + "".join(f"    {line}\n" for line in lines)

    @property
    def rows(self) -> int:
        """Of the tensor that boxes are loaded from: the last ones reach past it."""
        return 4 + _CLUSTERS


@family("cluster", programs=40)
def cluster(rng: np.random.Generator) -> Program:
    """Rounds in clusters of 2 or 4 CTAs: barriers, remote arrivals, stores, multicast loads and copies to peers."""
    writer = _Writer(rng)
    source, ctas = writer.source(), _CLUSTERS * writer.size
    A = rng.integers(-50, 50, (ctas, 32 * writer.warps)).astype(np.int32)
    G = rng.integers(-50, 50, (writer.rows, 32)).astype(np.int32)
    function = function_of(source, f"cluster_{rng.integers(1 << 30)}")
    text = f"{writer.size} CTAs of {writer.warps} warps: {', '.join(writer.rounds)}\n{source}"
    return Program(function, [A, G, np.zeros_like(A)], [2], ctas, text)
