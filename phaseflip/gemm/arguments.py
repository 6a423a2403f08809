"""Arguments of any kernel, for a run that is to be judged: inputs by name and seed, poisoned outputs, numbers as given."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from phaseflip.errors import BadInput
from phaseflip.gemm.inputs import integers_or_normal, make_inputs
from phaseflip.gemm.kernel import DTYPES
from phaseflip.gemm.poison import fill_poison
from phaseflip.ir.arithmetic import numpy_dtype
from phaseflip.run.arrays import number
from phaseflip.run.simulator import outputs as written


@dataclass(frozen=True)
class Arguments:
    """One value per parameter, by name and in order; `outputs` are the names of those to be judged."""

    values: dict[str, Any]
    outputs: tuple[str, ...]

    def poisoned_again(self) -> Arguments:
        """The same on the second poison."""
        values = dict(self.values)
        for name in self.outputs:
            values[name] = np.empty_like(values[name])
            fill_poison(values[name], second=True)
        return Arguments(values, self.outputs)


def make_arguments(
    lowered: Any,
    shape: tuple[int, int, int],
    kind: str,
    seed: int,
    outputs: Sequence[str],
    scalars: Mapping[str, str | int | float],
) -> Arguments:
    """The arguments of a lowered kernel, the same for the same values.

    The first two buffers are A and B of `make_inputs` where they are [M, K] and [N, K] of one 16-bit dtype. Every other one
    holds standard normal values or small integers, by the seed, its name and the kind. `outputs`: () stands for what the
    kernel writes. BadInput for names that the kernel does not have, and for numbers that are missing.
    """
    signature = lowered.signature
    values = _numbers(signature, scalars)
    dtype_of_pair = _pair_dtype(lowered.parameters, shape)
    pair = () if dtype_of_pair is None else make_inputs(kind, *shape, seed, dtype_of_pair)
    if not pair and kind not in ("normal", "integers"):
        raise BadInput(
            f"inputs {kind!r} are of A[M, K] and B[N, K], which are not the kernel's first two buffers; take normal or integers"
        )
    for name, dtype, extents in lowered.parameters:
        values[name] = np.zeros(extents, _dtype(dtype))
    values = {name: values[name] for name, _, _ in signature}
    chosen = _outputs(lowered, values, outputs)
    for i, (name, _, extents) in enumerate(lowered.parameters):
        if name in chosen:
            fill_poison(values[name])
        elif i < len(pair):
            values[name] = pair[i]
        else:
            generator = np.random.default_rng([int(seed), zlib.crc32(name.encode())])
            values[name] = integers_or_normal(kind, extents, values[name].dtype, generator)
    return Arguments(values, chosen)


def _numbers(signature: Any, given: Mapping[str, str | int | float]) -> dict[str, Any]:
    known = {name: dtype for name, dtype, extents in signature if extents is None}
    offered = ", ".join(f"{name} ({dtype})" for name, dtype in known.items()) or "none"
    for name in given:
        if name not in known:
            raise BadInput(
                f"the kernel takes no number {name!r} by value; those that it takes are: {offered}"
            )
    missing = [name for name in known if name not in given]
    if missing:
        raise BadInput(
            f"the kernel takes numbers by value ({offered}), and {missing[0]} is missing; give --scalar {missing[0]}=VALUE"
        )
    return {name: _number(given[name], name, dtype) for name, dtype in known.items()}


def _number(value: str | int | float, name: str, dtype: str) -> int | float:
    if not isinstance(value, str):
        return number(value, name, dtype)
    try:
        parsed: int | float = float(value) if dtype.startswith("float") else int(value, 0)
    except ValueError:
        kind = "a number" if dtype.startswith("float") else "a whole number"
        raise BadInput(f"{name} is {kind} passed by value ({dtype}), not {value!r}") from None
    return number(parsed, name, dtype)


def _outputs(lowered: Any, values: dict[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    buffers = [name for name, _, _ in lowered.parameters]
    for name in names:
        if name not in buffers:
            raise BadInput(
                f"the kernel has no buffer {name!r} to be an output; its buffers are {', '.join(buffers)}"
            )
    if not buffers:
        raise BadInput("the kernel has no buffer, so no output to judge")
    chosen = set(names) or written(lowered, list(values.values()))
    if not chosen:
        raise BadInput(
            "the kernel writes to none of its buffers, as far as its text tells; name its outputs,"
            f" as in --out {buffers[-1]}"
        )
    return tuple(name for name in buffers if name in chosen)


def _pair_dtype(parameters: Any, shape: tuple[int, int, int]) -> str | None:
    """The dtype of the first two buffers, if they are A[M, K] and B[N, K]."""
    M, N, K = shape
    first = parameters[:2]
    dtypes = {dtype for _, dtype, _ in first}
    legal = [extents for _, _, extents in first] == [(M, K), (N, K)] and len(dtypes) == 1
    return dtypes.pop() if legal and dtypes <= set(DTYPES) else None


def _dtype(dtype: str) -> np.dtype:
    import ml_dtypes

    packed = getattr(ml_dtypes, dtype, None) if dtype.startswith("float4") else None
    return np.dtype(packed) if packed is not None else numpy_dtype(dtype)
