"""Fixed bugs of the commands that compile for a GPU, and of what they leave behind."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from phaseflip.cli import main as cli
from phaseflip.conformance import suite
from phaseflip.errors import BadInput
from phaseflip.frontend.tirx.lowering import lower_once
from phaseflip.gemm import target as capability
from phaseflip.gemm.kernel import Kernel, find_kernel
from phaseflip.gpu.build import build
from phaseflip.gpu.nvcc import Cubin
from phaseflip.gpu.prebuilt import find_prebuilt, read_directory
from phaseflip.silicon import mutants_on_gpu as silicon
from tests.test_build import made, needs_nvcc

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
HOPPER, BLACKWELL = f"{KERNELS}/hgemm_sm90.py", f"{KERNELS}/hgemm_v1.py"
SHAPE = (128, 128, 64)
PLAIN = """\
from phaseflip.spelling import T


def factory(M, N, K):
    @T.prim_func
    def kernel(
        A: T.Buffer((M, K), "float16"), B: T.Buffer((N, K), "float16"), D: T.Buffer((M, N), "float16")
    ):
        T.device_entry()
        cta = T.cta_id([1])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        {body}
        D[0, lane] = A[0, lane]

    return kernel
"""
REFUSED_BY_NVCC = (
    'T.cuda.func_call("odd", lane, source_code="__device__ void odd(int x) { nonsense; }")'
)


def written(folder: Path, body: str = "T.evaluate(0)") -> str:
    """A factory in a file, of a kernel without wgmma and tcgen05."""
    (folder / "plain.py").write_text(PLAIN.format(body=body))
    return f"{folder}/plain.py:factory"


@pytest.mark.parametrize(
    ("file", "name", "needs"),
    [(HOPPER, "hgemm_sm90", (9, 0)), (BLACKWELL, "hgemm_v1", (10, 0))],
)
def test_a_factory_by_path_needed_blackwell_whatever_it_used(file, name, needs):
    factory, kernel = find_kernel(f"{file}:{name}"), find_kernel(f"{file}:KERNEL")
    assert factory.needs is None and capability.needed(factory, SHAPE) == needs
    assert kernel.needs == needs and kernel.shape_rule == find_kernel(name).shape_rule
    assert kernel.name == f"{file}:KERNEL" and kernel.by_path and not find_kernel(name).by_path


def test_a_kernel_without_special_instructions_needs_what_is_asked_for(tmp_path):
    kernel = find_kernel(written(tmp_path))
    assert capability.needed(kernel, SHAPE) == (10, 0)
    assert capability.needed(kernel, SHAPE, "sm_90a") == (9, 0)


def test_a_kernel_was_simulated_as_compiled_for_another_architecture():
    from phaseflip.gemm.verify import lowered

    assert lowered(find_kernel(f"{HOPPER}:hgemm_sm90"), *SHAPE).arch == "sm_90a"
    assert lowered(find_kernel(f"{BLACKWELL}:hgemm_v1"), *SHAPE).arch == "sm_100a"


@pytest.mark.parametrize(
    ("text", "arch", "sentence"),
    [
        (f"{HOPPER}:hgemm_sm90", "sm_100a", "uses wgmma.fence, which sm_100a has not, but sm_90a"),
        (f"{BLACKWELL}:hgemm_v1", "sm_90a", "uses tcgen05.alloc, which sm_90a has not, but sm_100a or sm_103a"),
    ],
)  # fmt: skip
@needs_nvcc
def test_an_architecture_that_lacks_an_instruction_was_told_by_nvcc(tmp_path, text, arch, sentence):
    with pytest.raises(BadInput) as error:
        build(find_kernel(text), *SHAPE, tmp_path / "new", arch)
    assert str(error.value) == f"{text} {sentence}"
    assert not (tmp_path / "new").exists()


@needs_nvcc
def test_a_kernel_that_states_a_wrong_capability_is_told_which_instruction_says_so(tmp_path):
    wrong = Kernel("wrong", find_kernel("hgemm_sm90").factory)
    with pytest.raises(BadInput, match=r"^wrong uses wgmma.fence, which sm_100a has not"):
        build(wrong, *SHAPE, tmp_path)


def test_a_kernel_that_no_gpu_runs(monkeypatch):
    both = ["wgmma.fence", "tcgen05.alloc"]
    monkeypatch.setattr(capability, "_special", lambda function: iter(both))
    with pytest.raises(BadInput, match=r"uses wgmma.fence and tcgen05.alloc, and no GPU has both$"):
        capability.needed(find_kernel(f"{BLACKWELL}:hgemm_v1"), SHAPE)


def test_the_names_of_instructions_are_those_of_ptx():
    function = lower_once(find_kernel("hgemm_v1").build(*SHAPE)).device
    names = list(capability._special(function))
    assert names[0] == "tcgen05.alloc" and "tcgen05.mma" in names


@needs_nvcc
def test_a_hopper_factory_could_not_be_built(tmp_path):
    assert cli.main(["build", f"{HOPPER}:hgemm_sm90", "128", "128", "64", "-o", str(tmp_path)]) == 0
    (built,) = read_directory(tmp_path)
    assert (built.arch, built.needs) == ("sm_90a", (9, 0))


@needs_nvcc
def test_silicon_prepared_a_kernel_that_does_not_compile(tmp_path, capsys):
    kernel = written(tmp_path, REFUSED_BY_NVCC)
    assert cli.main(["silicon", kernel, "128", "128", "64", "-o", str(tmp_path / "new")]) == 2
    assert "nvcc cannot compile the kernel for sm_100a: " in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("heeds_interrupts")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, BadInput])
def test_a_folder_whose_build_was_cut_short_was_refused_afterwards(tmp_path, monkeypatch, error):
    """nvcc comes last, when TVM has already written its library; it is TVM that calls it, and may rename an interrupt."""
    folder = tmp_path / "some" / "new"
    words = ["build", "hgemm_v1", "128", "128", "64", "-o", str(folder)]
    monkeypatch.setattr("phaseflip.gpu.build.find_nvcc", lambda: "nvcc")

    def cut_short(text, arch):
        try:
            if error is not BadInput:
                signal.raise_signal(signal.SIGINT)
        finally:
            raise error("cut short")

    monkeypatch.setattr("phaseflip.gpu.build.compile_cubin", cut_short)
    assert cli.main(words) == (2 if error is BadInput else 130)
    assert not list(tmp_path.iterdir())
    made = Cubin(b"code", "sm_100a", {}, "13.0")
    monkeypatch.setattr("phaseflip.gpu.build.compile_cubin", lambda text, arch: made)
    assert cli.main(words) == 0
    assert cli.main(words) == 0
    assert sorted(f.suffix for f in folder.iterdir()) == [".cubin", ".json", ".so"]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr("phaseflip.gpu.devices.first_gpu", lambda: None)


@pytest.fixture
def suite_folder(tmp_path, no_gpu):
    """Two families as `conformance --percent 4 --seed 1` leaves them, their code apart."""
    program = dict.fromkeys(suite.PROGRAM_KEYS, "") | {"cases": 2}
    for name in ("matrix", "mbarrier"):
        manifest = {
            "format": suite.FORMAT, "family": name, "arch": "sm_90a", "source_sha256": "", "seed": 1, "programs": [program],
        }  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(manifest))
        np.savez(tmp_path / f"{name}.npz", x=np.arange(1000))
        for suffix in (".so", ".cubin"):
            (tmp_path / f"{name}{suffix}").write_bytes(b"\x7fELF and more")
    return tmp_path


SUITE = ["--seed", "1", "--percent", "4", "--family", "matrix", "--family", "mbarrier"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--seed", "5"], "was made for --seed 1, not 5; give another folder"),
        (["--percent", "20"], "was made for another --percent (1 of 12 programs of matrix), not 20; give another folder"),
        (["--arch", "sm_100a"], "was made for --arch sm_90a, not sm_100a; give another folder"),
        (["--seed", "5", "--family", "scalar"], "was made for --seed 1, not 5; give another folder"),
    ],
)  # fmt: skip
def test_conformance_ignored_options_that_its_folder_was_not_made_for(
    suite_folder, more, sentence, capsys
):
    words = ["conformance", "-o", str(suite_folder), *SUITE]
    assert cli.main(words) == 0
    assert cli.main([*words, "--percent", "5"]) == 0  # as many programs
    capsys.readouterr()
    assert cli.main([*words, *more]) == 2
    assert capsys.readouterr().err == f"phaseflip: {suite_folder} {sentence}\n"


def spoiled(file: Path) -> None:
    """One byte in the middle of the data is another one."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def folder_instead(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".npz", lambda file: file.write_bytes(b"garbage")),
        (".npz", spoiled),
        (".npz", Path.unlink),
        (".so", folder_instead),
        (".so", lambda file: file.write_bytes(b"")),
        (".cubin", Path.unlink),
    ],
)
def test_conformance_called_a_damaged_folder_ready(suite_folder, suffix, damage, capsys):
    file = suite_folder / f"mbarrier{suffix}"
    damage(file)
    assert cli.main(["conformance", "-o", str(suite_folder), *SUITE]) == 2
    said = capsys.readouterr().err
    assert said == (
        f"phaseflip: {file} is missing or damaged; remove it and mbarrier.json and repeat the command where nvcc is\n"
    )


