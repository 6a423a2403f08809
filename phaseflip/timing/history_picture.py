"""A kernel's recorded times over its commits, as a picture: for each shape the time, and its ratio to cuBLAS's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from phaseflip.errors import BadInput
from phaseflip.timing.baselines import Entry, Recorded

FORMATS = (".png", ".svg", ".pdf")
_OURS, _CUBLAS = "#1f5fa8", "#8a8a8a"
_PANEL_INCHES = (3.6, 2.4)


@dataclass(frozen=True)
class Step:
    """One point of the picture: the record that it is from, and its times."""

    recorded: Recorded
    entry: Entry

    @property
    def label(self) -> str:
        """Commit and date."""
        return f"{self.recorded.commit[:7]}\n{self.recorded.time:%Y-%m-%d}"


def steps(recorded: Iterable[Recorded], kernel: str) -> dict[str, list[Step]]:
    """The records of a kernel by shape, oldest first. BadInput if there are none."""
    found: dict[str, list[Step]] = {}
    others: dict[str, None] = {}
    for record in recorded:
        for entry in record.entries.values():
            others[entry.kernel] = None
            if entry.kernel == kernel:
                name = f"{'x'.join(map(str, entry.shape))}, {entry.l2} L2"
                found.setdefault(name, []).append(Step(record, entry))
    if not found:
        raise BadInput(f"there are no times of {kernel}, only of {', '.join(others) or 'nothing'}")
    return dict(sorted(found.items(), key=lambda pair: (pair[1][0].entry.shape, pair[0])))


def draw(shapes: Mapping[str, Sequence[Step]], title: str, file: str | Path) -> None:
    """Draw a column for each shape: medians with their quartiles, ratios with their intervals. BadInput if FILE is bad."""
    path = Path(file)
    if path.suffix.lower() not in FORMATS:
        raise BadInput(
            f"{str(file)!r} must end in {', '.join(FORMATS)}, which says what kind of picture"
        )
    from matplotlib.figure import Figure  # not pyplot, which looks for a display

    width, height = _PANEL_INCHES
    figure = Figure(figsize=(1 + width * len(shapes), 1 + 2 * height), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, len(shapes), squeeze=False, sharex="col")
    crowded = max(map(len, shapes.values())) > 4
    for column, (name, found) in enumerate(shapes.items()):
        _times(axes[0][column], found)
        _ratios(axes[1][column], found)
        axes[0][column].set_title(name, fontsize="medium")
        axes[1][column].set_xticks(range(len(found)), [s.label for s in found], fontsize="small")
        axes[1][column].tick_params(axis="x", rotation=90 if crowded else 0)
        axes[1][column].set_xlim(-0.5, len(found) - 0.5)
    axes[0][0].set_ylabel("us a launch (bar: quartiles)")
    axes[1][0].set_ylabel("time / cuBLAS's (bar: 99%)")
    axes[0][0].legend(frameon=False, fontsize="small")
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}") from error


def _times(axis: Any, found: Sequence[Step]) -> None:
    kernel = found[0].entry.kernel
    for label, colour, rounds in (
        ("cuBLAS", _CUBLAS, [s.entry.cublas_us for s in found]),
        (kernel, _OURS, [s.entry.rounds_us for s in found]),
    ):
        low, middle, high = np.array([np.percentile(r, [25, 50, 75]) for r in rounds]).T
        _points(axis, low, middle, high, colour, label)
    axis.margins(y=0.1)  # room for the bars
    axis.set_ylim(bottom=0)
    _grid(axis)


def _ratios(axis: Any, found: Sequence[Step]) -> None:
    ratios = [s.entry.to_cublas for s in found]
    low, middle, high = np.array([(r.low, r.ratio, r.high) for r in ratios]).T
    _points(axis, low, middle, high, _OURS, "")
    axis.axhline(1.0, color=_CUBLAS, linewidth=1)
    _grid(axis)


def _points(
    axis: Any, low: np.ndarray, middle: np.ndarray, high: np.ndarray, colour: str, label: str
) -> None:
    bars = np.array([middle - low, high - middle])
    x = np.arange(len(middle))
    axis.errorbar(x, middle, bars, color=colour, label=label, marker="o", markersize=4, capsize=3)


def _grid(axis: Any) -> None:
    axis.grid(axis="y", alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
