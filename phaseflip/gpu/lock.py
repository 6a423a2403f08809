"""One lock for each GPU: runs that time take it alone, other runs of kernels share it.

The lock is flock(2) on a file in the temporary directory, named by the GPU's UUID, so that processes of several users
meet there; TMPDIR must be the same for them. The kernel knows shared and exclusive holders, asks for no more than read
permission, and drops the lock of a process that dies. filelock's lock with readers is an SQLite database, which every
user would have to be allowed to write.

A second file is the queue: who wants the lock passes through it, and who wants it exclusively keeps others from passing
while it waits. Without it, runs that overlap without end would keep a timing out for ever.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from phaseflip.errors import BadInput
from phaseflip.gpu.devices import gpu_uuid

WAIT_LIMIT_S = 600.0
"""How long to wait; a launch takes at most a minute, a timing some seconds."""

NOTICE_AFTER_S = 3.0
_POLL_S = 0.02
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def exclusive(uuid: str | None = None, limit_s: float = WAIT_LIMIT_S) -> Iterator[None]:
    """Hold the GPU alone, for a timing. `uuid` None is the first that CUDA sees; without one nothing is locked.

    A sentence is logged, which goes to standard error by default, if it takes more than NOTICE_AFTER_S; after `limit_s`
    BadInput. It does not nest: who holds it waits for himself.
    """
    with _held(fcntl.LOCK_EX, uuid, limit_s):
        yield


@contextlib.contextmanager
def shared(uuid: str | None = None, limit_s: float = WAIT_LIMIT_S) -> Iterator[None]:
    """Hold the GPU with others that share it, for a launch that is not timed; arguments and errors as `exclusive`."""
    with _held(fcntl.LOCK_SH, uuid, limit_s):
        yield


def lock_file(uuid: str) -> Path:
    """The file that stands for a GPU."""
    return Path(tempfile.gettempdir(), f"phaseflip-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock")


@contextlib.contextmanager
def _held(kind: int, uuid: str | None, limit_s: float) -> Iterator[None]:
    uuid = gpu_uuid() if uuid is None else uuid
    if not uuid:
        yield
        return
    path = lock_file(uuid)
    wait = _Wait(uuid, path, limit_s, alone=kind == fcntl.LOCK_EX)
    with _opened(path) as lock:
        with _opened(path.with_suffix(".queue")) as queue:
            wait.for_lock(queue, kind)
            wait.for_lock(lock, kind)
        yield


class _Wait:
    """One wait for both files: its deadline, and whether it has been mentioned."""

    def __init__(self, uuid: str, path: Path, limit_s: float, alone: bool) -> None:
        self.uuid, self.path, self.limit_s, self.alone = uuid, path, limit_s, alone
        self.since = time.monotonic()
        self.mentioned = False

    def for_lock(self, file: int, kind: int) -> None:
        while True:
            try:
                fcntl.flock(file, kind | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                waited = time.monotonic() - self.since
            if waited > self.limit_s:
                raise BadInput(
                    f"the GPU {self.uuid} was not free within {self.limit_s:g} s, because {self._others()};"
                    f" wait for them (fuser {self.path} names them) or choose another GPU with CUDA_VISIBLE_DEVICES"
                )
            if waited > NOTICE_AFTER_S and not self.mentioned:
                self.mentioned = True
                _log.warning(
                    "waiting for the GPU %s, because %s (at most %g s)",
                    self.uuid, self._others(), self.limit_s,
                )  # fmt: skip
            time.sleep(_POLL_S)

    def _others(self) -> str:
        if self.alone:
            return "others run on it and a timing needs it alone"
        return "times are taken on it, or somebody waits to take some"


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A file descriptor to lock; closing it unlocks. Child processes do not get it."""
    file = _open(path)
    try:
        yield file
    finally:
        os.close(file)


def _open(path: Path) -> int:
    flags = (
        os.O_RDONLY | os.O_NOFOLLOW
    )  # nobody points us elsewhere from a folder that all may write
    try:
        # Without O_CREAT first: Linux refuses it for another user's file there (fs.protected_regular).
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(file, 0o644)  # whatever the umask: others must be able to open it
            return file
        return os.open(path, flags)
    except OSError as error:
        raise BadInput(
            f"the lock of the GPU cannot be opened: {path}: {error.strerror}; remove the file, or set TMPDIR to a"
            " folder that all users of the GPU can read and write"
        ) from error
