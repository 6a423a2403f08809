"""wgmma of Hopper: products of a whole warpgroup on shared-memory operands, asynchronous, accumulators in its registers.

A warp executes `wgmma.mma_async`; the product is the warpgroup's, so it goes off once all four warps have executed it.
`commit_group` closes a wgmma-group, `wait_group` waits for groups as a whole. Products of fp16 and bf16 are exact in
fp32 and are summed in fp32, in an order that hardware does not specify; here the products of one group that continue an
accumulator under the same knowledge are one larger product. An uncommitted product does not land: nothing could tell.

Departures: a read of the accumulator between two products that no `wgmma.fence` separates is not noticed, a write is
noticed by its value.

Source: PTX ISA 9.1, 9.7.15 "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions": wgmma.mma_async,
wgmma.fence, wgmma.commit_group, wgmma.wait_group, "Async Proxy".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from ...errors import BadInput, KernelFault
from ...findings import Finding, agree
from ...ir.instruction import instruction
from ...ir.place import Place
from ...ordering.knowledge import restrict
from ...ordering.warp_meetings import products_done, warps_meet
from ..memory.load_store import RAW, register_columns
from ..operands.matrix_descriptor import ENCODE, operand_units, reads_past_the_end
from ..pipes import Awaited
from ..threads.registers import start_loading, write_registers
from ..threads.warp import begun
from .operands import WARPS, decode_descriptor, fragment

if TYPE_CHECKING:
    from ...ordering.happens_before import Ticket
    from ...ordering.knowledge import Clock, Part
    from ..cta import CTA
    from ..threads.warp import Group

M_ROWS = 64
FLOAT = np.dtype(np.float32)
_FORMATS = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


class Shape(NamedTuple):
    """What products must agree in to continue one accumulator: N, the types, the orders of A and B, the registers."""

    n: int
    k: int
    in_dtype: str
    a_m_major: bool
    b_n_major: bool
    registers: tuple[int, ...]


@dataclass(eq=False)
class Run:
    """Products that continue one accumulator; of one warp until the warpgroup is complete."""

    shape: Shape
    place: Place
    accumulate: bool
    part: Part | None
    ticket: Ticket | None
    past: Clock | None  # what its lanes have done when they issue it
    descriptors: list[tuple[int, int]] = field(default_factory=list)


@dataclass(eq=False)
class WgmmaGroup:
    """One wgmma-group: the runs of each warp that has committed it; an operation in flight once all four have."""

    cta: CTA
    warpgroup: int
    place: Place
    runs: dict[int, list[Run]] = field(default_factory=dict)
    done: bool = False

    @property
    def issuer(self) -> str:
        """The warpgroup, in words."""
        return f"CTA {self.cta.rank_in_grid} warpgroup {self.warpgroup}"

    def land(self) -> None:
        """D (+)= A B for every product of the group."""
        for runs in zip(*(self.runs[warp] for warp in sorted(self.runs)), strict=True):
            self._multiply(runs)
        self.done = True

    def _multiply(self, runs: Sequence[Run]) -> None:
        run, cta = runs[0], self.cta
        shape, shared = run.shape, cta.shared
        a_units, b_units = (
            _units(run.descriptors, side, rows, shape) for side, rows in ((0, M_ROWS), (1, shape.n))
        )
        if 16 * max(int(a_units.max()), int(b_units.max())) + 15 >= shared.size:
            raise reads_past_the_end("wgmma", shared.size)
        if cta.detector is not None:
            for quarter, part in enumerate(runs):
                mine = (
                    a_units if shape.a_m_major else a_units[16 * quarter : 16 * (quarter + 1)]
                )  # M-major: a unit holds rows of several warps
                for units in (mine, b_units):
                    assert part.ticket is not None
                    cta.detector.operation_access(
                        part.ticket, shared, units, writes=False, fenced=True
                    )
        raw, dtype = shared.view(RAW[16]), _FORMATS[shape.in_dtype]
        a, b = (
            values.T if mn_major else values
            for values, mn_major in (
                (raw[a_units].view(dtype).astype(FLOAT), shape.a_m_major),
                (raw[b_units].view(dtype).astype(FLOAT), shape.b_n_major),
            )
        )
        product = (a @ b.T)[fragment(shape.n)]
        first = 32 * WARPS * self.warpgroup
        frame = cta.frame(FLOAT)
        where = (slice(first, first + 32 * WARPS), list(shape.registers))
        frame[where] = frame[where] + product if run.accumulate else product


def _units(descriptors: list[tuple[int, int]], side: int, rows: int, shape: Shape) -> np.ndarray:
    """16-byte units of A (side 0) or B (1), the products of a run side by side along K."""
    mn_major = shape.b_n_major if side else shape.a_m_major
    parts = [
        operand_units(decode_descriptor(pair[side]), rows, 2 * shape.k, mn_major, 2)
        for pair in descriptors
    ]
    return np.concatenate(parts, axis=0 if mn_major else 1)


class WarpState:
    """What one warp has done: whether a wgmma.fence covers its registers, its open group, the groups it has committed."""

    __slots__ = ("fenced", "open", "committed", "waited", "left", "unfenced")

    def __init__(self) -> None:
        self.fenced = False
        self.open: list[Run] = []
        self.committed: list[WgmmaGroup] = []
        self.waited = 0
        """Committed groups, oldest first, that a wait has completed."""
        self.left: dict[tuple[int, ...], np.ndarray] = {}
        """Registers of an accumulator that no product has in flight -> the bits that its last one left there."""
        self.unfenced: dict[tuple[int, ...], tuple[int, int]] = {}
        """Registers of an accumulator -> (n, k) of the products that have used it since the last wgmma.fence."""

    def fence(self) -> None:
        """What follows is ordered after every access to registers so far."""
        self.fenced = True
        self.left.clear()
        self.unfenced.clear()


def warp_state(cta: CTA, warp: int) -> WarpState:
    """The state of a warp, made on first use."""
    return cta.warpgroup_mma.setdefault(warp, WarpState())


def _whole_warps(g: Group, place: Place) -> bool:
    if g.whole_warps():
        return True
    g.cta.report(
        Finding(
            "divergent-collective",
            "it is a collective of the four whole warps of a warpgroup (.sync.aligned)",
            place=place,
            memory="register",
            what=f"{g} {agree(g, 'executes', 'execute')} {place.mnemonic}",
            fix="guard it with the warpgroup only, not with a warp or a lane",
        )
    )
    return False


@instruction("wgmma.fence", synchronises=True)
def wgmma_fence(g: Group, place: Place) -> None:
    """wgmma.fence.sync.aligned: orders earlier accesses to registers before wgmma.mma_async; no value changes.

    Needed before a warpgroup's first wgmma.mma_async, and between another access to its registers and one; products of
    one shape are ordered among themselves.
    """
    if _whole_warps(g, place):
        for warp in g.warp_ids():
            warp_state(g.cta, warp).fence()


@instruction("wgmma.mma_async", completes="wgmma.wait_group", measure="MMA instructions")
def wgmma_mma_async(
    g: Group,
    place: Place,
    a_desc: Any,
    b_desc: Any,
    scale_d: Any,
    n: int,
    k: int,
    in_dtype: str,
    trans_a: bool,
    trans_b: bool,
    registers: tuple[int, ...],
) -> None:
    """wgmma.mma_async.sync.aligned.m64nNk16.f32.type.type d, a-desc, b-desc, scale-d, 1, 1, trans-a, trans-b.

    D[64, n] = A[64, k] B[k, n] (+ D where scale_d), both operands in shared memory. `registers` are the addresses of the
    n / 2 accumulators. Descriptors must be the same in all threads of the warpgroup.
    """
    if not _whole_warps(g, place):
        return
    columns = tuple(register_columns(g, r, 4) for r in registers)
    shape = Shape(n, k, in_dtype, trans_a, trans_b, columns)
    # Until wait_group, they count as being loaded.
    write_registers(g, 4 * np.array(columns)[:, None], 4)
    operands = [np.broadcast_to(np.asarray(v), (g.n,)) for v in (a_desc, b_desc, scale_d)]
    for warp in g.warp_ids():
        lanes = np.flatnonzero(g.lanes >> 5 == warp)
        a, b, accumulate = (v[lanes] for v in operands)
        if any((v != v[0]).any() for v in (a, b, accumulate)):
            _report_divergent(g, place, "its lanes give different matrix descriptors or scale-d")
        pair = int(a[0]), int(b[0])
        try:
            for desc in pair:
                decode_descriptor(desc)
        except BadInput as error:
            raise KernelFault("out-of-bounds", str(error), ENCODE) from None
        _append(g, place, warp, shape, pair, bool(accumulate[0]))


def _append(
    g: Group, place: Place, warp: int, shape: Shape, pair: tuple[int, int], accumulate: bool
) -> None:
    """Add a product to the warp's open group: to its last run, or as the first of a new one."""
    cta, state = g.cta, warp_state(g.cta, warp)
    _check_fence(g, place, warp, state, shape)
    part = None if cta.detector is None else cta.detector.weakest(g, warp)
    last = state.open[-1] if state.open else None
    continues = last is not None and accumulate and last.shape == shape and last.place == place
    if last is None or not continues or not (part is None or (last.part is not None and last.part.same_as(part))):  # fmt: skip
        ticket = past = None
        if cta.detector is not None:
            lanes = np.arange(32 * warp, 32 * warp + 32)
            who = g.agents(lanes)
            queue = ("wgmma", cta.rank, warp)
            ticket = cta.detector.issue(g, 32 * warp, queue, place, who, collective=True)
            past = cta.detector.release(g, restrict(g.knowledge, lanes))
        last = Run(shape, place, accumulate, part, ticket, past)
        state.open.append(last)
        _start_loading(cta, warp, last)
    last.descriptors.append(pair)