@pytest.fixture
def mutants(tmp_path, no_gpu):
    """A folder as `silicon` prepares it, its code apart."""
    found = []
    for fault, kind in (("no-op", "control"), ("drop-guard", "mutation"), ("x", "mutation")):
        stem = f"hgemm_sm90 {fault} 0"
        mutant = {"stem": stem, "kind": kind, "refused": "refused" * (fault == "x")}
        found.append(dict.fromkeys(silicon.MUTANT_KEYS, "") | mutant)
        for name in silicon.POLL_LIMIT_MS:
            if fault == "no-op" or (fault, name) == ("drop-guard", "launched"):
                (tmp_path / name).mkdir(exist_ok=True)
                made(tmp_path / name, stem, shape=SHAPE)
    manifest = {
        "format": silicon.FORMAT, "kernel": "hgemm_sm90", "shape": list(SHAPE), "arch": "sm_90a", "seed": 0,
        "faults": ["catalogue", "mutations"], "mutants": found,
    }  # fmt: skip
    (tmp_path / silicon.MANIFEST).write_text(json.dumps(manifest))
    return tmp_path


def test_silicon_called_a_folder_ready_that_lacks_mutants(mutants, capsys):
    words = ["silicon", "hgemm_sm90", "128", "128", "64", "-o", str(mutants)]
    assert cli.main(words) == 0  # `simulated` is not needed any more
    capsys.readouterr()
    for name, stem in (("sanitized", "no-op"), ("launched", "drop-guard")):
        (lost,) = (mutants / name).glob(f"*{stem.replace('-', '*')}*.so")
        lost.unlink()
        assert cli.main(words) == 2
        assert capsys.readouterr().err == (
            f"phaseflip: {mutants / name} lacks the compiled 'hgemm_sm90 {stem} 0'; remove"
            f" {mutants / silicon.MANIFEST} and repeat the command where TVM and nvcc are\n"
        )
        lost.write_bytes(b"")
    shutil.rmtree(mutants / "launched")
    assert cli.main(words) == 2
    assert "launched lacks the compiled 'hgemm_sm90 no-op 0'" in capsys.readouterr().err
    (mutants / "launched").write_text("")
    assert cli.main(words) == 2
    assert "launched is a file, where a folder is to be made; remove it" in capsys.readouterr().err


