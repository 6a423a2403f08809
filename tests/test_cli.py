"""``python -m phaseflip``: reports, exit codes, and one clear sentence for every bad input."""

from __future__ import annotations

import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import phaseflip.gemm.kernel
from phaseflip.cli import main as cli
from phaseflip.cli.progress import ProgressBar
from phaseflip.findings import Finding, render
from phaseflip.gpu import devices
from phaseflip.ir.place import Place

ROOT = Path(__file__).resolve().parent.parent
KERNELS = Path(
    inspect.getfile(phaseflip.gemm.kernel.find_kernel("hgemm_v1").factory)
).parent  # for the installed TVM
KEYS = {
    "kernel", "shape", "schedule", "device", "passed", "max_abs_error", "findings", "counters",
    "seconds", "replay",
}  # fmt: skip


class Output:
    """What one run of the command line left behind."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        """Standard output as strict JSON: one object, no NaN."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("PHASEFLIP_TRACEBACK", raising=False)
    monkeypatch.setattr(devices, "first_gpu", lambda: None)  # one that is here changes what is said

    def run_cli(*words: object) -> Output:
        capsys.readouterr()
        code = cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        return Output(code, captured.out, captured.err)

    return run_cli


def assert_bad_input(output: Output, *fragments: str) -> None:
    """Exit 2, nothing on standard output, one line on standard error that holds `fragments`."""
    assert output.code == 2, output.err
    assert output.out == ""
    assert output.err.count("\n") == 1 and "Traceback" not in output.err
    for fragment in fragments:
        assert fragment in output.err


# --- the command line alone: the run itself is replaced -------------------------------------------


