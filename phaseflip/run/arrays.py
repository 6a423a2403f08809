"""Arrays in and out: NumPy or torch, checked against a kernel's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import BadInput

FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)
_ONLY_IN_TORCH = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"
)  # fmt: skip
"""Types of torch that NumPy has from ml_dtypes alone."""

SCALARS = ("int32", "int64", "uint32", "float32", "float64")
"""Types of numbers that TVM's runtime can pass to a kernel by value."""

Signature = Sequence[tuple[str, str, tuple[int, ...] | None]]


def checked_arguments(signature: Signature, arguments: Sequence[Any]) -> list[Any]:
    """The arguments in order: of buffers NumPy views, of numbers passed by value (their shape is None) int or float.

    BadInput in one sentence for a wrong number, type, rank, shape, dtype, layout or device, for a number that its type
    cannot hold, and for an output that overlaps an input (any two buffers: a kernel may write through each of them).
    """
    names = ", ".join(name for name, _, _ in signature)
    try:
        arguments = tuple(arguments)
    except TypeError:
        raise BadInput(
            f"the arrays are given as a tuple ({names}), not {arguments!r:.80}"
        ) from None
    kind = "arrays" if all(shape is not None for _, _, shape in signature) else "arguments"
    if len(arguments) != len(signature):
        raise BadInput(
            f"the kernel takes {len(signature)} {kind} ({names}), but {len(arguments)} were given"
        )
    checked = [
        number(argument, name, dtype) if shape is None else _checked(argument, name, dtype, shape)
        for argument, (name, dtype, shape) in zip(arguments, signature, strict=True)
    ]
    views = [(p[0], a) for p, a in zip(signature, checked, strict=True) if p[2] is not None]
    for i, (name, array) in enumerate(views):
        for other, earlier in views[:i]:
            if np.may_share_memory(array, earlier):
                raise BadInput(
                    f"{name} overlaps {other} in memory; the kernel assumes that they do not, so pass a copy"
                )
    return checked


def by_value(name: str, dtype: str) -> str:
    """The dtype of a parameter that is no buffer; BadInput if it is no number that TVM's runtime can pass to a kernel."""
    if dtype in SCALARS:
        return dtype
    if dtype in ("handle", "void"):
        raise BadInput(
            f"parameter {name} of the kernel is neither a buffer nor a number; declare it as T.Buffer(shape, dtype)"
        )
    raise BadInput(
        f"parameter {name} of the kernel is a {dtype} by value; TVM's runtime passes {', '.join(SCALARS)}"
    )


def number(value: Any, name: str, dtype: str) -> int | float:
    """The value of a parameter that is passed by value; BadInput if it is no number, or one that `dtype` cannot hold."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if dtype.startswith("float"):
        if whole or isinstance(value, (float, np.floating)):
            return float(value)
        raise BadInput(f"{name} is a number passed by value ({dtype}), not {value!r:.80}")
    limits = np.iinfo(dtype)
    if not whole or not limits.min <= value <= limits.max:
        raise BadInput(
            f"{name} is a number passed by value: a whole one from {limits.min} to {limits.max} ({dtype}), not {value!r:.80}"
        )
    return int(value)


def _checked(array: Any, name: str, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    wanted = f"{name} must be a contiguous {dtype} array of shape {_text(shape)}"
    if not isinstance(array, np.ndarray):
        array = _from_torch(array, wanted)
    if array.dtype.name != dtype:
        raise BadInput(f"{wanted}, not of dtype {array.dtype.name}")
    if not array.dtype.isnative:
        raise BadInput(f"{wanted} in native byte order, not of dtype {array.dtype.str}")
    if array.ndim != len(shape):
        raise BadInput(f"{wanted}, not of rank {array.ndim}")
    if array.shape != shape:
        raise BadInput(f"{wanted}, not of shape {_text(array.shape)}")
    if not array.flags.c_contiguous:
        raise BadInput(f"{wanted}; this one is not contiguous, so pass a contiguous copy")
    return array


def _from_torch(array: Any, wanted: str) -> np.ndarray:
    kind = type(array).__name__
    if type(array).__module__.split(".")[0] != "torch" or not hasattr(array, "data_ptr"):
        raise BadInput(f"{wanted} (NumPy or torch), not a {kind}")
    if array.device.type != "cpu":
        raise BadInput(f"{wanted} on the CPU; this tensor is on {array.device}")
    array = array.detach()
    if not array.is_contiguous():
        raise BadInput(f"{wanted}; this one is not contiguous, so pass a contiguous copy")
    name = str(array.dtype).removeprefix("torch.")
    if name in _ONLY_IN_TORCH:
        import torch

        bits = array.view(torch.int16 if name == "bfloat16" else torch.uint8)
        return np.asarray(bits.numpy()).view(getattr(ml_dtypes, name))
    try:
        return np.asarray(array.numpy())
    except TypeError:
        raise BadInput(f"{wanted}, not of dtype {array.dtype}") from None


def stored_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of an array in global memory: of 4-bit elements two share one, the first in its low half (as DLPack has it)."""
    flat = array.reshape(-1).view(np.uint8)
    if array.dtype != FLOAT4:
        return flat
    low, high = flat[::2] & 15, flat[1::2] & 15
    return low | np.pad(high, (0, len(low) - len(high))) << 4


def from_stored(data: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The array of the dtype and shape of `like` whose `stored_bytes` these are."""
    if like.dtype == FLOAT4:
        data = np.stack((data & 15, data >> 4), axis=1).reshape(-1)[: like.size]
    return data.view(like.dtype).reshape(like.shape)


def check_writable(views: dict[str, np.ndarray], written: set[str]) -> None:
    """BadInput if one of the arrays that a kernel writes to is read-only."""
    for name, array in views.items():
        if name in written and not array.flags.writeable:
            raise BadInput(
                f"the kernel writes to {name}, which is read-only here; pass a writable array"
            )


def copy_back(views: dict[str, np.ndarray], results: dict[str, np.ndarray]) -> None:
    """Write results into the caller's arrays (torch tensors share memory with their NumPy views); BadInput if read-only."""
    changed = {name for name, view in views.items() if view.tobytes() != results[name].tobytes()}
    check_writable(views, changed)
    for name in changed:
        views[name][...] = results[name]


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