def _start_loading(cta: CTA, warp: int, run: Run) -> None:
    columns = run.shape.registers
    start_loading(cta, warp, 4 * min(columns), 4 * max(columns) + 4, run.place)


def _check_fence(g: Group, place: Place, warp: int, state: WarpState, shape: Shape) -> None:
    """Report a product whose registers no wgmma.fence has ordered after the thread's own accesses to them."""
    mine, size = set(shape.registers), (shape.n, shape.k)
    before = state.left.get(shape.registers)
    written = before is not None and (before != _bits(g.cta, warp, shape.registers)).any()
    resized = state.unfenced.get(shape.registers) != size and any(
        other != size and mine.intersection(used) for used, other in state.unfenced.items()
    )
    if not state.fenced:
        why = "there is none before the first one"
    elif written:
        why = "the thread wrote accumulator registers after the last one"
    elif resized:
        why = "one of another shape has used accumulator registers after the last one"
    else:
        why = ""
    if why:
        _report_unfenced(g, place, warp, why)
        state.fence()
    state.unfenced[shape.registers] = size
    # From here on the product changes them.
    state.left = {r: bits for r, bits in state.left.items() if mine.isdisjoint(r)}


def _report_unfenced(g: Group, place: Place, warp: int, why: str) -> None:
    g.cta.report(
        Finding(
            "missing-wgmma-fence",
            f"wgmma.fence orders accesses to registers before wgmma.mma_async, and {why}",
            place=place,
            memory="register",
            what=f"CTA {g.cta.rank_in_grid} warp {warp} executes wgmma.mma_async",
            fix="T.ptx.wgmma.fence() between the last access to the registers and wgmma.mma_async",
        )
    )


