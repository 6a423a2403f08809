"""inputs.py: the matrices are what their names say, and the same for the same arguments."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from phaseflip.errors import BadInput
from phaseflip.gemm.inputs import kinds, make_inputs, permutation_of


def float64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [x.astype(np.float64) for x in arrays]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", kinds())
def test_shape_dtype_and_repeatability(kind: str, dtype: str) -> None:
    A, B = make_inputs(kind, 128, 256, 192, seed=7, dtype=dtype)
    expected = np.dtype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    assert A.shape == (128, 192) and B.shape == (256, 192)
    assert A.dtype == B.dtype == expected
    assert A.flags.c_contiguous and B.flags.c_contiguous and A.flags.writeable
    again = make_inputs(kind, 128, 256, 192, seed=7, dtype=dtype)
    assert A.tobytes() == again[0].tobytes() and B.tobytes() == again[1].tobytes()
    other = make_inputs(kind, 128, 256, 192, seed=8, dtype=dtype)
    assert A.tobytes() != other[0].tobytes() and B.tobytes() != other[1].tobytes()


@pytest.mark.parametrize("K", [64, 1024, 2**20 + 64, 2**23])
def test_integers_have_exact_sums(K: int) -> None:
    A, B = float64(*make_inputs("integers", 2, 2, K))
    for x in (A, B):
        assert (x == np.rint(x)).all() and len(np.unique(x)) >= 3
    assert np.abs(A).max() * np.abs(B).max() * K <= 2**24


def test_one_hot_and_permutation_have_one_entry_per_row() -> None:
    for kind in ("one-hot", "permutation"):
        A, _ = make_inputs(kind, 128, 128, 192)
        assert (np.count_nonzero(A, axis=1) == 1).all()
    columns = np.argmax(A, axis=1)
    assert len(set(columns)) == 128 and not (columns == np.arange(128)).all()


def test_large_overflows_some_results_and_not_others() -> None:
    for K in (64, 512):
        A, B = float64(*make_inputs("large", 128, 128, K))
        assert np.isfinite(A).all() and np.isfinite(B).all()
        assert 0.2 < np.mean(np.abs(A @ B.T) > 65520) < 0.5


def test_subnormal_operands_and_results_around_the_smallest_normal() -> None:
    for K in (64, 512):
        A, B = float64(*make_inputs("subnormal", 128, 128, K))
        assert A.any() and np.abs(A).max() < 2.0**-14
        assert 0.2 < np.mean(np.abs(A @ B.T) < 2.0**-14) < 0.8


def test_special_values_stand_in_some_rows_of_each_matrix() -> None:
    A, B = float64(*make_inputs("special", 128, 256, 64))
    for x in (A, B):
        rows = ~np.isfinite(x).all(axis=1)
        assert 0 < rows.sum() < x.shape[0] / 4
    values = np.concatenate((A.ravel(), B.ravel()))
    assert np.isnan(values).any() and (values == np.inf).any() and (values == -np.inf).any()


def test_nan_changes_one_element() -> None:
    A, B = make_inputs("integers", 128, 128, 64, 3)
    spoilt, same = make_inputs("integers+nan-a:77", 128, 128, 64, 3)
    assert np.argwhere(np.isnan(spoilt))[:, 0].tolist() == [77]
    assert np.count_nonzero(spoilt != A) == 1 and (same == B).all()
    same, spoilt = make_inputs("integers+nan-b:0", 128, 128, 64, 3)
    assert np.argwhere(np.isnan(spoilt))[:, 0].tolist() == [0]
    assert np.count_nonzero(spoilt != B) == 1 and (same == A).all()


def test_permute_moves_rows() -> None:
    A, B = make_inputs("normal", 256, 128, 64, 3)
    moved, same = make_inputs("normal+permute-a:9", 256, 128, 64, 3)
    assert (moved == A[permutation_of(256, 9)]).all() and (same == B).all()
    assert not (moved == A).all()


def test_scale_is_exact_within_range() -> None:
    A, _ = make_inputs("normal", 128, 128, 64, 3)
    scaled, _ = make_inputs("normal+scale-a:5", 128, 128, 64, 3)
    assert (scaled.astype(np.float64) == A.astype(np.float64) * 32).all()


@pytest.mark.parametrize("index", [0, 1, 2])
def test_zero_chunk_is_inserted(index: int) -> None:
    short = make_inputs("integers", 128, 128, 128, 3)
    long = make_inputs(f"integers+zero-chunk:{index}", 128, 128, 192, 3)
    columns = slice(64 * index, 64 * index + 64)
    for before, after in zip(short, long, strict=True):
        assert not after[:, columns].any()
        assert (np.delete(after, columns, axis=1) == before).all()


def test_changes_apply_from_left_to_right() -> None:
    A, _ = make_inputs("normal+nan-a:4+permute-a:1", 128, 128, 64, 3)
    row = np.argwhere(np.isnan(A))[0, 0]
    assert permutation_of(128, 1)[row] == 4


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("gaussian", "unknown inputs 'gaussian'; known are normal, integers, one-hot"),
        ("", "unknown inputs ''"),
        ("normal+nan", "unknown change of inputs 'nan'; known are nan-a"),
        ("normal+nan-a", "needs an integer, as in nan-a:1"),
        ("normal+nan-a:x", "needs an integer"),
        ("normal+nan-a:128", "a row from 0 to 127, got 128"),
        ("normal+permute-a:-1", "a seed from 0 up"),
        ("normal+scale-a:65", "from -64 to 64"),
        ("normal+zero-chunk:0", "needs K larger than 64, got K = 64"),
    ],
)
def test_bad_kinds(kind: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        make_inputs(kind, 128, 128, 64)


def test_bad_chunk_seed_and_dtype() -> None:
    with pytest.raises(BadInput, match="an index from 0 to 1, got 2"):
        make_inputs("normal+zero-chunk:2", 128, 128, 128)
    for seed in (-1, 1.5, True, "1"):
        with pytest.raises(BadInput, match="a seed is an integer from 0 up"):
            make_inputs("normal", 128, 128, 64, seed)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="float16 or bfloat16, not float32"):
        make_inputs("normal", 128, 128, 64, 0, "float32")
