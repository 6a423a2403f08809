"""Typed errors: misuse of the library, and programs that cannot go on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from .grammar import shortened


class BadInput(ValueError):
    """The caller asked for something impossible; the one sentence says what is wrong and what would be right."""

    def __init__(self, sentence: str) -> None:
        super().__init__(shortened(sentence))


def check_text(name: str, value: Any, example: str) -> None:
    """BadInput unless `value`, which the argument `name` was given, is text."""
    if not isinstance(value, str):
        raise BadInput(f"{name} is text such as {example!r}, not {value!r}")


class UnsupportedInstruction(BadInput):
    """The kernel uses an instruction whose meaning the simulator does not know; raised before anything runs."""


class BadSchedule(BadInput):
    """There is no such schedule, or it delays threads that the kernel does not have; which says nothing of the kernel."""


class FindingWarning(UserWarning):
    """A launch ran to its end, but the checks found an error that a GPU would not have noticed."""


class Deadlock(RuntimeError):
    """Nothing can run. `finding` lists every blocked group of threads and what it waits for."""

    def __init__(self, finding: Any) -> None:
        super().__init__(finding)
        self.finding = finding

    def __str__(self) -> str:
        details = getattr(self.finding, "details", ())
        return "\n  ".join([str(self.finding), *details])


class SimulatorFault(RuntimeError):
    """The simulator contradicted itself; this is a bug of phaseflip, never of the kernel under test."""


class UncertainBarrier(Exception):
    """Which threads meet in a named barrier depends on the schedule: the launch has to be run again to tell how."""


class KernelFault(RuntimeError):
    """The kernel did what stops a GPU (a bad address, a bad operand).

    `code` is the name of the finding, `detail` the sentence, `fix` what would mend it; `site` (file,
    line) and `agent` (who did it) are filled in by the instruction that was being executed.
    """

    def __init__(self, code: str, detail: str, fix: str) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.fix = fix
        self.site: Any = None
        self.agent = ""

    def __str__(self) -> str:
        where = f"{self.site}: " if self.site is not None else ""
        who = f" ({self.agent})" if self.agent else ""
        return f"{where}{self.code}: {self.detail}{who}"


def located(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate `function(group, site, ...)` so that a KernelFault in it carries the site and the group."""

    @functools.wraps(function)
    def call(group: Any, site: Any, *args: Any, **operands: Any) -> Any:
        try:
            return function(group, site, *args, **operands)
        except KernelFault as fault:
            if fault.site is None:
                fault.site, fault.agent = site, str(group)
            raise

    return call
