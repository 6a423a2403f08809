"""Arrays that `simulate` and `launch` refuse: BadInput, one sentence that names the parameter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import phaseflip
from phaseflip import BadInput

M, N, K = 256, 128, 64


def good() -> list[Any]:
    return [np.ones((M, K), np.float16), np.ones((N, K), np.float16), np.zeros((M, N), np.float16)]


def overlapping(operand: int) -> list[Any]:
    """A, B and D where D starts in the last row of A (0) or B (1)."""
    arrays = good()
    rows, columns = arrays[operand].shape
    memory = np.zeros(rows * columns + M * N, np.float16)
    arrays[operand] = memory[: rows * columns].reshape(rows, columns)
    start = (rows - 1) * columns
    arrays[2] = memory[start : start + M * N].reshape(M, N)
    return arrays


def swapped(index: int, array: Any) -> list[Any]:
    arrays = good()
    arrays[index] = array
    return arrays


BAD_ARRAYS = {
    "dtype of A": (swapped(0, np.ones((M, K), np.float32)), ["A", "float16", "float32"]),
    "dtype of D": (swapped(2, np.ones((M, N), np.int16)), ["D", "float16", "int16"]),
    "rank of B": (swapped(1, np.ones(N * K, np.float16)), ["B"]),
    "shape of B": (swapped(1, np.ones((K, N), np.float16)), ["B", "128", "64"]),
    "K of A and B differ": (swapped(1, np.ones((N, 2 * K), np.float16)), ["B", "128", "64"]),
    "A transposed": (swapped(0, np.ones((K, M), np.float16).T), ["A", "contiguous"]),
    "A strided": (swapped(0, np.ones((M, 2 * K), np.float16)[:, ::2]), ["A", "contiguous"]),
    "A a list": (swapped(0, [[1.0] * K] * M), ["A", "list"]),
    "D missing": (good()[:2], ["3", "2"]),
    "one too many": ([*good(), np.zeros(1)], ["3", "4"]),
}


@pytest.mark.parametrize("function", ["simulate", "launch"])
@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_bad_arrays(function: str, case: str) -> None:
    arrays, fragments = BAD_ARRAYS[case]
    kernel = phaseflip.find_kernel("hgemm_v3").build(M, N, K)
    with pytest.raises(ValueError) as caught:
        if function == "simulate":
            phaseflip.simulate(kernel, arrays)
        else:
            phaseflip.launch(kernel, *arrays)
    assert isinstance(caught.value, BadInput) and "\n" not in str(caught.value)
    for fragment in fragments:
        assert fragment in str(caught.value)


@pytest.mark.parametrize("operand", [0, 1], ids=["A", "B"])
def test_launch_refuses_d_over_an_operand(operand: int) -> None:
    kernel = phaseflip.find_kernel("hgemm_v3").build(M, N, K)
    with pytest.raises(BadInput, match="overlap"):
        phaseflip.launch(kernel, *overlapping(operand))


def test_simulate_refuses_d_over_an_operand() -> None:
    kernel = phaseflip.find_kernel("hgemm_v3").build(M, N, K)
    with pytest.raises(BadInput, match="overlap"):
        phaseflip.simulate(kernel, overlapping(0))


def test_bad_arrays_of_torch() -> None:
    import torch

    kernel = phaseflip.find_kernel("hgemm_v3").build(M, N, K)
    A, B, D = (torch.from_numpy(array) for array in good())
    with pytest.raises(BadInput, match="contiguous"):
        phaseflip.launch(kernel, torch.ones(K, M, dtype=torch.float16).T, B, D)
    with pytest.raises(BadInput, match="float16"):
        phaseflip.launch(kernel, A.to(torch.bfloat16), B, D)
    with pytest.raises(BadInput, match="overlap"):
        phaseflip.launch(kernel, D.view(-1)[: M * K].view(M, K), B, D)
