"""Bulk tensor copies: random tensor maps, boxes that cross the edges of the tensor, swizzles as shared memory holds them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...machine.copies.tensor_map import TensorMap
from ..family import Program, family, poisoned

_BYTES = {
    "uint8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "uint32": 4, "uint16": 2, "float64": 8,
}  # fmt: skip
_SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3}
_SPAN = {"none": 256, "32B": 32, "64B": 64, "128B": 128}
CORNERS = 6
"""Boxes of one program, each by a CTA."""
_PATTERN_BYTES = 1024


@family("tma", programs=44)
def tma(rng: np.random.Generator) -> Program:
    """Loads of random boxes, dumped as shared memory holds them, and stored back elsewhere, clipped at the edges."""
    load, store, corners = _draw(rng)
    reach = 16 * int(load.shared_units(0).max()) + 16
    words = -(-reach // _PATTERN_BYTES) * _PATTERN_BYTES // 4
    size = _extent_bytes(load)
    stored = _extent_bytes(store)
    A = rng.integers(0, 2**32, size // 4, dtype=np.uint32)
    D = np.full(stored // 4, 0xABABABAB, np.uint32)
    function = box_kernel(load, store, size // 4, stored // 4, words)
    text = (
        f"{load.dtype} sizes {load.sizes} strides {load.strides} box {load.box} element strides {load.element_strides} "
        f"swizzle {load.swizzle}{' nan fill' if load.nan_fill else ''}, corners {corners.tolist()}"
    )
    return Program(function, [A, corners, poisoned(CORNERS, words), D], [2, 3], CORNERS, text)


def _draw(rng: np.random.Generator) -> tuple[TensorMap, TensorMap, np.ndarray]:
    """A map to load with, one to store with (of one dimension more, for the CTA), and corners of both."""
    dtype = str(rng.choice(sorted(_BYTES)))
    size, rank = _BYTES[dtype], int(rng.integers(1, 5))
    swizzle = str(rng.choice(sorted(_SWIZZLES)))
    width = 16 // size * int(rng.integers(1, _SPAN[swizzle] // 16 + 1))
    sizes = [int(rng.integers(1, 2 * width + 2))] + [
        int(rng.integers(1, 9)) for _ in range(rank - 1)
    ]
    box = [width] + [int(rng.integers(1, 6)) for _ in range(rank - 1)]
    while np.prod(box) * size % 128 and swizzle == "none" and rank > 1 and rng.random() < 0.5:
        box[1] += 1
    steps = [1] + [int(rng.choice([1, 1, 1, 2, 3])) for _ in range(rank - 1)]
    strides, least = [], sizes[0] * size
    for d in range(1, rank + 1):
        strides.append(-(-least // 16) * 16 + 16 * int(rng.integers(0, 3)))
        least = strides[-1] * (sizes[d] if d < rank else 1)
    nan_fill = dtype.startswith(("float", "bfloat")) and rng.random() < 0.4
    names = (tuple(sizes), tuple(strides[: rank - 1]), tuple(box), tuple(steps))
    load = TensorMap("A", "A", 0, dtype, *names, swizzle, bool(nan_fill))
    ones = (1,) * (rank + 1)
    moved = tuple(load.box_shape[::-1])  # the box that a store writes has no gaps
    store = TensorMap(
        "D", "D", 0, dtype, (*sizes, CORNERS), tuple(strides[:rank]), (*moved, 1), ones, swizzle, False
    )  # fmt: skip
    corners = np.zeros((CORNERS, 2 * rank), np.int32)
    for row in corners:
        for d in range(rank):
            step = 16 // size if d == 0 else 1
            row[d] = step * rng.integers(-(box[d] // step) - 1, sizes[d] // step + 2)
            row[rank + d] = step * rng.integers(0, sizes[d] // step + 2)
    corners[0] = 0
    return load, store, corners


def _extent_bytes(t: TensorMap) -> int:
    """Bytes from the first to past the last element, in whole units of 16."""
    last = (t.sizes[0] - 1) * t.element_bytes + t.element_bytes
    last += sum((n - 1) * s for n, s in zip(t.sizes[1:], t.strides, strict=True))
    return -(-last // 16) * 16


def _encoded(t: TensorMap) -> list[Any]:
    """The arguments of runtime.cuTensorMapEncodeTiled after the address."""
    modes = (0, _SWIZZLES[t.swizzle], 0, int(t.nan_fill))
    return [*t.sizes, *t.strides, *t.box, *t.element_strides, *modes]


def box_kernel(load: TensorMap, store: TensorMap, n: int, stored: int, words: int) -> Any:
    """One warp a CTA: load box C[cta, :rank], dump shared memory in whole swizzle patterns, store it at C[cta, rank:]."""
    from phaseflip.spelling import T

    dtype, rank = load.dtype, len(load.sizes)
    loads, stores = _encoded(load), _encoded(store)
    rounds, nbytes = words // 32, load.box_bytes

    @T.prim_func
    def kernel(
        A: T.Buffer((n,), "uint32"),
        C: T.Buffer((CORNERS, 2 * rank), "int32"),
        P: T.Buffer((CORNERS, words), "uint32"),
        D: T.Buffer((stored,), "uint32"),
    ):
        A_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", A_map, dtype, rank, A.data, *loads)
        D_map: T.let[T.handle("tensormap")] = T.tvm_stack_alloca("tensormap", 1)
        T.call_packed("runtime.cuTensorMapEncodeTiled", D_map, dtype, rank + 1, D.data, *stores)
        T.device_entry()
        cta = T.cta_id([CORNERS])
        warp = T.warp_id([1])
        lane = T.lane_id([32])
        pool = T.SMEMPool()
        bar = pool.alloc((1,), "uint64", align=8)
        pool.move_base_to(_PATTERN_BYTES)
        s = pool.alloc((words,), "uint32")
        pool.commit()
        if lane == 0:
            T.ptx.mbarrier.init(bar.ptr_to([0]), 1)
        for i in T.serial(rounds):
            s[i * 32 + lane] = T.uint32(0x5A5A5A5A)
        T.ptx.fence.proxy_async("shared::cta")
        T.ptx.fence.mbarrier_init()
        T.cuda.cta_sync()
        if lane == 0:
            T.ptx.cp_async.bulk.tensor.g2s_cluster(
                rank, s.ptr_to([0]), bar.ptr_to([0]), T.address_of(A_map), 0, 1, "",
                *[C[cta, d] for d in range(rank)],
            )  # fmt: skip
            T.ptx.mbarrier.arrive.expect_tx(bar.ptr_to([0]), nbytes)
        T.ptx.mbarrier.try_wait(bar.ptr_to([0]), 0)
        for i in T.serial(rounds):
            P[cta, i * 32 + lane] = s[i * 32 + lane]
        if lane == 0:
            T.ptx.cp_async.bulk.tensor.s2g(
                rank + 1, s.ptr_to([0]), T.address_of(D_map), "",
                *[C[cta, rank + d] for d in range(rank)], cta,
            )  # fmt: skip
            T.ptx.cp_async.bulk.commit_group()
            T.ptx.cp_async.bulk.wait_group(0)

    return kernel
