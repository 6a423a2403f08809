"""Input matrices by name: every pair (A, B) follows from kind, shape, seed and dtype alone.

A kind is a base, optionally followed by changes: ``normal``, ``integers+nan-a:5``,
``integers+permute-a:3``. Changes apply from left to right.

Bases:
    normal       standard normal values
    integers     small integers, every partial sum of A B^T exact in float32
    one-hot      one signed power of two in each row of A; B normal
    permutation  one 1 in each row of A, columns all different while K lasts; B normal
    large        values whose dot products pass the largest half (65504) about every third time
    subnormal    A subnormal, so that results lie around the smallest normal half
    special      normal, with NaN and infinities in some rows of A and of B

Changes:
    nan-a:ROW, nan-b:ROW    one NaN in that row
    permute-a:SEED          the rows of A in another order, the same for the same M and SEED
    scale-a:POWER           A times 2^POWER
    zero-chunk:INDEX        the matrices of K - 64, with 64 columns of zeros before K chunk INDEX
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from phaseflip.errors import BadInput, check_text

CHUNK_COLUMNS = 64
EXACT_FLOAT32_SUM = 2**24
_NUMPY_DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}

Pair = tuple[np.ndarray, np.ndarray]


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the NumPy dtype of "float16" or "bfloat16"; BadInput for another name."""
    if dtype not in _NUMPY_DTYPES:
        raise BadInput(f"operands are float16 or bfloat16, not {dtype}")
    return _NUMPY_DTYPES[dtype]


