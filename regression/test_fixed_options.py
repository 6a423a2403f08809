"""Fixed bugs of options, and of the streams that a command writes to."""

import os
import subprocess
import sys

import pytest

from phaseflip.cli.main import main as cli
from phaseflip.study.results import read_results


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_was_a_wrong_result_or_a_fault_of_the_harness(unbuffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    sentence = "phaseflip: standard output cannot be written: No space left on device\n"
    for line in ("run hgemm_v1 128 128 64", "run hgemm_v1 128 128 64 --json", "list", "run --help"):
        words = [sys.executable, "-m", "phaseflip", *line.split()]
        with open("/dev/full", "w") as full:
            done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (3, sentence)
    with open("/dev/full", "w") as full:
        words = [sys.executable, "-m", "phaseflip", "run", "--json"]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2 and done.stderr.startswith("phaseflip: the following arguments")
        done = subprocess.run(words[:-1], stdout=subprocess.PIPE, stderr=full, text=True)
        assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(
    ("line", "name", "wanted"),
    [
        ("study --faults a --faults b,c d", "faults", ["a", "b", "c", "d"]),
        ("study", "faults", ["catalogue"]),
        ("study --kernels a,b --kernels c", "kernels", ["a", "b", "c"]),
        ("study --kernels v6:ctas=2,x=1,v2", "kernels", ["v6:ctas=2,x=1", "v2"]),
        ("study --shapes 1x2x3,4x5x6 --shapes 7x8x9", "shapes", [(1, 2, 3), (4, 5, 6), (7, 8, 9)]),
        ("compare --kernels a b --kernels c,d", "kernels", ["a", "b", "c", "d"]),
        ("silicon k 1 1 1 -o x --faults a --faults b", "faults", ["a", "b"]),
        ("conformance -o x --family a,b --family c d", "family", ["a", "b", "c", "d"]),
        ("conformance -o x --programs a --programs b", "programs", ["a", "b"]),
        ("run k 1 1 1 --checks races --checks memory,protocol", "checks", "races,memory,protocol"),
        ("run --checks races k 1 1 1", "checks", "races"),
    ],
)
def test_of_an_option_given_twice_the_first_was_dropped_and_commas_were_for_compare_alone(
    line, name, wanted
):
    assert getattr(cli._parser().parse_args(line.split()), name) == wanted


def test_a_comma_in_the_name_of_a_file_does_not_separate(tmp_path):
    file = tmp_path / "one,two three.py"
    file.write_text("")
    words = ["study", "--kernels", f"{file}:f", "v1,v2"]
    assert cli._parser().parse_args(words).kernels == [f"{file}:f", "v1", "v2"]
    words = ["conformance", "-o", "x", "--programs", str(file)]
    assert cli._parser().parse_args(words).programs == [str(file)]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("--kernels hgemm_v1 hgemm_v2 128 128 64", 0, "hgemm_v1  hgemm_v2"),
        ("128 128 64 --kernels hgemm_v1 --kernels hgemm_v2", 0, "hgemm_v1  hgemm_v2"),
        ("--kernels 128 128 64", 2, "at least one name of a kernel"),
        ("--kernels hgemm_v1 128 128 64 x", 2, "'x' is not a whole number such as 512"),
    ],
)
def test_compare_takes_blanks_between_kernels_and_a_shape_after_them(line, code, said, capsys):
    assert cli.main(["compare", *line.split()]) == code
    assert said in "".join(capsys.readouterr())


def test_a_damaged_study_json_was_to_be_mended_by_removing_the_results(tmp_path, capsys):
    words = ["study", "--kernels", "hgemm_v1", "--faults", "no-op", "--shapes", "128x128x64"]
    words += ["-o", str(tmp_path)]
    (tmp_path / "study.json").write_text("{")
    assert cli.main(words) == 2
    assert capsys.readouterr().err.endswith("study.json is damaged; remove that file\n")
    (tmp_path / "study.json").unlink()
    assert cli.main(words) == 0
    (tmp_path / "study.json").write_text("{")
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "remove" not in said and "results.jsonl can still be read" in said
    assert read_results(tmp_path / "results.jsonl")


def test_a_folder_that_cannot_be_read_held_no_compiled_kernel(tmp_path, monkeypatch, capsys):
    run = ["run", "hgemm_v1", "128", "128", "64", "--prebuilt", str(tmp_path)]
    (tmp_path / "a.json").mkdir()
    assert cli.main(run) == 2
    assert "a.json cannot be read (Is a directory)" in capsys.readouterr().err

    def refuse(folder):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "listdir", refuse)
    conformance = ["conformance", "-o", str(tmp_path / "new"), "--programs", str(tmp_path)]
    history = ["history", "hgemm_v1", "-o", "x.png", "--baselines", str(tmp_path)]
    for words in (run, conformance, history):
        assert cli.main(words) == 2
        said = capsys.readouterr().err
        assert said == f"phaseflip: the folder {tmp_path} cannot be read: Permission denied\n"


@pytest.mark.parametrize("text", ['{"benchmarks": ["x"]}', "[]", '{"machine_info": 5}'])
def test_a_damaged_record_of_times_leaked_an_error_of_python(text, tmp_path, capsys):
    file = tmp_path / "nvidia-h200.json"
    file.write_text(text)
    words = ["history", "hgemm_sm90", "--gpu", "NVIDIA H200", "--baselines", str(tmp_path)]
    assert cli.main([*words, "-o", "x.png"]) == 2
    said = capsys.readouterr().err
    assert f"{file} is not a record of times on a GPU (" in said
    assert "Error" not in said and "indices" not in said


@pytest.mark.parametrize("words", [["list"], ["run", "hgemm_v1", "128", "128", "64"]])
def test_a_python_without_the_packages_was_a_fault_of_the_harness(words):
    hidden = "import sys; sys.modules['numpy'] = None; from phaseflip.cli.main import main; "
    code = f"{hidden}sys.exit(main({words}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr == (
        f"phaseflip: this Python ({sys.executable}) has no numpy; `make run` installs the packages of requirements.txt"
        " into .venv, whose Python `. .venv/bin/activate` chooses\n"
    )


@pytest.mark.parametrize("module", ["test_fault_detection", "prove_gate"])
def test_help_of_the_suites_own_commands_ran_them(module):
    words = [sys.executable, "-m", f"regression.{module}", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and f"python -m regression.{module}" in done.stdout
