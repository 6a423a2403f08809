"""PrimFunc -> LoweredKernel: TVM's own passes down to the IR that CUDA code generation consumes, host part included."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tvm

from ...errors import BadInput, UnsupportedInstruction
from ...ir import nodes as ir
from ...system.interrupts import interrupts_heard
from . import reader as tir
from .decoding import decode_calls
from .host_interpreter import HostPlan
from .parser_stacks import use_light_stacks
from .version import check_tvm_version

DEFAULT_ARCH = "sm_100a"
COMPILE_CALLBACK = "tvm_callback_cuda_compile"
Compile = Callable[[str], bytes]
"""CUDA text to machine code."""

LOWERED_CACHE_SIZE = 128
"""PrimFuncs whose lowered form is kept, half a megabyte each."""

use_light_stacks()


@dataclass(eq=False)
class LoweredKernel:
    """A kernel after all of TVM's passes.

    `signature` are (name, dtype, shape) of the arguments, where the shape of a number passed by value is None; `parameters`
    those of the buffers among them; `device` the device function; `host` the plan of its launch; `seconds` what lowering
    took; `function` the PrimFunc itself.
    """

    signature: list[tuple[str, str, tuple[int, ...] | None]]
    device: ir.Function
    host: HostPlan
    arch: str
    seconds: float
    function: Any = field(repr=False)

    @cached_property
    def parameters(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """The arguments that are buffers."""
        return [(name, dtype, shape) for name, dtype, shape in self.signature if shape is not None]

    @cached_property
    def program(self) -> Any:
        """The executable form, translated on first use. UnsupportedInstruction names what the simulator cannot do."""
        from ...translate.translator import translate

        return translate(self.device)

    def cuda_source(self) -> str:
        """The CUDA C++ text that TVM generates for the device function."""
        return cuda_source(self.function, self.arch)

    def export(self, file: Path, compile: Compile) -> str:
        """As `export_library` of this function alone, under the name "main"."""
        return export_library({"main": self.function}, self.arch, file, compile)


def cuda_source(func: Any, arch: str = DEFAULT_ARCH) -> str:
    """The CUDA C++ text that TVM generates for a PrimFunc."""
    return generated(func, arch)[1]


def lower(func: Any, arch: str = DEFAULT_ARCH) -> LoweredKernel:
    """Lower one PrimFunc for a CUDA architecture; needs no GPU.

    Raises BadInput for what is no PrimFunc, for an unsupported TVM, and where TVM refuses the kernel (with its reason).
    """
    check_tvm_version()
    if not isinstance(func, tvm.tirx.PrimFunc):
        hint = "; its build(M, N, K) gives one" if callable(getattr(func, "build", None)) else ""
        raise BadInput(f"a kernel is a TVM PrimFunc (T.prim_func), not {type(func).__name__}{hint}")
    signature = tir.function_parameters(func)
    started = time.perf_counter()
    try:
        loops: dict[Any, ir.Site] = {}
        with interrupts_heard():
            host, device = _run_passes({"main": tir.mark_lines(func, loops)}, arch)
    except (BadInput, UnsupportedInstruction):
        raise
    except Exception as error:
        raise BadInput(
            f"TVM {tvm.__version__} cannot lower the kernel: {_reason(error)}"
        ) from error
    functions = [f for module in device.values() for f in module.functions.values()]
    if len(functions) != 1:
        raise BadInput(
            f"the kernel lowers to {len(functions)} device functions; one T.device_entry() is simulated"
        )
    hosts = [f for f in host.functions.values() if hasattr(f, "body")]
    device_function = tir.read_function(functions[0], loops)
    decode_calls(device_function)
    plan = HostPlan(
        tir.read_function(hosts[0], loops), [name for name, _, _ in signature], device_function
    )
    return LoweredKernel(
        signature, device_function, plan, arch, time.perf_counter() - started, func
    )


def generated(func: Any, arch: str = DEFAULT_ARCH) -> tuple[str, str]:
    """The text that TVM generates for a PrimFunc: of its host part (C or LLVM), and CUDA C++ of its device function.

    It is lowered without the line marks: they move the places where TVM names common subexpressions.
    """
    text_only = {"main": tir.unmark_lines(func)}
    module = _runtime_module(text_only, arch, lambda source: b"not compiled")
    return str(module.inspect_source()), "\n".join(str(m.inspect_source()) for m in module.imports)


def lower_once(func: Any, arch: str = DEFAULT_ARCH) -> LoweredKernel:
    """As `lower`; the same PrimFunc again gives the same LoweredKernel."""
    return _lowered(func, arch) if isinstance(func, tvm.tirx.PrimFunc) else lower(func)


_lowered = functools.lru_cache(maxsize=LOWERED_CACHE_SIZE)(lower)


def _reason(error: BaseException) -> str:
    """What TVM's error says; where it was raised as TVM handled another one, that one first."""
    first = error
    while (before := first.__cause__ or first.__context__) is not None:
        if first.__suppress_context__ and first.__cause__ is None:
            break
        first = before
    return _first_and_last([_telling_line(first), _telling_line(error)])[0]