def make_inputs(
    kind: str, M: int, N: int, K: int, seed: int = 0, dtype: str = "float16"
) -> tuple[np.ndarray, np.ndarray]:
    """Return new arrays A[M, K] and B[N, K] of `dtype`, the same for the same arguments.

    BadInput for an unknown kind, a negative seed, or a change that does not fit the shape.
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise BadInput(f"a seed is an integer from 0 up, got {seed!r}")
    check_text("inputs", kind, "normal")
    target = numpy_dtype(dtype)
    base, *changes = kind.split("+")
    if base not in _BASES:
        raise BadInput(f"unknown inputs {base!r}; known are {', '.join(_BASES)}")
    parsed = [_parse_change(change) for change in changes]
    added = CHUNK_COLUMNS * sum(name == "zero-chunk" for name, _ in parsed)
    if K - added < 1:
        raise BadInput(f"{kind} needs K larger than {added}, got K = {K}")
    generator = np.random.default_rng(int(seed))
    with np.errstate(over="ignore"):
        a, b = (x.astype(target) for x in _BASES[base](M, N, K - added, generator))
    for name, argument in parsed:
        a, b = _CHANGES[name](a, b, argument)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def kinds() -> list[str]:
    """The names of the bases."""
    return list(_BASES)


def _parse_change(change: str) -> tuple[str, int]:
    name, _, argument = change.partition(":")
    if name not in _CHANGES:
        raise BadInput(f"unknown change of inputs {name!r}; known are {', '.join(_CHANGES)}")
    try:
        return name, int(argument)
    except ValueError:
        raise BadInput(f"{name} needs an integer, as in {name}:1, got {change!r}") from None


# --- bases: float32 matrices ---------------------------------------------------------------------


def _draw(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return generator.standard_normal((rows, columns), dtype=np.float32)


def _normal(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    return _draw(generator, M, K), _draw(generator, N, K)


def _integers(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    largest = next((r for r in (4, 2) if K * r * r <= EXACT_FLOAT32_SUM), 1)

    def draw(rows: int) -> np.ndarray:
        return generator.integers(-largest, largest + 1, (rows, K)).astype(np.float32)

    return draw(M), draw(N)


def _one_hot(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    a = np.zeros((M, K), np.float32)
    values = np.ldexp(generator.choice((-1.0, 1.0), M), generator.integers(-3, 4, M))
    a[np.arange(M), generator.integers(0, K, M)] = values
    return a, _draw(generator, N, K)


def _permutation(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    a = np.zeros((M, K), np.float32)
    order = generator.permutation(K)
    a[np.arange(M), order[np.arange(M) % K]] = 1
    return a, _draw(generator, N, K)


def _large(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    # A dot product of K products of deviation s^2 has deviation sqrt(K) s^2; this makes it 65504.
    deviation = np.float32(np.sqrt(65504.0 / np.sqrt(K)))
    return deviation * _draw(generator, M, K), deviation * _draw(generator, N, K)


def _subnormal(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    # Below 2^-14 halves are multiples of 2^-24. Results have a deviation of about 2^-14.
    a = np.ldexp(generator.integers(-1023, 1024, (M, K)).astype(np.float32), -24)
    return a, _draw(generator, N, K) * np.float32(2 / np.sqrt(K))


def _special(M: int, N: int, K: int, generator: np.random.Generator) -> Pair:
    a, b = _normal(M, N, K, generator)
    for matrix in (a, b):
        rows = generator.permutation(matrix.shape[0])[: max(1, matrix.shape[0] // 16)]
        for row, value in zip(rows, _cycle(len(rows)), strict=True):
            matrix[row, generator.integers(0, K)] = value
    b[:, generator.integers(0, K)] = 0  # an infinity of A in this column meets 0, which gives NaN
    return a, b


def _cycle(count: int) -> np.ndarray:
    return np.resize(np.array([np.nan, np.inf, -np.inf], np.float32), count)


# --- changes: matrices of the final dtype --------------------------------------------------------


def _set_nan(matrix: np.ndarray, row: int) -> np.ndarray:
    if not 0 <= row < matrix.shape[0]:
        raise BadInput(f"a NaN needs a row from 0 to {matrix.shape[0] - 1}, got {row}")
    matrix[row, (7 * row + 3) % matrix.shape[1]] = np.nan
    return matrix


def permutation_of(rows: int, seed: int) -> np.ndarray:
    """Return the row order (source row of each row, int64) that ``permute-a:seed`` applies."""
    if seed < 0:
        raise BadInput(f"permute-a needs a seed from 0 up, got {seed}")
    return np.random.default_rng(seed).permutation(rows)


def _scale(a: np.ndarray, power: int) -> np.ndarray:
    if abs(power) > 64:
        raise BadInput(f"scale-a needs a power from -64 to 64, got {power}")
    with np.errstate(over="ignore", under="ignore"):
        return np.ldexp(a.astype(np.float64), power).astype(np.float32).astype(a.dtype)


def _insert_zeros(a: np.ndarray, b: np.ndarray, index: int) -> Pair:
    chunks = a.shape[1] // CHUNK_COLUMNS
    if not 0 <= index <= chunks:
        raise BadInput(f"zero-chunk needs an index from 0 to {chunks}, got {index}")
    at = index * CHUNK_COLUMNS

    def widen(matrix: np.ndarray) -> np.ndarray:
        zeros = np.zeros((matrix.shape[0], CHUNK_COLUMNS), matrix.dtype)
        return np.concatenate((matrix[:, :at], zeros, matrix[:, at:]), axis=1)

    return widen(a), widen(b)


_BASES: dict[str, Callable[[int, int, int, np.random.Generator], Pair]] = {
    "normal": _normal,
    "integers": _integers,
    "one-hot": _one_hot,
    "permutation": _permutation,
    "large": _large,
    "subnormal": _subnormal,
    "special": _special,
}
_CHANGES: dict[str, Callable[[np.ndarray, np.ndarray, int], Pair]] = {
    "nan-a": lambda a, b, row: (_set_nan(a, row), b),
    "nan-b": lambda a, b, row: (a, _set_nan(b, row)),
    "permute-a": lambda a, b, seed: (a[permutation_of(a.shape[0], seed)], b),
    "scale-a": lambda a, b, power: (_scale(a, power), b),
    "zero-chunk": _insert_zeros,
}


# --- arrays of any shape and dtype ---------------------------------------------------------------


def integers_or_normal(
    kind: str, shape: tuple[int, ...], dtype: np.dtype[Any], generator: np.random.Generator
) -> np.ndarray:
    """A new array: small integers where the base of the kind is integers, and in any integer dtype; else normal values.

    Integers are -4 to 4, 0 to 8 in unsigned dtypes, 0 or 1 in bool.
    """
    whole = dtype.kind in "iub"
    if whole or kind.split("+")[0] == "integers":
        low, high = {"b": (0, 2), "u": (0, 9)}.get(dtype.kind, (-4, 5))
        return generator.integers(low, high, shape).astype(np.float32).astype(dtype)
    return generator.standard_normal(shape, dtype=np.float32).astype(dtype)
