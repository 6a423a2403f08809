"""ldmatrix and stmatrix with random rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..family import Program, family

_CTAS = 4
_ROWS = 128
_WORDS = 4 * _ROWS


@family("matrix", programs=12)
def matrix(rng: np.random.Generator) -> Program:
    """ldmatrix from random rows, plus a number, stmatrix to others, all sizes, transposed or not."""
    number = int(rng.choice([1, 2, 4]))
    trans = bool(rng.integers(2)), bool(rng.integers(2))
    rows = np.zeros((_CTAS, 2, 32), np.int32)
    for cta in range(_CTAS):
        rows[cta, 0] = rng.integers(0, _ROWS, 32)
        rows[cta, 1] = rng.permutation(_ROWS)[:32]
    A = rng.integers(0, 2**15, 2 * _WORDS).astype(np.uint16).view(np.uint32)
    D = np.zeros((_CTAS, _WORDS), np.uint32)
    R = np.zeros((_CTAS, 32, number), np.uint32)
    text = f"x{number}, ldmatrix{'.trans' * trans[0]}, stmatrix{'.trans' * trans[1]}"
    return Program(matrix_kernel(number, trans), [A, rows, R, D], [2, 3], _CTAS, text)


def matrix_kernel(number: int, trans: tuple[bool, bool]) -> Any:
    """One warp a CTA: rows C[cta, 0, lane] to registers, and from there to rows C[cta, 1, lane]."""
    from phaseflip.spelling import T

    load_trans, store_trans = trans

    @T.prim_func
    def kernel(
        A: T.Buffer((_WORDS,), "uint32"),
        C: T.Buffer((_CTAS, 2, 32), "int32"),
        R: T.Buffer((_CTAS, 32, number), "uint32"),
        D: T.Buffer((_CTAS, _WORDS), "uint32"),
    ):
        T.device_entry()
        cta = T.cta_id([_CTAS])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        s = pool.alloc((_WORDS,), "uint32")
        pool.commit()
        r = T.alloc_local((number,), "uint32")
        for i in T.serial(_WORDS // 32):
            s[i * 32 + lane] = A[i * 32 + lane]
        T.cuda.cta_sync()
        T.ptx.ldmatrix(
            load_trans, number, ".b16", s.ptr_to([C[cta, 0, lane] * 4]),
            *[r.ptr_to([i]) for i in range(number)],
        )  # fmt: skip
        T.cuda.cta_sync()
        for i in T.serial(number):
            R[cta, lane, i] = r[i]
            r[i] = r[i] + T.uint32(0x00010001)
        T.ptx.stmatrix(
            store_trans, number, ".b16", s.ptr_to([C[cta, 1, lane] * 4]),
            *[r.ptr_to([i]) for i in range(number)],
        )  # fmt: skip
        T.cuda.cta_sync()
        for i in T.serial(_WORDS // 32):
            D[cta, i * 32 + lane] = s[i * 32 + lane]

    return kernel
