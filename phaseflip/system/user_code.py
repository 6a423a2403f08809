"""Files of kernels: imported as they are now, and what is wrong with one in a sentence."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import linecache
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from phaseflip.errors import BadInput
from phaseflip.system.interrupts import interrupts_heard

_LONGEST_REASON = 300
_FILES_KEPT = 128


def one_line(error: BaseException) -> str:
    """`Type: first line` of an exception, with the place where TVM's parser gives one."""
    kind = type(error).__name__
    try:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    except Exception:
        return f"{kind}, which cannot be printed"
    if not lines:
        return kind
    place = f" ({lines[1][4:]})" if lines[1:] and lines[1].startswith("--> ") else ""
    what = lines[0].rstrip(".")
    if len(what) > _LONGEST_REASON:
        what = f"{what[:_LONGEST_REASON]}..."
    return f"{kind}: {what}{place}"


@contextlib.contextmanager
def users_code() -> Iterator[None]:
    """While anybody's code runs: Ctrl-C is heard, and `os._exit` is a SystemExit, as `sys.exit` is.

    Else it would end this process without a word, and with the exit code that it was given. Outside of the main thread
    nothing is changed, nor in a child process, which ends so.
    """
    usual, process = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if os.getpid() != process:
            usual(status)
        raise SystemExit(f"os._exit({status})")

    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread:
        os._exit = leave
    try:
        with interrupts_heard():
            yield
    finally:
        if in_main_thread:
            os._exit = usual


def returned(value: Any) -> str:
    """What a factory returned instead of a PrimFunc, after "it returns"."""
    if value is None:
        return "nothing"
    if inspect.iscoroutine(value):
        value.close()  # Python warns of one that was never awaited
        return "a coroutine, because it is async"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


@functools.lru_cache(maxsize=_FILES_KEPT)
def load_file(file: Path, modified_ns: int, size_bytes: int) -> ModuleType:
    """Import one state of `file` under its own module name (TVM's parser reads the source back)."""
    state = f"{file}\0{modified_ns}\0{size_bytes}"
    name = f"_phaseflip_file_{file.stem}_{hashlib.sha256(state.encode()).hexdigest()[:12]}"
    linecache.checkcache(str(file))
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    try:
        with users_code():
            exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        number = error.lineno if isinstance(error, SyntaxError) else None
        where = f" in line {number}" if number else ""  # none where the file is not even text
        raise BadInput(f"{file} cannot be imported{where}: {one_line(error)}") from error
    return module
