"""Baselines of times on a GPU: what is kept, what compares, and the picture of their history. All times are made up."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip.cli.main import main as cli
from phaseflip.errors import BadInput
from phaseflip.timing import baselines
from phaseflip.timing.baselines import Entry, find_baseline, history, other_machine, slug
from phaseflip.timing.rounds import change, compare

GPU = {
    "name": "NVIDIA H200", "driver": "580.159.04", "cuda": "13.0", "torch": "2.11.0",
    "limits": {"clocks.max.sm": "1980 MHz", "power.limit": "700.00 W"},
}  # fmt: skip
SHAPE = (4096, 4096, 4096)


def entry(
    ratio: float = 1.15, seed: int = 0, shape: tuple[int, int, int] = SHAPE, speed: float = 1.0
) -> Entry:
    """Thirty rounds, which vary by 1% and drift together; `speed` is that of the session's clocks."""
    rng = np.random.default_rng(seed)
    cublas = 200.0 / speed * np.linspace(1, 1.1, 30) * (1 + 0.01 * rng.standard_normal(30))
    ours = cublas * ratio * (1 + 0.005 * rng.standard_normal(30))
    return Entry("hgemm_sm90", shape, "warm", tuple(ours.tolist()), tuple(cublas.tolist()))


def record(*entries: Entry, day: int = 0, gpu: Any = GPU) -> dict[str, Any]:
    """As pytest-benchmark puts it out."""
    from pytest_benchmark.stats import Stats

    benchmarks = []
    for e in entries:
        stats = Stats()
        for us in e.rounds_us:
            stats.update(us / 1e6)
        name = f"test_time[{e.name}]"
        benchmarks.append(
            {
                "group": None, "name": name, "fullname": name, "params": None, "param": None,
                "extra_info": baselines.extra_info(e), "options": {},
                "stats": stats.as_dict() | {"data": stats.data, "iterations": 1},
            }
        )  # fmt: skip
    moment = datetime(2026, 1, 1, 12, tzinfo=timezone.utc) + timedelta(days=day)
    return {
        "machine_info": {"gpu": gpu}, "commit_info": {"id": f"{day:02}cafe" + "0" * 34},
        "benchmarks": benchmarks, "datetime": moment.isoformat(), "version": "5.3.1",
    }  # fmt: skip


def write(directory: Path, *entries: Entry, day: int = 0) -> tuple[Path, Path | None]:
    return baselines.write(directory, "NVIDIA H200", record(*entries, day=day))


# --- files ---------------------------------------------------------------------------------------


def test_names_of_files() -> None:
    assert slug("NVIDIA H200") == "nvidia-h200"
    assert slug("NVIDIA GeForce RTX 5090 (x)") == "nvidia-geforce-rtx-5090-x"


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    given = entry()
    file, kept = write(tmp_path / "new", given)
    assert file == tmp_path / "new" / "nvidia-h200.json" and kept is None
    found = find_baseline(tmp_path / "new", "NVIDIA H200")
    assert found.gpu == GPU and found.commit.startswith("00cafe")
    [read] = found.entries.values()
    assert read.key == ("hgemm_sm90", SHAPE, "warm") and read.cublas_us == given.cublas_us
    assert read.rounds_us == pytest.approx(given.rounds_us, rel=1e-12)
    assert file.stat().st_mode & 0o777 == 0o644


def test_the_one_before_is_kept_and_pytest_benchmark_reads_all(
    tmp_path: Path, pytester: pytest.Pytester
) -> None:
    for day in range(3):
        file, kept = write(tmp_path, entry(seed=day), day=day)
    numbers = sorted(f.name for f in (tmp_path / "nvidia-h200").iterdir())
    assert [n[:11] for n in numbers] == ["0001_00cafe", "0002_01cafe"]
    assert numbers[1].endswith("_20260102_120000.json") and kept == tmp_path / "nvidia-h200" / numbers[1]  # fmt: skip
    assert [r.commit[:2] for r in history(tmp_path, "NVIDIA H200")] == ["00", "01", "02"]
    listed = pytester.run(
        "pytest-benchmark", "--storage", str(tmp_path), "compare", "0*", str(file)
    )
    assert listed.ret == 0
    listed.stdout.fnmatch_lines_random(["*0001_00cafe*", "*0002_01cafe*", "*benchmark: 3 tests*"])


