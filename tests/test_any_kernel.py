"""`run` and `verify` on kernels with other parameters than A, B and D of one dtype: outputs, numbers, inputs by name."""

import json
import shlex

import numpy as np
import pytest

from phaseflip import find_kernel
from phaseflip.cli.main import main as cli
from phaseflip.errors import BadInput
from phaseflip.gemm.arguments import make_arguments
from phaseflip.gemm.inputs import make_inputs
from phaseflip.gemm.verify import lowered, verify
from phaseflip.gpu import devices

FILE = "tests/data/any_kernels.py"
NUMERIC = ["tolerance", "bound", "exact"]
BIAS = "tests/cases/c08_bias_arg_ok.py:k"
F32 = "tests/cases/c05_f32_out_ok.py:k"


@pytest.fixture
def run(capsys, monkeypatch):
    """One command `run`: (exit code, JSON object)."""
    monkeypatch.setattr(devices, "first_gpu", lambda: None)

    def command(*words):
        capsys.readouterr()
        code = cli.main(["run", *map(str, words), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return command


def said(report):
    return [(o["name"], o["passed"]) for o in report["oracles"]]


def arguments(name, *shape, kind="normal", seed=0, outputs=(), scalars=()):
    program = lowered(find_kernel(f"{FILE}:{name}"), *shape)
    return make_arguments(program, shape, kind, seed, outputs, dict(scalars))


@pytest.mark.parametrize("inputs", ["normal", "integers", "one-hot", "large"])
def test_a_float32_output_is_judged_by_every_oracle(run, inputs):
    code, report = run(F32, 128, 256, 128, "--inputs", inputs)
    assert code == 0 and report["passed"] and report["max_abs_error"] is not None
    exact = None if inputs in ("normal", "large") else True
    assert said(report) == [
        ("tolerance", True),
        ("bound", True),
        ("exact", exact),
        ("unwritten-output", True),
    ]


def test_a_float32_output_of_bfloat16_operands(run):
    code, report = run(f"{FILE}:dot", 8, 16, 40)
    assert code == 0 and said(report)[:2] == [("tolerance", True), ("bound", True)]


def test_a_kernel_with_a_bias_has_no_reference(run):
    code, report = run(BIAS, 128, 256, 128)
    assert code == 0 and report["passed"] and report["max_abs_error"] is None
    assert said(report) == [*((name, None) for name in NUMERIC), ("unwritten-output", True)]
    assert all(o["message"].startswith("not applicable: ") for o in report["oracles"][:3])


def test_the_text_says_that_there_is_no_reference(capsys):
    assert cli.main(["run", BIAS, "128", "256", "128", "--device", "sim"]) == 0
    assert "PASSED   no reference" in capsys.readouterr().out


def test_a_bias_kernel_computes_what_its_inputs_say():
    """The inputs are A and B as of a GEMM, and a bias by its name: the sum is right to half's precision."""
    kernel = find_kernel(BIAS)
    verdict = verify(kernel, 128, 256, 64, seed=3, inputs="integers")
    given = make_arguments(lowered(kernel, 128, 256, 64), (128, 256, 64), "integers", 3, (), {})
    A, B = make_inputs("integers", 128, 256, 64, 3, "float16")
    assert (given.values["A"] == A).all() and (given.values["B"] == B).all()
    assert given.outputs == ("D",) and list(given.values) == ["A", "B", "D", "bias"]
    bias = given.values["bias"]
    assert bias.dtype == np.float32 and set(np.unique(bias)) == set(range(-4, 5))
    expected = A.astype("f4") @ B.astype("f4").T + bias
    assert (verdict.D == expected.astype(np.float16)).all()


def test_numbers_and_several_outputs(run):
    words = (f"{FILE}:scaled", 64, 1, 1, "--scalar", "alpha=0.5", "--scalar", "n=0x40")
    code, report = run(*words)
    assert code == 0 and said(report)[3:] == [("unwritten-output", True)] * 2
    assert [o["message"] for o in report["oracles"][3:]] == [
        "every element of Y was written",
        "every element of count was written",
    ]


def test_each_output_is_judged_and_the_replay_line_repeats_it(run):
    words = (f"{FILE}:scaled", 64, 1, 1, "--scalar", "alpha=-1e3", "--scalar", "n=60", "--out", "Y")
    code, report = run(*words)
    assert code == 1
    (finding,) = report["findings"]
    assert finding["code"] == "unwritten-output"
    assert finding["message"] == "4 of 64 elements of Y were never written, the first is Y[60]"
    again = run(*shlex.split(report["replay"])[4:])
    assert again[0] == 1 and again[1] | {"seconds": 0} == report | {"seconds": 0}


def test_what_out_does_not_name_is_an_input(run):
    """A buffer that is read and written is judged by default, and an input where --out names the others."""
    given = arguments("accumulate", 32, 1, 3)
    assert given.outputs == ("D", "sums")
    assert len(np.unique(given.values["D"])) == 1  # the poison
    given = arguments("accumulate", 32, 1, 3, outputs=("sums",))
    assert set(np.unique(given.values["D"])) == set(range(-4, 5))
    code, report = run(f"{FILE}:accumulate", 32, 1, 3, "--out", "sums")
    assert code == 0 and len(report["oracles"]) == 4
    code, report = run(f"{FILE}:accumulate", 32, 1, 3, "--out", "sums,D")
    assert len(report["oracles"]) == 5


def test_inputs_follow_from_name_and_seed():
    first = arguments("accumulate", 32, 1, 3, seed=1, outputs=("sums",)).values
    again = arguments("accumulate", 32, 1, 3, seed=1, outputs=("sums",)).values
    other = arguments("accumulate", 32, 1, 3, seed=2, outputs=("sums",)).values
    assert (first["A"] == again["A"]).all()
    assert (first["A"] != other["A"]).any() and (first["A"] != first["D"]).any()


KNOWN = "alpha (float32), n (int32)"
BAD = [
    (
        "scaled",
        "",
        f"the kernel takes numbers by value ({KNOWN}), and alpha is missing; give --scalar alpha=VALUE",
    ),
    ("scaled", "n=1.5 alpha=1", "n is a whole number passed by value (int32), not '1.5'"),
    ("scaled", "n=1 alpha=x", "alpha is a number passed by value (float32), not 'x'"),
    (
        "scaled",
        "n=2147483648 alpha=1",
        "n is a number passed by value: a whole one from -2147483648",
    ),
    (
        "scaled",
        "beta=1",
        f"the kernel takes no number 'beta' by value; those that it takes are: {KNOWN}",
    ),
    ("scaled", "alpha", "argument --scalar: 'alpha' is not NAME=VALUE, as in alpha=0.5"),
    ("scaled", "n=1 n=2", "argument --scalar: n is given twice; give it once"),
    ("dot", "n=1", "the kernel takes no number 'n' by value; those that it takes are: none"),
    (
        "silent",
        "",
        "the kernel writes to none of its buffers, as far as its text tells; name its outputs, as in --out A",
    ),
]


@pytest.mark.parametrize(("name", "scalars", "sentence"), BAD)
def test_bad_input_is_one_sentence(run, name, scalars, sentence):
    words = [word for scalar in scalars.split() for word in ("--scalar", scalar)]
    code, report = run(f"{FILE}:{name}", 64, 1, 1, *words)
    assert code == 2 and report["error"].startswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--out", "Z"), "the kernel has no buffer 'Z' to be an output; its buffers are X, Y, count"),
        (("--inputs", "one-hot"), "inputs 'one-hot' are of A[M, K] and B[N, K]"),
        (("--inputs", "normal+nan-a:1"), "inputs 'normal+nan-a:1' are of A[M, K] and B[N, K]"),
    ],
)  # fmt: skip
def test_outputs_and_inputs_that_a_kernel_does_not_have(run, words, sentence):
    numbers = ("--scalar", "n=1", "--scalar", "alpha=2")
    code, report = run(f"{FILE}:scaled", 64, 1, 1, *numbers, *words)
    assert code == 2 and report["error"].startswith(sentence)


