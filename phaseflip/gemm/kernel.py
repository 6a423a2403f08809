"""Kernels under test: what a kernel file exports, which shapes it takes, and how to find one.

A kernel computes D = A B^T with A[M, K], B[N, K], D[M, N], all row-major and of one 16-bit dtype. The command `run` and
`verify` take other functions too, from files.
Nothing here imports TVM before a kernel file is loaded or built.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from phaseflip.errors import BadInput
from phaseflip.frontend.tirx.version import check_tvm_version, installed_series
from phaseflip.gemm import oracle
from phaseflip.gemm.shape_rule import ShapeRule, positive_int, positive_shape
from phaseflip.system.user_code import load_file, one_line, returned, users_code

__all__ = [
    "DTYPES", "INDEX_SAFE_MAX", "Kernel", "Operands", "ShapeRule", "Tolerance", "find_kernel", "list_kernels",
    "positive_int", "positive_shape",
]  # fmt: skip

INDEX_SAFE_MAX = 32768
"""Largest extent whose square still fits the 32-bit indices of device code."""

LARGEST_ARGUMENT = 2**31 - 1
"""Of a factory, besides the shape: TVM's integers have 32 bits."""

KERNEL_PACKAGE = "kernels"
DTYPES = ("float16", "bfloat16")
OUTPUT_DTYPES = (*DTYPES, "float32")
_BUILD_CACHE_SIZE = 128


@dataclass(frozen=True)
class Tolerance:
    """The chapter's test: |D - reference| <= atol + rtol |reference|, elementwise."""

    rtol: float = 2e-2
    atol: float = 1e-2


class Operands(NamedTuple):
    """Parameter names of a built kernel, in order (A, B, D), the dtype of A and B, and that of D."""

    names: tuple[str, str, str]
    dtype: str
    output_dtype: str


@dataclass(frozen=True)
class Kernel:
    """One kernel: `factory(M, N, K)` returns the PrimFunc (A[M, K], B[N, K], D[M, N]).

    `needs` is the CUDA compute capability. None means "what its instructions say" (`target.needed`), `dtype` None
    "whatever the PrimFunc says" and `shape_rule` None "any positive integers": so it is for a factory found by path.
    `quick`: tests with an argument `kernel` run it by default; others need --kernel or the Hypothesis profile deep.
    BadInput where a name, a factory, a rule or a reference is none.
    """

    name: str
    factory: Callable[[int, int, int], Any]
    shape_rule: ShapeRule | None = field(default_factory=ShapeRule)
    reference: Callable[[np.ndarray, np.ndarray], np.ndarray] = oracle.reference
    tolerance: Tolerance = Tolerance()
    summary: str = ""
    needs: tuple[int, int] | None = field(default=(10, 0), compare=False)
    dtype: str | None = "float16"
    quick: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise BadInput(f"a Kernel's name is text such as 'hgemm_v1', not {self.name!r:.80}")
        for part in ("factory", "reference"):
            value = getattr(self, part)
            if not callable(value):
                raise BadInput(f"the {part} of Kernel {self.name} is a function, not {value!r:.80}")
        if not isinstance(self.shape_rule, ShapeRule | None):
            raise BadInput(
                f"the shape_rule of Kernel {self.name} is a ShapeRule or None, not {self.shape_rule!r:.80}"
            )
        if not isinstance(self.tolerance, Tolerance):
            raise BadInput(
                f"the tolerance of Kernel {self.name} is a Tolerance, not {self.tolerance!r:.80}"
            )

    @property
    def smallest_shape(self) -> tuple[int, int, int]:
        """The smallest (M, N, K) of its rule; without one, that of a default `ShapeRule`, 128x128x64."""
        return (self.shape_rule or ShapeRule()).nearest(1, 1, 1)

    @property
    def by_path(self) -> bool:
        """Whether it was found in a file, and not under a name of `list_kernels`."""
        return not re.fullmatch(r"\w+(:.*)?", self.name)

    def check_shape(self, M: Any, N: Any, K: Any) -> tuple[int, int, int]:
        """Return the shape as Python ints; BadInput if it breaks this kernel's rule."""
        if self.shape_rule is None:
            return positive_shape(M, N, K)
        return self.shape_rule.check(M, N, K, self.name)

    def build(self, M: Any, N: Any, K: Any) -> Any:
        """Return the PrimFunc for this shape, built once per shape.

        BadInput if the shape breaks the rule, the factory fails or returns something else, or the
        PrimFunc's buffers are not A[M, K], B[N, K], D[M, N] of one 16-bit dtype.
        """
        self.operands(M, N, K)
        return self.function(M, N, K)

    def operands(self, M: Any, N: Any, K: Any) -> Operands:
        """Return the names and the dtype of (A, B, D) for this shape; errors as `build`."""
        shape = self.check_shape(M, N, K)
        return _operands(self, _build(self, *shape), shape)

    def function(self, M: Any, N: Any, K: Any) -> Any:
        """As `build`, but whatever the parameters are."""
        return _build(self, *self.check_shape(M, N, K))

    def gemm(self, M: Any, N: Any, K: Any) -> Operands | None:
        """As `operands`, where D may be of float16, bfloat16 or float32 if the kernel says no dtype; None for another function.

        A kernel that says its dtype promises to be a GEMM: there other parameters are BadInput.
        """
        shape = self.check_shape(M, N, K)
        if self.dtype is not None:
            return self.operands(*shape)
        found = [_buffer(parameter) for parameter in _build(self, *shape).params]
        if [extents for _, extents, _ in found] != [(M, K), (N, K), (M, N)]:
            return None
        (a, _, dtype), (b, _, other), (d, _, output_dtype) = found
        if dtype != other or dtype not in DTYPES or output_dtype not in OUTPUT_DTYPES:
            return None
        return Operands((a, b, d), dtype, output_dtype)

    def is_strict(self, M: Any, N: Any, K: Any) -> bool:
        """Whether `build` takes it: what compares and compiles kernels for GPUs needs A, B and D of one dtype."""
        found = self.gemm(M, N, K)
        return found is not None and found.dtype == found.output_dtype


