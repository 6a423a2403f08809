"""verify: one run and its verdict, from the oracles and from what the run itself found."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import phaseflip.run.simulator
from phaseflip.errors import BadInput
from phaseflip.findings.finding import Finding, Place
from phaseflip.gemm.kernel import Kernel, find_kernel
from phaseflip.gemm.verify import replay_line, verify
from phaseflip.run.simulator import Run

SHAPE = (128, 128, 64)


@pytest.fixture
def v1() -> Kernel:
    return find_kernel("hgemm_v1")


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`outcome(change, findings)`: simulation gives the right D after `change(D)`, and findings."""

    def install(change: Any = lambda D: None, findings: tuple[Finding, ...] = ()) -> None:
        def simulate(kernel: Any, inputs: Any, schedule: str, **options: Any) -> Run:
            A, B, D = inputs
            D = (A.astype(np.float32) @ B.astype(np.float32).T).astype(np.float16)
            change(D)
            seconds = dict.fromkeys(("lower", "translate", "simulate"), 0.0)
            stopped = any(finding.code == "deadlock" for finding in findings)
            outputs = {"A": A, "B": B, "D": D}
            return Run(outputs, list(findings), {"bar.sync": 1}, seconds, schedule, stopped)

        monkeypatch.setattr(phaseflip.run.simulator, "simulate", simulate)

    return install


def spoil(D: np.ndarray) -> None:
    D[3, 5] += 1


def leave_out(D: np.ndarray) -> None:
    D.view(np.uint16)[7, 0] = 0x7DAB


def codes(verdict: Any) -> list[str]:
    return [finding.code for finding in verdict.findings]


def test_right_result(v1: Kernel, outcome: Any) -> None:
    outcome()
    verdict = verify(v1, *SHAPE, seed=4, inputs="integers", gate="all")
    assert verdict.passed and verdict.findings == [] and verdict.max_abs_error == 0
    assert [(r.name, r.passed) for r in verdict.oracles] == [
        (name, True) for name in ("tolerance", "bound", "exact", "unwritten-output")
    ]
    assert "passed" in verdict.message and "\n" not in verdict.message


def test_a_wrong_result_is_a_finding_at_the_factory(v1: Kernel, outcome: Any) -> None:
    outcome(spoil)
    verdict = verify(v1, *SHAPE)
    assert not verdict.passed and codes(verdict) == ["wrong-result"]
    finding = verdict.to_json()["findings"][0]
    assert Path(finding["file"]).name == "hgemm_v1.py" and finding["line"] > 0
    assert "D[3, 5]" in finding["message"]


def test_an_unwritten_element_is_a_finding_beside_the_wrong_result(
    v1: Kernel, outcome: Any
) -> None:
    outcome(leave_out)
    assert codes(verify(v1, *SHAPE)) == ["wrong-result", "unwritten-output"]


def test_what_stopped_the_run_leaves_no_second_finding_for_the_result(
    v1: Kernel, outcome: Any
) -> None:
    place = Place("mbarrier.try_wait", "k.py", 9)
    outcome(leave_out, (Finding("deadlock", "nobody arrives", place=place),))
    verdict = verify(v1, *SHAPE)
    assert not verdict.passed and codes(verdict) == ["deadlock"]
    assert verdict.oracle("unwritten-output").passed is False
    assert verdict.oracle("bound").passed is False
    assert "deadlock" in verdict.message and "k.py:9" in verdict.message


def test_an_error_in_the_run_fails_a_right_result_and_a_note_does_not(
    v1: Kernel, outcome: Any
) -> None:
    outcome(findings=(Finding("race", "unordered"),))
    assert not verify(v1, *SHAPE).passed
    outcome(findings=(Finding("race", "unordered", "note"),))
    verdict = verify(v1, *SHAPE)
    assert verdict.passed and codes(verdict) == ["race"]
    outcome(spoil, findings=(Finding("race", "unordered"),))
    assert codes(verify(v1, *SHAPE)) == ["race", "wrong-result"]
    outcome(spoil, findings=(Finding("race", "unordered", "note"),))
    assert codes(verify(v1, *SHAPE)) == ["race", "wrong-result"]


def test_the_gate_decides(v1: Kernel, outcome: Any) -> None:
    def nudge(D: np.ndarray) -> None:  # by more than the bound, and less than the tolerance
        D[...] = (D.astype(np.float32) * 1.005).astype(np.float16)

    outcome(nudge)
    assert verify(v1, *SHAPE, gate="tolerance").passed
    assert not verify(v1, *SHAPE, gate="bound").passed
    assert not verify(v1, *SHAPE, gate="all").passed
    with pytest.raises(BadInput, match="exact gate cannot judge inputs 'normal'"):
        verify(v1, *SHAPE, gate="exact")
    with pytest.raises(BadInput, match="unknown gate 'luck'; known are bound"):
        verify(v1, *SHAPE, gate="luck")


def test_bad_names_are_refused_before_the_kernel_is_lowered(
    v1: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any) -> Any:
        raise AssertionError("lowered")

    monkeypatch.setattr("phaseflip.gemm.verify.lowered", refuse)
    with pytest.raises(BadInput, match="lazily"):
        verify(v1, *SHAPE, schedule="lazily")
    with pytest.raises(BadInput, match="odd"):
        verify(v1, *SHAPE, inputs="odd")
    with pytest.raises(BadInput, match="seed"):
        verify(v1, *SHAPE, seed=-1)


def test_a_failure_ends_with_its_replay_line(v1: Kernel, outcome: Any) -> None:
    outcome(spoil)
    verdict = verify(v1, *SHAPE, seed=9, schedule="random:3", inputs="integers+permute-a:2")
    last = verdict.message.splitlines()[-1]
    assert last == f"replay: {verdict.replay}"
    assert verdict.replay == (
        "python -m phaseflip run hgemm_v1 128 128 64"
        " --seed 9 --schedule random:3 --inputs integers+permute-a:2"
    )


@pytest.mark.parametrize(
    "path", ["a b/k.py:f", "$HOME/k.py:f", "it's.py:f", 'a";rm -r x.py:f', "k"]
)
def test_replay_lines_are_quoted_for_a_shell(path: str) -> None:
    line = replay_line(path, *SHAPE, seed=0, schedule="lazy", inputs="normal")
    assert shlex.split(line)[3:8] == ["run", path, "128", "128", "64"]
    assert shlex.split(line)[8:] == ["--seed", "0", "--schedule", "lazy"]
