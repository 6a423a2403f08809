"""Times on a GPU and the gates on them, with an H200 that is made up (fake_gpu.py): the code is that of a real run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phaseflip.cli.main import main as cli
from phaseflip.gpu import lock as gpu_lock
from phaseflip.gpu import runtime as cuda_runtime
from phaseflip.gpu.devices import Gpu
from phaseflip.timing import kernel_times as gpu_timing
from phaseflip.timing.baselines import find_baseline, history
from regression import test_gpu_performance
from tests import fake_gpu
from tests.fake_gpu import SHAPE, kernel

ROOT = Path(__file__).resolve().parent.parent
H200 = Gpu("NVIDIA H200", (9, 0))
WORDS = ["benchmark", "mine", *map(str, SHAPE)]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.delenv(
        "PYTEST_XDIST_WORKER", raising=False
    )  # pytest-benchmark times no worker's tests
    fake_gpu.install(monkeypatch)


def benchmark(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = cli.main([*WORDS, *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


# --- the command benchmark -------------------------------------------------------------------------


def test_a_kernel_is_timed_beside_cublas(
    gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel(tmp_path / "new", 115.0)
    code, report = benchmark(capsys, "--prebuilt", str(tmp_path / "new"))
    assert code == cli.CLEAN and "against" not in report
    assert [t["name"] for t in report["timings"]] == ["mine", "cuBLAS"]
    low, high = report["ratio_to_cublas"][1:]
    assert low < 1.15 < high and high - low < 0.03


@pytest.mark.parametrize(
    ("us", "threshold", "slower"),
    [(105.0, "0.03", True), (100.0, "0.03", False), (102.0, "0.03", False), (102.0, "0", True), (90.0, "0", False)],
)  # fmt: skip
def test_the_gate_against_an_earlier_build(
    gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    us: float, threshold: str, slower: bool,
) -> None:  # fmt: skip
    kernel(tmp_path / "old", 100.0)
    kernel(tmp_path / "new", us)
    words = ("--prebuilt", str(tmp_path / "new"), "--against", str(tmp_path / "old"))
    code, report = benchmark(capsys, *words, "--threshold", threshold)
    against = report["against"]
    assert code == (cli.FAILED if slower else cli.CLEAN)
    assert against["slower"] is slower and against["threshold"] == float(threshold)
    assert against["commit"] == fake_gpu.COMMIT
    ratio, low, high = against["ratio"]
    assert low <= ratio <= high and ratio == pytest.approx(us / 100, abs=0.01)
    assert [t["name"] for t in report["timings"]] == ["mine", "old", "cuBLAS"]
    assert cli.main([*WORDS, *words, "--threshold", threshold]) == code
    said = capsys.readouterr().out
    assert ("SLOWER by more than" in said) is slower and "of the earlier build's time" in said


def test_a_wrong_kernel_is_not_timed(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FAKE_WRONG", "1")
    kernel(tmp_path / "new", 100.0)
    assert cli.main([*WORDS, "--prebuilt", str(tmp_path / "new")]) == cli.FAILED
    assert "FAILED, so it is not timed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--threshold", "3"], "'3' is not a part such as 0.03"),
        (["--threshold", "nan"], "'nan' is not a part"),
        (["--rounds", "1"], "--rounds: 1 is not 3"),
        (["--against", "none"], "there is no folder none"),
    ],
)
def test_bad_words(
    gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    kernel(tmp_path / "new", 100.0)
    assert cli.main([*WORDS, "--prebuilt", str(tmp_path / "new"), *words]) == cli.BAD_INPUT
    assert sentence in capsys.readouterr().err


def test_the_gpu_is_held_alone_while_times_are_taken(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phaseflip.errors import BadInput

    held: list[bool] = []

    def round_us(launch: Any, launches: int) -> float:
        if not held:
            with pytest.raises(BadInput), gpu_lock.shared(limit_s=0.0):
                pass
            held.append(True)
        return fake_gpu.round_us(launch, launches)

    monkeypatch.setattr("phaseflip.timing.rounds._round_us", round_us)
    gpu_timing.time_kernel(kernel(tmp_path / "new", 100.0), rounds=3)
    with gpu_lock.exclusive(limit_s=0.0):
        assert held == [True]


def test_a_build_is_launched_before_the_next_is_loaded(
    gpu: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TVM's runtime asks for machine code by the source: two builds of one source must not wait for it together."""
    order: list[str] = []

    def load(library: str, *_: str) -> dict[str, Any]:
        name = Path(library).parent.name
        order.append(f"load {name}")

        def main(*_: Any) -> float:
            order.append(f"launch {name}")
            return 100.0

        return {"main": main}

    monkeypatch.setattr(cuda_runtime, "load", load)
    new, old = kernel(tmp_path / "new", 100.0), kernel(tmp_path / "old", 100.0)
    gpu_timing.time_kernel(new, old, rounds=3)
    assert order[:4] == ["load new", "launch new", "load old", "launch old"]