def _bits(cta: CTA, warp: int, registers: tuple[int, ...]) -> np.ndarray:
    return cta.frame(RAW[4])[32 * warp : 32 * warp + 32, list(registers)]


@instruction("wgmma.commit_group", synchronises=True, measure="commits")
def wgmma_commit_group(g: Group, place: Place) -> None:
    """wgmma.commit_group.sync.aligned: the warp's products since the last commit become one wgmma-group, perhaps empty."""
    if not _whole_warps(g, place):
        return
    for warp in g.warp_ids():
        state, warpgroup = warp_state(g.cta, warp), warp // WARPS
        number = len(state.committed)
        peers = [warp_state(g.cta, w) for w in range(WARPS * warpgroup, WARPS * (warpgroup + 1))]
        made = [p.committed[number] for p in peers if len(p.committed) > number]
        group = made[0] if made else WgmmaGroup(g.cta, warpgroup, place)
        group.runs[warp], state.open = state.open, []
        state.committed.append(group)
        if made and not _agree(made[0].runs.values()):
            _report_divergent(g, place, "the warps of the warpgroup have issued different products")
            group.done = True  # it cannot be carried out
        elif len(group.runs) == WARPS:
            g.cta.cluster.issue(("wgmma", g.cta.rank, warpgroup), group)


