"""Faults on silicon without a GPU: preparing a folder, counting launches (what a launch does is told), the tables."""

from __future__ import annotations

import json
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phaseflip.cli import main as cli
from phaseflip.errors import BadInput
from phaseflip.gemm.inputs import make_inputs
from phaseflip.gemm.oracle import reference
from phaseflip.gemm.poison import fill_poison
from phaseflip.gpu import runtime as cuda_runtime
from phaseflip.gpu.prebuilt import find_prebuilt
from phaseflip.silicon import launches as silicon_launch
from phaseflip.silicon import mutants_on_gpu as silicon
from phaseflip.silicon import report as silicon_report
from phaseflip.system.worker_pool import Ended
from tests.test_build import made, needs_nvcc

SHAPE = (128, 256, 64)
CALL = {
    "stem": "mine.py:f",
    "shape": list(SHAPE),
    "arch": "sm_90a",
    "seed": 0,
    "gpu": "",
    "restarts": 3,
}


def told(orders: str) -> Any:
    """In place of a child's launches: a letter for each, wherever a child takes up (the file holds how far it got)."""
    right = reference(
        *make_inputs("normal", *SHAPE, CALL["seed"], "float16")
    )  # BLAS must not start after a fork

    def launch(out: Connection, built: Any, operands: Any, launches: int) -> None:
        file = Path(built.directory, "done")
        out.send(("ready", None))
        for _ in range(launches):
            number = len(file.read_text()) if file.exists() else 0
            order = orders[number]
            file.write_text("x" * (number + 1))
            if order == "h":
                time.sleep(60)
            if order == "d":
                os._exit(3)
            if order == "t":
                out.send(("hang", None))
                continue
            if order == "e":
                out.send(("error", "CUDA error: an illegal memory access"))
                return
            result = right.copy()
            if order == "w":
                result[0, 0] = np.nan
            if order == "u":
                fill_poison(result)
            if order == "b":
                result.view(np.uint16)[0, 0] ^= 1
            out.send(("output", (order, result)))

    return launch


def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, orders: str) -> dict[str, Any]:
    made(tmp_path)
    monkeypatch.setattr(silicon_launch, "_launch", told(orders))
    monkeypatch.setattr(silicon_launch, "LAUNCH_LIMIT_S", 8.0)  # what a loaded machine needs
    return silicon_launch.launch_many(CALL | {"folder": str(tmp_path), "launches": len(orders)})


def test_launches_are_counted_by_what_became_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = launched(tmp_path, monkeypatch, "rrwteurhdbr")
    assert counts["launches"] == counts["asked"] == 11
    assert counts["hangs"] == 2 and counts["killed"] == 1
    assert counts["errors"] == {
        "CUDA error: an illegal memory access": 1,
        "its process died (3)": 1,
    }
    by_digest = {o["digest"]: o for o in counts["outputs"]}
    assert {d: o["times"] for d, o in by_digest.items()} == {"r": 4, "w": 1, "u": 1, "b": 1}
    verdicts = {
        d: (o["tolerance"], o["bound"], o["unwritten-output"]) for d, o in by_digest.items()
    }
    assert verdicts["r"] == (True, True, True) and verdicts["b"] == (True, False, True)
    assert verdicts["w"][0] is False and verdicts["u"][2] is False
    assert (Path(tmp_path) / "done").read_text() == "x" * 11


def test_what_costs_a_process_again_and_again_is_launched_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = launched(tmp_path, monkeypatch, "ttttereederr")
    assert (counts["asked"], counts["launches"], counts["hangs"]) == (12, 9, 4)
    assert sum(counts["errors"].values()) == 4