@functools.lru_cache(maxsize=_BUILD_CACHE_SIZE)
def _build(kernel: Kernel, M: int, N: int, K: int) -> Any:
    from tvm.tirx import PrimFunc

    from ..frontend.tirx.parser_stacks import use_light_stacks

    use_light_stacks()
    try:
        with users_code():
            func = kernel.factory(M, N, K)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a kernel is anybody's code: SystemExit, its own kinds
        raise BadInput(
            f"the factory of {kernel.name} failed at MxNxK = {M}x{N}x{K}: {one_line(error)}"
        ) from error
    if not isinstance(func, PrimFunc):
        raise BadInput(
            f"the factory of {kernel.name} returns {returned(func)}; it must return a tvm.tirx.PrimFunc"
        )
    return func


def _operands(kernel: Kernel, func: Any, shape: tuple[int, int, int]) -> Operands:
    """Check the parameters of `func` against (A[M, K], B[N, K], D[M, N]) and return them."""
    M, N, K = shape
    expected = [("A", (M, K)), ("B", (N, K)), ("D", (M, N))]
    found = [_buffer(parameter) for parameter in func.params]
    dtypes = {dtype for _, _, dtype in found}
    allowed = DTYPES if kernel.dtype is None else (kernel.dtype,)
    legal = [extents for _, extents, _ in found] == [extents for _, extents in expected]
    if not (legal and len(dtypes) == 1 and dtypes <= set(allowed)):
        wanted = ", ".join(f"{name}[{rows}, {columns}]" for name, (rows, columns) in expected)
        got = ", ".join(
            f"{name} (no buffer)" if extents is None else f"{name}{list(extents)} {dtype}"
            for name, extents, dtype in found
        )
        raise BadInput(
            f"{kernel.name} must be a function of exactly {wanted}, "
            f"all {' or all '.join(allowed)}, "
            f"got {got or 'no parameters'}"
        )
    dtype = dtypes.pop()
    return Operands((found[0][0], found[1][0], found[2][0]), dtype, dtype)


def _buffer(parameter: Any) -> tuple[str, tuple[Any, ...] | None, str]:
    """(name, shape or None if it is no buffer, dtype); a symbolic extent stays as text."""
    name = str(parameter.name)
    if not type(getattr(parameter, "ty", None)).__name__ == "BufferType":
        return name, None, ""
    extents = [getattr(extent, "value", extent) for extent in parameter.shape]
    return (
        name,
        tuple(e if isinstance(e, int) else str(e) for e in extents),
        str(parameter.dtype),
    )


# --- finding kernels -----------------------------------------------------------------------------


def list_kernels() -> list[Kernel]:
    """Return every `KERNEL` that a module of the package `kernels` exports, sorted by name.

    A module of its subpackage for the installed TVM, `kernels.tvm_0_27`, takes the place of the one of the same name.
    BadInput if TVM is of another version than ours, if the package or one of its modules cannot be
    imported, or if two share a name.
    """
    check_tvm_version()
    try:
        with users_code():
            package = importlib.import_module(KERNEL_PACKAGE)
    except Exception as error:
        raise BadInput(
            f"the package {KERNEL_PACKAGE!r} cannot be imported ({one_line(error)}); "
            "run from the project's root folder"
        ) from error
    found = _kernels_in(package, KERNEL_PACKAGE)
    own = f"tvm_{installed_series().replace('.', '_')}"
    if importlib.util.find_spec(f"{KERNEL_PACKAGE}.{own}") is not None:
        name = f"{KERNEL_PACKAGE}.{own}"
        found |= _kernels_in(importlib.import_module(name), name)
    return [found[name] for name in sorted(found)]


