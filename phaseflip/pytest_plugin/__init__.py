"""The pytest plugin: where, with which kernels and under which schedules a suite runs.

Options: ``--device auto|sim|cuda``, ``--prebuilt DIR``, ``--kernel NAME`` and ``--schedule NAME`` (these may be
repeated). A test with an argument ``kernel`` runs once per kernel (a ``phaseflip.Kernel``), one
with ``schedule`` once per schedule name; the fixture ``device`` is "sim" or "cuda". Tests of one
kernel carry the mark ``xdist_group``, so with ``--dist loadgroup`` they share a worker. Hypothesis
profiles: dev (default), ci (default where the environment variable CI is set; the same examples
every time) and deep, which alone looks for the smallest failing example. Times on a GPU and their
baselines are in `baselines`.
"""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from phaseflip.cli.options import Separated
from phaseflip.errors import BadInput, BadSchedule
from phaseflip.gpu.devices import DEVICE_CHOICES, Device, choose_device, fits_here

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel
    from phaseflip.gpu.worker import Gpu

DEFAULT_SCHEDULES = ("in-order",)
pytest_plugins = ["phaseflip.pytest_plugin.baselines"]
_NO_SHRINKING = ("explicit", "reuse", "generate")
_ALL_PHASES = (*_NO_SHRINKING, "target", "shrink")
PROFILES: dict[str, dict[str, Any]] = {
    "dev": {"max_examples": 12, "phases": _NO_SHRINKING},
    "ci": {
        "max_examples": 15,
        "phases": _NO_SHRINKING,
        "derandomize": True,
        "database": None,
        "print_blob": False,
    },
    "deep": {"max_examples": 1000},
}
"""Shrinking lowers and runs hundreds of examples, minutes for each failing test, and an example is
five numbers that one command line replays; so only deep does it."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_KERNEL_PROPERTY = "phaseflip_kernel"

_kernels_key = pytest.StashKey["list[Kernel]"]()
_device_key = pytest.StashKey[Device]()
_gpu_key = pytest.StashKey["Gpu"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("phaseflip", "kernels on a simulated Blackwell")
    group.addoption(
        "--device",
        choices=DEVICE_CHOICES,
        default="auto",
        help="where tests with an argument 'kernel' run it: in the simulator, on the GPU (tests of kernels"
        " that do not fit it are skipped), or (auto, the default) on the GPU those that fit, others simulated",
    )
    group.addoption(
        "--prebuilt",
        metavar="DIR",
        help="with a GPU: use what `python -m phaseflip build` made there, and compile nothing",
    )
    group.addoption(
        "--kernel",
        action=Separated,
        metavar="NAME",
        help="run tests with an argument 'kernel' for this one only: a name or"
        " path/to/file.py:factory, then :ctas=2 or the like (several: with commas, or repeated; default: every kernel)",
    )
    group.addoption(
        "--schedule",
        action=Separated,
        metavar="NAME",
        help="run tests with an argument 'schedule' under this one: in-order, eager, lazy or"
        " random:SEED (several: with commas, or repeated; default: in-order)",
    )


@pytest.hookimpl(tryfirst=True)  # before Hypothesis loads the profile of --hypothesis-profile
def pytest_configure(config: pytest.Config) -> None:
    _one_thread_per_worker(config)
    _one_gpu_per_worker(config)
    _register_profiles(load="ci" if os.environ.get("CI") else "dev")
    try:
        if config.getoption("--device") == "cuda":
            choose_device("cuda")
        if config.getoption("--prebuilt") is not None:
            _check_prebuilt(config.getoption("--device"), config.getoption("--prebuilt"))
        if config.getoption("--kernel"):
            _chosen_kernels(config)
        for name in config.getoption("--schedule") or ():
            _check_schedule(name)
    except BadInput as error:
        raise pytest.UsageError(str(error)) from error


def _check_prebuilt(device: str, directory: str) -> None:
    """Raise BadInput where compiled kernels would go unused: without a GPU, or if there are none."""
    from phaseflip.gpu.prebuilt import check_not_simulated, compiled_in

    check_not_simulated(device)
    compiled_in(directory)
    if choose_device().name == "sim":
        raise BadInput("--prebuilt is code for a GPU, and there is none here that runs any")


def _one_thread_per_worker(config: pytest.Config) -> None:
    """Workers share the cores: each gets one BLAS thread, which must be said before NumPy loads.

    The controller sets its own environment, which the workers it starts inherit.
    """
    is_worker = hasattr(config, "workerinput")
    starts_workers = bool(config.getoption("tx", None)) and config.getoption("dist", "no") != "no"
    if is_worker or starts_workers:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    if is_worker and "torch" in sys.modules:  # loaded earlier than the variables were set
        sys.modules["torch"].set_num_threads(1)


def _register_profiles(load: str) -> None:
    from hypothesis import Phase, settings

    for name, values in PROFILES.items():
        values = values | {"phases": [Phase[phase] for phase in values.get("phases", _ALL_PHASES)]}
        settings.register_profile(name, settings.get_profile("default"), deadline=None, **values)
    settings.load_profile(load)


def _check_schedule(name: str) -> None:
    """Raise BadInput unless ``name`` names a schedule."""
    from phaseflip.run.schedule import parse_schedule

    parse_schedule(name)


def _chosen_kernels(config: pytest.Config) -> list[Kernel]:
    """The kernels of --kernel, or all; imported (with TVM) only when a test asks for them."""
    if _kernels_key not in config.stash:
        from phaseflip.gemm.kernel import find_kernel, list_kernels

        names = config.getoption("--kernel")
        config.stash[_kernels_key] = [*map(find_kernel, names)] if names else list_kernels()
    return config.stash[_kernels_key]


def _chosen_device(config: pytest.Config) -> Device:
    """Where kernels run that fit the GPU, if there is one."""
    if _device_key not in config.stash:
        config.stash[_device_key] = choose_device(config.getoption("--device"))
    return config.stash[_device_key]


def _on_the_gpu(config: pytest.Config, kernel: Kernel) -> bool:
    """Whether --device cuda was asked for and the GPU is one for this kernel: then it is tested, quick or not."""
    return config.getoption("--device") == "cuda" and fits_here(kernel)


def _gpu_for(config: pytest.Config, kernel: Kernel) -> Gpu | None:
    """The GPU's worker if the kernel runs there, None if it is simulated; skips the test if --device rules that out."""
    choice = config.getoption("--device")
    if choice == "sim" or _chosen_device(config).name == "sim":
        return None
    try:
        device = choose_device(choice, kernel)
    except BadInput as error:
        pytest.skip(str(error))
    if device.name == "sim":
        return None
    if _gpu_key not in config.stash:
        from phaseflip.gpu.worker import Gpu

        config.stash[_gpu_key] = Gpu(device.arch, config.getoption("--prebuilt"))
        config.add_cleanup(config.stash[_gpu_key].close)
    return config.stash[_gpu_key]


