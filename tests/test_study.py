"""Studies: what becomes of a mutant, results that survive an interruption, plans, and the two commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import study_runners

from phaseflip.cli.main import main as cli
from phaseflip.errors import BadInput
from phaseflip.faults import find_fault
from phaseflip.study.mutant_run import FATES, ORACLES, blank_outcome, run_item
from phaseflip.study.plan import make_plan, outcome_of, run_study, schedules
from phaseflip.study.results import Results, mutants, problems, read_results, settle, summary
from phaseflip.system import worker_pool as isolation
from phaseflip.system.worker_pool import CRASHED, RAISED, RETURNED, TIMED_OUT, Ended

ROOT = Path(__file__).resolve().parent.parent
RUNNER = "study_runners:run"
KEYS = {"kernel", "fault", "site", "shape", "schedule", "fate", "codes", "oracles", "seconds"}


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "results.jsonl").read_text().splitlines()]


def without_times(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [outcome | {"seconds": 0} for outcome in outcomes]


# --- outcomes and the file that holds them --------------------------------------------------------


def test_every_outcome_is_on_disk_as_soon_as_it_is_known(tmp_path: Path) -> None:
    plan = study_runners.plan(("kill", "pass"))
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int, outcome: dict[str, Any] | None) -> None:
        seen.append((done, total))
        assert len(lines(tmp_path)) == done

    outcomes = run_study(plan, tmp_path, jobs=2, progress=progress, runner=RUNNER)
    assert seen == [(i, 24) for i in range(25)]
    assert lines(tmp_path) == outcomes
    order = [(i["kernel"], i["fault"], i["shape"], i["schedule"]) for i in plan.items]
    assert [(o["kernel"], o["fault"], o["shape"], o["schedule"]) for o in outcomes] == order
    assert all(
        set(o) > KEYS and o["fate"] in FATES and set(o["oracles"]) == set(ORACLES) for o in outcomes
    )


def test_a_study_killed_midway_goes_on_and_ends_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = ("kill", "pass", "kill-large", "raise")
    whole = run_study(study_runners.plan(faults), tmp_path / "whole", jobs=2, runner=RUNNER)
    log = tmp_path / "runs"
    monkeypatch.setenv(study_runners.LOG, str(log))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "import study_runners\n"
        "from phaseflip.study.plan import run_study\n"
        f"run_study(study_runners.plan({faults!r}), Path(sys.argv[2]), jobs=2, runner={RUNNER!r})\n"
    )
    directory = tmp_path / "broken"
    study = subprocess.Popen(
        [sys.executable, "-c", code, str(ROOT / "tests"), str(directory)],
        cwd=ROOT,
        env=os.environ | {study_runners.DELAY: "0.1"},
    )
    results = directory / "results.jsonl"
    deadline = time.monotonic() + 60
    while not results.exists() or results.read_text().count("\n") < 7:
        assert time.monotonic() < deadline and study.poll() is None
        time.sleep(0.01)
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    kept = [o for o in lines(directory) if o["fate"] != "harness error"]
    assert 5 <= len(kept) < len(whole) - 4
    with results.open("a") as file:
        file.write('{"kernel": "fake_v1", "fau')  # as a write that was cut off leaves it
    log.write_text("")
    resumed = run_study(study_runners.plan(faults), directory, jobs=2, runner=RUNNER)
    assert without_times(resumed) == without_times(whole)
    assert without_times(lines(directory)) == without_times(lines(tmp_path / "whole"))
    assert len(log.read_text().splitlines()) == len(whole) - len(kept)
    assert summary(resumed) == summary(whole)
    log.write_text("")
    run_study(study_runners.plan(("kill",)), tmp_path / "done", runner=RUNNER)
    before = log.read_text()
    assert run_study(study_runners.plan(("kill",)), tmp_path / "done", runner=RUNNER)
    assert log.read_text() == before, "a finished study runs nothing again"


def test_a_directory_belongs_to_one_study_at_a_time(tmp_path: Path) -> None:
    run_study(study_runners.plan(("pass",)), tmp_path, runner=RUNNER)
    with pytest.raises(BadInput, match=r"another study \(other faults\).*-o"):
        run_study(study_runners.plan(("kill",)), tmp_path, runner=RUNNER)
    about = study_runners.plan(("pass",)).about
    with Results(tmp_path, about), pytest.raises(BadInput, match="is writing to"):
        run_study(study_runners.plan(("pass",)), tmp_path, runner=RUNNER)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write("{}\n")
    with pytest.raises(BadInput, match="line 17 of .* is no outcome"):
        run_study(study_runners.plan(("pass",)), tmp_path, runner=RUNNER)
    (tmp_path / "study.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        run_study(study_runners.plan(("pass",)), tmp_path, runner=RUNNER)
    (tmp_path / "study.json").unlink()
    with pytest.raises(BadInput, match="is not this study's"):
        run_study(study_runners.plan(("pass",)), tmp_path, runner=RUNNER)
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot write"):
        run_study(study_runners.plan(("pass",)), tmp_path / "file", runner=RUNNER)
    with pytest.raises(BadInput, match="no results"):
        read_results(tmp_path / "nothing")


def test_crash_exception_and_time_out_cost_one_run(tmp_path: Path) -> None:
    plan = study_runners.plan(("crash", "hang", "raise", "kill"), kernels=("fake",))
    outcomes = run_study(plan, tmp_path, jobs=2, limit_s=0.5, runner=RUNNER)
    by_fault = {m.fault: m for m in mutants(outcomes)}
    assert {f: m.fate for f, m in by_fault.items()} == {
        "no-op": "equivalent",
        "crash": "harness error",
        "hang": "killed otherwise",
        "raise": "harness error",
        "kill": "killed as expected",
    }
    assert "SIGABRT" in by_fault["crash"].first["reason"]
    assert by_fault["raise"].first["reason"] == "TypeError: not a number"
    assert "study_runners" in by_fault["raise"].first["messages"]["harness"]
    assert by_fault["hang"].first["codes"] == ["time-out"]
    found = summary(outcomes)
    assert found["timed_out"] == ["fake hang at no line"]
    assert [p.split(":")[0] for p in found["problems"]] == ["harness error"] * 2


def item(fault: str = "f", rows: int = 128) -> dict[str, Any]:
    return {
        "kernel": "k",
        "fault": fault,
        "site": 0,
        "shape": [rows, 1, 1],
        "schedule": "eager",
        "seed": 0,
    }


def outcome(fate: str, *, rows: int = 128, fault: str = "f", **changes: Any) -> dict[str, Any]:
    return blank_outcome(item(fault, rows)) | {"fate": fate, "kind": "mutation"} | changes


@pytest.mark.parametrize(
    ("fates", "mutant", "lines_say"),
    [
        (["equivalent", "equivalent"], "equivalent", ["equivalent", "equivalent"]),
        (["equivalent", "killed otherwise"], "killed otherwise", ["survived", "killed otherwise"]),
        (["killed otherwise", "killed as expected"], "killed as expected", None),
        (["equivalent", "invalid"], "equivalent", None),
        (["invalid", "invalid"], "invalid", None),
        (["killed otherwise", "harness error"], "harness error", None),
    ],
)
def test_fate_of_a_mutant_over_its_runs(
    fates: list[str], mutant: str, lines_say: list[str] | None
) -> None:
    runs = [outcome(fate, rows=128 + i) for i, fate in enumerate(fates)]
    settled = settle(runs)
    assert [o["fate"] for o in settled] == (lines_say or fates)
    assert settle(settled) == settled
    assert [m.fate for m in mutants(settled)] == [mutant]


def test_a_survivor_that_differs_is_not_equivalent() -> None:
    runs = [
        outcome("equivalent"),
        outcome("survived", rows=256, reason="other counts of ld.global"),
    ]
    settled = settle(runs)
    assert [o["fate"] for o in settled] == ["survived", "survived"]
    assert "survived: k f" in problems(mutants(settled))[0]


def test_problems_name_what_fails_a_study() -> None:
    runs = [
        outcome("killed otherwise", fault="no-op", kind="control", codes=["race"]),
        outcome(
            "killed otherwise", fault="a", kind="catalogue", catalogued=True, codes=["deadlock"]
        ),
        outcome("killed otherwise", fault="b", kind="catalogue", catalogued=False),
        outcome("killed otherwise", fault="c"),
        outcome("invalid", fault="d", kind="catalogue", catalogued=True, reason="no"),
        outcome("invalid", fault="e"),
    ]
    found = problems(mutants(runs))
    assert len(found) == 3
    assert "the control is killed otherwise" in found[0]
    assert "k a" in found[1] and "deadlock" in found[1] and "does not build: k d" in found[2]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_catalogued_fault_under_another_name_in_one_run_fails_the_study(where: int) -> None:
    fates = ["killed as expected"] * 3
    fates[where] = "killed otherwise"
    about = {"kind": "catalogue", "catalogued": True, "codes": ["race tmem raw"]}
    runs = [outcome(fate, rows=128 + i, **about) for i, fate in enumerate(fates)]
    (mutant,) = mutants(settle(runs))
    assert mutant.fate == "killed otherwise"
    (problem,) = problems([mutant])
    assert problem.startswith("not reported as the catalogue says: k f at ")
    assert problem.endswith(f", at {128 + where}x1x1 under eager (1 of 3 runs): race tmem raw")


def test_a_catalogued_fault_that_does_not_end_in_one_run_fails_the_study() -> None:
    late = outcome_of(item() | {"kind": "catalogue"}, Ended(TIMED_OUT, "over 60 s"))
    known = outcome("killed as expected", rows=256, kind="catalogue", catalogued=True)
    (problem,) = problems(mutants([late, known]))
    assert "time-out" in problem


def test_outcomes_of_runs_that_did_not_return() -> None:
    assert outcome_of(item(), Ended(RETURNED, {"fate": "survived"})) == {"fate": "survived"}
    crashed = outcome_of(item(), Ended(CRASHED, "signal SIGSEGV", "stack", 1.5))
    assert (crashed["fate"], crashed["seconds"]) == ("harness error", 1.5)
    assert "SIGSEGV" in crashed["reason"] and crashed["messages"] == {"harness": "stack"}
    raised = outcome_of(item(), Ended(RAISED, ("KeyError", "'x'")))
    assert (raised["fate"], raised["reason"]) == ("harness error", "KeyError: 'x'")
    late = outcome_of(item(), Ended(TIMED_OUT, "over 60 s"))
    assert (late["fate"], late["codes"]) == ("killed otherwise", ["time-out"])


# --- plans and runs of real mutants ---------------------------------------------------------------


def test_schedules_come_in_one_order() -> None:
    assert schedules(1) == ["in-order"]
    assert schedules(5) == ["in-order", "eager", "lazy", "random:1", "random:2"]
    with pytest.raises(BadInput, match="at least 1"):
        schedules(0)


@pytest.mark.xdist_group("hgemm_v2")
def test_plan_enumerates_faults_sites_shapes_and_schedules() -> None:
    plan = make_plan(
        ["hgemm_v2"], ["missing-phase-flip"], [(128, 128, 192), (256, 128, 64)], n_schedules=2
    )
    assert [(i["fault"], i["shape"], i["schedule"]) for i in plan.items] == [
        ("no-op", [128, 128, 192], "in-order"),
        ("no-op", [128, 128, 192], "eager"),
        ("missing-phase-flip", [128, 128, 192], "in-order"),
        ("missing-phase-flip", [128, 128, 192], "eager"),
    ]
    same = make_plan(
        ["hgemm_v2"], ["missing-phase-flip"], [(128, 128, 192), (256, 128, 64)], n_schedules=2
    )
    assert plan == same
    assert json.loads(json.dumps(plan.about)) == plan.about
    for arguments, message in [
        ((["hgemm_v2"], ["nonsense"]), "unknown fault 'nonsense'"),
        ((["nonsense"], ["no-op"]), "unknown kernel 'nonsense'"),
        ((["hgemm_v1"], ["missing-phase-flip"]), "missing-phase-flip: no site in hgemm_v1"),
        ((["hgemm_v1"], ["no-op"], [(64, 64, 64)]), "nearest legal shape is 128x128x64"),
    ]:
        with pytest.raises(BadInput, match=message):
            make_plan(*arguments)


@pytest.mark.xdist_group("hgemm_v2")
def test_missing_phase_flip_passes_the_numeric_test_and_ordering_reports_it() -> None:
    found = run_item(
        {
            "kernel": "hgemm_v2",
            "fault": "missing-phase-flip",
            "site": 0,
            "shape": [128, 128, 192],
            "schedule": "eager",
            "seed": 0,
        }
    )
    assert found["fate"] == "killed as expected"
    assert found["oracles"]["tolerance"] == "passes" and found["oracles"]["ordering"] == "notices"
    assert found["oracles"]["bound"] == found["oracles"]["exact"] == "passes"
    assert "stale-wait" in found["codes"]
    assert found["source"] == "phase_mma ^= 1" and found["site"].startswith("kernels/hgemm_v2.py:")
    assert any(line.startswith("- ") and "phase_mma" in line for line in found["change"])
    assert (
        found["first_finding"]["source"] and found["first_finding"]["file"] == "kernels/hgemm_v2.py"
    )
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.xdist_group("hgemm_v2")
def test_control_survives_and_a_wrong_result_and_a_hang_are_told_apart() -> None:
    def run(fault: str, k: int) -> dict[str, Any]:
        shape = [128, 128, k]
        names = {"kernel": "hgemm_v2", "fault": fault, "site": 0, "shape": shape}
        return run_item(names | {"schedule": "in-order", "seed": 0})

    control = run("no-op", 192)
    assert control["fate"] == "equivalent" and control["same_outputs"] and not control["codes"]
    assert set(control["oracles"].values()) == {"passes"}
    short = run("short-k-loop", 192)
    assert short["fate"] == "killed as expected" and short["codes"] == ["wrong-result"]
    assert {short["oracles"][o] for o in ("tolerance", "bound", "exact")} == {"notices"}
    assert short["oracles"]["ordering"] == "passes"
    hang = run("missing-commit", 192)
    assert (
        hang["oracles"]["deadlock"] == "notices"
        and hang["oracles"]["tolerance"] == "not applicable"
    )
    one_chunk = run("missing-phase-flip", 64)
    assert one_chunk["fate"] == "equivalent"
    with pytest.raises(BadInput, match="there is no site 7"):
        run_item({**control, "site": 7, "fault": "missing-commit"})


# --- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replaces the worker: `told(ended)` makes the command hear that."""

    def tell(ended: Ended) -> None:
        monkeypatch.setattr(isolation.WorkerPool, "call", lambda self, argument: ended)

    return tell


