"""The lock of a GPU, between processes: who shares, who waits, who is told. No GPU is needed: the UUID is given."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from phaseflip.conformance import suite
from phaseflip.errors import BadInput
from phaseflip.gpu import devices
from phaseflip.gpu import lock as gpu_lock
from phaseflip.gpu.worker import Gpu
from tests.test_build import made

ROOT = Path(__file__).resolve().parent.parent
UUID = "GPU-5f1c"
HOLDER = """
import sys
from phaseflip import gpu_lock
print("asks", flush=True)
with getattr(gpu_lock, sys.argv[1])("GPU-5f1c"):
    print("holds", flush=True)
    sys.stdin.readline()
print("left", flush=True)
"""


class Holder:
    """Another process that takes the lock, and lets go when told."""

    def __init__(self, kind: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, kind],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, cwd=ROOT,
        )  # fmt: skip
        assert self.says() == "asks"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.says() == "left"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


@pytest.fixture
def holder() -> Iterator[Callable[[str], Holder]]:
    started: list[Holder] = []

    def start(kind: str) -> Holder:
        started.append(Holder(kind))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


def free(kind: str, limit_s: float = 0.2) -> bool:
    """Whether this process gets the lock within the limit."""
    try:
        with getattr(gpu_lock, kind)(UUID, limit_s):
            return True
    except BadInput:
        return False


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        ("shared", "shared", True), ("shared", "exclusive", False),
        ("exclusive", "shared", False), ("exclusive", "exclusive", False),
    ],
)  # fmt: skip
def test_a_timing_is_alone_and_other_runs_share(
    holder: Any, first: str, second: str, together: bool
) -> None:
    other = holder(first)
    assert other.says() == "holds"
    assert free(second) is together
    other.let_go()
    assert free(second)


def test_another_gpu_is_free(holder: Any) -> None:
    assert holder("exclusive").says() == "holds"
    with gpu_lock.exclusive("GPU-another", limit_s=0.0):
        assert not free("shared")


def test_the_lock_of_a_killed_process_is_free(holder: Any) -> None:
    other = holder("exclusive")
    assert other.says() == "holds"
    other.process.kill()
    other.process.wait()
    assert free("exclusive")


def test_runs_that_overlap_do_not_keep_a_timing_out(holder: Any) -> None:
    runs, timing = holder("shared"), None
    assert runs.says() == "holds" and free("shared")
    timing = holder("exclusive")
    deadline = time.monotonic() + 10
    while free("shared", 0.0) and time.monotonic() < deadline:  # until it stands in the queue
        time.sleep(0.01)
    late = holder("shared")
    assert not free("shared")  # though the lock itself is only shared
    runs.let_go()
    assert timing.says() == "holds" and not free("shared")
    timing.let_go()
    assert late.says() == "holds"


def test_a_long_wait_is_mentioned_once_and_a_short_one_is_not(
    holder: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert holder("shared").says() == "holds"
    assert not free("exclusive") and caplog.records == []
    monkeypatch.setattr(gpu_lock, "NOTICE_AFTER_S", 0.1)
    assert not free("exclusive", 0.4)
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        f"waiting for the GPU {UUID}, because others run on it and a timing needs it alone (at most 0.4 s)"
    )


def test_the_notice_goes_to_standard_error(holder: Any) -> None:
    assert holder("exclusive").says() == "holds"
    code = (
        "from phaseflip import gpu_lock; gpu_lock.NOTICE_AFTER_S = 0.1\n"
        f"with gpu_lock.shared({UUID!r}, 0.3): pass"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "" and done.stderr.startswith(f"waiting for the GPU {UUID}, because times are taken")  # fmt: skip
    assert done.returncode == 1 and "BadInput" in done.stderr


def test_the_limit_gives_one_clear_sentence(holder: Any, folder: Path) -> None:
    assert holder("exclusive").says() == "holds"
    with pytest.raises(BadInput) as error, gpu_lock.exclusive(UUID, limit_s=0.1):
        pass
    assert str(error.value) == (
        f"the GPU {UUID} was not free within 0.1 s, because others run on it and a timing needs it alone; wait for them"
        f" (fuser {folder}/phaseflip-{UUID}.lock names them) or choose another GPU with CUDA_VISIBLE_DEVICES"
    )


def test_without_a_gpu_nothing_is_locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_lock, "gpu_uuid", lambda: "")
    with gpu_lock.exclusive(), gpu_lock.exclusive():
        assert list(folder.iterdir()) == []


def test_others_can_open_the_file_and_it_stays(folder: Path) -> None:
    umask = os.umask(0o077)
    try:
        assert free("exclusive")
    finally:
        os.umask(umask)
    files = sorted(folder.iterdir())
    assert [f.name for f in files] == [f"phaseflip-{UUID}.lock", f"phaseflip-{UUID}.queue"]
    assert {f.stat().st_mode & 0o777 for f in files} == {0o644}
    files[0].chmod(0o444)  # as another user sees it: to be read only
    assert free("exclusive") and gpu_lock.lock_file("MIG/../x").name == "phaseflip-MIG____x.lock"


def test_a_file_that_points_elsewhere_is_refused(folder: Path) -> None:
    target = folder / "precious"
    gpu_lock.lock_file(UUID).symlink_to(target)
    with pytest.raises(BadInput, match="lock of the GPU cannot be opened: .*remove the file, or set"):  # fmt: skip
        with gpu_lock.shared(UUID):
            pass
    assert not target.exists()


def test_the_uuid_is_that_of_the_first_visible_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(devices, "first_gpu", lambda: None)
    assert devices.gpu_uuid() == ""
    monkeypatch.setattr(devices, "first_gpu", lambda: devices.Gpu("NVIDIA H200", (9, 0)))
    seen = {0: SimpleNamespace(uuid="aa-bb"), 1: SimpleNamespace(uuid="cc-dd")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", seen.__getitem__)
    assert devices.gpu_uuid() == "GPU-aa-bb"


class Watched:
    """A pool whose calls say whether the GPU is shared, as it must be while one runs."""

    shared: list[bool] = []

    def __init__(self, *_: Any, **__: Any) -> None:
        self.shared.clear()

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        pass

    def call(self, call: Any, limit_s: float = 0.0) -> Any:
        self.shared.append(free("shared") and not free("exclusive"))
        return SimpleNamespace(how="returned", value=([], 0.0) if len(call) == 4 else "")


def test_launches_and_conformance_share_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_lock, "gpu_uuid", lambda: UUID)
    monkeypatch.setattr(suite, "WorkerPool", Watched)
    monkeypatch.setattr("phaseflip.gpu.worker.WorkerPool", Watched)
    kernel = made(tmp_path).as_kernel()
    with Gpu("sm_90a", tmp_path) as gpu, pytest.raises(ValueError):  # no outputs: nothing ran
        gpu.run(kernel, (128, 256, 64), [np.zeros(1)] * 3)
    assert Watched.shared == [True] and free("exclusive")
    manifest = {"family": "f", "programs": [{"cases": 1, "text": ""}] * 2}
    monkeypatch.setattr(suite, "manifests", lambda *_: [manifest])
    assert len(list(suite.compare(tmp_path, "sm_90a", ["f"]))) == 2
    assert Watched.shared == [True] * 3 and free("exclusive")  # one to start, one for each program
