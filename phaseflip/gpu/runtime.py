"""Compiled kernels on a GPU, in this process: TVM's runtime, which loads them, and the calls.

The runtime is the part of TVM that needs no compiler: libtvm_runtime.so and libtvm_runtime_cuda.so, with tvm_ffi for
Python. A kernel's library asks for its machine code by its CUDA text; it gets what was compiled with it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from phaseflip.errors import BadInput

_RUNTIME_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_cuda.so")
_COMPILE_CALLBACK = "tvm_callback_cuda_compile"

_code_by_source: dict[str, bytes] = {}


class LaunchStopped(RuntimeError):
    """CUDA stopped a launch; `seconds` after its start it said so, which takes some 0.3 s by itself on an H200."""

    def __init__(self, words: str, seconds: float) -> None:
        super().__init__(words)
        self.seconds = seconds


def runtime_directory() -> Path:
    """Where TVM's runtime libraries are: TVM_LIBRARY_PATH, or the installed package `tvm`. BadInput if nowhere."""
    candidates = [Path(p) for p in [os.environ.get("TVM_LIBRARY_PATH")] if p]
    spec = importlib.util.find_spec("tvm")
    if spec is not None:
        candidates += [Path(p, "lib") for p in spec.submodule_search_locations or []]
    for directory in candidates:
        if all((directory / name).exists() for name in _RUNTIME_LIBRARIES):
            return directory
    raise BadInput(
        f"running on a GPU needs TVM's runtime ({' and '.join(_RUNTIME_LIBRARIES)});"
        " install apache-tvm, or set TVM_LIBRARY_PATH to the folder that holds them"
    )


@functools.cache
def load_runtime() -> Any:
    """Load TVM's runtime into this process, once; returns the module tvm_ffi. BadInput says what is missing."""
    try:
        import tvm_ffi
    except ImportError as error:
        raise BadInput(
            "running on a GPU needs the package apache-tvm-ffi, which cannot be imported"
        ) from error
    import torch  # noqa: F401 - brings libcudart, which the runtime needs, where no toolkit is installed

    for name in _RUNTIME_LIBRARIES:
        try:
            ctypes.CDLL(str(runtime_directory() / name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise BadInput(f"TVM's runtime cannot be loaded: {error}") from error
    tvm_ffi.register_global_func(_COMPILE_CALLBACK, _machine_code, override=True)
    return tvm_ffi


def _machine_code(source: Any) -> bytes:
    """Called by TVM's runtime with CUDA text."""
    digest = hashlib.sha256(str(source).encode()).hexdigest()
    if digest not in _code_by_source:
        raise RuntimeError("the library's CUDA source is not the one that its .cubin was made from")
    return _code_by_source[digest]


@functools.lru_cache(maxsize=256)
def load(library: str, cubin: str, source_sha256: str) -> Any:
    """The module of a compiled kernel; its functions are called with torch CUDA tensors."""
    tvm_ffi = load_runtime()
    _code_by_source[source_sha256] = Path(cubin).read_bytes()
    return tvm_ffi.load_module(library)


def to_gpu(array: np.ndarray) -> Any:
    """A torch CUDA tensor with the values of a NumPy array, bfloat16 included."""
    import torch

    if array.dtype == np.dtype(ml_dtypes.bfloat16):
        return torch.from_numpy(array.view(np.uint16)).cuda().view(torch.bfloat16)
    return torch.from_numpy(array).cuda()


def from_gpu(tensor: Any) -> np.ndarray:
    """The values of a torch CUDA tensor."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).cpu().numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


def call(module: Any, arrays: Sequence[np.ndarray], function: str = "main") -> tuple[Any, float]:
    """Copy the arrays to the GPU, launch, wait: (the arrays afterwards, seconds of launch and wait).

    Raises LaunchStopped for a CUDA error, after which this process cannot use the GPU.
    """
    import torch

    tensors = [to_gpu(array) for array in arrays]
    torch.cuda.synchronize()
    started = time.perf_counter()
    try:
        module[function](*tensors)
        torch.cuda.synchronize()
    except RuntimeError as error:
        raise LaunchStopped(str(error), time.perf_counter() - started) from error
    seconds = time.perf_counter() - started
    return [from_gpu(tensor) for tensor in tensors], seconds
