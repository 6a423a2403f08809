"""wgmma on operands wherever their descriptors say: swizzles, majornesses, strides, starts within a swizzle pattern."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...machine.operands.matrix_descriptor import SharedMatrixDescriptor, operand_units
from ..family import Program, family

_PAIRS = 6
_REGION_BYTES = 65536
_MODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
_PATTERN_UNITS = {"none": 1, "32B": 16, "64B": 32, "128B": 64}
_WIDTH = {"none": 1, "32B": 2, "64B": 4, "128B": 8}


@family("wgmma", programs=32)
def wgmma(rng: np.random.Generator) -> Program:
    """The registers of D after one to three products, for random pairs of matrix descriptors."""
    n = int(rng.choice([8, 16, 24, 64, 96, 128, 256]))
    dtype = str(rng.choice(["float16", "bfloat16"]))
    majors = bool(rng.integers(2)), bool(rng.integers(2))
    steps = int(rng.integers(1, 4))
    pairs = np.zeros((_PAIRS, steps, 2), np.uint64)
    said = []
    for index in np.ndindex(_PAIRS, steps, 2):
        side = index[2]
        d = _draw(rng, n if side else 64, majors[side])
        said.append(f"{d.swizzle}@{d.start_bytes} l{d.leading_bytes} s{d.stride_bytes}")
        pairs[index] = _relative(d)
    values = rng.integers(-8, 9, _REGION_BYTES // 2)
    # Integers up to 8 fit both formats exactly.
    S = values.astype(np.float16).view(np.uint16)
    if dtype == "bfloat16":
        S = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    D = np.full((_PAIRS, 128, n // 2), -1.0, np.float32)
    text = f"m64n{n}k16 {dtype} A {'M' if majors[0] else 'K'}-major B {'N' if majors[1] else 'K'}-major; {'; '.join(said)}"
    function = _kernel(n, dtype, majors, steps)
    return Program(function, [S.view(np.uint32), pairs, D], [2], _PAIRS, text)


def _draw(rng: np.random.Generator, rows: int, mn_major: bool) -> SharedMatrixDescriptor:
    """A descriptor whose operand lies within the region, started on a unit of a K step as kernels do."""
    while True:
        swizzle = str(rng.choice(sorted(_MODES)))
        pattern = 16 * _PATTERN_UNITS[swizzle]
        start = pattern * int(rng.integers(0, 4))
        if swizzle != "none" and not mn_major:
            start += 16 * int(rng.integers(0, max(_WIDTH[swizzle] // 2, 1))) * 2
        unit = 16 if swizzle == "none" else pattern
        leading, stride = (unit * int(rng.integers(1, 9)) for _ in range(2))
        d = SharedMatrixDescriptor(start, leading, stride, swizzle=swizzle)
        units = operand_units(d, rows, 32, mn_major, 2)
        if 16 * int(units.max()) + 16 <= _REGION_BYTES:
            return d


def _relative(d: SharedMatrixDescriptor) -> int:
    """wgmma's 64-bit descriptor, to which the unit that the region starts at is yet to be added."""
    fields = d.start_bytes >> 4 | d.leading_bytes >> 4 << 16 | d.stride_bytes >> 4 << 32
    return fields | d.base_offset << 49 | _MODES[d.swizzle] << 62


def _kernel(n: int, dtype: str, majors: tuple[bool, bool], steps: int) -> Any:
    """One warpgroup a CTA: S to shared memory as it is, then the products of Q[cta]."""
    from phaseflip.spelling import T

    words, registers = _REGION_BYTES // 4, n // 2
    shape = {"M": 64, "N": n, "K": 16, "in_dtype": dtype, "out_dtype": "float32"}
    signs = {"transA": majors[0], "transB": majors[1], "scaleA": 1.0, "scaleB": 1.0}

    @T.prim_func
    def kernel(
        S: T.Buffer((words,), "uint32"),
        Q: T.Buffer((_PAIRS, steps, 2), "uint64"),
        D: T.Buffer((_PAIRS, 128, registers), "float32"),
    ):
        T.device_entry()
        cta = T.cta_id([_PAIRS])
        wg = T.warpgroup_id([1])
        warp = T.warp_id_in_wg([4])
        lane = T.lane_id([32])
        tid = T.meta_var(warp * 32 + lane)
        pool = T.SMEMPool()
        pool.move_base_to(1024)
        s = pool.alloc((words,), "uint32")
        pool.commit()
        for i in T.serial(words // 128):
            s[i * 128 + tid] = S[i * 128 + tid]
        T.ptx.fence.proxy_async("shared::cta")
        T.cuda.cta_sync()
        base = T.alloc_local((1,), "uint64")
        acc = T.alloc_local((registers,), "float32")
        T.ptx.wgmma.encode_matrix_descriptor(T.address_of(base[0]), s.ptr_to([0]), 0, 0, 0)
        T.ptx.wgmma.fence()
        for k in T.unroll(steps):
            T.ptx.wgmma.mma_async.ss(
                base[0] + Q[cta, k, 0], base[0] + Q[cta, k, 1], *[acc[r] for r in range(registers)],
                **shape, **signs, scaleD=(k != 0),
            )  # fmt: skip
        T.ptx.wgmma.commit_group()
        T.ptx.wgmma.wait_group(0)
        for r in T.serial(registers):
            D[cta, tid, r] = acc[r]

    return kernel
