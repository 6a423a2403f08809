"""Times of a kernel on a GPU, by the field's protocol: right first, warm, CUDA events, rounds, median and spread.

A round is a number of launches between two events, so that the gap between launches counts as it does in use. Rounds of
the candidates are interleaved, each candidate once a round, in an order that changes: what drifts, drifts for all. The L2
cache is warm (the same operands every time) or cold (512 MiB are written before each launch, and each is timed alone).
"""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from phaseflip.gpu.devices import gpu_uuid

WARM_UP_ROUNDS = 10
MOST_WARM_UP_ROUNDS = 200
DRIFT = 0.02
ROUND_SECONDS = 0.01
FLUSH_BYTES = 512 << 20
Launch = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Times of one candidate, in microseconds a launch: of each round, their median, and the quartiles' distance."""

    name: str
    rounds_us: tuple[float, ...]
    launches_per_round: int
    flops: float = 0.0

    @property
    def median_us(self) -> float:
        """Median over rounds."""
        return statistics.median(self.rounds_us)

    @property
    def spread(self) -> float:
        """Distance of the quartiles, as a part of the median."""
        low, high = np.percentile(self.rounds_us, [25, 75])
        return float(high - low) / self.median_us

    @property
    def tflops(self) -> float:
        """2 M N K / t, in 10^12 a second."""
        return self.flops / self.median_us / 1e6

    def to_json(self) -> dict[str, Any]:
        """What is stored of it."""
        derived = {"median_us": self.median_us, "spread": self.spread, "tflops": self.tflops}
        return asdict(self) | derived


@dataclass(frozen=True)
class Ratio:
    """Time of a candidate over that of a reference: the median of the rounds' ratios, and its bootstrap interval."""

    ratio: float
    low: float
    high: float
    confidence: float = 0.99

    def is_slower(self, threshold: float) -> bool:
        """Whether the candidate is slower by more than `threshold` (0.03 = 3%), beyond doubt."""
        return self.low > 1.0 + threshold


@dataclass
class Machine:
    """Where times were taken: the GPU, its driver, PyTorch and its CUDA (whose cuBLAS is timed).

    `limits` are nvidia-smi's fixed values, `state` those of the moment.
    """

    gpu: str
    driver: str
    cuda: str
    torch: str = ""
    limits: dict[str, str] = field(default_factory=dict)
    state: dict[str, str] = field(default_factory=dict)


def measure(
    candidates: Mapping[str, Launch],
    rounds: int = 30,
    flops: float = 0.0,
    cold: bool = False,
    seed: int = 0,
) -> dict[str, Timing]:
    """Time candidates against each other: interleaved rounds after a warm-up that ends when times stop drifting."""
    import torch

    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if cold else None
    launches = {}
    for name, launch in candidates.items():
        launches[name] = 1 if cold else _launches_per_round(launch)
        _warm_up(launch, launches[name])
    order = np.random.default_rng(seed)
    names = list(candidates)
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for index in order.permutation(len(names)):
            name = names[index]
            if flush is not None:
                flush.fill_(1)
            times[name].append(_round_us(candidates[name], launches[name]))
    return {name: Timing(name, tuple(times[name]), launches[name], flops) for name in names}


def _round_us(launch: Launch, launches: int) -> float:
    """Microseconds a launch, over one round."""
    import torch

    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(launches):
        launch()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e3 / launches


def _launches_per_round(launch: Launch) -> int:
    """As many as take ROUND_SECONDS."""
    launch()
    one = min(_round_us(launch, 3) for _ in range(3))
    return max(1, min(1000, round(ROUND_SECONDS * 1e6 / one)))


def _warm_up(launch: Launch, launches: int) -> None:
    """Until the medians of two batches of rounds agree within DRIFT."""
    before = float("inf")
    for _ in range(MOST_WARM_UP_ROUNDS // WARM_UP_ROUNDS):
        now = statistics.median(_round_us(launch, launches) for _ in range(WARM_UP_ROUNDS))
        if abs(now - before) <= DRIFT * now:
            return
        before = now


def compare(
    candidate: Sequence[float],
    reference: Sequence[float],
    confidence: float = 0.99,
    samples: int = 4000,
    seed: int = 0,
) -> Ratio:
    """The ratio of two timings whose rounds were interleaved, with a percentile bootstrap over rounds."""
    ratios = np.asarray(candidate, float) / np.asarray(reference, float)
    drawn = _medians(ratios, samples, np.random.default_rng(seed))
    return _ratio(float(np.median(ratios)), drawn, confidence)


def change(
    now: tuple[Sequence[float], Sequence[float]],
    before: tuple[Sequence[float], Sequence[float]],
    confidence: float = 0.99,
    samples: int = 4000,
    seed: int = 0,
) -> Ratio:
    """How a candidate's ratio to its reference has changed between two sessions, each (candidate, reference).

    The rounds of the two sessions have nothing in common, so each is drawn by itself; what clocks and temperature do
    to both kernels of a session alike cancels. What they do to the two differently is in no interval.
    """
    rng = np.random.default_rng(seed)
    ratios = [np.asarray(c, float) / np.asarray(r, float) for c, r in (now, before)]
    drawn = _medians(ratios[0], samples, rng) / _medians(ratios[1], samples, rng)
    return _ratio(float(np.median(ratios[0]) / np.median(ratios[1])), drawn, confidence)


def _medians(ratios: np.ndarray, samples: int, rng: np.random.Generator) -> np.ndarray:
    """Medians of so many resamples of the rounds."""
    return np.median(ratios[rng.integers(0, len(ratios), (samples, len(ratios)))], axis=1)


def _ratio(ratio: float, drawn: np.ndarray, confidence: float) -> Ratio:
    low, high = np.percentile(drawn, [50 * (1 - confidence), 50 * (1 + confidence)])
    return Ratio(ratio, float(low), float(high), confidence)


_STATE = "clocks.sm,clocks.mem,temperature.gpu,power.draw,clocks_event_reasons.active"
_LIMITS = "clocks.max.sm,clocks.max.mem,power.limit"


def this_machine() -> Machine:
    """The first GPU that CUDA sees, its driver, and its clocks and temperature now."""
    import torch

    uuid = gpu_uuid()
    limits, state = (
        dict(zip(query.split(","), _nvidia_smi(query, uuid).split(", "), strict=False))
        for query in (_LIMITS, _STATE)
    )
    return Machine(
        torch.cuda.get_device_name(0),
        _nvidia_smi("driver_version", uuid),
        str(torch.version.cuda),
        str(torch.__version__),
        limits,
        state,
    )


def _nvidia_smi(query: str, uuid: str) -> str:
    """The GPU's values, or "unknown" where nvidia-smi cannot be asked. Its numbers are not CUDA's, so it gets a UUID."""
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "-i", uuid]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
