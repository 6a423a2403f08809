"""Fixed bugs of kernel files: what anybody's code may do while it is imported, and while its factory is called."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phaseflip.cli.main import main as cli
from phaseflip.conformance.user_programs import programs_of
from phaseflip.errors import BadInput
from phaseflip.frontend.tirx import lowering

SHAPE = ["128", "128", "64"]
OWN_KERNEL = (
    "from dataclasses import replace\n"
    "from phaseflip import find_kernel\n"
    "def reference(A, B):\n"
    "    {}\n"
    "KERNEL = replace(find_kernel('hgemm_v1'), reference=reference)\n"
)


@pytest.fixture
def no_exit(monkeypatch):
    """An exit of this process would end the suite as well, and with exit code 0."""
    monkeypatch.setattr(os, "_exit", lambda status: pytest.fail(f"the process ends with {status}"))
    return os._exit


@pytest.mark.parametrize("way", ["os._exit(0)", "sys.exit(0)"])
@pytest.mark.parametrize("command", ["run", "study", "fault", "compare", "build", "conformance"])
def test_a_file_that_leaves_by_os_exit_ended_the_command_with_exit_code_0(
    command, way, no_exit, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("phaseflip.gpu.build.find_nvcc", lambda: "nvcc")
    monkeypatch.setattr("phaseflip.conformance.user_programs.find_nvcc", lambda: "nvcc")
    imported, called = tmp_path / "imported.py", tmp_path / "called.py"
    imported.write_text(f"import os, sys\n{way}\n")
    called.write_text(f"import os, sys\ndef factory(M, N, K):\n    {way}\n")
    for file in (imported, called):
        name = f"{file}:factory"
        words = {
            "run": ["run", name, *SHAPE],
            "study": ["study", "--kernels", name, "--shapes", "128x128x64", "-o", "not-made"],
            "fault": ["fault", name, "missing-commit", *SHAPE],
            "compare": ["compare", *SHAPE, "--kernels", name],
            "build": ["build", name, *SHAPE, "-o", "not-made"],
            "conformance": ["conformance", "--programs", str(imported), "-o", str(tmp_path / "o")],
        }
        assert cli.main(words[command]) == 2
        said = capsys.readouterr().err
        assert said.startswith("phaseflip: ") and said.count("\n") == 1
        assert f"SystemExit: {'os._exit(0)' if 'os' in way else '0'}" in said
        assert os._exit is no_exit


def test_a_factory_of_programs_that_leaves_by_os_exit_is_left_out(no_exit, tmp_path):
    file = tmp_path / "file.py"
    file.write_text("import os\ndef program():\n    os._exit(0)\n")
    assert [*programs_of(file)] == [
        ("file.py:program", "the factory fails: SystemExit: os._exit(0)")
    ]


def test_a_child_process_of_a_kernel_file_still_ends_by_os_exit(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
    )
    assert [*programs_of(file)] == []


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("import os; os._exit(0)", "failed: SystemExit: os._exit(0)"),
        ("return 1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("pass", "must return D, a NumPy array of float16 and shape (128, 128)"),
        ("return A.astype('float32') @ B.T", "must return D, a NumPy array of float16 and shape"),
    ],
)
def test_a_reference_that_fails_was_a_fault_of_the_harness(
    line, sentence, no_exit, tmp_path, capsys
):
    file = tmp_path / "file.py"
    file.write_text(OWN_KERNEL.format(line))
    assert cli.main(["run", f"{file}:KERNEL", *SHAPE]) == 2
    assert f"the reference of {file}:KERNEL {sentence}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "returns"),
    [
        ("async def factory(M=1, N=1, K=1): pass", "a coroutine, because it is async"),
        ("def factory(M=1, N=1, K=1): pass", "nothing"),
        ("def factory(M=1, N=1, K=1): return 5", "int"),
        ("import numpy\ndef factory(M=1, N=1, K=1): return numpy.ones(1)", "numpy.ndarray"),
    ],
)
def test_what_a_factory_returned_was_a_type_of_builtins_or_a_warning(
    text, returns, tmp_path, capsys
):
    file = tmp_path / "file.py"
    file.write_text(text)
    assert cli.main(["run", f"{file}:factory", *SHAPE]) == 2
    assert capsys.readouterr().err == (
        f"phaseflip: the factory of {file}:factory returns {returns}; it must return a tvm.tirx.PrimFunc\n"
    )
    assert [*programs_of(file)] == [("file.py:factory", f"returns {returns}, not a PrimFunc")]


def test_an_import_that_leaves_by_os_exit_is_bad_input_of_python_too(no_exit, tmp_path):
    file = tmp_path / "file.py"
    file.write_text("import os\nos._exit(0)\n")
    with pytest.raises(BadInput, match=r"cannot be imported: SystemExit: os\._exit\(0\)$"):
        list(programs_of(file))


@pytest.mark.parametrize(
    "line",
    [
        "sys.stdout.close()",
        "sys.stderr.close(); sys.stdout.close()",
        "sys.__stdout__.close(); sys.__stderr__.close()",
        "os.close(1); os.close(2)",
        "sys.stdout = sys.stderr = None",
    ],
)
def test_a_file_that_closes_its_streams_changed_the_exit_code(line, tmp_path):
    """The report and the sentence were lost, and it was 1, a wrong result."""
    file = tmp_path / "file.py"
    file.write_text(f"import os, sys\nfrom kernels.hgemm_v1 import KERNEL\n{line}\n")
    for name, code, wanted in (("KERNEL", 0, "PASSED"), ("other", 2, "no factory or Kernel")):
        words = [sys.executable, "-m", "phaseflip", "run", f"{file}:{name}", *SHAPE]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == code
        text, empty = (done.stderr, done.stdout) if code else (done.stdout, done.stderr)
        assert wanted in text and empty == ""


def test_of_two_errors_of_tvm_only_the_later_one_was_told(tmp_path, capsys):
    """`rows`, assigned in the kernel, is no constant; TVM fails as it handles its own complaint about that."""
    text = Path("kernels/hgemm_v4.py").read_text()
    for old, new in (
        ("        bx, by = T.cta_id", "        rows = 128\n        bx, by = T.cta_id"),
        ("Asmem[:, :],\n", "Asmem[0:rows, :],\n"),
        ("A[m_st : m_st + BLK_M,", "A[m_st : m_st + rows,"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    file = tmp_path / "file.py"
    file.write_text(text)
    assert cli.main(["run", f"{file}:hgemm_v4", *SHAPE, "--device", "sim"]) == 2
    said = capsys.readouterr().err
    assert "cannot lower the kernel: " in said and "group_many cannot prove" in said
    assert said.index("group_many cannot prove") < said.index("then AttributeError")


@pytest.mark.parametrize(
    ("chain", "reason"),
    [
        ("", "the first; then the second"),
        ("from error", "the first; then the second"),
        ("from None", "the second"),
    ],
)
def test_the_error_that_another_one_was_raised_over_was_not_told(chain, reason):
    text = (
        "try:\n    raise ValueError('the first')\n"
        f"except ValueError as error:\n    raise AttributeError('the second') {chain}\n"
    )
    with pytest.raises(AttributeError) as error:
        exec(text)
    assert lowering._reason(error.value) == reason