# --- the suite with baselines ------------------------------------------------------------------------


WITHOUT = ("phaseflip.pytest_plugin", "hypothesispytest", "xdist", "cacheprovider")
"""Plugins that would set for this process, in which the suite runs, what is set already."""


@pytest.fixture
def suite(pytester: pytest.Pytester, gpu: None, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """regression/test_gpu_performance.py in a project of its own, on the made-up H200."""
    # This process may have collected the original already, under the name of the copy.
    monkeypatch.delitem(sys.modules, "test_gpu_performance", raising=False)
    pytester.makeconftest(
        """
        pytest_plugins = ["phaseflip.pytest_plugin.baselines"]

        def pytest_addoption(parser):
            parser.addoption("--device", default="auto")
            parser.addoption("--prebuilt")
        """
    )
    pytester.mkdir("regression")
    shutil.copy(ROOT / "regression" / "test_gpu_performance.py", pytester.path / "regression")
    kernel(pytester.path / "built", 115.0)
    kernel(pytester.path / "built", 230.0, "other")
    return pytester


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    without = [word for name in WITHOUT for word in ("-p", f"no:{name}")]
    return suite.runpytest_inprocess(
        *without, "-W", "error", "--benchmark-only", "--prebuilt", "built", *words
    )


def test_a_baseline_is_recorded_compared_and_replaced(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(suite)
    first.assert_outcomes(errors=2)
    first.stdout.fnmatch_lines(["*no baseline for NVIDIA H200 (*nvidia-h200.json); --update-*"])
    run(suite, "--update-baselines").assert_outcomes(passed=2)
    directory = suite.path / "regression" / "baselines"
    assert sorted(f.name for f in directory.iterdir()) == ["nvidia-h200.json"]

    recorded = find_baseline(directory, "NVIDIA H200")
    assert recorded.commit == fake_gpu.COMMIT["id"] and recorded.gpu["driver"] == "580.1"
    entry = recorded.entries["mine", SHAPE, "warm"]
    assert len(entry.rounds_us) == len(entry.cublas_us) == 30
    assert entry.to_cublas.low < 1.15 < entry.to_cublas.high
    data = json.loads(recorded.file.read_text())
    assert "node" not in data["machine_info"] and data["commit_info"]["project"] == "phaseflip"
    benchmark = data["benchmarks"][0]
    assert benchmark["fullname"].endswith("test_time[mine-128x256x64]")
    assert 1e6 * benchmark["stats"]["median"] == pytest.approx(115, rel=0.1)
    assert benchmark["options"]["timer"] == "cuda_events"

    same = run(suite)
    same.assert_outcomes(passed=2)
    same.stdout.fnmatch_lines(
        ["phaseflip: mine 128x256x64 (warm L2): 1.1* in the baseline of ab12*"]
    )
    kernel(suite.path / "built", 115.0 * 1.05)
    slower = run(suite)
    slower.assert_outcomes(passed=1, failed=1)
    slower.stdout.fnmatch_lines(["*mine 128x256x64*slower by more than 3.0%"])
    run(suite, "--baseline-threshold", "0.1").assert_outcomes(passed=2)

    before = recorded.file.read_text()
    subset = run(suite, "--update-baselines", "-k", "mine")
    assert subset.ret == pytest.ExitCode.TESTS_FAILED
    subset.stdout.fnmatch_lines(["phaseflip: *has times of other 128x256x64*not taken now*"])
    monkeypatch.setenv("FAKE_WRONG", "1")
    wrong = run(suite, "--update-baselines")
    wrong.assert_outcomes(failed=2)
    wrong.stdout.fnmatch_lines(["phaseflip: not everything passed, so the baseline is as it was"])
    assert recorded.file.read_text() == before and len([*directory.iterdir()]) == 1
    monkeypatch.delenv("FAKE_WRONG")
    run(suite, "--update-baselines").assert_outcomes(passed=2)
    kept = history(directory, "NVIDIA H200")
    assert len(kept) == 2 and kept[0].file.name.startswith("0001_ab12")
    assert kept[0].file.read_text() == before


@pytest.mark.parametrize(
    ("fact", "value", "line", "refused"),
    [
        ("DRIVER", "590.1", "*of another machine: driver is 590 here and 580 there; --update*", True),
        ("CUDA", "12.8", "*another machine: PyTorch's CUDA is 12.8 here and 13.0 there;*", True),
        ("DRIVER", "580.2", "phaseflip: the baseline compares, but driver is 580.2 here*", False),
    ],
)  # fmt: skip
def test_another_machine(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch,
    fact: str, value: str, line: str, refused: bool,
) -> None:  # fmt: skip
    run(suite, "--update-baselines").assert_outcomes(passed=2)
    monkeypatch.setenv(f"FAKE_{fact}", value)
    result = run(suite)
    result.assert_outcomes(**({"errors": 2} if refused else {"passed": 2}))
    result.stdout.fnmatch_lines([line])


@pytest.mark.parametrize(
    ("options", "worker", "reason"),
    [
        ({}, False, "a benchmark: run it with -n 0 --benchmark-only"),
        ({"--benchmark-only": True}, True, "times are not taken in an xdist worker: run it with -n 0"),
        ({"--benchmark-enable": True}, True, "times are not taken in an xdist worker"),
        ({"--benchmark-only": True, "--device": "sim"}, False, "times are taken on a GPU, not with"),
        ({"--benchmark-only": True}, False, ""),
    ],
)  # fmt: skip
def test_who_does_not_time_says_why(
    gpu: None, monkeypatch: pytest.MonkeyPatch, options: Any, worker: bool, reason: str
) -> None:
    config: Any = SimpleNamespace(getoption=options.get, **({"workerinput": {}} if worker else {}))
    monkeypatch.setattr(test_gpu_performance, "first_gpu", lambda: H200)
    said = test_gpu_performance.why_not(config)
    assert said.startswith(reason) and bool(said) is bool(reason)
    monkeypatch.setattr(test_gpu_performance, "first_gpu", lambda: None)
    assert test_gpu_performance.why_not(config)


def test_what_is_timed(tmp_path: Path) -> None:
    kernel(tmp_path, 1.0, "a")
    kernel(tmp_path, 1.0, "b", arch="sm_100a")
    assert test_gpu_performance.cases(H200, str(tmp_path)) == [("a", SHAPE)]
    assert test_gpu_performance.cases(H200, None) == [
        ("hgemm_sm90", (n, n, n)) for n in (2048, 4096, 8192)
    ]
    blackwell = test_gpu_performance.cases(Gpu("B200", (10, 0)), None)
    assert ("hgemm_v1", (128, 128, 64)) in blackwell and ("hgemm_v9", (8192,) * 3) in blackwell
    assert len(blackwell) == len(set(blackwell))


def test_without_a_kernel_that_fits_nothing_is_timed(suite: pytest.Pytester) -> None:
    (suite.path / "empty").mkdir()
    result = run(suite, "-rs", "--prebuilt", "empty")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*no kernel in empty fits NVIDIA H200*"])


def test_the_plugin_brings_the_options_and_without_a_gpu_all_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a user calls it, in a process of its own."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    words = ["-n", "0", "-p", "no:cacheprovider", "--benchmark-only", "--update-baselines"]
    file = "regression/test_gpu_performance.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--device", "sim", file],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0 and "1 skipped" in done.stdout, done.stdout + done.stderr


def test_a_build_with_a_poll_limit_is_not_timed(
    gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel(tmp_path / "new", 100.0)
    (file,) = (tmp_path / "new").glob("*.json")
    file.write_text(file.read_text().replace('"poll_limit_ms": 0', '"poll_limit_ms": 200'))
    assert cli.main([*WORDS, "--prebuilt", str(tmp_path / "new")]) == cli.BAD_INPUT
    assert "with a poll limit, which changes its code; build it without one" in (
        capsys.readouterr().err
    )
