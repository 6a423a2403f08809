"""What each version of a kernel does for the same work: its counters side by side.

A kernel that does not take the shape runs at the nearest one that it takes. So the table gives counts per unit of work: a
128 x 128 x 64 block of the product, which every kernel computes in one piece or as part of a larger one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .. import machine
from ..ir.instruction import REGISTRY
from .kernel import Kernel
from .verify import verify

BLOCK = (128, 128, 64)
_ROWS = (
    "bulk copies", "MMA instructions", "commits", "mbarrier waits", "CTA barriers", "cluster barriers", "TMEM loads",
)  # fmt: skip
"""In this order, then those of other instructions."""


def _measures() -> dict[str, tuple[str, ...]]:
    measures: dict[str, tuple[str, ...]] = {
        "bytes global -> shared": ("bytes_global_to_shared",),
        "bytes shared -> global": ("bytes_shared_to_global",),
        "bytes loaded by threads": ("bytes_global_loaded", "bytes_shared_loaded"),
        "bytes stored by threads": ("bytes_global_stored", "bytes_shared_stored"),
    }
    machine.load()
    measures |= dict.fromkeys(_ROWS, ())
    for mnemonic, definition in REGISTRY.items():
        if row := definition.traits.measure:
            measures[row] = (*measures.get(row, ()), mnemonic)
    return measures


MEASURES = _measures()
"""Row of the table -> counters that it adds up; instructions, by their trait `measure`, are counted by warp."""


@dataclass(frozen=True)
class Column:
    """One kernel: the shape it ran at, whether the result was right, and its counters in all."""

    kernel: str
    shape: tuple[int, int, int]
    passed: bool
    counters: dict[str, int]

    @property
    def blocks(self) -> int:
        """Blocks of work in the shape."""
        m, n, k = (extent // unit for extent, unit in zip(self.shape, BLOCK, strict=True))
        return m * n * k

    def per_block(self, measure: str) -> float:
        """A row of the table: counts per block of work."""
        return sum(self.counters.get(name, 0) for name in MEASURES[measure]) / self.blocks


def compare(
    kernels: Sequence[Kernel],
    shape: tuple[int, int, int],
    progress: Callable[[int, int], None] | None = None,
) -> list[Column]:
    """Run every kernel on small integers, unchecked, at (M, N, K) or the nearest shape it takes, all multiples of BLOCK.

    progress: called with kernels done and in all, before each run.
    """
    columns = []
    for done, kernel in enumerate(kernels):
        if progress is not None:
            progress(done, len(kernels))
        rule = kernel.shape_rule
        legal = shape if rule is None else rule.nearest(*shape)
        verdict = verify(kernel, *legal, inputs="integers", checks="none", gate="all")
        columns.append(Column(kernel.name, legal, verdict.passed, dict(verdict.run.counters)))
    return columns
