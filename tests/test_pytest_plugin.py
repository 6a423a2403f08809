"""The pytest plugin, run in pytest processes of its own on small suites."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.test_build import made

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ("hgemm_v1", "hgemm_v2", "hgemm_v3")
NO_TORCH = "import sys; sys.modules['torch'] = None; from phaseflip import devices; "
NO_GPU = f"{NO_TORCH} devices.first_gpu = lambda: None"
PRETENDED_H200 = f"{NO_TORCH} devices.first_gpu = lambda: devices.Gpu('NVIDIA H200', (9, 0))"


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty suite that can load the plugin, also from a clone that was not installed.

    TVM imports PyTorch where it can, which is most of its start; a suite that does not need it goes without, and so sees
    no GPU, whatever the machine has.
    """
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.delenv("CI", raising=False)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(variable, raising=False)
    pytester.makeconftest(NO_GPU)
    return pytester


def run(suite: pytest.Pytester, *words: str) -> pytest.RunResult:
    strict = ("-W", "error", "-W", "ignore:Benchmarks are automatically disabled")
    return suite.runpytest_subprocess(
        "-p", "phaseflip.pytest_plugin", "-p", "no:cacheprovider", *strict, *words
    )


def test_kernel_and_schedule_arguments_run_once_for_each(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def test_it(kernel, schedule, device):
            assert kernel.build and device == "sim"
        """
    )
    result = run(suite, "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines_random([f"*test_it?*{name}*PASSED*" for name in KERNELS])
    result.stdout.fnmatch_lines_random(["*test_it?*in-order*PASSED*"])
    counts = ", ".join(f"{name} (1 test)" for name in KERNELS)
    line = f"phaseflip: kernels {counts}; device sim; schedule in-order; Hypothesis profile dev"
    result.stdout.fnmatch_lines([line])


def test_kernel_and_schedule_options_choose(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_it(kernel, schedule): assert kernel.name != 'hgemm_v1'")
    words = ("--kernel", "hgemm_v3", "--kernel", "hgemm_v2", "--schedule", "lazy,random:3")
    result = run(suite, "-v", *words)
    result.assert_outcomes(passed=4)
    result.stdout.fnmatch_lines(
        ["phaseflip: kernels hgemm_v2 (2 tests), hgemm_v3 (2 tests); *schedule lazy, random:3;*"]
    )


def test_a_kernel_file_as_option(suite: pytest.Pytester) -> None:
    source = (ROOT / "kernels" / "hgemm_v1.py").read_text()
    file = suite.makepyfile(mine=source)
    suite.makepyfile("def test_it(kernel): assert kernel.name.endswith('mine.py:hgemm_v1')")
    run(suite, "--kernel", f"{file}:hgemm_v1").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (("--device", "cuda"), "*needs an NVIDIA GPU*"),
        (("--device", "tpu"), "*--device*tpu*"),
        (("--kernel", "hgemm_v0"), "*unknown kernel 'hgemm_v0'*hgemm_v1*"),
        (("--schedule", "lazily"), "*lazily*in-order*"),
        (("--prebuilt", "nowhere"), "*there is no folder nowhere; python -m phaseflip build*"),
        (("--prebuilt", "."), "*. holds no compiled kernel; python -m phaseflip build*"),
        (
            ("--device", "sim", "--prebuilt", "."),
            "*--prebuilt is code for a GPU, which --device sim*",
        ),
        (
            ("--update-baselines",),
            "*--update-baselines: no test here takes times on a GPU; give one with *",
        ),
        (
            ("--baselines", "x", "--baseline-threshold", "0.1"),
            "*--baselines and --baseline-threshold: no test*",
        ),
        (
            ("--baselines", "test_own.py"),
            "*argument --baselines: */test_own.py is a file, not a folder",
        ),
        (
            ("--baseline-threshold", "nan"),
            "*--baseline-threshold: nan is not a part such as 0.03, *",
        ),
        (("--baseline-threshold", "1"), "*--baseline-threshold: 1 is not a part such as 0.03, *"),
    ],
)
def test_bad_options_are_usage_errors(
    suite: pytest.Pytester, words: tuple[str, ...], fragment: str
) -> None:
    suite.makepyfile(test_own="def test_it(): pass")
    result = run(suite, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([fragment])
    assert "Traceback" not in result.stderr.str()


def test_compiled_kernels_without_a_gpu_are_a_usage_error(suite: pytest.Pytester) -> None:
    made(suite.path)
    suite.makepyfile("def test_it(): pass")
    result = run(suite, "--prebuilt", ".")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--prebuilt is code for a GPU, and there is none here that*"])
    suite.makeconftest(PRETENDED_H200)
    run(suite, "--prebuilt", ".").assert_outcomes(passed=1)


def test_the_readme_takes_each_kernel_at_its_smallest_shape(suite: pytest.Pytester) -> None:
    """hgemm_v8 takes no 128x128x64."""
    text = (ROOT / "README.md").read_text()
    test = text[text.index("def test_every_kernel_at_its_smallest") :].partition("\n\n")[0]
    suite.makepyfile(f"from phaseflip.gemm.verify import verify\n\n\n{test}\n")
    suite.makeconftest("")  # with PyTorch
    factory = f"{ROOT / 'kernels' / 'hgemm_v2.py'}:hgemm_v2"  # which has no shape rule
    words = ("--kernel", f"hgemm_v8,{factory}", "--device", "sim")
    run(suite, *words).assert_outcomes(passed=2)


def test_a_schedule_that_a_kernel_cannot_have_fails_without_a_traceback(
    suite: pytest.Pytester,
) -> None:
    suite.makepyfile(
        """
        from phaseflip.gemm.verify import verify

        def test_it(kernel, schedule):
            assert verify(kernel, *kernel.smallest_shape, schedule=schedule).passed
        """
    )
    result = run(suite, "--kernel", "hgemm_v1", "--schedule", "in-order+delay:warp9")
    result.assert_outcomes(failed=1)
    sentence = "*--schedule: *delays warp 9, but a CTA of the kernel has warps 0-3"
    result.stdout.fnmatch_lines([sentence])
    said = result.stdout.str()
    assert "Traceback" not in said and "simulator.py" not in said and "verify(" not in said


def test_workers_by_kernel_and_with_one_blas_thread(suite: pytest.Pytester) -> None:
    suite.makeconftest("")
    suite.makepyfile(
        """
        import os
        import pytest
        import torch

        @pytest.mark.parametrize("number", range(4))
        def test_it(kernel, number, worker_id):
            assert torch.get_num_threads() == 1
            assert os.environ["OPENBLAS_NUM_THREADS"] == os.environ["MKL_NUM_THREADS"] == "1"
            with open(f"{kernel.name}.log", "a") as log:
                log.write(worker_id + "\\n")
        """
    )
    result = run(suite, "-n", "2", "--dist", "loadgroup")
    result.assert_outcomes(passed=12)
    result.stdout.fnmatch_lines(["phaseflip: kernels hgemm_v1 (4 tests), *"])
    for name in KERNELS:
        workers = (suite.path / f"{name}.log").read_text().split()
        assert len(workers) == 4 and len(set(workers)) == 1


def test_own_parameters_and_fixtures_win(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        @pytest.fixture(params=["mine"])
        def schedule(request):
            return request.param

        @pytest.mark.parametrize("kernel, size", [("own", 1)])
        def test_marks(kernel, size):
            assert kernel == "own"

        def test_fixtures(schedule):
            assert schedule == "mine"
        """
    )
    result = run(suite)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("phaseflip: *")  # no kernel ran, so there is nothing to say


