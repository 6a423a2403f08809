"""Fixed bugs of the command line and of what it is given."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from phaseflip import faults
from phaseflip.cli import main as cli
from phaseflip.conformance import suite
from phaseflip.errors import BadInput
from phaseflip.frontend.tirx import lowering
from phaseflip.gemm.kernel import find_kernel
from phaseflip.gemm.verify import verify
from phaseflip.gpu import devices
from phaseflip.gpu import runtime as cuda_runtime
from phaseflip.gpu.devices import Gpu
from phaseflip.silicon import mutants_on_gpu as silicon
from phaseflip.study import tables as study_tables
from phaseflip.study.results import key_of, read_results
from phaseflip.system.json_files import append_line
from tests import study_runners
from tests.test_build import made


@pytest.mark.parametrize("command", ["fault", "study", "silicon"])
def test_the_help_of_a_command_that_takes_faults_did_not_say_how_to_list_them(command, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    assert "list --faults" in " ".join(capsys.readouterr().out.split())
    assert cli.main(["list", "--faults", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["faults"]
    every = [*faults.catalogue(), *faults.mutations(), faults.no_op()]
    assert [(f["name"], f["kind"]) for f in listed] == [(f.name, f.kind) for f in every]


@pytest.mark.parametrize(
    ("kernel", "schedule", "sentence"),
    [
        ("hgemm_v1", "lazy+delay:cta1", "delays CTA 1, but a cluster of the kernel has CTA 0"),
        ("hgemm_v1", "lazy+delay:cta0.warp9", "delays warp 9, but a CTA of the kernel has warps 0-3"),
        ("hgemm_v1", "eager+delay:warps2-4", "delays warps 2-4, but a CTA of the kernel has warps 0-3"),
        ("hgemm_v8", "random:1+delay:warp0+delay:cta2", "delays CTA 2, but a cluster of the kernel has CTAs 0-1"),
    ],
)  # fmt: skip
def test_a_delay_of_threads_that_the_kernel_does_not_have_did_nothing(kernel, schedule, sentence):
    shape = find_kernel(kernel).shape_rule.nearest(1, 1, 1)
    with pytest.raises(BadInput) as error:
        verify(find_kernel(kernel), *shape, schedule=schedule)
    assert str(error.value) == f"schedule {schedule!r} {sentence}"


@pytest.mark.parametrize("command", ["run", "fault"])
def test_a_delay_of_threads_that_are_not_there_is_bad_input_of_the_commands(command, capsys):
    kernel = ["hgemm_v1"] if command == "run" else ["hgemm_v1", "missing-commit"]
    words = [command, *kernel, "128", "128", "64", "--schedule", "lazy+delay:warp4", "--json"]
    assert cli.main(words) == 2
    assert "has warps 0-3" in json.loads(capsys.readouterr().out)["error"]


def conformance(folder):
    """A folder whose second manifest is to be damaged, and the command that reads it."""
    whole = {"format": suite.FORMAT, "arch": "sm_90a", "programs": []}
    (folder / "a.json").write_text(json.dumps(whole | {"family": "a"}))
    (folder / "b.json").write_text(json.dumps(whole | {"family": "b"}))
    return folder / "b.json", ["conformance", "-o", str(folder), "--programs", __file__]


def mutants(folder):
    """As `conformance`."""
    file = folder / silicon.MANIFEST
    file.write_text(json.dumps({"format": silicon.FORMAT, "kernel": "hgemm_sm90"}))
    return file, ["silicon", "hgemm_sm90", "128", "128", "64", "-o", str(folder)]


def study(folder):
    """As `conformance`."""
    (folder / "results.jsonl").write_text('{"kernel": "hgemm_v1"}\n')
    about = folder / "study.json"
    about.write_text("{}")
    words = ["study", "--kernels", "hgemm_v1", "--faults", "no-op", "--shapes", "128x128x64"]
    return about, [*words, "-o", str(folder)]


def baseline(folder):
    """As `conformance`."""
    file = folder / "nvidia-h200.json"
    shutil.copy("regression/baselines/nvidia-h200.json", file)
    words = ["history", "hgemm_sm90", "--gpu", "NVIDIA H200", "--baselines", str(folder)]
    return file, [*words, "-o", str(folder / "x.png")]


@pytest.mark.parametrize("damage", ["cut off", "empty", "no text", "a list", "lacks keys"])
@pytest.mark.parametrize("made", [conformance, mutants, study, baseline])
def test_a_damaged_json_file_was_a_fault_of_the_harness(made, damage, tmp_path, capsys):
    file, words = made(tmp_path)
    whole = json.loads(file.read_text())
    lacking = {
        conformance: whole | {"programs": [{}]},
        mutants: whole,
        study: whole,
        baseline: whole | {"machine_info": {"gpu": {"name": "NVIDIA H200"}}},
    }
    data = {
        "cut off": file.read_bytes()[:-3],
        "empty": b"" if made is not study else b"{",  # an empty study.json is a new study's
        "no text": b"\xff\xfe\x00",
        "a list": b"[]"
        if made is not conformance
        else b"[",  # a list there is somebody else's file
        "lacks keys": json.dumps(lacking[made]).encode(),
    }
    file.write_bytes(data[damage])
    code = cli.main([*words, "--json"])
    said = json.loads(capsys.readouterr().out)["error"]
    assert code == 2, said
    assert said.count("\n") == 0 and str(tmp_path) in said


def test_what_followed_a_line_that_was_cut_off_was_lost(tmp_path):
    """The next count of launches was written behind it, into the same line, and reading stopped there."""
    counts = dict.fromkeys(silicon.LAUNCH_KEYS, 0)
    for stem in "ab":
        append_line(tmp_path / silicon.LAUNCHES, counts | {"stem": stem})
        with open(tmp_path / silicon.LAUNCHES, "a") as out:
            out.write('{"stem": "x", "as')
    assert [run["stem"] for run in silicon.read_launches(tmp_path)] == ["a", "b"]


def test_an_outcome_of_a_study_that_lacks_a_key_was_a_fault_of_the_harness(tmp_path):
    outcome = study_runners.run(study_runners.plan(()).items[0])
    del outcome["fate"]
    assert key_of(outcome)
    append_line(tmp_path / "results.jsonl", outcome)
    with pytest.raises(BadInput, match="line 1 of .* is no outcome of a study"):
        read_results(tmp_path / "results.jsonl")


def test_a_cut_off_archive_of_arrays_was_a_difference_from_the_gpu(tmp_path, monkeypatch):
    """Every program of the family was said to differ; its arrays cannot be read."""
    manifest = {"format": suite.FORMAT, "arch": "sm_90a", "source_sha256": ""}
    (tmp_path / "own.json").write_text(json.dumps(manifest | {"family": "own", "programs": []}))
    np.savez_compressed(tmp_path / "own.npz", a=np.arange(1000))
    whole = (tmp_path / "own.npz").read_bytes()
    monkeypatch.setattr(cuda_runtime, "load", lambda *files: None)
    for size in (0, len(whole) // 2, len(whole) - 30):
        (tmp_path / "own.npz").write_bytes(whole[:size])
        with pytest.raises(BadInput, match=r"own.npz is damaged \(.*\); build own anew"):
            suite.differences((str(tmp_path), "own", None))


def interrupted_within_tvm(becomes):
    """TVM's passes while Ctrl-C comes: the KeyboardInterrupt becomes another error there, or nothing."""

    def passes(functions, arch):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 0)  # here at the latest
        except KeyboardInterrupt:
            if becomes is not None:
                raise becomes("Traceback: ...") from None
        return {}, {}

    return passes


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("becomes", [RuntimeError, None, KeyboardInterrupt])
@pytest.mark.parametrize("command", ["run", "compare", "build"])
def test_an_interrupt_while_tvm_lowers_was_bad_input_or_lost(becomes, command, monkeypatch, capsys):
    monkeypatch.setattr(lowering, "_run_passes", interrupted_within_tvm(becomes))
    monkeypatch.setattr("phaseflip.gpu.build.find_nvcc", lambda: "nvcc")
    lowering._lowered.cache_clear()
    words = {
        "run": ["run", "hgemm_v1", "128", "128", "64"],
        "compare": ["compare", "128", "128", "64", "--kernels", "hgemm_v1"],
        "build": ["build", "hgemm_v1", "128", "128", "64", "-o", "not-made"],
    }
    before = signal.getsignal(signal.SIGINT)
    assert cli.main(words[command]) == 130
    assert capsys.readouterr().err.startswith("phaseflip: interrupted after ")
    assert signal.getsignal(signal.SIGINT) is before and not os.path.exists("not-made")


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("becomes", ["ValueError", "SystemExit", "None"])
def test_an_interrupt_of_a_kernel_file_was_its_own_error(becomes, tmp_path, capsys):
    file = tmp_path / "file.py"
    file.write_text(
        "import os, signal\n"
        "def factory(M, N, K):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        signal.sigtimedwait([], 0)\n"
        "    except KeyboardInterrupt:\n"
        f"        if {becomes}: raise {becomes} from None\n"
    )
    assert cli.main(["run", f"{file}:factory", "128", "128", "64"]) == 130
    assert capsys.readouterr().err.startswith("phaseflip: interrupted after ")