def test_a_kernel_of_the_project_promises_a_gemm(run):
    code, report = run("hgemm_v1", 128, 128, 64, "--out", "A")
    assert code == 1 and said(report)[3:] == [("unwritten-output", False)]
    code, report = run("hgemm_v1", 128, 128, 64, "--scalar", "n=1")
    assert code == 2 and "takes no number 'n' by value" in report["error"]


def test_what_has_no_reference_runs_in_the_simulator_where_a_gpu_would_fit(monkeypatch):
    from phaseflip.cli.gpu import chosen

    monkeypatch.setattr(devices, "first_gpu", lambda: devices.Gpu("a GPU", (10, 0)))
    _, device, gpu = chosen(BIAS, (128, 256, 128), "auto", None)
    assert (device.name, gpu) == ("sim", None)


def test_verify_takes_numbers_as_they_are():
    kernel = find_kernel(f"{FILE}:scaled")
    verdict = verify(kernel, 64, 1, 1, outputs=["Y"], scalars={"alpha": np.float32(2), "n": 64})
    assert verdict.passed and np.isnan(verdict.max_abs_error)
    given = arguments("scaled", 64, 1, 1, scalars={"alpha": 2, "n": 64})
    np.testing.assert_array_equal(verdict.D, given.values["X"] * 2)
    with pytest.raises(BadInput, match="n is a number passed by value"):
        verify(kernel, 64, 1, 1, scalars={"alpha": 2, "n": 2.5})
