"""Conformance programs: drawn from their seed alone, silent in the simulator; what is said where a GPU differs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip import lower, simulate
from phaseflip.cli import main as cli
from phaseflip.conformance import suite
from phaseflip.conformance import user_programs as programs
from phaseflip.conformance.family import FAMILIES
from phaseflip.errors import BadInput
from phaseflip.gpu import runtime as cuda_runtime
from phaseflip.gpu.nvcc import Cubin
from phaseflip.system.worker_pool import RAISED, RETURNED, TIMED_OUT, Ended
from tests.test_build import needs_nvcc

NAMES = sorted(FAMILIES)
SCHEDULES = ("in-order", "lazy", "random:3")


def drawn(family: str, seed: int, index: int) -> Any:
    return FAMILIES[family].generate(suite.generator(family, seed, index))


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize("family", NAMES)
def test_programs_are_silent_and_give_the_same_bits_under_every_schedule(
    family: str, index: int
) -> None:
    program = drawn(family, 5, index)
    lowered = lower(program.function, "sm_90a")
    results = []
    for schedule in SCHEDULES:
        run = simulate(lowered, program.arrays, schedule)
        assert [str(f) for f in run.findings] == []
        results.append([a.tobytes() for a in run.outputs.values()])
    assert results[0] == results[1] == results[2]
    arrays = [a.tobytes() for a in program.arrays]
    assert all(results[0][i] != arrays[i] for i in program.outputs[:1])  # it did something


@pytest.mark.parametrize("family", NAMES)
def test_a_seed_gives_one_program(family: str) -> None:
    one, again, other = drawn(family, 1, 0), drawn(family, 1, 0), drawn(family, 2, 0)
    assert one.text == again.text != other.text
    for a, b in zip(one.arrays, again.arrays, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_full_run_has_more_than_five_hundred_cases() -> None:
    counted = {name: f.programs * drawn(name, 0, 0).cases for name, f in FAMILIES.items()}
    assert sum(counted.values()) >= 500


def test_families_by_architecture() -> None:
    assert [f.name for f in suite.families_for("sm_90a", ["tma", "wgmma"])] == ["tma", "wgmma"]
    assert "wgmma" not in {f.name for f in suite.families_for("sm_100a")}
    with pytest.raises(BadInput, match="no family 'wgmma' for sm_100a; known are .*tma"):
        suite.families_for("sm_100a", ["wgmma"])


def test_what_is_said_of_a_difference() -> None:
    a = np.arange(12, dtype=np.uint32).reshape(3, 4)
    b = a.copy()
    assert suite.unequal(2, a, b, 3) == []
    b[1, 2] = b[2, 3] = 99
    said = f"the first at [1, 2]: GPU {a[1, 2]!r}, simulator {b[1, 2]!r}"
    assert suite.unequal(2, a, b, 3) == [f"array 2: 2 of 12 elements differ in CTAs [1, 2], {said}"]
    assert suite.unequal(2, a, b) == [f"array 2: 2 of 12 elements differ, {said}"]
    zero, negative = np.array([0.0], np.float32), np.array([-0.0], np.float32)
    assert len(suite.unequal(0, zero, negative)) == 1  # bits, not values


@needs_nvcc
def test_a_folder_is_built_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU played by what the simulator said, and one that gets a word wrong."""
    words = ["conformance", "-o", str(tmp_path), "--family", "matrix", "--percent", "20", "--json"]
    monkeypatch.setattr("phaseflip.gpu.devices.first_gpu", lambda: None)
    assert cli.main(words) == cli.CLEAN
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "folder": str(tmp_path), "arch": "sm_90a", "cases": 8, "device": None,
        "families": {"matrix": {"programs": 2, "cases": 8, "left_out": []}},
    }  # fmt: skip
    with pytest.raises(BadInput, match="built for sm_90a, and the GPU here runs sm_100a"):
        suite.manifests(tmp_path, "sm_100a")
    with np.load(tmp_path / "matrix.npz") as file:
        arrays = dict(file)
    monkeypatch.setattr(cuda_runtime, "load", lambda *files: files)
    off_by = 0

    def call(module: Any, given: list[np.ndarray], function: str) -> Any:
        index = function.removeprefix("program_")
        results = [arrays.get(f"{index}_out_{i}", a).copy() for i, a in enumerate(given)]
        results[2][0, 0, 0] += np.uint32(off_by)
        return results, 0.0

    monkeypatch.setattr(cuda_runtime, "call", call)
    assert suite.differences((str(tmp_path), "matrix", 1)) == ""
    off_by = 1
    assert "1 of" in suite.differences((str(tmp_path), "matrix", 1))


