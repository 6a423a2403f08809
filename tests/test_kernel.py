"""kernel.py: shape rules, finding kernels by name and by path, and the kernels' own source."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip.errors import BadInput
from phaseflip.frontend.tirx.lowering import cuda_source
from phaseflip.gemm.kernel import Kernel, ShapeRule, Tolerance, find_kernel, list_kernels
from phaseflip.gemm.target import ARCHS

NAMES = ["hgemm_v1", "hgemm_v2", "hgemm_v3"]
FACTORY = """\
from phaseflip.spelling import T


def factory(M, N, K):
    @T.prim_func
    def kernel(
        A: T.Buffer(({a}), "{dtype}"),
        B: T.Buffer((N, K), "{dtype}"),
        {name}: T.Buffer((M, N), "{d_dtype}"),
    ):
        T.device_entry()
        T.evaluate(0)

    return kernel
"""


def write(
    folder: Path, a: str = "M, K", dtype: str = "float16", d_dtype: str = "", name: str = "D"
) -> Path:
    """A kernel file whose factory has buffers as given and no body."""
    file = folder / "file.py"
    file.write_text(FACTORY.format(a=a, dtype=dtype, d_dtype=d_dtype or dtype, name=name))
    return file


# --- shape rules ---------------------------------------------------------------------------------

V1 = ShapeRule(m_max=128, n_max=128, k_max=64)
V2 = ShapeRule(m_max=128, n_max=128)


@pytest.mark.parametrize(
    ("rule", "shape", "nearest"),
    [
        (V1, (128, 128, 64), (128, 128, 64)),
        (V1, (1, 4096, 65), (128, 128, 64)),
        (V2, (128, 128, 200), (128, 128, 192)),
        (V2, (128, 128, 224), (128, 128, 256)),
        (V2, (128, 128, 0), (128, 128, 64)),
        (ShapeRule(), (100, 200, 96), (128, 256, 128)),
        (ShapeRule(), (-5, 0, -64), (128, 128, 64)),
        (ShapeRule(k_min=100, k_max=200), (128, 128, 64), (128, 128, 128)),
        (ShapeRule(k_min=100, k_max=200), (128, 128, 999), (128, 128, 192)),
        (ShapeRule(), (2**40, 128, 64), (2**40, 128, 64)),
    ],
)
def test_nearest(
    rule: ShapeRule, shape: tuple[int, int, int], nearest: tuple[int, int, int]
) -> None:
    assert rule.nearest(*shape) == nearest
    assert rule.is_legal(*nearest)
    assert rule.is_legal(*shape) == (shape == nearest)
    if shape != nearest:
        with pytest.raises(BadInput, match=f"nearest legal shape is {'x'.join(map(str, nearest))}"):
            rule.check(*shape)


def test_check_says_the_rule() -> None:
    with pytest.raises(BadInput) as caught:
        find_kernel("hgemm_v2").build(128, 256, 200)
    assert str(caught.value) == (
        "hgemm_v2 needs M = 128, N = 128 and K a multiple of 64 up to 32768, "
        "got MxNxK = 128x256x200; the nearest legal shape is 128x128x192"
    )
    assert V1.describe() == "M = 128, N = 128 and K = 64"
    assert ShapeRule(k_min=128).describe() == (
        "M a multiple of 128, N a multiple of 128 and K a multiple of 64 from 128"
    )


@pytest.mark.parametrize("bad", [True, np.True_, 64.0, np.float64(64), "64", None, 64 + 0j])
def test_extents_that_are_not_integers(bad: Any) -> None:
    for rule in (V1, ShapeRule()):
        assert not rule.is_legal(128, 128, bad)
        with pytest.raises(BadInput, match="K must be a positive integer, got"):
            rule.check(128, 128, bad)
    with pytest.raises(BadInput, match="M must be a positive integer"):
        find_kernel("hgemm_v3").build(bad, 128, 64)
    with pytest.raises(BadInput, match="N must be a positive integer"):
        Kernel("free", print, None).build(128, bad, 64)


def test_numpy_integers_are_integers() -> None:
    shape = ShapeRule().check(np.int64(128), np.uint8(128), np.int32(64))
    assert shape == (128, 128, 64) and all(type(extent) is int for extent in shape)
    kernel = find_kernel("hgemm_v1")
    assert kernel.build(np.int32(128), np.int64(128), np.int16(64)) is kernel.build(128, 128, 64)


@pytest.mark.parametrize("shape", [(0, 128, 64), (128, -128, 64)])
def test_extents_below_one(shape: tuple[int, int, int]) -> None:
    with pytest.raises(BadInput, match="nearest legal shape is 128x128x64"):
        find_kernel("hgemm_v3").build(*shape)
    with pytest.raises(BadInput, match="must be a positive integer, got"):
        Kernel("free", print, None).build(*shape)


# --- the kernels ---------------------------------------------------------------------------------


def test_list_kernels() -> None:
    kernels = {kernel.name: kernel for kernel in list_kernels()}
    assert list(kernels) == sorted(kernels) and set(NAMES) <= set(kernels)
    for kernel in kernels.values():
        assert kernel.summary and kernel.needs in ARCHS and kernel.dtype == "float16"
        assert kernel.tolerance == Tolerance(rtol=2e-2, atol=1e-2)
        assert kernel.shape_rule is not None and kernel.shape_rule.is_legal(
            *kernel.shape_rule.nearest(1, 1, 1)
        )


@pytest.mark.parametrize("name", NAMES)
def test_operands(name: str) -> None:
    assert find_kernel(name).operands(128, 128, 64) == (("A", "B", "D"), "float16", "float16")


def test_build_is_cached_by_shape() -> None:
    kernel = find_kernel("hgemm_v3")
    assert kernel.build(128, 256, 64) is kernel.build(128, 256, 64)
    assert kernel.build(128, 256, 64) is not kernel.build(256, 128, 64)


EVENTS = {
    "store": r"ptx_st_\w*shared\w*\(",
    "proxy-fence": r"fence_proxy_async_shared_cta\(\);",
    "barrier": r"cta_sync\(\);",
    "mma": r"ptx_tcgen05_mma\w*\(",
    "commit": r"ptx_tcgen05_commit\w*\(",
    "wait": r"mbarrier_try_wait\(",
    "after-fence": r"tcgen05_fence_after_thread_sync\(\);",
    "load": r"ptx_tcgen05_ld\w*\(",
    "loop": r"for \(int i = 0;",
}


def cuda_events(kernel: Kernel, shape: tuple[int, int, int]) -> list[str]:
    """The synchronisation of the generated CUDA kernel in source order, runs of one kind merged."""
    source = cuda_source(kernel.build(*shape))
    events: list[str] = []
    for line in source[source.index("__global__") :].splitlines():
        for event, pattern in EVENTS.items():
            if re.search(pattern, line) and events[-1:] != [event]:
                events.append(event)
    return events


START = ["proxy-fence", "barrier"]
MULTIPLY = ["store", "proxy-fence", "barrier", "mma", "commit", "wait"]
END = ["after-fence", "load", "barrier"]


def test_fences_of_v1_in_cuda() -> None:
    assert cuda_events(find_kernel("hgemm_v1"), (128, 128, 64)) == [*START, *MULTIPLY, *END]


@pytest.mark.parametrize(("name", "M"), [("hgemm_v2", 128), ("hgemm_v3", 256)])
def test_fences_of_v2_and_v3_in_cuda(name: str, M: int) -> None:
    events = cuda_events(find_kernel(name), (M, 128, 192))
    assert events == [*START, "loop", *MULTIPLY, "proxy-fence", *END]


# --- kernels by path -----------------------------------------------------------------------------


def test_kernel_by_path(tmp_path: Path) -> None:
    text = f"{write(tmp_path)}:factory"
    kernel = find_kernel(text)
    assert kernel.name == text and kernel.shape_rule is None
    assert kernel.operands(3, 5, 7) == (("A", "B", "D"), "float16", "float16")
    assert find_kernel(text).build(3, 5, 7) is kernel.build(3, 5, 7)


def test_the_projects_own_files_by_path() -> None:
    import kernels

    file = Path(kernels.__path__[0]) / "hgemm_v2.py"
    assert find_kernel(f"{file}:hgemm_v2").operands(128, 128, 128).dtype == "float16"


def test_two_files_may_share_a_factory_name(tmp_path: Path) -> None:
    for folder, name in (("one", "D"), ("two", "Out")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, name=name)
    one, two = (find_kernel(f"{tmp_path / folder}/file.py:factory") for folder in ("one", "two"))
    assert one.operands(128, 128, 64).names == ("A", "B", "D")
    assert two.operands(128, 128, 64).names == ("A", "B", "Out")


def test_arguments_of_the_factory_follow_the_name(tmp_path: Path) -> None:
    one = find_kernel("hgemm_v6:ctas=1")
    assert one.name == "hgemm_v6:ctas=1" and one.shape_rule == find_kernel("hgemm_v6").shape_rule
    assert one.build(128, 256, 64) is find_kernel("hgemm_v6:ctas=1").build(128, 256, 64)
    assert "T.cta_id([1])" in one.build(128, 256, 64).script()
    assert "T.cta_id([2])" in find_kernel("hgemm_v6").build(128, 256, 64).script()
    file = write(tmp_path)
    file.write_text(file.read_text().replace("(M, N, K)", "(M, N, K, extra)"))
    assert find_kernel(f"{file}:factory:extra=7").build(3, 5, 7) is not None


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    text = f"{write(tmp_path)}:factory"
    assert find_kernel(text).operands(128, 128, 64).names[2] == "D"
    write(tmp_path, name="Result")
    assert find_kernel(text).operands(128, 128, 64).names[2] == "Result"


def test_bfloat16_by_path(tmp_path: Path) -> None:
    kernel = find_kernel(f"{write(tmp_path, dtype='bfloat16')}:factory")
    assert kernel.operands(128, 128, 64).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"a": "K, M"}, r"A\[64, 128\] float16"),
        ({"a": "M, K, 1"}, r"A\[128, 64, 1\] float16"),
        ({"dtype": "float32"}, r"A\[128, 64\] float32"),
        ({"d_dtype": "float32"}, r"D\[128, 256\] float32"),
    ],
)
def test_buffers_must_be_those_of_a_gemm(tmp_path: Path, changes: dict[str, str], got: str) -> None:
    kernel = find_kernel(f"{write(tmp_path, **changes)}:factory")
    with pytest.raises(BadInput, match=rf"exactly A\[128, 64\], B\[256, 64\], D\[.*got .*{got}"):
        kernel.build(128, 256, 64)


def test_parameters_must_be_three_buffers(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_text(
        "from tvm.script import tirx as T\n"
        "def factory(M, N, K):\n"
        "    @T.prim_func\n"
        '    def kernel(A: T.Buffer((M, K), "float16"), n: T.int32):\n'
        "        T.device_entry()\n"
        "        T.evaluate(n)\n"
        "    return kernel\n"
    )
    with pytest.raises(BadInput, match=r"exactly A\[4, 4\].*got A\[4, 4\] float16, n \(no buffer"):
        find_kernel(f"{file}:factory").build(4, 4, 4)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def factory(M, N, K): return 5", "returns int; it must return a tvm.tirx.PrimFunc"),
        ("def factory(M, N, K): pass", "returns nothing; it must return a tvm.tirx.PrimFunc"),
        ("def factory(M, N): pass", "factory of .* failed at MxNxK = 128x128x64: TypeError: "),
        ("def factory(M, N, K): raise KeyError('no')", "failed at .*: KeyError: 'no'$"),
        ("def factory(M, N, K): raise ValueError('a\\nb')", "ValueError: a$"),
        ("def factory(M, N, K): raise SystemExit(3)", "SystemExit: 3$"),
        ("def factory(M, N, K): raise GeneratorExit", "GeneratorExit$"),
        ("def factory(M, N, K): return factory(M, N, K)", "RecursionError: "),
        ("def factory(M, N, K): raise ValueError('x' * 9999)", r"ValueError: x{300}\.\.\.$"),
        (
            "class Mute(Exception):\n"
            "    def __str__(self): raise ValueError\n"
            "def factory(M, N, K): raise Mute",
            "Mute, which cannot be printed$",
        ),
    ],
)
def test_factories_that_fail(tmp_path: Path, source: str, words: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(source)
    with pytest.raises(BadInput, match=words):
        find_kernel(f"{file}:factory").build(128, 128, 64)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def f(:\n", "cannot be imported in line 1: SyntaxError: "),
        ("\nimport no_such_module_at_all\n", "cannot be imported: ModuleNotFoundError: No module"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(2)", "cannot be imported: SystemExit: 2"),
        ("class Odd(BaseException): pass\nraise Odd", "cannot be imported: Odd$"),
        ("x = '\0'", "cannot be imported"),
        (
            "def other(M, N, K): pass",
            "has no factory or Kernel 'factory'; its functions and Kernels are other$",
        ),
        ("", "has no factory or Kernel 'factory'; its functions and Kernels are none$"),
        ("factory = 3", "factory in .* is of type int, not a factory"),
    ],
)
def test_files_without_a_factory(tmp_path: Path, source: str, words: str) -> None:
    file = tmp_path / "file.py"
    file.write_text(source)
    with pytest.raises(BadInput, match=words) as caught:
        find_kernel(f"{file}:factory")
    assert "\n" not in str(caught.value) and str(file) in str(caught.value)


def test_an_error_inside_the_kernel_names_its_line(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text().replace("T.evaluate(0)", "T.no_such_thing(0)"))
    with pytest.raises(BadInput, match=r"no attribute 'no_such_thing' \(.*file.py:12:9\)$"):
        find_kernel(f"{file}:factory").build(128, 128, 64)


def test_undecodable_file(tmp_path: Path) -> None:
    file = tmp_path / "file.py"
    file.write_bytes(b"x = '\xff\xfe'\n")
    with pytest.raises(BadInput, match="cannot be imported"):
        find_kernel(f"{file}:factory")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hgemm_v0", "unknown kernel 'hgemm_v0'; known are hgemm_sm90, hgemm_v1, hgemm_v2"),
        ("", "unknown kernel ''"),
        ("no/such/file.py:factory", "there is no kernel file no/such/file.py"),
        (".:factory", "there is no kernel file ."),
        (f"{'long' * 2000}.py:factory", "there is no kernel file long"),
        ("~nobody-of-this-name/file.py:factory", "there is no kernel file ~nobody"),
        ("some/file.py", "names no factory; write some/file.py:FACTORY"),
        ("some/file.py:", "there is no kernel file some/file.py"),
        ("hgemm_v3:ctas=1", "hgemm_v3 has no argument 'ctas'; after the shape it takes none"),
        ("hgemm_v6:size=1", "hgemm_v6 has no argument 'size'; after the shape it takes ctas"),
        ("hgemm_v6:ctas=0", "ctas must be a positive integer, got 0"),
        ("hgemm_v6:ctas=x", "ctas must be a positive integer, got 'x'"),
        *[
            (
                text,
                f"'{text}': arguments of a kernel are written name=number, as in hgemm_v6:ctas=2",
            )
            for text in (
                "hgemm_v6:",
                "hgemm_v6:ctas",
                "hgemm_v6:=2",
                "hgemm_v6:ctas=2:x",
                "f.py:f:ctas",
            )
        ],
        (3, "given as a name or path/to/file.py:factory, got 3"),
    ],
)
def test_kernels_that_do_not_exist(text: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        find_kernel(text)


def test_empty_factory_name(tmp_path: Path) -> None:
    with pytest.raises(
        BadInput, match="has no factory or Kernel ''; its functions and Kernels are factory"
    ):
        find_kernel(f"{write(tmp_path)}:")


def test_a_primfunc_is_no_factory(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() + "\n\nfunc = factory(128, 128, 64)\n")
    with pytest.raises(BadInput, match="func in .* is of type PrimFunc, not a factory"):
        find_kernel(f"{file}:func")


# --- the compiler's version ------------------------------------------------------------------------


def test_another_tvm_is_refused_before_a_kernel_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernel files use names of the supported release, so their own error would explain nothing."""
    import phaseflip.gemm.kernel

    def refuse(name: str) -> Any:
        raise AssertionError(f"{name} was imported")

    file = tmp_path / "file.py"
    file.write_text("raise AssertionError('the file was imported')\n")
    monkeypatch.setattr("tvm.__version__", "0.28.0")
    monkeypatch.setattr(phaseflip.gemm.kernel.importlib, "import_module", refuse)
    sentence = r"^phaseflip reads .*apache-tvm 0\.26\.x and 0\.27\.x, but apache-tvm 0\.28\.0 is installed; run `pip"
    for find in (list_kernels, lambda: find_kernel("hgemm_v1"), lambda: find_kernel(f"{file}:f")):
        with pytest.raises(BadInput, match=sentence):
            find()


def test_a_tvm_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tvm", None)  # importing it raises ImportError
    with pytest.raises(
        BadInput, match=r"0\.26\.x and 0\.27\.x, and none can be imported .*; run `pip"
    ):
        list_kernels()