def report(**changes: Any) -> dict[str, Any]:
    return {
        "kernel": "fake",
        "shape": [128, 256, 64],
        "schedule": "in-order",
        "device": "sim",
        "passed": True,
        "max_abs_error": 0.25,
        "findings": [],
        "counters": {"tcgen05.mma": np.int64(4)},
        "seconds": {"lower": 0.5, "translate": 0.25, "simulate": 0.125},
        "replay": "python -m phaseflip run fake 128 256 64 --seed 0 --schedule in-order",
        "oracles": [
            {"name": "bound", "passed": True, "message": "every element within its bound"},
            {"name": "exact", "passed": None, "message": "inputs are not small integers"},
        ],
    } | changes


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`fake(outcome, findings)`: verification returns this report, or raises this exception."""

    def install(
        outcome: dict[str, Any] | BaseException, findings: Sequence[Finding] = ()
    ) -> dict[str, Any]:
        calls: dict[str, Any] = {}

        class Verdict:
            def __init__(self, report: dict[str, Any]) -> None:
                self.report, self.passed, self.findings = report, report["passed"], findings

            def to_json(self) -> dict[str, Any]:
                return self.report

        def verify(kernel: Any, *shape: int, **options: Any) -> Verdict:
            calls.update(options, shape=shape)
            if isinstance(outcome, BaseException):
                raise outcome
            return Verdict(outcome)

        monkeypatch.setattr("phaseflip.gemm.verify.verify", verify)
        kernel = ModuleType("kernel")
        kernel.name = "fake"  # type: ignore[attr-defined]
        monkeypatch.setattr("phaseflip.gemm.kernel.find_kernel", lambda text: kernel)
        return calls

    return install


RUN = ("run", "fake", 128, 256, 64)


def test_report_for_people_names_everything(run: Any, fake: Any) -> None:
    fake(report())
    output = run(*RUN, "--seed", 3)
    assert output.code == 0 and output.err == ""
    assert output.out.splitlines() == [
        "kernel    fake",
        "shape     M 128  N 256  K 64",
        "inputs    normal, seed 3",
        "device    sim",
        "schedule  in-order",
        "verdict   PASSED   max abs error 0.25",
        "findings  none",
        "oracles   bound             passed          every element within its bound",
        "          exact             not applicable  inputs are not small integers",
        "counters  tcgen05.mma                                    4",
        "seconds   lower 0.500  translate 0.250  simulate 0.125",
        "replay    python -m phaseflip run fake 128 256 64 --seed 0 --schedule in-order",
    ]


def test_options_reach_the_run(run: Any, fake: Any) -> None:
    calls = fake(report())
    run(*RUN, "--seed", 7, "--schedule", "random:5", "--inputs", "integers", "--device", "sim")
    expected = {"shape": (128, 256, 64), "seed": 7, "schedule": "random:5", "inputs": "integers"}
    expected |= {
        "progress": None,
        "checks": "all",
        "profile": "ptx",
        "gpu": None,
        "outputs": [],
        "scalars": {},
        "limit": 1000,
    }
    assert calls == expected
    run(*RUN, "--schedule", "explore", "--limit", 9)
    assert (calls["schedule"], calls["limit"]) == ("explore", 9)
    run(*RUN, "--checks", "races,protocol", "--profile", "practice")
    assert (calls["checks"], calls["profile"]) == ("races,protocol", "practice")


def test_json_is_strict_and_holds_the_promised_keys(run: Any, fake: Any) -> None:
    fake(report(max_abs_error=np.float32("inf"), extra=(np.nan, np.arange(2))))
    output = run(*RUN, "--json")
    assert output.code == 0 and output.err == ""
    assert output.json.keys() >= KEYS
    assert output.json["max_abs_error"] is None and output.json["extra"] == [None, [0, 1]]
    assert output.json["counters"] == {"tcgen05.mma": 4}


def test_wrong_result_exits_1(run: Any, fake: Any) -> None:
    fake(report(passed=False))
    assert run(*RUN).code == 1
    assert run(*RUN, "--json").json["passed"] is False


def test_findings_are_rendered_in_full(run: Any, fake: Any) -> None:
    finding = Finding("race", "unordered", "note", Place("st.shared", "k.py", 9), count=3)
    fake(report(findings=[finding.to_json()]), [finding])
    output = run(*RUN)
    assert output.code == 0
    lines = output.out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("findings  note: race"))
    assert [line[10:] for line in lines[start : start + 3]] == render(finding).splitlines()
    assert run(*RUN, "--json").json["findings"] == [finding.to_json()]


def test_harness_error_exits_3_in_one_sentence(
    run: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(KeyError("tile\nnumber"))
    output = run(*RUN)
    assert output.code == 3 and output.out == ""
    assert output.err.count("\n") == 1 and "fault of the harness" in output.err
    assert "Traceback" not in output.err and "--traceback" in output.err
    assert "harness" in run(*RUN, "--json").json["error"]
    assert "Traceback" in run(*RUN, "--traceback").err
    monkeypatch.setenv("PHASEFLIP_TRACEBACK", "1")
    output = run(*RUN, "--json")
    assert output.code == 3 and "Traceback" in output.err and "error" in output.json


def test_interruption_and_lack_of_memory(run: Any, fake: Any) -> None:
    fake(KeyboardInterrupt())
    output = run(*RUN, "--json")
    assert output.code == 130 and "interrupted" in output.json["error"]
    fake(MemoryError())
    assert_bad_input(run(*RUN), "128x256x64", "memory")


def test_what_a_kernel_prints_stays_out_of_the_report(
    run: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(report())
    quiet = phaseflip.gemm.kernel.find_kernel

    def noisy(text: str) -> Any:
        sys.stdout.write("noise\n")
        return quiet(text)

    monkeypatch.setattr("phaseflip.gemm.kernel.find_kernel", noisy)
    output = run(*RUN, "--json")
    assert output.json["kernel"] == "fake" and output.err == "noise\n"


@pytest.mark.parametrize(
    ("words", "fragments"),
    [
        ([], ["{list,run,", ",silicon,", ",benchmark,history}"]),
        (["walk"], ["walk", "list", "run", ",silicon,", "'silicon'"]),
        (["run"], ["KERNEL", "M", "N", "K"]),
        (["run", "hgemm_v3", "128", "128"], ["required: K"]),
        (["run", "hgemm_v3", "128", "wide", "64"], ["argument N", "'wide'", "whole number"]),
        (["run", "hgemm_v3", "128", "128.0", "64"], ["argument N", "whole number"]),
        (["run", "hgemm_v3", "128", "1_28", "64"], ["argument N", "whole number"]),
        (["run", "hgemm_v3", "128", "128", "9" * 5000], ["argument K"]),
        (["run", "hgemm_v3", "128", "128", str(2**31)], ["argument K", "2147483647"]),
        (["run", "hgemm_v3", "128", "128", "64", "64"], ["64"]),
        (["run", "hgemm_v3", "128", "128", "64", "--seed", "x"], ["--seed", "'x'"]),
        (["run", "hgemm_v3", "128", "128", "64", "--seed", "-1"], ["--seed", "negative"]),
        (["run", "hgemm_v3", "128", "128", "64", "--sched", "lazy"], ["--sched"]),
        (["run", "hgemm_v3", "128", "128", "64", "--device", "tpu"], ["--device", "tpu", "sim"]),
        (
            ["run", "hgemm_v3", "128", "128", "64", "--device", "cuda"],
            ["cuda", "needs an NVIDIA GPU"],
        ),
    ],
)
def test_bad_command_lines(run: Any, words: list[str], fragments: list[str]) -> None:
    assert_bad_input(run(*words), *fragments)
    output = run(*words, "--json")
    assert output.code == 2 and output.err == ""
    assert output.json.keys() == {"error"}
    assert all(fragment in output.json["error"] for fragment in fragments)


def test_progress_only_on_a_terminal(run: Any, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake(report())
    run(*RUN)
    assert calls["progress"] is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(*RUN).err == ""  # short of two seconds nothing is drawn
    assert callable(calls["progress"])


def test_progress_bar_appears_after_its_delay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich: as on a terminal
    bar = ProgressBar("slow kernel", delay_seconds=0.0)
    with bar:
        deadline = time.monotonic() + 10
        while bar._progress is None and time.monotonic() < deadline:
            time.sleep(0.01)
        bar(3, 4)
    captured = capsys.readouterr()
    assert captured.out == "" and "slow kernel" in captured.err and "3/4" in captured.err


# --- with the kernels and the simulator -----------------------------------------------------------


def test_list(run: Any) -> None:
    output = run("list")
    assert output.code == 0 and output.err == ""
    for name in ("hgemm_v1", "hgemm_v2", "hgemm_v3"):
        assert name in output.out
    names = [kernel["name"] for kernel in run("list", "--json").json["kernels"]]
    assert names[:4] == ["hgemm_sm90", "hgemm_v1", "hgemm_v2", "hgemm_v3"]


def test_list_of_faults(run: Any) -> None:
    lines = run("list", "--faults").out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("missing-commit "))
    assert lines[at].endswith("Nothing arrives on the barrier when the MMA completes.")
    assert lines[at + 1].strip() == "catalogue: hgemm_v1, hgemm_v2, hgemm_v3"
    assert lines[-1].strip() == "control: any kernel that has a site"


def test_run_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "phaseflip", "run", "hgemm_v3", "256", "256", "128"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "PASSED" in done.stdout and "hgemm_v3" in done.stdout
    assert "tcgen05.mma" in done.stdout and "\x1b" not in done.stdout


@pytest.mark.parametrize("schedule", ["in-order", "eager", "lazy", "random:7"])
def test_run_json_is_the_same_twice(run: Any, schedule: str) -> None:
    words = ("run", "hgemm_v2", 128, 128, 192, "--seed", 5, "--schedule", schedule, "--json")
    first, second = run(*words), run(*words)
    assert first.code == second.code == 0 and first.err == second.err == ""
    a, b = first.json, second.json
    assert a.keys() >= KEYS
    assert a.pop("seconds").keys() == b.pop("seconds").keys() == {"lower", "translate", "simulate"}
    assert a == b
    assert (a["kernel"], a["shape"], a["schedule"]) == ("hgemm_v2", [128, 128, 192], schedule)
    assert a["device"] == "sim" and a["passed"] is True and a["findings"] == []
    assert a["max_abs_error"] < 0.1
    assert a["counters"]["tcgen05.mma"] == 12  # three chunks of 64, 16 deep each


def test_replay_line_gives_the_same_report(run: Any) -> None:
    words = ("run", "hgemm_v1", 128, 128, 64, "--seed", 2, "--inputs", "integers")
    first = run(*words, "--schedule", "random:3", "--json").json
    replay = shlex.split(first["replay"])
    assert replay[:3] == ["python", "-m", "phaseflip"]
    again = run(*replay[3:], "--json").json
    assert first | {"seconds": 0} == again | {"seconds": 0}


def test_a_file_and_its_factory(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "my $kernel's.py"
    file.write_text((KERNELS / "hgemm_v1.py").read_text())
    output = run("run", f"{file}:hgemm_v1", 128, 128, 64, "--inputs", "normal+scale-a:2", "--json")
    assert output.code == 0 and output.json["passed"] is True, output.err
    assert output.json["kernel"] == f"{file}:hgemm_v1"
    again = run(*shlex.split(output.json["replay"])[3:], "--json")
    assert again.json | {"seconds": 0} == output.json | {"seconds": 0}


def shell(command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `command` in bash, where "$@" is the arguments, and $PHASEFLIP the command line."""
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PHASEFLIP": f"{shlex.quote(sys.executable)} -m phaseflip"},
    )


