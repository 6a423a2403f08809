"""Call stacks for TVM's script parser that leave source files unread: they took most of the time of a lowering.

The parser takes `inspect.stack()` for every function of the tile library that it parses and every macro that it
expands, several times for each tile primitive. For each frame `inspect` then checks and reads the source file, and
searches all loaded modules for frames of generated code. That is half of the time of a lowering, and three quarters
below the frames of pytest and Hypothesis. The parser looks at the frames, and at the source of one or two of them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from types import FrameType, ModuleType
from typing import Any

PARSER_MODULES = (
    "tvm.script.parser.core.parser",
    "tvm.tirx.script.builder.ir",
    "tvm.tirx.script.parser.entry",
)
"""The modules of TVM 0.26 that take call stacks while a kernel is built or lowered."""


class LightFrame:
    """An `inspect.FrameInfo` whose parts other than the frame are found when they are asked for."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect.getframeinfo(self.frame), name)


def outer_frames(frame: FrameType | None, context: int = 1) -> list[LightFrame]:
    """As `inspect.getouterframes`: the frame and all that called it."""
    found = []
    while frame is not None:
        found.append(LightFrame(frame))
        frame = frame.f_back
    return found


def stack(context: int = 1) -> list[LightFrame]:
    """As `inspect.stack`: the frames above the caller's, its own first."""
    return outer_frames(sys._getframe(1))


class _Inspect(ModuleType):
    """The module `inspect` with light stacks."""

    getouterframes, stack = staticmethod(outer_frames), staticmethod(stack)

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)


_INSPECT = _Inspect("inspect")


def use_light_stacks() -> None:
    """Give TVM's parser light stacks in place of those of `inspect`, from now on."""
    for name in PARSER_MODULES:
        vars(importlib.import_module(name))["inspect"] = _INSPECT
