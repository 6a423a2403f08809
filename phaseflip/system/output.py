"""Standard output and standard error of a command, which may be full or closed, by a kernel file too."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class OutputLost(Exception):
    """The sentence says why nothing can be written to standard output."""


@contextlib.contextmanager
def output_kept_clean() -> Iterator[None]:
    """Send to standard error what a kernel file prints, and what processes that it starts print.

    Afterwards both streams are as they were, whatever it has closed or replaced.
    """
    output, error = sys.stdout, sys.stderr
    with contextlib.ExitStack() as undo:
        undo.callback(_reopen_closed, output, error)
        noise: Any = error
        if error is not None and _number(output) == 1 and _number(error) == 2:
            output.flush()
            for number in (1, 2):
                saved = os.dup(number)
                undo.callback(os.close, saved)
                undo.callback(os.dup2, saved, number)
            # a stream of its own, so that closing it does not close standard error
            noise = open(os.dup(2), "w", buffering=1, errors="backslashreplace")
            undo.callback(_close, noise)
            os.dup2(2, 1)
        undo.enter_context(contextlib.redirect_stderr(error))
        undo.enter_context(contextlib.redirect_stdout(noise))
        yield


def write_output(text: str) -> None:
    """Write to standard output. A reader that has left (`| head -1`) changes nothing; OutputLost where it is full."""
    if sys.stdout is None:
        return
    try:
        with contextlib.suppress(AttributeError):  # what a test or a notebook puts there lacks it
            sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
    except OSError as error:
        _drop(sys.stdout)
        raise OutputLost(f"standard output cannot be written: {error.strerror}") from error


def write_error(text: str) -> None:
    """Write to standard error, as far as it can be written."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)
    except ValueError:  # a kernel file has closed it
        pass


def on_terminal(stream: Any) -> bool:
    """Whether somebody watches it; False for one that is closed."""
    try:
        return stream is not None and bool(stream.isatty())
    except ValueError:
        return False


def _number(stream: Any) -> int | None:
    """Its file descriptor; None if it has none, as a test's."""
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _drop(stream: Any) -> None:
    """Forget what is still buffered: Python's last flush would complain, and change the exit code."""
    number = _number(stream)
    if number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _close(stream: Any) -> None:
    with contextlib.suppress(OSError):
        stream.close()


def _reopen_closed(output: Any, error: Any) -> None:
    for name, number, stream in (("stdout", 1, output), ("stderr", 2, error)):
        if stream is not None and stream.closed:
            setattr(sys, name, open(number, "w", errors="backslashreplace", closefd=False))