def test_a_reader_that_leaves_and_closed_streams_change_nothing() -> None:
    done = shell("$PHASEFLIP list 2>&- | head -1; echo ${PIPESTATUS[0]}")
    assert done.stdout.splitlines()[0].startswith("hgemm_sm90")
    assert done.stdout.splitlines()[1] == "0" and done.stderr == ""
    assert shell("$PHASEFLIP run --json >&-").returncode == 2
    done = shell("$PHASEFLIP run 2>&-")
    assert (done.returncode, done.stdout) == (2, "")


def test_what_a_kernel_file_and_its_children_print_goes_to_standard_error(tmp_path: Path) -> None:
    file = tmp_path / "kärnel.py"
    noise = "import os; print('one'); os.write(1, b'two\\n'); os.system('echo three')\n"
    file.write_text(noise + (KERNELS / "hgemm_v1.py").read_text(), encoding="utf-8")
    command = 'PYTHONIOENCODING=ascii $PHASEFLIP run "$1:hgemm_v1" 128 128 64 '
    done = shell(command + "--json", str(file))
    assert done.returncode == 0 and json.loads(done.stdout)["kernel"] == f"{file}:hgemm_v1"
    assert sorted(done.stderr.split()) == ["one", "three", "two"]
    assert "k\\xe4rnel.py" in shell(command, str(file)).stdout.splitlines()[0]


