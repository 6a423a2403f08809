"""Ctrl-C while TVM or a kernel's code runs, which may turn a KeyboardInterrupt into another error, or drop it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupts_heard() -> Iterator[None]:
    """Leave by KeyboardInterrupt if SIGINT came meanwhile, whatever became of the one that it raised.

    SIGINT raises as it always does, so that an endless loop ends too. Where Python does not handle it, or outside of the
    main thread, nothing is changed.
    """
    usual = signal.getsignal(signal.SIGINT)
    if not callable(usual) or threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = False

    def hear(number: int, frame: Any) -> None:
        nonlocal heard
        heard = True
        usual(number, frame)

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    except BaseException:
        if heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, usual)
    if heard:
        raise KeyboardInterrupt
