"""Generic operators on constants and state: counts, columns, parities, stages, phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...frontend.tirx.edit import expressions as nodes
from ...frontend.tirx.edit.code import Code, Edit, Statement
from .. import sites
from ..example import Example
from ..fault import fault
from .order import synchronising

Steps = Callable[[int], tuple[int, ...]]


def by_one(value: int) -> tuple[int, ...]:
    """One more, one less."""
    return value + 1, value - 1


def by_two(value: int) -> tuple[int, ...]:
    """Twice, half."""
    return 2 * value, value // 2


COUNTS: dict[str, tuple[int, Steps]] = {
    "ptx.mbarrier_init": (1, by_one),
    "ptx.mbarrier_arrive_expect_tx": (1, by_two),
    "ptx.mbarrier_expect_tx": (1, by_two),
    "ptx.tcgen05_alloc": (1, by_two),
    "ptx.tcgen05_dealloc": (1, by_two),
    "ptx.bar_sync": (1, by_two),
}
"""Which argument of an intrinsic is a number of arrivals, bytes, columns or threads, and its next legal values."""


@fault(
    "step-count",
    "A number of arrivals, bytes, columns or threads is one step larger or smaller.",
    kind="mutation",
    example=Example("T.ptx.mbarrier.init(..., 1)", "T.ptx.mbarrier.init(..., 2)"),
)
def step_count(code: Code) -> Iterator[Edit]:
    for s in code.named(*COUNTS):
        i, steps = COUNTS[s.name]
        value = nodes.integer(s.args[i])
        for other in () if value is None else steps(value):
            yield code.replace(s, nodes.with_argument(s, i, other))


@fault(
    "flip-parity",
    "A wait uses the other parity.",
    kind="mutation",
    example=Example(
        "T.ptx.mbarrier.try_wait(..., phase_mma)",
        "T.ptx.mbarrier.try_wait(..., T.bitwise_xor(phase_mma, 1))",
    ),
)
def flip_parity(code: Code) -> Iterator[Edit]:
    for s in code.named(*sites.WAITS):
        yield code.replace(s, nodes.with_argument(s, 1, nodes.flipped(s.args[1])))


@fault(
    "flip-initial-phase",
    "A phase begins with the other value.",
    kind="mutation",
    example=Example("phase_mma: T.int32 = 0", "phase_mma: T.int32 = 1"),
)
def flip_initial_phase(code: Code) -> Iterator[Edit]:
    for s in sites.initial_phases(code):
        value = nodes.number(s.node.value, 1 - int(s.node.value))
        yield code.replace(s, nodes.with_value(s, value))


@fault(
    "step-stage",
    "An instruction or a TMA load names the next barrier instead of its own.",
    kind="mutation",
    example=Example(
        "T.ptx.mbarrier.init(T.address_of(mma_bar[0]), 1)",
        "T.ptx.mbarrier.init(T.address_of(mma_bar[1]), 1)",
    ),
)
def step_stage(code: Code) -> Iterator[Edit]:
    for s in synchronising(code):
        if s.name.startswith(("ptx.mbarrier_", "ptx.tcgen05_commit")):
            address = nodes.moved_element(s.args[0], 1)
            if address is not None:
                yield code.replace(s, nodes.with_argument(s, 0, address))
    for s in sites.tma_loads(code):
        address = nodes.moved_element(s.node.config["mbar"], 1)
        if address is not None:
            yield code.replace(s, nodes.with_barrier(s, address))


@fault(
    "drop-state-update",
    "A phase or stage is not set, or not updated.",
    kind="mutation",
    example=Example("phase_mma: T.int32 = 0", "phase_mma: T.int32"),
)
def drop_state_update(code: Code) -> Iterator[Edit]:
    return map(code.remove, sites.state_stores(code))


@fault(
    "double-state-update",
    "A phase or stage is updated twice.",
    kind="mutation",
    example=Example(
        "phase_mma = T.bitwise_xor(phase_mma, 1)",
        """
        phase_mma = T.bitwise_xor(phase_mma, 1)
        phase_mma = T.bitwise_xor(phase_mma, 1)
        """,
    ),
)
def double_state_update(code: Code) -> Iterator[Edit]:
    for s in updates(code):
        yield code.double(s)


@fault(
    "reorder-state-update",
    "A phase or stage is updated one statement too early or too late.",
    kind="mutation",
    example=Example(
        """
        T.ptx.mbarrier.try_wait(...)
        phase_mma = T.bitwise_xor(phase_mma, 1)
        """,
        """
        phase_mma = T.bitwise_xor(phase_mma, 1)
        T.ptx.mbarrier.try_wait(...)
        """,
    ),
)
def reorder_state_update(code: Code) -> Iterator[Edit]:
    found = updates(code)
    for s in found:
        before, after = code.previous(s), code.next(s)
        if before is not None:
            yield code.move_before(s, before)
        if after is not None and after not in found:  # else it is the mutant of the other one
            yield code.move_after(s, after)


def updates(code: Code) -> list[Statement]:
    """Stores that compute a phase or stage from its last value."""
    return [s for s in sites.state_stores(code) if sites.is_update(s)]