def test_a_kernel_that_computes_the_wrong_matrix_exits_1(run: Any, tmp_path: Path) -> None:
    text = (KERNELS / "hgemm_v2.py").read_text()
    assert text.count("T.serial(K_TILES)") == 1
    file = tmp_path / "short_k_loop.py"
    file.write_text(text.replace("T.serial(K_TILES)", "T.serial(K_TILES - 1)"))
    output = run("run", f"{file}:hgemm_v2", 128, 128, 192, "--json")
    assert output.code == 1 and output.json["passed"] is False
    (finding,) = output.json["findings"]
    assert finding["code"] == "wrong-result" and finding["file"] == str(file)
    assert "def hgemm_v2" in file.read_text().splitlines()[finding["line"] - 1]
    text = run("run", f"{file}:hgemm_v2", 128, 128, 192).out
    assert "FAILED" in text and "findings  error: wrong-result" in text


def test_a_kernel_that_hangs_exits_1(run: Any, tmp_path: Path) -> None:
    text = (KERNELS / "hgemm_v1.py").read_text()
    (init,) = re.findall(r"T\.ptx\.mbarrier\.init.*1\)+$", text, re.MULTILINE)
    file = tmp_path / "count_two.py"
    file.write_text(text.replace(init, init.replace("1)", "2)")))
    output = run("run", f"{file}:hgemm_v1", 128, 128, 64, "--json")
    assert output.code == 1 and output.json["passed"] is False
    (finding,) = output.json["findings"]  # and no second one for the result that never came
    assert finding["code"] == "deadlock" and finding["severity"] == "error"
    assert "phase 0" in finding["message"] and "1 of 2 arrivals" in finding["message"]
    assert finding["file"] == str(file) and finding["line"] > 0
    oracles = {oracle["name"]: oracle["passed"] for oracle in output.json["oracles"]}
    assert oracles["bound"] is False and oracles["unwritten-output"] is False
    text = run("run", f"{file}:hgemm_v1", 128, 128, 64)
    assert text.code == 1 and "findings  error: deadlock" in text.out
    assert "1 of 2 arrivals" in text.out