@pytest.fixture(autouse=True)
def _phaseflip_place(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make `verify` run the test's kernel where --device says."""
    callspec = getattr(request.node, "callspec", None)
    kernel = callspec.params.get("kernel") if callspec else None
    if kernel is None or not hasattr(kernel, "needs"):  # a test's own argument of that name
        yield
        return
    from phaseflip.gemm.runner import running_on

    with running_on(_gpu_for(request.config, kernel)):
        yield


def _one_gpu_per_worker(config: pytest.Config) -> None:
    """Where there are several GPUs, xdist workers take turns among them, unless the environment chooses already."""
    worker = getattr(config, "workerinput", {}).get("workerid", "")
    if not worker.startswith("gw") or "CUDA_VISIBLE_DEVICES" in os.environ:
        return
    count = len(glob.glob("/dev/nvidia[0-9]*"))
    if count > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(int(worker[2:]) % count)


def _deep(config: pytest.Config) -> bool:
    return bool(config.getoption("--hypothesis-profile", default=None) == "deep")


def _wants(metafunc: pytest.Metafunc, argument: str) -> bool:
    """Whether the test takes ``argument`` and does not get it from a mark or fixture of its own."""
    if argument not in metafunc.fixturenames or argument in metafunc._arg2fixturedefs:
        return False
    for mark in metafunc.definition.iter_markers("parametrize"):
        names = mark.kwargs.get("argnames", mark.args[0] if mark.args else ())
        if argument in (names.replace(" ", "").split(",") if isinstance(names, str) else names):
            return False
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if _wants(metafunc, "kernel"):
        kernels = _chosen_kernels(metafunc.config)
        if not metafunc.config.getoption("--kernel") and not _deep(metafunc.config):
            kernels = [k for k in kernels if k.quick or _on_the_gpu(metafunc.config, k)]
        one_worker = pytest.mark.xdist_group
        metafunc.parametrize(
            "kernel",
            [pytest.param(k, id=k.name, marks=one_worker(k.name)) for k in kernels],
            scope="session",
        )
    if _wants(metafunc, "schedule"):
        names = metafunc.config.getoption("--schedule") or DEFAULT_SCHEDULES
        metafunc.parametrize("schedule", names, ids=list(names))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note the kernel where the report carries it from a worker to the summary."""
    callspec = getattr(item, "callspec", None)
    name = getattr(callspec.params.get("kernel"), "name", None) if callspec else None
    if isinstance(name, str):
        item.user_properties.append((_KERNEL_PROPERTY, name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Of a schedule of --schedule that the kernel cannot have, the sentence says all: no traceback."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, BadSchedule):
        name = getattr(item, "callspec", None) and item.callspec.params.get("schedule")  # type: ignore[attr-defined]
        if name in (item.config.getoption("--schedule") or ()):
            report.longrepr = f"argument --schedule: {call.excinfo.value}"
    return report


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """Where kernels run that fit the GPU: "sim" without one."""
    return _chosen_device(pytestconfig).name


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """One line, in suites that ran a kernel: which, where, under which schedules and profile."""
    reports = [r for group in terminalreporter.stats.values() for r in group]
    tests = Counter(
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for key, value in report.user_properties
        if key == _KERNEL_PROPERTY
    )
    if not tests:
        return
    from hypothesis import settings

    from phaseflip.grammar import counted

    chosen = _chosen_device(config)
    kernels = ", ".join(
        f"{name} ({counted(count, 'test')})" for name, count in sorted(tests.items())
    )
    schedules = ", ".join(config.getoption("--schedule") or DEFAULT_SCHEDULES)
    terminalreporter.write_line(
        f"phaseflip: kernels {kernels}; device {chosen.name}; schedule {schedules};"
        f" Hypothesis profile {settings.get_current_profile_name()}"
        + (f"; {chosen.note}" if chosen.note else "")
    )
