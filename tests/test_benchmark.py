"""The timing protocol on a clock of its own, and the gate on ratios: what it flags and what it lets pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phaseflip.timing import rounds as benchmark
from phaseflip.timing.rounds import Ratio, Timing, compare, measure


class Clock:
    """Launches that take so many microseconds, with noise and with a drift that all share."""

    def __init__(self, noise: float = 0.0, drift: float = 0.0) -> None:
        self.rng = np.random.default_rng(7)
        self.noise, self.drift, self.rounds = noise, drift, 0
        self.order: list[Any] = []

    def round_us(self, launch: Any, launches: int) -> float:
        self.rounds += 1
        self.order.append(launch)
        factor = 1 + self.noise * self.rng.standard_normal() + self.drift * self.rounds
        return float(launch() * factor)


def candidates(monkeypatch: pytest.MonkeyPatch, clock: Clock, **us: float) -> dict[str, Any]:
    monkeypatch.setattr(benchmark, "_round_us", clock.round_us)
    return {name: (lambda t=time: t) for name, time in us.items()}


def test_a_round_lasts_ten_milliseconds_and_the_median_is_of_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launches = candidates(monkeypatch, Clock(), a=200.0, b=50_000.0)
    timed = measure(launches, rounds=5, flops=2.0 * 4096**3)
    assert timed["a"].launches_per_round == 50 and timed["b"].launches_per_round == 1
    assert timed["a"].rounds_us == (200.0,) * 5 and timed["a"].spread == 0.0
    assert timed["a"].tflops == pytest.approx(687.19, abs=0.01)
    assert timed["a"].to_json()["median_us"] == 200.0


def test_rounds_are_interleaved_in_changing_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    launches = candidates(monkeypatch, clock, a=1000.0, b=1000.0)
    measure(launches, rounds=20)
    pairs = np.array(clock.order[-40:], dtype=object).reshape(20, 2)
    assert all({*pair} == {*launches.values()} for pair in pairs.tolist())
    assert {pair[0] for pair in pairs.tolist()} == {*launches.values()}


def test_the_warm_up_goes_on_while_times_drift(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cooling(Clock):
        def round_us(self, launch: Any, launches: int) -> float:
            self.rounds += 1
            return 100.0 * (1 + 10.0 / self.rounds)

    clock = Cooling()
    launches = candidates(monkeypatch, clock, a=100.0)
    benchmark._warm_up(launches["a"], 1)
    assert 40 <= clock.rounds < benchmark.MOST_WARM_UP_ROUNDS


@pytest.mark.parametrize(
    ("slower", "flagged"), [(1.0, False), (1.02, False), (1.05, True), (0.9, False)]
)
def test_the_gate_tells_five_percent_from_noise_and_drift(
    monkeypatch: pytest.MonkeyPatch, slower: float, flagged: bool
) -> None:
    """Rounds vary by 1%, and the clock slows down by a fifth over the run."""
    launches = candidates(monkeypatch, Clock(0.01, 0.002), old=100.0, new=100.0 * slower)
    timed = measure(launches, rounds=30)
    ratio = compare(timed["new"].rounds_us, timed["old"].rounds_us)
    assert ratio.low < slower < ratio.high and ratio.high - ratio.low < 0.03
    assert ratio.is_slower(0.03) is flagged


def test_a_ratio_needs_more_than_its_median_to_be_slower() -> None:
    assert not Ratio(1.05, 1.02, 1.08).is_slower(0.03)
    assert Ratio(1.05, 1.04, 1.06).is_slower(0.03)
    assert Timing("x", (1.0, 2.0, 3.0, 4.0), 1).spread == pytest.approx(0.6)


def test_without_nvidia_smi_the_state_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert benchmark._nvidia_smi("driver_version", "GPU-1") == "unknown"