@pytest.mark.parametrize(
    ("kernel", "shape", "fragments"),
    [
        ("hgemm_v1", (256, 128, 64), ["M = 128", "128x128x64"]),
        ("hgemm_v1", (128, 128, 128), ["K = 64", "128x128x64"]),
        ("hgemm_v2", (128, 128, 200), ["multiple of 64", "128x128x192"]),
        ("hgemm_v3", (100, 128, 64), ["multiple of 128", "128x128x64"]),
        ("hgemm_v3", (128, 320, 64), ["multiple of 128"]),
        ("hgemm_v3", (128, 128, 0), ["128x128x64"]),
        ("hgemm_v3", (-128, 128, 64), ["128x128x64"]),
    ],
)
def test_shapes_that_break_the_rule(
    run: Any, kernel: str, shape: tuple[int, int, int], fragments: list[str]
) -> None:
    assert_bad_input(run("run", kernel, *shape), kernel, *fragments)


def test_unknown_kernel_schedule_and_inputs(run: Any) -> None:
    shape = (128, 128, 64)
    assert_bad_input(run("run", "hgemm_v0", *shape), "hgemm_v0", "hgemm_v1, hgemm_v2, hgemm_v3")
    for schedule in ("lazily", "random", "random:x", "in-order:3", ""):
        output = run("run", "hgemm_v1", *shape, "--schedule", schedule)
        assert_bad_input(output, "in-order", "eager", "lazy", "random")
    assert_bad_input(run("run", "hgemm_v1", *shape, "--inputs", "odd"), "odd", "normal", "integers")


@pytest.mark.parametrize(
    ("source", "factory", "fragments"),
    [
        (None, "f", ["no kernel file"]),
        ("def g(M, N, K): return 1", "f", ["no factory or Kernel 'f'", "g"]),
        ("f = 3", "f", ["not a factory"]),
        ("def f(M, N, K): return 1", "f", ["PrimFunc", "int"]),
        ("def f(M, N, K): return None", "f", ["PrimFunc", "returns nothing"]),
        ("def f(M, N, K): raise RuntimeError('no tiles')", "f", ["RuntimeError", "no tiles"]),
        ("def f(M): return 1", "f", ["TypeError"]),
        ("def f(M, N, K) return 1", "f", ["line 1"]),
        ("import sys; sys.exit(0)", "f", ["SystemExit"]),
        ("def f(M, N, K): return 1", "", ["factory"]),
    ],
)
def test_bad_kernel_files(
    run: Any, tmp_path: Path, source: str | None, factory: str, fragments: list[str]
) -> None:
    file = tmp_path / "bad.py"
    if source is not None:
        file.write_text(source + "\n")
    assert_bad_input(run("run", f"{file}:{factory}", 128, 128, 64), "bad.py", *fragments)


def test_unsupported_tvm_version(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm.__version__", "0.99.0")
    assert_bad_input(run("run", "hgemm_v2", 128, 128, 64), "0.99.0", "0.26.0")
    assert_bad_input(run("list"), "0.99.0", "0.26.0")