FAULT = ["fault", "k", "f", "128", "128", "64"]


@pytest.mark.parametrize(
    ("kind", "fate", "code"),
    [
        ("catalogue", "killed as expected", 0),
        ("catalogue", "killed otherwise", 1),
        ("catalogue", "equivalent", 1),
        ("catalogue", "invalid", 1),
        ("mutation", "killed otherwise", 0),
        ("mutation", "survived", 1),
        ("control", "equivalent", 0),
        ("control", "killed otherwise", 1),
    ],
)
def test_fault_exits_0_when_reported_as_expected(
    told: Any, capsys: pytest.CaptureFixture[str], kind: str, fate: str, code: int
) -> None:
    told(Ended(RETURNED, outcome(fate, kind=kind, codes=["race shared raw"])))
    assert cli.main([*FAULT, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["fate"] == fate
    assert cli.main(FAULT) == code
    assert fate.upper() in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["no-op", "missing-phase-flip", "move-later"])
def test_fault_that_does_not_end_in_time_exits_1(
    told: Any, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    told(Ended(TIMED_OUT, "still running after 0.5 s"))
    words = ["fault", "hgemm_v2", fault, "128", "128", "192", "--site", "1", "--time-limit", "0.5"]
    assert cli.main([*words, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["kind"] == find_fault(fault).kind and report["codes"] == ["time-out"]
    assert cli.main(report["replay"].split()[3:]) == 1
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert rows["site"] == "number 1" and rows["replay"].endswith(" --time-limit 0.5")


@pytest.mark.parametrize(
    ("ended", "code", "says"),
    [
        (Ended(RAISED, ("BadInput", "unknown fault 'f'")), 2, "unknown fault 'f'"),
        (Ended(RAISED, ("TypeError", "oops")), 3, "TypeError: oops"),
        (Ended(CRASHED, "signal SIGSEGV"), 3, "crashed (signal SIGSEGV)"),
    ],
)
def test_fault_tells_bad_input_from_its_own_faults(
    told: Any, capsys: pytest.CaptureFixture[str], ended: Ended, code: int, says: str
) -> None:
    told(ended)
    assert cli.main([*FAULT, "--json"]) == code
    assert says in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([*FAULT, "--seed", "-1"], "--seed"),
        ([*FAULT, "--schedule", "sideways"], "unknown schedule"),
        ([*FAULT, "--time-limit", "0"], "--time-limit"),
        (["study", "--shapes", "128x128"], "'128x128' is not a shape such as 128x256x64"),
        (["study", "--jobs", "-2"], "--jobs: -2 is not between 1 and 512"),
        (["study", "--jobs", "0"], "--jobs: 0 is not between 1 and 512"),
        (["study", "--seed", "-1"], "--seed"),
    ],
)
def test_bad_options_are_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and says in captured.err and captured.err.count("\n") == 1


@pytest.mark.xdist_group("hgemm_v2")
def test_the_replay_line_of_a_finding_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    item = {"kernel": "hgemm_v2", "fault": "missing-phase-flip", "site": 0}
    report = run_item(item | {"shape": [128, 128, 192], "schedule": "eager", "seed": 3})
    assert cli.main([*report["replay"].split()[3:], "--json"]) == 0
    repeated = json.loads(capsys.readouterr().out)
    assert repeated.pop("sites") == 1 and repeated.pop("expected")
    assert without_times([repeated]) == without_times([report])


@pytest.mark.xdist_group("hgemm_v2")
def test_study_command_writes_results_and_page_and_ends_with_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "--kernels", "hgemm_v1", "--faults", "missing-commit", "--schedules", "1"]
    words += ["--jobs", "1", "-o", str(tmp_path / "out")]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "Mutants by fate" in text and "missing-commit" in text and "PASSED" in text
    assert [o["fate"] for o in lines(tmp_path / "out")] == ["equivalent", "killed as expected"]
    assert "missing-commit" in (tmp_path / "out" / "report.html").read_text()
    assert cli.main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["mutants"] == 1 and report["kernels"]["hgemm_v1"]["killed as expected"] == 1
    assert cli.main(words) == 0
    assert capsys.readouterr().out == text
