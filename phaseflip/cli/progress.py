"""A progress bar for what takes more than a moment, on a terminal alone."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from phaseflip.system.output import on_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

PROGRESS_AFTER_SECONDS = 2.0


class ProgressBar:
    """Calls ``(done, total)`` drive a bar on standard error, shown once two seconds have passed."""

    def __init__(
        self, label: str, unit: str = "CTAs", delay_seconds: float = PROGRESS_AFTER_SECONDS
    ) -> None:
        self._label, self._unit = label, unit
        self._lock = threading.Lock()
        self._progress: Progress | None = None
        self._closed = False
        self._done: tuple[int, int | None] = (0, None)
        self._timer = threading.Timer(delay_seconds, self._show)
        self._timer.daemon = True

    def __enter__(self) -> ProgressBar:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._progress is not None:
                self._progress.stop()

    def __call__(self, done: int, total: int) -> None:
        with self._lock:
            self._done = (done, total)
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=done, total=total)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        with self._lock:
            if self._closed:
                return
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            self._progress = Progress(
                *columns,
                TextColumn(self._unit),
                Elapsed(),
                console=Console(stderr=True),
                transient=True,
            )
            done, total = self._done
            self._progress.add_task(self._label, completed=done, total=total)
            self._progress.start()


@contextlib.contextmanager
def progress_bar(label: str, unit: str = "CTAs") -> Iterator[Callable[[int, int], None] | None]:
    """A progress callback (done, total) on a terminal, None elsewhere."""
    if not on_terminal(sys.stderr):
        yield None
        return
    with ProgressBar(label, unit) as bar:
        yield bar