def test_an_interrupt_inside_of_exec_ended_the_process_by_a_signal():
    script = (
        "import sys, phaseflip.cli.main as cli\n"
        "cli._parser = lambda: exec('raise KeyboardInterrupt')\n"
        "sys.exit(cli.main(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.startswith("phaseflip: interrupted after ")


@pytest.mark.parametrize("name", ["report.html", "results.jsonl", "study.json"])
def test_a_folder_named_like_a_file_of_a_study_was_a_fault_of_the_harness(name, tmp_path, capsys):
    (tmp_path / name).mkdir()
    if name == "report.html":
        (tmp_path / "study.json").write_text("")
    words = ["study", "--kernels", "hgemm_v1", "--faults", "missing-commit", "-o", str(tmp_path)]
    assert cli.main(words) == 2
    sentence = f"{tmp_path / name} is a folder, where a file is to be written; remove it"
    assert capsys.readouterr().err == f"phaseflip: {sentence}\n"


@pytest.mark.parametrize("command", ["build", "silicon", "conformance", "study"])
def test_an_empty_name_of_a_folder_was_the_current_one(command, capsys):
    kernel = [] if command in ("conformance", "study") else ["hgemm_v1", "128", "128", "64"]
    assert cli.main([command, *kernel, "-o", ""]) == 2
    assert "the name of the folder for output is empty; give one" in capsys.readouterr().err


NINES = "9" * 5000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["hgemm_v6:ctas=1:ctas=2", "128"], "hgemm_v6:ctas=1:ctas=2 gives ctas twice; give it once"),
        (["hgemm_v6:ctas=1,ctas=1", "128"], "hgemm_v6:ctas=1,ctas=1 gives ctas twice; give it once"),
        ([f"hgemm_v6:ctas={NINES}", "128"], f"up to 2147483647, got {NINES[:20]}... (5000 digits)"),
        (["hgemm_v6:ctas=2147483648", "128"], "ctas must be a positive integer up to 2147483647, got 2147483648"),
        (["hgemm_v1", NINES], f"argument M: {NINES[:20]}... (5000 digits) is too large; 2147483647 is the limit"),
        (["hgemm_v1", "1234567890123456789012"], "M: 12345678901234567890... (22 digits) is too large"),
        (["hgemm_v1", "99999999999"], "argument M: 99999999999 is too large"),
        (["hgemm_v1", "128", "--inputs", f"normal+scale-a:{NINES[:90]}"], f"got {NINES[:20]}... (90 digits)"),
        (["hgemm_v1", "128", "--schedule", f"random:{NINES}"], "random: has 5000 digits; 100 are the most"),
    ],
)  # fmt: skip
def test_numbers_that_are_too_long_or_given_twice(words, sentence, capsys):
    kernel, first, *options = words
    assert cli.main(["run", kernel, first, "128", "64", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_leading_zeros_are_a_number_still(capsys):
    assert cli.main(["run", "hgemm_v6:ctas=0000000000001", "000000000000128", "128", "64"]) == 0


def test_a_kernel_file_that_is_not_text_was_wrong_in_line_none(tmp_path, capsys):
    file = tmp_path / "binary.py"
    file.write_bytes(b"\x7fELF\x00\x01")
    assert cli.main(["run", f"{file}:f", "128", "128", "64"]) == 2
    said = capsys.readouterr().err
    assert f"{file} cannot be imported: SyntaxError: " in said and "line None" not in said


@pytest.mark.parametrize("options", [[], ["--prebuilt"]])
def test_benchmark_without_a_gpu_offered_the_simulator(options, tmp_path, monkeypatch, capsys):
    made(tmp_path, "hgemm_v1", arch="sm_100a", shape=(128, 128, 64), needs=(10, 0))
    words = ["benchmark", "hgemm_v1", "128", "128", "64", *options, *[str(tmp_path)] * len(options)]
    for gpu, sentence in (
        (None, "this needs an NVIDIA GPU, and PyTorch sees none here; run it where there is one"),
        (Gpu("NVIDIA H200", (9, 0)), "compute capability 9.0; use a kernel for it"),
    ):
        monkeypatch.setattr(devices, "first_gpu", lambda gpu=gpu: gpu)
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert sentence in said and "'sim'" not in said


def test_a_folder_without_kernels_held_no_kernel_not_the_one_asked_for(tmp_path, capsys):
    assert cli.main(["run", "hgemm_v3", "128", "128", "64", "--prebuilt", str(tmp_path)]) == 2
    said = f"{tmp_path} holds no compiled kernel; python -m phaseflip build ... -o makes one"
    assert capsys.readouterr().err == f"phaseflip: {said}\n"


def test_an_unknown_helper_pointed_to_a_list_that_there_is_not(tmp_path, capsys):
    file = tmp_path / "file.py"
    file.write_text(
        "from tvm.script import tirx as T\n"
        "def factory(M, N, K):\n"
        "    @T.prim_func\n"
        "    def kernel(\n"
        "        A: T.Buffer((M, K), 'float16'), B: T.Buffer((N, K), 'float16'), D: T.Buffer((M, N), 'float16')\n"
        "    ):\n"
        "        T.device_entry()\n"
        "        cta = T.cta_id([1])\n"
        "        warp = T.warp_id([1])\n"
        "        lane = T.lane_id([32])\n"
        "        T.cuda.func_call('odd', lane, source_code='__device__ void odd(int x) {}')\n"
        "        D[0, lane] = A[0, lane]\n"
        "    return kernel\n"
    )
    assert cli.main(["run", f"{file}:factory", "128", "128", "64", "--device", "sim"]) == 2
    said = capsys.readouterr().err
    assert "does not know the CUDA helper odd; use an intrinsic of TVM in its place, or add" in said
    assert 'its meaning as CONTRIBUTING.md says under "Add an instruction"' in said
    assert "## Add an instruction" in (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()


def test_a_fault_that_shows_nothing_did_not_say_that_other_shapes_may(capsys):
    words = ["fault", "hgemm_v2", "missing-phase-flip", "128", "128"]
    assert cli.main([*words, "64"]) == 1
    said = capsys.readouterr().out
    assert "EQUIVALENT" in said and "a larger K, more tiles or another schedule may show it" in said
    assert "number 0 of 1" in said
    assert cli.main([*words, "192"]) == 0
    assert "may show it" not in capsys.readouterr().out
    assert cli.main([*words, "64", "--site", "4"]) == 2
    assert "has 1 site in hgemm_v2, numbered from 0" in capsys.readouterr().err


def test_tables_of_a_study_cut_words():
    headings = ["mutants", "as expected", "otherwise", "survived", "equivalent", "harness error"]
    for name in ("hgemm_v1", "a/long/path/of/somebody/" * 4 + "file.py:factory"):
        table = study_tables._table("kernel")
        for heading in headings:
            table.add_column(heading, justify="right")
        table.add_row(name, *["1"] * len(headings))
        lines = study_tables._lines(table)
        text = " ".join(lines)
        for word in [name, *" ".join(headings).split()]:
            assert word in text
        assert "…" not in text
    assert study_tables.counted(1, "run") == "1 run" and study_tables.counted(2, "run") == "2 runs"
