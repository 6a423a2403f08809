"""Light call stacks: what TVM's parser reads of them is what `inspect` says, and kernels come out the same."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import tvm
from tvm.script import ir as I

from phaseflip import find_kernel, lower
from phaseflip.frontend.tirx import parser_stacks as light_stacks
from phaseflip.spelling import T


def test_frames_tell_what_inspect_tells() -> None:
    light, full = light_stacks.stack(), inspect.stack()
    assert len(light) == len(full) > 10
    assert light[0].function == "test_frames_tell_what_inspect_tells"
    for ours, theirs in zip(light[1:], full[1:], strict=True):  # the first runs on meanwhile
        assert ours.frame is theirs.frame
        for name in ("filename", "lineno", "function", "code_context", "index", "positions"):
            assert getattr(ours, name) == getattr(theirs, name)
    with pytest.raises(AttributeError):
        _ = light[0].nonsense


def test_the_parser_takes_light_stacks_and_nobody_else() -> None:
    for name in light_stacks.PARSER_MODULES:
        module = importlib.import_module(name)
        assert isinstance(module.inspect.stack()[0], light_stacks.LightFrame)
        assert module.inspect.signature is inspect.signature
    assert isinstance(inspect.stack()[0], inspect.FrameInfo)


@pytest.mark.parametrize("name", ["hgemm_v3", "hgemm_v7"])
def test_a_kernel_comes_out_as_with_the_stacks_of_inspect(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> tuple[Any, ...]:
        func = find_kernel(name).factory(256, 256, 128)
        lowered = lower(func)
        return func, lowered.program.source, lowered.program.instructions, lowered.cuda_source()

    light = made()
    taken: list[object] = []

    def full_stack(context: int = 1) -> list[inspect.FrameInfo]:
        taken.append(context)
        return inspect.stack(context)[1:]

    monkeypatch.setattr(light_stacks._Inspect, "stack", staticmethod(full_stack))
    monkeypatch.setattr(
        light_stacks._Inspect, "getouterframes", staticmethod(inspect.getouterframes)
    )
    full = made()
    assert taken
    tvm.ir.assert_structural_equal(light[0], full[0])
    assert light[1:] == full[1:]


def test_a_function_of_a_class_is_left_to_the_module_that_the_class_becomes() -> None:
    """The parser tells by the source line of a frame that it stands in a class."""

    @I.ir_module
    class Module:
        @T.prim_func
        def main(A: T.Buffer((128,), "float32")):
            T.device_entry()
            bx = T.cta_id([1])
            tid = T.thread_id([128])
            A[tid] = T.float32(0)

    assert isinstance(Module, tvm.IRModule)
    assert "A[tid] = " in Module["main"].script()
