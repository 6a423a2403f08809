"""Arrays in and out: NumPy or torch, checked against a kernel's parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .errors import BadInput

FLOAT4 = np.dtype(ml_dtypes.float4_e2m1fn)
_ONLY_IN_TORCH = (
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"
)  # fmt: skip
"""Types of torch that NumPy has from ml_dtypes alone."""

Parameters = list[tuple[str, str, tuple[int, ...]]]


def checked_arrays(parameters: Parameters, arrays: Sequence[Any]) -> list[np.ndarray]:
    """The arrays as NumPy views, in order.

    BadInput in one sentence for a wrong number, type, rank, shape, dtype, layout or device, and for an output that
    overlaps an input (any two arguments: a kernel may write through each of them).
    """
    names = ", ".join(name for name, _, _ in parameters)
    try:
        arrays = tuple(arrays)
    except TypeError:
        raise BadInput(f"the arrays are given as a tuple ({names}), not {arrays!r:.80}") from None
    if len(arrays) != len(parameters):
        raise BadInput(
            f"the kernel takes {len(parameters)} arrays ({names}), but {len(arrays)} were given"
        )
    views = [
        _checked(array, *parameter) for array, parameter in zip(arrays, parameters, strict=True)
    ]
    for i, a in enumerate(views):
        for j in range(i):
            if np.may_share_memory(a, views[j]):
                raise BadInput(
                    f"{parameters[i][0]} overlaps {parameters[j][0]} in memory; the kernel assumes that they do not, "
                    "so pass a copy"
                )
    return views


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


def check_writable(arrays: Sequence[np.ndarray], names: Sequence[str], written: set[str]) -> None:
    """BadInput if one of the arrays that a kernel writes to is read-only."""
    for array, name in zip(arrays, names, strict=True):
        if name in written and not array.flags.writeable:
            raise BadInput(
                f"the kernel writes to {name}, which is read-only here; pass a writable array"
            )


def copy_back(arrays: Sequence[Any], results: dict[str, np.ndarray]) -> None:
    """Write results into the caller's arrays (torch tensors share memory with their NumPy views); BadInput if read-only."""
    views = [a if isinstance(a, np.ndarray) else _from_torch(a, "the array") for a in arrays]
    pairs = dict(zip(results, views, strict=True))
    changed = {name for name, view in pairs.items() if view.tobytes() != results[name].tobytes()}
    check_writable(views, list(results), changed)
    for name in changed:
        pairs[name][...] = results[name]


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
