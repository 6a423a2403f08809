"""Fixed bugs of options, and of the streams that a command writes to."""

import subprocess
import sys

import pytest

from phaseflip import cli


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
