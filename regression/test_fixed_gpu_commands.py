"""Fixed bugs of the commands that compile for a GPU, and of what they leave behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phaseflip import capability, cli
from phaseflip.build import build
from phaseflip.cuda_compile import Cubin
from phaseflip.errors import BadInput
from phaseflip.kernel import Kernel, find_kernel
from phaseflip.lowering import lower_once
from phaseflip.prebuilt import read_directory

HAS_NVCC = any(shutil.which("nvcc", path=path) for path in (None, "/usr/local/cuda/bin"))
needs_nvcc = pytest.mark.skipif(not HAS_NVCC, reason="no nvcc on this machine")
KERNELS = Path(__file__).resolve().parent.parent / "kernels"
HOPPER, BLACKWELL = f"{KERNELS}/hgemm_sm90.py", f"{KERNELS}/hgemm_v1.py"
SHAPE = (128, 128, 64)
PLAIN = """\
from tvm.script import tirx as T


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
    from phaseflip.verify import lowered

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
    both = [("wgmma.fence", "wgmma"), ("tcgen05.alloc", "tcgen05")]
    monkeypatch.setattr(capability, "_special", lambda function: iter(both))
    with pytest.raises(BadInput, match=r"uses wgmma.fence and tcgen05.alloc, and no GPU has both$"):
        capability.needed(find_kernel(f"{BLACKWELL}:hgemm_v1"), SHAPE)


def test_the_names_of_instructions_are_those_of_ptx():
    function = lower_once(find_kernel("hgemm_v1").build(*SHAPE)).device
    names = [mnemonic for mnemonic, _ in capability._special(function)]
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, BadInput])
def test_a_folder_whose_build_was_cut_short_was_refused_afterwards(tmp_path, monkeypatch, error):
    """nvcc comes last, when TVM has already written its library."""
    folder = tmp_path / "some" / "new"
    words = ["build", "hgemm_v1", "128", "128", "64", "-o", str(folder)]
    monkeypatch.setattr("phaseflip.build.find_nvcc", lambda: "nvcc")

    def cut_short(text, arch):
        raise error

    monkeypatch.setattr("phaseflip.build.compile_cubin", cut_short)
    code = {KeyboardInterrupt: 130, BadInput: 2}[error]
    assert cli.main(words) == code
    assert not list(tmp_path.iterdir())
    made = Cubin(b"code", "sm_100a", {}, "13.0")
    monkeypatch.setattr("phaseflip.build.compile_cubin", lambda text, arch: made)
    assert cli.main(words) == 0
    assert cli.main(words) == 0
    assert sorted(f.suffix for f in folder.iterdir()) == [".cubin", ".json", ".so"]