def _telling_line(error: BaseException) -> str:
    """The telling line of one of TVM's errors, which may be long reports drawn as tables."""
    lines = [line.strip(" |+-") for line in str(error).splitlines()]
    lines = [line for line in lines if line]
    if not lines:
        return type(error).__name__
    if not lines[0].startswith("TIRx schedule dispatch failed"):
        return lines[-1]
    last_way = max((i for i, line in enumerate(lines) if " (prio=" in line), default=1)
    causes = [match[1] for line in lines[last_way:] if (match := _CAUSE.match(line))]
    return "; ".join([lines[0], *_first_and_last(causes)])


def _first_and_last(said: list[str]) -> list[str]:
    """Of one error, and of what was raised as TVM handled it."""
    return ["; then ".join(dict.fromkeys((said[0], said[-1])))] if said else []


_CAUSE = re.compile(r"(?:\S+ \(prio=\S+\) \| )?(?:[\w.]+\.)?((?:\w+Error: |declined).*)")
"""A line of TVM's table of the ways that it tried: why one did not serve."""


def export_library(functions: dict[str, Any], arch: str, file: Path, compile: Compile) -> str:
    """Write a shared library with host parts and CUDA source of PrimFuncs, which TVM's runtime loads; return the source.

    A function is called by its name in `functions`. Where TVM has its CUDA runtime, it wants machine code at once, and
    gets it from `compile`; elsewhere the library asks for it when it is loaded.
    """
    plain = {name: tir.unmark_lines(f) for name, f in functions.items()}
    if list(plain) != ["main"]:
        plain = {name: f.with_attr("global_symbol", name) for name, f in plain.items()}
    module = _runtime_module(plain, arch, compile)
    tvm.runtime.Executable(module).export_library(str(file))
    return "\n".join(str(m.inspect_source()) for m in module.imports)


def _runtime_module(functions: dict[str, Any], arch: str, compile: Compile) -> Any:
    """Host and device modules of all functions."""
    build = importlib.import_module("tvm.tirx.build")
    with interrupts_heard(), compiling_by(compile):
        lowered = _run_passes(functions, arch)
        return build.tir_to_runtime(*lowered, _host_target())


@contextlib.contextmanager
def compiling_by(compile: Compile) -> Iterator[None]:
    """Where TVM has its CUDA runtime, it compiles at once what it generates: let it use `compile` for that.

    Its own choice is an architecture, that of the GPU here, and a compiler. What `compile` raises arrives as it was: on
    its way through TVM an error of a type that TVM does not know becomes a RuntimeError.
    """
    usual, raised = tvm.get_global_func(COMPILE_CALLBACK, allow_missing=True), []

    def compiled(source: Any) -> bytes:
        try:
            return compile(str(source))
        except Exception as error:
            raised.append(error)
            raise

    tvm.register_global_func(COMPILE_CALLBACK, compiled, override=True)
    try:
        yield
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    finally:
        if usual is not None:
            tvm.register_global_func(COMPILE_CALLBACK, usual, override=True)


def _host_target() -> Any:
    return tvm.target.Target("llvm" if tvm.runtime.enabled("llvm") else "c")


def _run_passes(functions: dict[str, Any], arch: str) -> tuple[Any, dict[Any, Any]]:
    """TVM's build steps up to, not including, code generation: (host module, {target: device module})."""
    build = importlib.import_module("tvm.tirx.build")
    target = tvm.target.Target({"kind": "cuda", "arch": arch})
    module = tvm.tirx.transform.BindTarget(target.with_host(_host_target()))(
        tvm.IRModule(functions)
    )
    pipeline, finalize_host, finalize_device = tvm.tirx.get_tir_pipeline("tirx")
    host_module, device_modules = build.split_host_device_mods(pipeline(module))
    return finalize_host()(host_module), {
        t: finalize_device()(m) for t, m in device_modules.items()
    }
