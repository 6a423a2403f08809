"""The part of the pytest plugin that keeps times on a GPU: options, a fixture, and what becomes of them at the end.

Options: ``--update-baselines``, ``--baselines DIR``, ``--baseline-threshold PART``. The fixture ``gpu_benchmark`` takes
what `gpu_timing.time_kernel` measured: pytest-benchmark gets the rounds, the baseline is compared or, in the end, replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from phaseflip.errors import BadInput
from phaseflip.timing import baselines
from phaseflip.timing.baselines import Entry

if TYPE_CHECKING:
    from phaseflip.timing.kernel_times import Timed
    from phaseflip.timing.rounds import Machine


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("phaseflip", "kernels on a simulated Blackwell")
    group.addoption(
        "--update-baselines",
        action="store_true",
        help="keep the times taken on the GPU as its baseline, and the one before it in its history;"
        " without this they are compared with it",
    )
    group.addoption(
        "--baselines",
        metavar="DIR",
        default=str(baselines.DIRECTORY),
        help=f"where baselines are (default: {baselines.DIRECTORY})",
    )
    group.addoption(
        "--baseline-threshold",
        metavar="PART",
        type=float,
        default=baselines.THRESHOLD,
        help="a kernel fails whose time over cuBLAS's has grown by more than this part, beyond doubt"
        f" (default: {baselines.THRESHOLD})",
    )


def pytest_configure(config: pytest.Config) -> None:
    threshold, directory = config.getoption("--baseline-threshold"), _directory(config)
    if not 0 <= threshold < 1:
        raise pytest.UsageError(
            f"argument --baseline-threshold: {threshold:g} is not a part such as 0.03, at least 0 and below 1"
        )
    if directory.exists() and not directory.is_dir():
        raise pytest.UsageError(f"argument --baselines: {directory} is a file, not a folder")


def pytest_collection_finish(session: pytest.Session) -> None:
    """An option for baselines that no chosen test heeds is a mistake. Under xdist, which takes no times, they say so."""
    config = session.config
    usual = {
        "--update-baselines": False,
        "--baselines": str(baselines.DIRECTORY),
        "--baseline-threshold": baselines.THRESHOLD,
    }
    given = [option for option, value in usual.items() if config.getoption(option) != value]
    heeded = any("gpu_baselines" in getattr(item, "fixturenames", ()) for item in session.items)
    if given and session.items and not heeded and not hasattr(config, "workerinput"):
        raise pytest.UsageError(
            f"{' and '.join(given)}: no test here takes times on a GPU; give one with the fixture gpu_benchmark,"
            " such as regression/test_gpu_performance.py"
        )


def _directory(config: pytest.Config) -> Path:
    return Path(config.rootpath, config.getoption("--baselines"))


class Session:
    """The times that this run of pytest takes on the GPU."""

    def __init__(self, config: pytest.Config) -> None:
        self.update = bool(config.getoption("--update-baselines"))
        self.threshold = float(config.getoption("--baseline-threshold"))
        self.directory = _directory(config)
        self.machine: Machine | None = None
        self.commits: list[dict[str, Any]] = []
        self.baseline: baselines.Recorded | None = None
        self.lines: list[str] = []

    def open(self) -> None:
        """See what the GPU is and, unless its baseline is to be replaced, that it compares. BadInput if not."""
        from phaseflip.timing import rounds as benchmark

        self.machine = benchmark.this_machine()
        if self.update:
            return
        self.baseline = baselines.find_baseline(self.directory, self.machine.gpu)
        refused, mentioned = baselines.other_machine(gpu_info(self.machine), self.baseline.gpu)
        if refused:
            raise BadInput(refused)
        self.lines += [f"the baseline compares, but {what}" for what in mentioned]

    def judge(self, entry: Entry) -> str:
        """One line for the summary is noted; the sentence with which the test fails, or ""."""
        ratio = entry.to_cublas
        text = f"{entry.name}: {ratio.ratio:.3f} of cuBLAS's time"
        if self.baseline is None:
            self.lines.append(f"{text} ({ratio.low:.3f} to {ratio.high:.3f})")
            return ""
        before = self.baseline.entries.get(entry.key)
        if before is None:
            return f"{self.baseline.file} has no time of {entry.name}; {baselines.UPDATE}"
        change = entry.change_from(before)
        text += (
            f", {before.to_cublas.ratio:.3f} in the baseline of {self.baseline.commit[:12]}: {change.ratio - 1:+.1%}"
            f" ({change.low - 1:+.1%} to {change.high - 1:+.1%} with {change.confidence:.0%} confidence)"
        )
        self.lines.append(text)
        return f"{text}, slower by more than {self.threshold:.1%}" if change.is_slower(self.threshold) else ""  # fmt: skip


_key = pytest.StashKey[Session]()


def gpu_info(machine: Machine) -> dict[str, Any]:
    """What is kept of the machine. No UUID and no host name: they say nothing about times."""
    values = asdict(machine)
    return {"name": values.pop("gpu")} | {k: v for k, v in values.items() if k != "state"}


class _Clock:
    """Plays measured rounds back to pytest-benchmark, whose timer it is: a round lasts as long as it did on the GPU."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rounds: Iterator[float] = iter(())

    def cuda_events(self) -> float:
        """The timer."""
        return self.seconds

    def play(self) -> None:
        """The function that is "timed"."""
        self.seconds = next(self.rounds)

    def rewind(self) -> None:
        """Before each round: differences from 0 are exact."""
        self.seconds = 0.0