def test_what_hung_in_some_launches_only_is_launched_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is expected to cost processes comes last. The pool is one that knows the answers."""
    answers = {"a": [2, 0], "b": [0], "c": [5], "d": [1, 1], "e": [0]}
    codes = {"a": ["deadlock"], "b": ["race shared raw"], "c": ["deadlock", "over-arrival"]}
    codes |= {"d": ["barrier-mismatch"], "e": ["uninitialised-read register"]}
    order: list[tuple[str, int]] = []

    class Pool:
        def __init__(self, function: str, jobs: int, limit_s: float) -> None:
            self.jobs = jobs

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, groups: Any) -> Any:
            for (call,) in groups:
                stem = call["stem"]
                order.append((stem, self.jobs))
                value = {"asked": 5, "restarts": 5, "launches": 5, "hangs": answers[stem].pop(0)}
                value |= {"killed": 0, "errors": {}, "outputs": []}
                yield call, Ended("returned", value)

    monkeypatch.setattr(silicon, "WorkerPool", Pool)
    mutants = [{"stem": s, "codes": c, "kind": "mutation", "refused": ""} for s, c in codes.items()]
    manifest = {"shape": list(SHAPE), "arch": "sm_90a", "seed": 0, "mutants": mutants}
    silicon.launch_all(tmp_path, manifest, 5, 5, jobs=4)
    assert order == [("b", 4), ("a", 4), ("c", 3), ("e", 3), ("d", 3), ("a", 1), ("d", 1)]
    lines = silicon.read_launches(tmp_path)
    assert {run["stem"]: run["hangs"] for run in lines} == {"a": 0, "b": 0, "c": 5, "d": 1, "e": 0}
    silicon.launch_all(tmp_path, manifest, 5, 5, jobs=4)
    assert len(order) == 7


def test_a_mutant_that_was_given_up_goes_on_when_more_restarts_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def line(stem: str, launches: int, errors: int, times: int, restarts: int) -> str:
        outputs = [{"digest": "r", "times": times, "bound": True}] if times else []
        counts = {"asked": 9, "launches": launches, "hangs": 0, "killed": 0, "restarts": restarts}
        return json.dumps({"stem": stem} | counts | {"errors": {"x": errors}, "outputs": outputs})

    lines = [line("a", 4, 2, 2, 2), line("b", 9, 0, 9, 2), line("c", 2, 2, 0, 3)]
    (tmp_path / silicon.LAUNCHES).write_text("\n".join(lines) + "\n")
    asked: list[tuple[str, int]] = []

    def run(self: Any, groups: Any) -> Any:
        for (call,) in groups:
            asked.append((call["stem"], call["launches"]))
            counts = json.loads(line("", call["launches"], 1, 4, call["restarts"]))
            yield call, Ended("returned", counts | {"asked": call["launches"]})

    monkeypatch.setattr(silicon.WorkerPool, "run", run)
    mutants = [{"stem": s, "codes": [], "kind": "mutation", "refused": ""} for s in "abc"]
    manifest = {"shape": list(SHAPE), "arch": "sm_90a", "seed": 0, "mutants": mutants}
    silicon.launch_all(tmp_path, manifest, 9, restarts=2)
    assert asked == []
    silicon.launch_all(tmp_path, manifest, 9, restarts=3)
    assert asked == [("a", 5)]  # c was given three
    last = {run["stem"]: run for run in silicon.read_launches(tmp_path)}["a"]
    assert (last["asked"], last["launches"], last["errors"], last["restarts"]) == (
        9,
        9,
        {"x": 3},
        3,
    )
    assert last["outputs"] == [{"digest": "r", "times": 6, "bound": True}]
    silicon.launch_all(tmp_path, manifest, 9, restarts=9)
    assert asked[1:] == [("c", 7)]


@pytest.mark.parametrize(
    ("seconds", "kinds"),
    [
        ([0, 0, 0], ["output", "output", "output"]),
        ([0, 0.2, 0], ["output", "hang", "output"]),
        ([0.2, 0, 0, 0], ["output", "output", "output"]),  # the first one loads the code
        ([0.2, 0.2, 0, 0.2], ["hang", "output", "hang"]),
    ],
)
def test_a_launch_that_lasts_as_long_as_its_poll_limit_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: list[float], kinds: list[str]
) -> None:
    import torch

    waits = iter(seconds)
    said: list[Any] = []
    out: Any = SimpleNamespace(send=said.append)
    module = {"main": lambda A, B, D: time.sleep(next(waits))}
    monkeypatch.setattr(cuda_runtime, "load", lambda *_: module)
    monkeypatch.setattr(cuda_runtime, "to_gpu", torch.from_numpy)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    built = made(tmp_path, poll_limit_ms=100, at_limit="go on")
    silicon_launch._launch(out, built, make_inputs("normal", *SHAPE, 0, built.dtype), 3)
    assert [kind for kind, _ in said] == ["ready", *kinds]
    assert next(waits, None) is None


def test_a_child_opens_one_channel_to_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    out: Any = SimpleNamespace(send=said.append)
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32")

    def load(*_: Any) -> Any:
        raise RuntimeError(f"{os.environ['CUDA_DEVICE_MAX_CONNECTIONS']} when CUDA starts")

    monkeypatch.setattr(cuda_runtime, "load", load)
    built = made(tmp_path)
    silicon_launch._launch(out, built, make_inputs("normal", *SHAPE, 0, built.dtype), 3)
    assert said == [("error", "1 when CUDA starts")]


MUTANTS = [
    ("no-op", "control", "equivalent", []),
    ("missing-release", "catalogue", "killed as expected", ["deadlock"]),
    ("missing-wgmma-fence", "catalogue", "killed as expected", ["missing-wgmma-fence register"]),
    ("drop-guard", "mutation", "equivalent", []),
    ("move-later", "mutation", "killed otherwise", ["race shared raw"]),
]
MANIFEST = {
    "mutants": [
        {
            "stem": f"k {fault} 0", "fault": fault, "kind": kind, "fate": fate, "codes": codes, "refused": "",
            "site": f"k.py:{line}", "site_index": 0,
        }
        for line, (fault, kind, fate, codes) in enumerate(MUTANTS, 40)
    ]
}  # fmt: skip


def run(stem: str, good: int = 0, bad: int = 0, hangs: int = 0, digest: str = "same") -> Any:
    passing = {"tolerance": True, "bound": True, "unwritten-output": True}
    outputs = [{"digest": digest, "times": good} | passing] if good else []
    outputs += [{"digest": "bad", "times": bad} | passing | {"bound": False}] if bad else []
    return {
        "stem": stem,
        "asked": 10,
        "launches": good + bad + hangs,
        "hangs": hangs,
        "errors": {},
        "outputs": outputs,
    }


RUNS = [
    run("k no-op 0", good=10),
    run("k missing-release 0", hangs=3),
    run("k missing-wgmma-fence 0", good=10, digest="other"),
    run("k drop-guard 0", good=9, bad=1),
    run("k move-later 0", good=4, bad=6),
]


def test_the_tables_and_the_summary() -> None:
    tools = [
        {
            "stem": "k missing-release 0",
            "tool": "racecheck",
            "errors": "hung",
            "first": "",
            "hung": True,
        },
        {
            "stem": "k missing-release 0",
            "tool": "synccheck",
            "errors": 1,
            "first": "Missing",
            "hung": True,
        },
        {
            "stem": "k missing-release 0",
            "tool": "memcheck",
            "errors": 0,
            "first": "",
            "hung": True,
        },
        {
            "stem": "k missing-wgmma-fence 0",
            "tool": "memcheck",
            "errors": 0,
            "first": "",
            "hung": False,
        },
        {
            "stem": "k no-op 0",
            "tool": "initcheck",
            "errors": 2,
            "first": "Uninitialized",
            "hung": False,
        },
    ]
    rows = silicon_report.merged(MANIFEST, RUNS, tools)
    assert [(r["passes"], r["wrong"], r["hangs"], r["other_bits"]) for r in rows] == [
        (10, 0, 0, 0),
        (0, 0, 3, 0),
        (10, 0, 0, 10),
        (9, 1, 0, 0),
        (4, 6, 0, 0),
    ]
    assert silicon_report.summary(rows) == {
        "mutants": 4,
        "launches": 33,
        "reported": 3,
        "reported_and_always_pass": ["k missing-wgmma-fence 0"],
        "reported_and_sometimes_pass": ["k move-later 0"],
        "equivalent_and_not_always_pass": ["k drop-guard 0"],
        "control": [[10, 10]],
    }
    lines = silicon_report.catalogue_table(rows).splitlines()
    assert lines[2] == "| no-op | 40 | nothing | 10 |  |  |  |  |  |  | 2 |"
    assert (
        lines[3]
        == "| missing-release | 41 | `deadlock` |  |  | 3 of 3 |  | hung | 1 (hung) | hung |  |"
    )
    assert lines[4].endswith("| `missing-wgmma-fence register` | 10 |  |  |  |  |  | - |  |")
    assert silicon_report.operator_table(rows).splitlines()[2:] == [
        "| drop-guard | 1 | 0 | 0 | 1 | 0 | 0 |",
        "| move-later | 1 | 1 | 0 | 1 | 0 | 0 |",
        "| all | 2 | 1 | 0 | 2 | 0 | 0 |",
    ]
    always = [row | {"passes": row["launches"]} for row in rows]
    assert silicon_report.missed_table(always).splitlines()[2:] == [
        "| move-later | 0: 44 `race shared raw` |"
    ]


@pytest.mark.parametrize(
    ("said", "errors", "hung"),
    [
        ("========= Unknown Error\n========= ERROR SUMMARY: 18 errors\n", 18, False),
        ("========= ERROR SUMMARY: 0 errors\n", 0, False),
        ("========= ERROR SUMMARY: 3 errors (2 not printed)\n", 3, False),
        ("========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)\n", 2, False),
        (f"{silicon_launch.REACHED}\n========= ERROR SUMMARY: 1 error\n", 1, True),
        ("Segmentation fault\n", "no verdict", False),
    ],
)
def test_what_a_tool_says(said: str, errors: Any, hung: bool) -> None:
    report = silicon_launch.read_report(said)
    assert (report["errors"], report["hung"]) == (errors, hung)


def test_the_first_message_of_a_tool() -> None:
    said = "========= COMPUTE-SANITIZER\n========= Barrier error detected. Divergent thread(s) in block\n"
    said += "=========     at kernel_kernel+0x100\n========= ERROR SUMMARY: 1 error\n"
    assert silicon_launch.read_report(said)["first"].startswith("Barrier error detected.")
    said = (
        "========= COMPUTE-SANITIZER\n========= Unknown Error\n========= ERROR SUMMARY: 18 errors\n"
    )
    assert silicon_launch.read_report(said)["first"] == "Unknown Error"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "is damaged"), ('{"format": 9}', "has format 9"), ("[]", "damaged")],
)
def test_a_manifest_that_cannot_be_read(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / silicon.MANIFEST).write_text(text)
    with pytest.raises(BadInput, match=sentence):
        silicon.read_manifest(tmp_path)


@needs_nvcc
@pytest.mark.xdist_group("hgemm_sm90")
def test_a_folder_is_prepared_once_and_for_one_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phaseflip.gpu.devices.first_gpu", lambda: None)
    folder = str(tmp_path / "f")
    words = ["silicon", "hgemm_sm90", "128", "128", "384", "-o", folder, "--jobs", "1"]
    words += ["--faults", "missing-release"]
    assert cli.main(words) == cli.CLEAN
    assert "repeat the command with this folder where there is one" in capsys.readouterr().out
    manifest = silicon.read_manifest(folder)
    assert manifest is not None
    assert [(m["fault"], m["fate"], m["refused"]) for m in manifest["mutants"]] == [
        ("no-op", "equivalent", ""),
        ("missing-release", "killed as expected", ""),
    ]
    for name, limit in silicon.POLL_LIMIT_MS.items():
        built = find_prebuilt(
            Path(folder, name), "hgemm_sm90 missing-release 0", (128, 128, 384), "sm_90a"
        )
        assert (built.poll_limit_ms, built.at_limit) == (limit, "go on")
    monkeypatch.setattr(silicon, "prepare", lambda *_, **__: pytest.fail("prepared again"))
    assert cli.main(words) == cli.CLEAN
    capsys.readouterr()
    assert cli.main([*words, "--seed", "3"]) == cli.BAD_INPUT
    assert "was prepared for seed 0, not 3; give another folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--launches", "0", "not between 1 and 100000"),
        ("--restarts", "100001", "not between 1 and 100000"),
        ("--seed", "-1", "negative"),
        ("--jobs", "0", "not between 1 and 512"),
        ("--jobs", "-3", "not between 1 and 512"),
    ],
)
def test_refused_before_anything_is_built(
    capsys: pytest.CaptureFixture[str], option: str, value: str, says: str
) -> None:
    words = ["silicon", "hgemm_sm90", "128", "128", "64", "-o", "nowhere"]
    assert cli.main([*words, option, value]) == cli.BAD_INPUT
    error = capsys.readouterr().err
    assert f"argument {option}: {value} is" in error and says in error and error.count("--") == 1
    assert not Path("nowhere").exists()