def _agree(several: Any) -> bool:
    """Whether the warps have issued the same products, in the same runs: they are split alike after the same waits."""
    told = [[(r.shape, r.accumulate, r.descriptors) for r in runs] for runs in several]
    return all(runs == told[0] for runs in told)


def _report_divergent(g: Group, place: Place, why: str) -> None:
    g.cta.report(
        Finding(
            "divergent-collective",
            f"{why}; a product is one of the whole warpgroup",
            place=place,
            memory="register",
            what=f"{g} {agree(g, 'executes', 'execute')} {place.mnemonic}",
            fix="let the four warps execute the same wgmma.mma_async with the same descriptors",
        )
    )


class WgmmaWait:
    """A group of threads blocked in wgmma.wait_group."""

    def __init__(self, group: Group, newest: int) -> None:
        self.newest = newest
        self.pending: list[WgmmaGroup] = []
        for warp in group.warp_ids():
            state = warp_state(group.cta, warp)
            self.pending += state.committed[state.waited : max(len(state.committed) - newest, 0)]
        self.groups = Awaited(self.pending)

    def ready(self) -> bool:
        """The awaited groups have landed."""
        return self.groups.landed()

    def finish(self, g: Group) -> None:
        """The threads know that the groups are done; the registers of those may be used."""
        cta = g.cta
        for warp in g.warp_ids():
            state = warp_state(cta, warp)
            end = max(len(state.committed) - self.newest, state.waited)
            finished, state.waited = state.committed[state.waited : end], end
            unfinished = [r for group in state.committed[end:] for r in group.runs[warp]]
            unfinished += state.open
            cta.loading.pop(warp, None)
            for run in unfinished:
                _start_loading(cta, warp, run)
            in_flight = {r for run in unfinished for r in run.shape.registers}
            for group in finished:
                for run in group.runs[warp]:
                    registers = run.shape.registers
                    if in_flight.isdisjoint(registers):
                        state.left[registers] = _bits(cta, warp, registers).copy()
        if cta.detector is not None:
            runs = [
                (p.warpgroup, r) for p in self.pending for some in p.runs.values() for r in some
            ]
            products_done(cta.detector, g, [(w, r.ticket, r.past) for w, r in runs])
            warps_meet(cta.detector, g)

    def describe(self) -> str:
        """How many groups are missing, and why."""
        missing = [group for group in self.pending if not group.done]
        absent = [group for group in missing if len(group.runs) < WARPS]
        if absent:
            return f"wgmma.wait_group for a group that only {len(absent[0].runs)} of {WARPS} warps have committed"
        return f"wgmma.wait_group for {len(missing)} groups in flight"


@instruction("wgmma.wait_group", waits=True, synchronises=True)
def wgmma_wait_group(g: Group, place: Place, newest: int) -> WgmmaWait | None:
    """wgmma.wait_group.sync.aligned N: wait until at most the N newest wgmma-groups of the warp are pending.

    Completion implies a generic-async proxy fence.
    """
    if not _whole_warps(g, place):
        return None
    wait = WgmmaWait(g, newest)
    return begun(g, wait)