@pytest.fixture
def _gpu_clock(request: pytest.FixtureRequest) -> _Clock:
    clock = _Clock()
    request.applymarker(pytest.mark.benchmark(timer=clock.cuda_events))
    return clock


@pytest.fixture(scope="session")
def gpu_baselines(pytestconfig: pytest.Config) -> Session:
    """The session's times; fails where the machine has no baseline that compares."""
    session, refused = Session(pytestconfig), ""
    try:
        session.open()
    except BadInput as error:
        refused = str(error)
    if refused:
        pytest.fail(refused, pytrace=False)
    pytestconfig.stash[_key] = session
    return session


@pytest.fixture
def gpu_benchmark(
    _gpu_clock: _Clock, gpu_baselines: Session, benchmark: Any
) -> Callable[[Timed], None]:
    """Keep one kernel's times, and fail the test if it has become slower than the baseline."""

    def keep(timed: Timed) -> None:
        built = timed.built
        entry = Entry(
            built.kernel, built.shape, timed.l2, timed.ours.rounds_us, timed.cublas.rounds_us
        )
        benchmark.extra_info.update(baselines.extra_info(entry))
        benchmark.extra_info.update(
            arch=built.arch,
            launches_per_round=timed.ours.launches_per_round,
            tflops=timed.ours.tflops,
            cublas_tflops=timed.cublas.tflops,
            versions=dict(built.versions),
            commit=dict(built.commit),
            before=timed.before.state,
            after=timed.after.state,
        )
        gpu_baselines.commits.append(dict(built.commit))
        _gpu_clock.rounds = iter([us / 1e6 for us in entry.rounds_us])
        benchmark.pedantic(
            _gpu_clock.play, setup=_gpu_clock.rewind, rounds=len(entry.rounds_us), iterations=1
        )
        failure = gpu_baselines.judge(entry)
        if failure:
            pytest.fail(failure, pytrace=False)

    return keep


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(
    config: pytest.Config, machine_info: dict[str, Any]
) -> None:
    session = config.stash.get(_key, None)
    if session is not None and session.machine is not None:
        machine_info.pop("node", None)
        machine_info["gpu"] = gpu_info(session.machine)


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    """The commit is that of which the kernels were built, which may have been on another machine."""
    session = config.stash.get(_key, None)
    built = session.commits if session is not None else []
    if built and built[0] and all(c == built[0] for c in built):
        commit_info.pop("error", None)
        commit_info.update(built[0], project="phaseflip")


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    taken = session.config.stash.get(_key, None)
    if taken is None or not taken.update:
        return
    if int(exitstatus) != 0:
        taken.lines.append("not everything passed, so the baseline is as it was")
        return
    try:
        file, kept = _write(session.config, taken)
    except BadInput as error:
        taken.lines.append(str(error))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        return
    taken.lines.append(f"the baseline is now {file}")
    if kept is not None:
        taken.lines.append(f"the one before it is kept as {kept}")


def _write(config: pytest.Config, taken: Session) -> tuple[Path, Path | None]:
    """pytest-benchmark's own output, of the times on the GPU alone, as the new baseline."""
    assert taken.machine is not None
    benchmarks: Any = config.pluginmanager.get_plugin("pytest-benchmark")
    machine_info = benchmarks.get_machine_info()
    commit_info = config.hook.pytest_benchmark_generate_commit_info(config=config)
    config.hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit_info)
    mine = [b for b in benchmarks.benchmarks if "cublas_rounds_us" in b.extra_info]
    if not mine:
        raise BadInput("no times were taken on the GPU, so the baseline is as it was")
    output = config.hook.pytest_benchmark_generate_json(
        config=config,
        benchmarks=mine,
        include_data=True,
        machine_info=machine_info,
        commit_info=commit_info,
    )
    return baselines.write(taken.directory, taken.machine.gpu, output)


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    taken = config.stash.get(_key, None)
    for line in taken.lines if taken is not None else ():
        terminalreporter.write_line(f"phaseflip: {line}")
