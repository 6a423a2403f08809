"""The shapes that a kernel takes."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phaseflip.errors import BadInput


def positive_int(name: str, value: Any) -> int:
    """Return `value` as int; BadInput if it is no integer (NumPy's count, bool not) or below 1."""
    if isinstance(value, (bool, np.bool_)):
        raise BadInput(f"{name} must be a positive integer, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise BadInput(f"{name} must be a positive integer, got {value!r}") from None
    if number < 1:
        raise BadInput(f"{name} must be a positive integer, got {number}")
    return number


def positive_shape(M: Any, N: Any, K: Any) -> tuple[int, int, int]:
    """Return (M, N, K) as Python ints; BadInput for anything else than positive integers."""
    return positive_int("M", M), positive_int("N", N), positive_int("K", K)


@dataclass(frozen=True)
class ShapeRule:
    """The shapes (M, N, K), in elements, that a kernel takes: multiples within bounds.

    A maximum of None means no upper bound; a maximum equal to the multiple fixes that extent.
    """

    m_multiple: int = 128
    n_multiple: int = 128
    k_multiple: int = 64
    m_max: int | None = None
    n_max: int | None = None
    k_max: int | None = None
    k_min: int = 64

    def _axes(self) -> tuple[tuple[str, int, int, int | None], ...]:
        """(name, multiple, smallest, largest) of M, N, K; bounds rounded inwards to multiples."""
        lowest_k = -(-max(self.k_min, 1) // self.k_multiple) * self.k_multiple
        bounds = (
            ("M", self.m_multiple, self.m_multiple, self.m_max),
            ("N", self.n_multiple, self.n_multiple, self.n_max),
            ("K", self.k_multiple, lowest_k, self.k_max),
        )
        return tuple(
            (name, step, low, None if high is None else high // step * step)
            for name, step, low, high in bounds
        )

    def is_legal(self, M: Any, N: Any, K: Any) -> bool:
        """True if the kernel takes this shape; False also for what is not positive integers."""
        try:
            shape = positive_shape(M, N, K)
        except BadInput:
            return False
        return shape == self.nearest(*shape)

    def nearest(self, M: int, N: int, K: int) -> tuple[int, int, int]:
        """Return the legal shape closest to (M, N, K) in each extent, the larger one of two."""
        nearest = []
        for value, (name, step, low, high) in zip((M, N, K), self._axes(), strict=True):
            try:
                number = operator.index(value)
            except TypeError:
                raise BadInput(f"{name} must be a positive integer, got {value!r}") from None
            number = max((2 * number + step) // (2 * step) * step, low)
            nearest.append(number if high is None else min(number, high))
        return nearest[0], nearest[1], nearest[2]

    def check(self, M: Any, N: Any, K: Any, name: str = "this kernel") -> tuple[int, int, int]:
        """Return the shape as Python ints; BadInput names the rule and the nearest legal shape."""
        if any(isinstance(extent, (bool, np.bool_)) for extent in (M, N, K)):
            return positive_shape(M, N, K)
        try:
            shape = (operator.index(M), operator.index(N), operator.index(K))
        except TypeError:
            return positive_shape(M, N, K)
        nearest = self.nearest(*shape)
        if shape != nearest:
            got = "x".join(map(str, shape))
            legal = "x".join(map(str, nearest))
            raise BadInput(
                f"{name} needs {self.describe()}, got MxNxK = {got}; "
                f"the nearest legal shape is {legal}"
            )
        return shape

    def describe(self) -> str:
        """The rule in words, e.g. "M = 128, N = 128 and K a multiple of 64 up to 32768"."""
        words = []
        for name, step, low, high in self._axes():
            if high == low:
                words.append(f"{name} = {low}")
            else:
                start = f" from {low}" if low > step else ""
                end = "" if high is None else f" up to {high}"
                words.append(f"{name} a multiple of {step}{start}{end}")
        return f"{words[0]}, {words[1]} and {words[2]}"
