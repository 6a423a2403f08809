"""Worker processes under a time limit: a call that crashes or hangs costs one call and one process, not the run.

A worker imports what it needs once and stays warm between calls; it is replaced after a crash or a time-out only. It
is started by `subprocess`, not `multiprocessing`: daemonic processes, such as dask's workers, may start it too, and
the caller's `__main__` is not imported again.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

RETURNED, RAISED, CRASHED, TIMED_OUT = "returned", "raised", "crashed", "timed out"

START_LIMIT_S = 120.0
"""Time that a worker has for its imports; TVM and PyTorch take about 2 s."""

PARENT_POLL_S = 1.0
LOG_TAIL_BYTES = 4000

_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from phaseflip.system.worker_pool import serve; serve(int(sys.argv[2]), sys.argv[3])"
)
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One thread per worker: the workers are what runs in parallel."""


class Ended(NamedTuple):
    """How one call ended.

    `how` is one of the four constants; `value` what the call returned, or (class name, message) of what it raised;
    `detail` the traceback, or what the dead process had said last; `seconds` the wall time that it took.
    """

    how: str
    value: Any = None
    detail: str = ""
    seconds: float = 0.0


class WorkerFailed(RuntimeError):
    """A worker process cannot be started at all; the message holds what it said."""


class _Worker:
    """One process, its end of the connection, and the call that it is busy with."""

    def __init__(self, function: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.log = tempfile.TemporaryFile("a+b")
            arguments = [json.dumps(sys.path), str(theirs.fileno()), function]
            self.process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                pass_fds=(theirs.fileno(),),
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,  # Ctrl-C goes to the caller alone, and kill() reaches its children
            )
        self.connection = Connection(ours.detach())
        self.ready = False
        self.group: deque[Any] = deque()
        self.call: Any = None
        self.busy = False
        self.since = time.monotonic()
        self.deadline = self.since + START_LIMIT_S

    def send(self, call: Any, limit_s: float) -> None:
        """Start a call."""
        self.call, self.busy = call, True
        self.since = time.monotonic()
        self.deadline = self.since + limit_s
        with contextlib.suppress(OSError):  # a worker that has died is noticed by its end of file
            self.log.truncate(0)
            self.connection.send(call)

    def said(self) -> str:
        """The end of what the process wrote to its standard output and error."""
        size = self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, size - LOG_TAIL_BYTES))
        return self.log.read().decode(errors="replace").strip()

    def kill(self) -> int:
        """End the process and what it started; returns its exit status, negative for a signal."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        status = self.process.wait()
        self.connection.close()
        return status


class WorkerPool:
    """Calls `function` ("module:name") in up to `jobs` worker processes, each call under `limit_s` seconds.

    Use as a context manager; leaving it ends the workers. Arguments and results must be picklable.
    """

    def __init__(self, function: str, *, jobs: int = 1, limit_s: float = 60.0) -> None:
        self._function, self._jobs, self._limit_s = function, max(1, jobs), limit_s
        self._workers: list[_Worker] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers at once; what they were doing is lost."""
        for worker in self._workers:
            worker.kill()
            worker.log.close()
        self._workers.clear()

    @property
    def process_ids(self) -> list[int]:
        """Of the workers that live now."""
        return [worker.process.pid for worker in self._workers]

    def call(self, argument: Any, limit_s: float | None = None) -> Ended:
        """Run one call and wait for it, if given under a limit of its own."""
        usual = self._limit_s
        self._limit_s = usual if limit_s is None else limit_s
        try:
            return next(ended for _, ended in self.run([[argument]]))
        finally:
            self._limit_s = usual

    def run(self, groups: Iterable[Sequence[Any]]) -> Iterator[tuple[Any, Ended]]:
        """Run every call of every group and yield (argument, how it ended) as each ends.

        The calls of a group run one after the other in one process, so that they may share what is cached there; a
        group goes on in a fresh process after a crash or a time-out. Raises WorkerFailed if no process can start.
        """
        try:
            yield from self._run(deque(deque(group) for group in groups if len(group)))
        finally:
            for worker in [w for w in self._workers if w.busy]:  # the caller stopped listening
                worker.kill()
                self._forget(worker)

    def _run(self, waiting: deque[deque[Any]]) -> Iterator[tuple[Any, Ended]]:
        for worker in [w for w in self._workers if w.process.poll() is not None]:
            worker.kill()  # it died idle, which is no call's fault
            self._forget(worker)
        while waiting or any(worker.group or worker.busy for worker in self._workers):
            for _ in range(min(len(waiting), self._jobs - len(self._workers))):
                self._workers.append(_Worker(self._function))
            for worker in self._workers:
                if worker.ready and not worker.busy:
                    if not worker.group and waiting:
                        worker.group = waiting.popleft()
                    if worker.group:
                        worker.send(worker.group.popleft(), self._limit_s)
            active = [w for w in self._workers if w.busy or not w.ready]
            first_deadline = min(worker.deadline for worker in active)
            heard = wait(
                [w.connection for w in active], max(0.0, first_deadline - time.monotonic())
            )
            for worker in active:
                late = time.monotonic() > worker.deadline
                if worker.connection not in heard and not late:
                    continue
                call, was_busy = worker.call, worker.busy
                ended = self._listen(worker) if worker.connection in heard else self._stop(worker)
                if ended.how in (CRASHED, TIMED_OUT):
                    self._bury(worker, ended)
                    if worker.group:
                        waiting.appendleft(worker.group)
                if was_busy:
                    yield call, ended

    def _listen(self, worker: _Worker) -> Ended:
        """Receive what the worker sent: that it is ready, how its call ended, or its death."""
        seconds = time.monotonic() - worker.since
        try:
            how, value, detail = worker.connection.recv()
        except (EOFError, OSError):
            status = worker.kill()
            name = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
            return Ended(CRASHED, name, worker.said(), seconds)
        worker.ready, worker.busy, worker.deadline = True, False, float("inf")
        return Ended(how, value, detail, seconds)

    def _stop(self, worker: _Worker) -> Ended:
        seconds = time.monotonic() - worker.since
        worker.kill()
        limit_s = self._limit_s if worker.busy else START_LIMIT_S
        return Ended(TIMED_OUT, f"over {limit_s:g} s", worker.said(), seconds)

    def _forget(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.log.close()

    def _bury(self, worker: _Worker, ended: Ended) -> None:
        self._forget(worker)
        if not worker.ready:
            raise WorkerFailed(f"a worker process did not start ({ended.value}): {ended.detail}")


# --- in the worker process -----------------------------------------------------------------------


def serve(descriptor: int, function_name: str) -> None:
    """Answer calls on the socket `descriptor` until the other end closes it."""
    import faulthandler

    faulthandler.enable()  # a crash leaves its Python stack in the log
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    function = _resolve(function_name)
    connection.send((RETURNED, None, ""))
    while True:
        try:
            argument = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (RETURNED, function(argument), "")
            connection.send(answer)
        except Exception as error:
            raised = (type(error).__name__, " ".join(str(error).split()))
            connection.send((RAISED, raised, traceback.format_exc()))


def _resolve(name: str) -> Callable[[Any], Any]:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _leave_with_parent(parent: int) -> None:
    """End this process, even inside a call, soon after the one that started it has gone."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