def test_bad_command_lines(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for words, sentence in (
        (["conformance"], "-o/--output"),
        (["conformance", "-o", str(tmp_path), "--percent", "0"], "0 is not between 1 and 1000"),
        (["conformance", "-o", str(tmp_path), "--seed", "-1"], "--seed: -1 is negative"),
        (["conformance", "-o", str(tmp_path), "--family", "x"], "no family 'x'"),
        (
            ["conformance", "-o", str(tmp_path), "--programs", "nowhere"],
            "no file or folder of programs nowhere",
        ),
        (["benchmark", "hgemm_v3", "128", "128", "64", "--rounds", "1"], "--rounds: 1 is not 3"),
    ):
        assert cli.main(words) == cli.BAD_INPUT
        assert sentence in capsys.readouterr().err


# -- clusters ---------------------------------------------------------------------------------------------------------------
def test_every_way_to_exchange_words_in_a_cluster_is_drawn() -> None:
    programs_drawn = [drawn("cluster", 0, i) for i in range(FAMILIES["cluster"].programs)]
    rounds = " ".join(p.text.splitlines()[0] for p in programs_drawn)
    for kind in ("barrier", "fenced", "relaxed", "shift", "gather", "multicast", "send"):
        assert rounds.count(kind) > 10, kind
    assert {p.cases for p in programs_drawn} == {4, 8}  # two clusters of two or four CTAs
    texts = "".join(p.text for p in programs_drawn)
    for words in (
        'space="shared::cluster"', "remote=(rank + 3) % 4", "count=3", ">> rank & 1", "aligned=False",
        'count=2, sem="relaxed"', "expect_tx(",
    ):  # fmt: skip
        assert words in texts, words


# -- programs of one's own --------------------------------------------------------------------------------------------------
HEAD = """from phaseflip.spelling import T

def made(body):
    pass

"""
KERNEL = """
def {name}({arguments}):
    @T.prim_func
    def kernel({buffers}):
        T.device_entry()
        bx = T.cta_id([1])
        tid = T.thread_id([64])
        {body}
    return kernel
"""
INTS = 'A: T.Buffer((64,), "int32"), D: T.Buffer((64,), "int32")'


def own(name: str, body: str, arguments: str = "", buffers: str = INTS) -> str:
    return KERNEL.format(name=name, body=body, arguments=arguments, buffers=buffers)


OWN = "".join(
    (
        HEAD,
        own("right", "D[tid] = A[tid] + by", "by=1"),
        "right.variants = [{}, {'by': 2}]\n",
        own("halves", "D[tid] = T.cast(A[tid] * T.bfloat16(2), 'bfloat16')", buffers=INTS.replace("int32", "bfloat16")),
        own("needs", "D[tid] = A[tid]", "M, N"),
        own("racing", "D[0] = A[tid]"),
        own("apart", "if tid % 32 == 0:\n            D[0] = A[tid]"),
        own("blackwell", "T.ptx.tcgen05.wait.ld()\n        D[tid] = A[tid]"),
        own("narrow", "D[tid] = A[tid]", buffers=INTS.replace("int32", "float8_e4m3fn")),
        "def number():\n    return 7\n",
        "def broken():\n    raise ValueError('not today')\n",
        "def test_nothing():\n    raise AssertionError\n",
        own("_helper", "D[tid] = A[tid]"),
        "module_level = right()\n",
    )
)  # fmt: skip


@pytest.fixture
def own_file(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


def test_which_functions_of_a_file_are_programs(own_file: Path) -> None:
    found = dict(programs.programs_of(own_file))
    kernels = [label for label, made in found.items() if not isinstance(made, str)]
    assert kernels == [
        "own.py:right", "own.py:right(by=2)", "own.py:halves", "own.py:racing", "own.py:apart", "own.py:blackwell",
        "own.py:narrow", "own.py:module_level",
    ]  # fmt: skip
    assert {label: made for label, made in found.items() if isinstance(made, str)} == {
        "own.py:number": "returns int, not a PrimFunc",
        "own.py:broken": "the factory fails: ValueError: not today",
        "own.py": "made, needs: cannot be called without arguments",
    }


def test_why_a_program_is_left_out(own_file: Path) -> None:
    found = dict(programs.programs_of(own_file))

    def reason(name: str, arch: str = "sm_90a") -> Any:
        return programs.judged(f"own.py:{name}", found[f"own.py:{name}"], arch)

    for name, arch, sentence in (
        ("racing", "sm_90a", "not correct: race global waw at own.py:"),
        ("apart", "sm_90a", "not correct: race global waw at own.py:"),
        ("blackwell", "sm_90a", "uses tcgen05.wait::ld, which sm_90a has not, but sm_100a or sm_103a"),
        ("narrow", "sm_90a", "A is of dtype float8_e4m3fn, which cannot be compared"),
    ):  # fmt: skip
        assert sentence in reason(name, arch)
    assert not isinstance(reason("blackwell", "sm_100a"), str)


def test_a_program_starts_with_integers_and_all_its_buffers_are_compared(own_file: Path) -> None:
    found = dict(programs.programs_of(own_file))
    program, (a, d) = programs.judged("x", found["own.py:right(by=2)"], "sm_90a")  # type: ignore[misc]
    assert program.outputs == [0, 1] and program.cases == 1
    assert len(set(program.arrays[0].tolist())) > 20
    assert (a == program.arrays[0]).all() and (d == a + 2).all()
    again = programs.judged("x", found["own.py:right(by=2)"], "sm_90a")
    assert (again.program.arrays[0] == a).all()  # type: ignore[union-attr]
    for dtype, kind in (("float16", "f"), ("bfloat16", "V"), ("uint8", "u"), ("bool", "b")):
        values = programs.integers("x", 0, ("A", dtype, (99,)))
        assert values.dtype.name == dtype
        assert (values.astype(np.float64) % 1 == 0).all() and len(set(values.tolist())) > 1, kind


def test_outputs_that_depend_on_the_schedule_are_left_out(
    own_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = dict(programs.programs_of(own_file))["own.py:right"]

    def simulated(lowered: Any, arrays: Any, schedule: str) -> Any:
        run = simulate(lowered, arrays)
        run.outputs["D"][0] = len(schedule)
        return run

    monkeypatch.setattr("phaseflip.run.simulator.simulate", simulated)
    assert programs.judged("x", function, "sm_90a") == "its outputs depend on the schedule"


def test_what_nvcc_refuses_is_found_and_the_rest_compiled(own_file: Path) -> None:
    found = dict(programs.programs_of(own_file))
    functions = {
        label: found[f"own.py:{label}"] for label in ("right", "racing", "halves", "apart")
    }
    tried = []

    def compiled(source: str) -> Cubin:
        tried.append(source)
        if "bfloat16" in source.split("__global__", 1)[1]:
            raise BadInput("nvcc cannot compile the kernel")
        return Cubin(b"", "sm_90a", {}, "")

    assert programs.refused(functions, "sm_90a", compiled) == [
        ("halves", "nvcc cannot compile the kernel")
    ]
    assert len(set(tried)) == 5  # all, two halves, the halves of one
    assert programs.refused({}, "sm_90a", compiled) == []


def test_files_in_a_package_import_their_neighbours_and_litmus_programs_are_found() -> None:
    folder = Path(__file__).parent / "litmus"
    assert programs.family_name(folder) == "litmus"
    assert folder / "test_mbarrier.py" in programs.files_of(folder)
    found = dict(programs.programs_of(folder / "test_cluster_memory.py"))
    assert "test_cluster_memory.py:signalled(fence='cluster', sem='relaxed')" in found
    assert len(found) >= 10 and not any(isinstance(made, str) for made in found.values())
    assert not isinstance(
        programs.judged("x", found["test_cluster_memory.py:signalled"], "sm_90a"), str
    )


def test_names_of_families_of_files(tmp_path: Path) -> None:
    paths = [tmp_path / "some.kernels", tmp_path / "a" / "x.py", tmp_path / "a.b.py"]
    for path in (*paths, tmp_path / "b" / "x.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    assert list(programs.named([*paths, paths[0]])) == ["some_kernels", "x", "a_b"]
    with pytest.raises(BadInput, match="a/x.py and .*b/x.py would be one family, x; rename one"):
        programs.named([*paths, tmp_path / "b" / "x.py"])


def test_bad_files_of_programs(tmp_path: Path) -> None:
    (tmp_path / "tma.py").write_text("")
    with pytest.raises(BadInput, match="'tma' is the name of a generated family; rename"):
        programs.family_name(tmp_path / "tma.py")
    package = tmp_path / "package_of_programs"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "wrong.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(BadInput, match=r"wrong.py cannot be imported: ModuleNotFoundError"):
        dict(programs.programs_of(package / "wrong.py"))


@needs_nvcc
def test_programs_of_a_file_are_built_listed_and_built_again_when_they_change(
    own_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = own_file.parent / "built"
    words = ["conformance", "-o", str(folder), "--programs", str(own_file)]
    monkeypatch.setattr("phaseflip.gpu.devices.first_gpu", lambda: None)
    assert cli.main([*words, "--json"]) == cli.CLEAN
    report = json.loads(capsys.readouterr().out)["families"]
    assert list(report) == ["own"]  # no generated family
    assert report["own"]["programs"] == 4  # right, right(by=2), halves, module_level
    assert [p["program"] for p in report["own"]["left_out"]] == [
        "own.py:racing", "own.py:apart", "own.py:blackwell", "own.py:narrow", "own.py:number", "own.py:broken", "own.py",
    ]  # fmt: skip
    calls: list[Any] = []

    def call(module: Any, given: list[np.ndarray], function: str) -> Any:
        calls.append((function, [a.dtype.name for a in given]))
        a = given[0]
        return [a, (a * 2).astype(a.dtype) if function == "program_2" else a + 1], 0.0

    monkeypatch.setattr(cuda_runtime, "load", lambda *files: files)
    monkeypatch.setattr(cuda_runtime, "call", call)
    said = [suite.differences((str(folder), "own", i)) for i in range(4)]
    assert [bool(text) for text in said] == [False, True, False, False]
    assert calls[2] == ("program_2", ["bfloat16", "bfloat16"])
    before = (folder / "own.so").stat().st_mtime_ns
    assert cli.main(words) == cli.CLEAN
    assert "left out: own.py:number: returns int, not a PrimFunc" in capsys.readouterr().out
    assert (folder / "own.so").stat().st_mtime_ns == before
    own_file.write_text(own_file.read_text().replace("'by': 2", "'by': 3"))
    assert cli.main(words) == cli.CLEAN
    assert "right(by=3)" in (folder / "own.json").read_text()


# -- on the GPU -------------------------------------------------------------------------------------------------------------
def test_a_program_that_hangs_costs_its_own_time_and_the_next_starts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = [{"arrays": [], "outputs": [], "cases": 2, "text": f"p{i}"} for i in range(4)]
    manifest = {
        "format": suite.FORMAT, "family": "own", "arch": "sm_90a", "source_sha256": "", "programs": described,
    }  # fmt: skip
    (tmp_path / "own.json").write_text(json.dumps(manifest))
    (tmp_path / "other.json").write_text(json.dumps(manifest | {"family": "other"}))
    log: list[Any] = []
    answers = {1: Ended(TIMED_OUT, "over 10 s"), 2: Ended(RAISED, ("RuntimeError", "CUDA"))}

    class Pool:
        def __init__(self, function: str, limit_s: float) -> None:
            self.limit_s = limit_s

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def call(self, argument: Any, limit_s: float | None = None) -> Ended:
            log.append((argument[2], limit_s or self.limit_s))
            return answers.get(argument[2], Ended(RETURNED, ""))

        def close(self) -> None:
            log.append("closed")

    monkeypatch.setattr(suite, "WorkerPool", Pool)
    results = list(suite.compare(tmp_path, "sm_90a", ["own"]))
    start, one = (None, suite.START_LIMIT_S), suite.PROGRAM_LIMIT_S
    assert log == [
        start, (0, one), (1, one), "closed", start, (2, one), "closed", start, (3, one),
    ]  # fmt: skip
    assert [(r.number, r.cases, r.difference) for r in results] == [
        (0, 2, ""), (1, 2, "timed out: over 10 s"), (2, 2, "raised: ('RuntimeError', 'CUDA')"), (3, 2, ""),
    ]  # fmt: skip
    answers[None] = Ended(RAISED, ("BadInput", "no runtime"))  # type: ignore[index]
    with pytest.raises(BadInput, match="no runtime"):
        list(suite.compare(tmp_path, "sm_90a", ["own"]))
    old = manifest | {"format": 1}
    (tmp_path / "own.json").write_text(json.dumps(old))
    with pytest.raises(BadInput, match="built by another release"):
        suite.manifests(tmp_path)
