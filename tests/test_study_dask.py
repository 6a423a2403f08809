"""A study on a dask.distributed cluster: the same outcomes as here, also when a worker is lost midway."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import study_runners

from phaseflip.errors import BadInput
from phaseflip.study.plan import run_study

distributed = pytest.importorskip("distributed")

RUNNER = "study_runners:run"
# Warnings of dask's own, and of the sockets of a worker that is killed, are not ours to mend.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import dask

    monkeypatch.setenv(study_runners.DELAY, "0.1")  # before the workers start: they inherit it
    quiet = {"distributed.admin.log-format": "", "logging.distributed": "critical"}
    with (
        dask.config.set(quiet),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as local,
    ):
        yield local


def comparable(outcomes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without times, and without the last words of a crash, which hold the numbers of threads."""
    return [outcome | {"seconds": 0, "messages": {}} for outcome in outcomes]


def test_a_cluster_that_loses_a_worker_gives_the_same_results(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = ("kill", "pass", "kill-large", "raise", "crash")
    killed: list[int] = []

    def kill_one_worker(done: int, total: int, outcome: dict[str, Any] | None) -> None:
        if done >= 6 and not killed:
            killed.append(cluster.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    plan = study_runners.plan(faults)
    there = run_study(
        plan,
        tmp_path / "there",
        dask=cluster.scheduler_address,
        progress=kill_one_worker,
        runner=RUNNER,
    )
    assert killed
    monkeypatch.setenv(study_runners.DELAY, "0")
    here = run_study(plan, tmp_path / "here", jobs=2, runner=RUNNER)
    assert comparable(there) == comparable(here)
    assert len(there) == 48
    assert sum(outcome["fate"] == "harness error" for outcome in there) == 16


def test_a_scheduler_that_does_not_answer_is_bad_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phaseflip.study.dask_cluster.CONNECT_LIMIT_S", 0.5)
    with pytest.raises(BadInput, match=r"no dask scheduler answers at tcp://127.0.0.1:9"):
        run_study(study_runners.plan(("kill",)), tmp_path, dask="tcp://127.0.0.1:9", runner=RUNNER)