def test_silicon_and_a_kernel_that_an_earlier_release_found_not_to_compile(mutants, capsys):
    manifest = json.loads((mutants / silicon.MANIFEST).read_text())
    manifest["mutants"][0]["refused"] = "nvcc cannot compile the kernel"
    (mutants / silicon.MANIFEST).write_text(json.dumps(manifest))
    assert cli.main(["silicon", "hgemm_sm90", "128", "128", "64", "-o", str(mutants)]) == 2
    assert "no kernel to launch: nvcc cannot compile the kernel; give" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["report.md", "launches.jsonl", "sanitizer.jsonl", "mutants.json"])
def test_a_folder_named_like_a_file_of_silicon(mutants, name, capsys):
    if (mutants / name).exists():
        (mutants / name).unlink()
    (mutants / name).mkdir()
    assert cli.main(["silicon", "hgemm_sm90", "128", "128", "64", "-o", str(mutants)]) == 2
    sentence = f"{mutants / name} is a folder, where a file is to be written; remove it"
    assert capsys.readouterr().err == f"phaseflip: {sentence}\n"


@pytest.mark.parametrize("suffix", [".so", ".cubin"])
def test_a_folder_named_like_a_file_of_a_compiled_kernel(tmp_path, suffix):
    folder_instead(made(tmp_path, "mine.py:f", shape=SHAPE).file(suffix))
    with pytest.raises(BadInput, match=rf"sm_90a\{suffix} is missing; build the kernel again"):
        find_prebuilt(tmp_path, "mine.py:f", SHAPE)