@pytest.mark.parametrize(
    ("ci", "words", "expected"),
    [
        ("", (), ("dev", False)),
        ("true", (), ("ci", True)),
        ("true", ("--hypothesis-profile", "deep"), ("deep", False)),
        ("", ("--hypothesis-profile", "ci"), ("ci", True)),
    ],
)
def test_hypothesis_profiles(
    suite: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    ci: str,
    words: tuple[str, ...],
    expected: tuple[str, bool],
) -> None:
    if ci:
        monkeypatch.setenv("CI", ci)
    suite.makepyfile(
        f"""
        from hypothesis import Phase, given, settings, strategies as st

        @given(st.integers())
        def test_it(value):
            pass

        def test_profile():
            profile = settings.get_current_profile_name()
            assert (profile, settings.default.derandomize) == {expected!r}
            assert settings.default.deadline is None
            assert (Phase.shrink in settings.default.phases) == (profile == "deep")
            used = test_it._hypothesis_internal_use_settings
            assert used.max_examples == settings.get_profile(profile).max_examples
        """
    )
    run(suite, *words).assert_outcomes(passed=2)


@pytest.mark.parametrize("choice", ["cuda", "auto", "sim"])
def test_kernels_run_on_a_gpu_that_they_fit(suite: pytest.Pytester, choice: str) -> None:
    """A GPU of capability 9.0 is pretended; nothing is launched on it."""
    suite.makeconftest(PRETENDED_H200)
    suite.makepyfile(
        f"""
        from phaseflip.gpu.worker import current_gpu

        def test_it(kernel):
            on_gpu = {choice!r} != "sim" and kernel.name == "hgemm_sm90"
            assert (current_gpu() is not None) == on_gpu
            assert not on_gpu or current_gpu().arch == "sm_90a"

        def test_without_kernel():
            assert current_gpu() is None
        """
    )
    words = ("--kernel", "hgemm_sm90", "--kernel", "hgemm_v1", "--device", choice)
    result = run(suite, "-rs", *words)
    if choice == "cuda":
        result.assert_outcomes(passed=2, skipped=1)
        result.stdout.fnmatch_lines(["SKIPPED*hgemm_v1 needs compute capability 10.0*NVIDIA H200*"])
    else:
        result.assert_outcomes(passed=3)


def test_without_a_choice_the_kernels_of_the_gpu_join_the_quick_ones(
    suite: pytest.Pytester,
) -> None:
    suite.makeconftest(PRETENDED_H200)
    suite.makepyfile("def test_it(kernel): assert kernel.name == 'hgemm_sm90'")
    result = run(suite, "--device", "cuda")
    result.assert_outcomes(passed=1, skipped=len(KERNELS))