def test_what_a_crash_between_the_two_files_leaves_is_not_kept_twice(tmp_path: Path) -> None:
    write(tmp_path, entry())
    baselines._keep(tmp_path, find_baseline(tmp_path, "NVIDIA H200"))  # and then it ended
    _, kept = write(tmp_path, entry(seed=1), day=1)
    assert list((tmp_path / "nvidia-h200").iterdir()) == [kept]


def test_nothing_is_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _ = write(tmp_path, entry())
    before = file.read_text()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadInput, match="cannot be written: No space left on device"):
        write(tmp_path, entry(seed=1), day=1)
    assert file.read_text() == before
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [file]


def test_a_baseline_does_not_lose_a_time(tmp_path: Path) -> None:
    other = (2048, 2048, 2048)
    write(tmp_path, entry(), entry(shape=other))
    with pytest.raises(
        BadInput, match=r"of hgemm_sm90 2048x2048x2048 \(warm L2\), which were not taken now"
    ):
        write(tmp_path, entry(), day=1)
    assert len(history(tmp_path, "NVIDIA H200")) == 1
    write(tmp_path, entry(), entry(shape=other), entry(shape=(128, 128, 64)), day=1)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"benchmarks": [{"stats": {}}]}'])
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "nvidia-h200.json").write_text(text)
    sentence = r"nvidia-h200.json is (damaged|not a record of times on a GPU) \(.*\); --update"
    with pytest.raises(BadInput, match=sentence) as error:
        find_baseline(tmp_path, "NVIDIA H200")
    assert "Error" not in str(error.value)


def test_rounds_without_those_of_cublas_are_no_record(tmp_path: Path) -> None:
    data = record(entry())
    data["benchmarks"][0]["extra_info"]["cublas_rounds_us"].pop()
    (tmp_path / "nvidia-h200.json").write_text(json.dumps(data))
    with pytest.raises(BadInput, match="30 rounds, and 29 of cuBLAS"):
        find_baseline(tmp_path, "NVIDIA H200")


def test_without_a_baseline_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no baseline for NVIDIA B200 \(.*nvidia-b200.json\); --update"):  # fmt: skip
        find_baseline(tmp_path, "NVIDIA B200")


# --- what compares -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "refused", "mentioned"),
    [
        ({}, "", []),
        ({"name": "NVIDIA B200"}, "the GPU is NVIDIA B200 here and NVIDIA H200 there", []),
        ({"driver": "590.1"}, "driver is 590 here and 580 there", ["driver is 590.1"]),
        ({"cuda": "13.1"}, "PyTorch's CUDA is 13.1 here and 13.0 there", []),
        ({"driver": "580.200"}, "", ["driver is 580.200 here and 580.159.04 there"]),
        ({"torch": "2.12"}, "", ["torch is 2.12 here and 2.11.0 there"]),
        (
            {"limits": {"clocks.max.sm": "1980 MHz", "power.limit": "500.00 W"}},
            "",
            ["power.limit is 500.00 W here and 700.00 W there"],
        ),
    ],
)
def test_another_machine(changes: dict[str, Any], refused: str, mentioned: list[str]) -> None:
    sentence, also = other_machine(GPU | changes, GPU)
    assert refused in sentence and bool(refused) is bool(sentence)
    assert len(also) == len(mentioned) and all(w in a for w, a in zip(mentioned, also, strict=True))