def _kernels_in(package: ModuleType, package_name: str) -> dict[str, Kernel]:
    """The kernels that the modules of a package export, by name."""
    found: dict[str, Kernel] = {}
    for info in pkgutil.iter_modules(getattr(package, "__path__", [])):
        module_name = f"{package_name}.{info.name}"
        try:
            with users_code():
                kernel = getattr(importlib.import_module(module_name), "KERNEL", None)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise BadInput(f"{module_name} cannot be imported: {one_line(error)}") from error
        if not isinstance(kernel, Kernel):
            continue
        if kernel.name in found:
            raise BadInput(f"two modules of {package_name} export a kernel named {kernel.name}")
        found[kernel.name] = kernel
    return found


def find_kernel(text: str) -> Kernel:
    """Return the kernel that `text` names: one of `list_kernels`, or `path/to/file.py:NAME`.

    NAME is a factory or a Kernel. Further arguments of the factory may follow: `hgemm_v6:ctas=1`. A factory found by
    path has no shape rule. `text` is the kernel's name, so that a replay line finds it again. BadInput says which
    names exist, or what is wrong with the file or the arguments.
    """
    if not isinstance(text, str):
        raise BadInput(f"a kernel is given as a name or path/to/file.py:factory, got {text!r}")
    if match := _ARGUMENTS.fullmatch(text):
        return _with_arguments(find_kernel(match[1]), match[2])
    path, colon, name = text.rpartition(":")
    if colon and path:
        return _kernel_from_file(text, path, name)
    if text.endswith(".py") or "/" in text:
        raise BadInput(f"{text!r} names no factory; write {text.rstrip(':')}:FACTORY")
    kernels = list_kernels()
    for kernel in kernels:
        if kernel.name == text:
            return kernel
    raise BadInput(
        f"unknown kernel {text!r}; known are {_names([k.name for k in kernels])}, "
        "or give path/to/file.py:factory"
    )


_ARGUMENTS = re.compile(r"(.+):(\w+=[^:/]*)")
"""A kernel, then arguments of its factory besides the shape."""


@functools.lru_cache(maxsize=_BUILD_CACHE_SIZE)
def _with_arguments(kernel: Kernel, text: str) -> Kernel:
    """The kernel whose factory is called with further arguments, positive integers: "ctas=1"."""
    arguments = {}
    known = list(inspect.signature(kernel.factory).parameters)[3:]
    for name, _, value in (part.partition("=") for part in text.split(",")):
        if name not in known:
            raise BadInput(
                f"{kernel.name} has no argument {name!r}; after the shape it takes {_names(known)}"
            )
        if name in arguments or re.search(rf"[:,]{name}=", kernel.name):
            raise BadInput(f"{kernel.name}:{text} gives {name} twice; give it once")
        arguments[name] = _argument(name, value)

    @functools.wraps(kernel.factory)
    def factory(M: int, N: int, K: int) -> Any:
        return kernel.factory(M, N, K, **arguments)

    return replace(kernel, name=f"{kernel.name}:{text}", factory=factory)


def _argument(name: str, text: str) -> int:
    """The value of a factory's argument; BadInput if it is no positive integer that fits TVM's 32 bits."""
    if not re.fullmatch(r"[0-9]+", text):
        return positive_int(name, text)
    if len(text.lstrip("0")) > len(str(LARGEST_ARGUMENT)) or int(text) > LARGEST_ARGUMENT:
        raise BadInput(f"{name} must be a positive integer up to {LARGEST_ARGUMENT}, got {text}")
    return positive_int(name, int(text))


def _kernel_from_file(text: str, path: str, name: str) -> Kernel:
    file = Path(os.path.expanduser(path))
    if not os.path.isfile(file):  # False, where Path.is_file raises for a name that is too long
        if re.fullmatch(r"\w+(:.*)?|.+\.py:.*", path):
            raise BadInput(
                f"{text!r}: arguments of a kernel are written name=number, as in hgemm_v6:ctas=2"
            )
        raise BadInput(f"there is no kernel file {path}")
    check_tvm_version()
    file = file.resolve()
    stat = file.stat()
    module = load_file(file, stat.st_mtime_ns, stat.st_size)
    found = getattr(module, name, None) if name else None
    if isinstance(found, Kernel):
        return replace(found, name=text)
    if found is None:
        there = [
            name
            for name, value in vars(module).items()
            if isinstance(value, Kernel)
            or (getattr(value, "__module__", None) == module.__name__ and callable(value))
        ]
        raise BadInput(
            f"{path} has no factory or Kernel {name!r}; its functions and Kernels are {_names(there)}"
        )
    if not callable(found) or type(found).__name__ == "PrimFunc":
        raise BadInput(
            f"{name} in {path} is of type {type(found).__name__}, not a factory; "
            "a factory is a function (M, N, K) that returns a PrimFunc, and a Kernel will do too"
        )
    return Kernel(
        name=text, factory=found, shape_rule=None, summary=f"from {path}", dtype=None, needs=None
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