@pytest.mark.parametrize("speed", [1.0, 0.8, 1.2])
@pytest.mark.parametrize(("slower", "flagged"), [(1.0, 0), (1.02, 0), (1.05, 20), (0.9, 0)])
def test_sessions_of_other_clocks_compare_by_their_ratios(
    slower: float, flagged: int, speed: float
) -> None:
    """Raw times differ by a fifth between the sessions; what is flagged is the kernel alone."""
    found = [
        entry(1.15 * slower, seed=2 * i + 1, speed=speed).change_from(entry(1.15, seed=2 * i))
        for i in range(20)
    ]
    assert sum(c.is_slower(0.03) for c in found) == flagged
    assert sum(c.low < slower < c.high for c in found) >= 18  # of a 99% interval


def test_the_interval_of_a_change_has_the_doubt_of_both_sessions() -> None:
    now, before = entry(seed=1), entry(seed=2)
    both = change((now.rounds_us, now.cublas_us), (before.rounds_us, before.cublas_us))
    one = compare(now.rounds_us, now.cublas_us)
    assert both.high / both.low > one.high / one.low
    assert both.ratio == pytest.approx(one.ratio / before.to_cublas.ratio)


# --- the history ---------------------------------------------------------------------------------


def filled(directory: Path) -> None:
    for day, ratio in enumerate((1.3, 1.2, 1.21, 1.15)):
        shapes = [SHAPE, (2048, 2048, 2048)][: 1 if day == 0 else 2]
        given = [entry(ratio, seed=day, shape=s, speed=1 + day / 20) for s in shapes]
        write(directory, *given, day=day)


def test_the_history_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "b")
    picture = tmp_path / "h.png"
    words = ["history", "hgemm_sm90", "--baselines", str(tmp_path / "b"), "-o", str(picture)]
    assert cli.main([*words, "--json"]) == cli.CLEAN
    assert json.loads(capsys.readouterr().out) == {
        "kernel": "hgemm_sm90", "gpu": "NVIDIA H200", "file": str(picture), "runs": 4,
        "shapes": {"2048x2048x2048, warm L2": 3, "4096x4096x4096, warm L2": 4},
    }  # fmt: skip
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert cli.main([*words[:-1], str(tmp_path / "h.svg"), "--gpu", "NVIDIA H200"]) == cli.CLEAN
    assert "00cafe0" in (tmp_path / "h.svg").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hgemm_v3", "-o", "x.png"], "there are no times of hgemm_v3, only of hgemm_sm90"),
        (["hgemm_sm90", "-o", "x.txt"], "'x.txt' must end in .png, .svg, .pdf"),
        (["hgemm_sm90", "-o", ""], "'' must end in .png, .svg, .pdf"),
        (["hgemm_sm90", "-o", "nowhere/x.png"], "nowhere/x.png cannot be written: No such file"),
        (["hgemm_sm90", "--gpu", "B200", "-o", "x.png"], "no history of times on B200 in"),
        (["hgemm_sm90", "--baselines", "no", "-o", "x.png"], "there is no history of times in no"),
    ],
)
def test_a_history_that_cannot_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], sentence: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    filled(tmp_path / "regression" / "baselines")
    assert cli.main(["history", *words]) == cli.BAD_INPUT
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_of_several_gpus_one_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from phaseflip.gpu import devices
    from phaseflip.gpu.devices import Gpu

    filled(tmp_path)
    (tmp_path / "fault_detection.json").write_text("{}")  # a baseline of something else
    baselines.write(tmp_path, "NVIDIA B200", record(entry(), gpu=GPU | {"name": "NVIDIA B200"}))
    words = ["history", "hgemm_sm90", "--baselines", str(tmp_path), "-o", str(tmp_path / "x.svg")]
    monkeypatch.setattr(devices, "first_gpu", lambda: None)
    assert cli.main(words) == cli.BAD_INPUT
    assert "has times of nvidia-b200, nvidia-h200; choose one with --gpu" in capsys.readouterr().err
    monkeypatch.setattr(devices, "first_gpu", lambda: Gpu("NVIDIA B200", (10, 0)))
    assert cli.main(words) == cli.CLEAN and "NVIDIA B200" in capsys.readouterr().out
