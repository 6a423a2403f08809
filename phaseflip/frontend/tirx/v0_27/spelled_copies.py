"""Copies and warpgroup instructions of TVM 0.26 in terms of 0.27's table."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from .spelled_parts import elements, ptx, shared, word

# -- copies -----------------------------------------------------------------------------------------------------------

_ON_MBARRIER = "mbarrier::complete_tx::bytes"


def bulk(dst: str, src: str) -> Any:
    def call(
        dst_ptr: Any, src_ptr: Any, num_bytes: Any, mbarrier_ptr: Any, *, multicast: bool = False, cta_mask: Any = 0
    ) -> Any:  # fmt: skip
        name = (
            "cp",
            "async",
            "bulk",
            dst,
            src,
            _ON_MBARRIER,
            "multicast::cluster" if multicast else "",
        )
        mask = [word(cta_mask, "uint16")] if multicast else []
        return ptx(*name)(shared(dst_ptr), src_ptr, word(num_bytes), shared(mbarrier_ptr), *mask)

    return call


def bulk_store(dst_ptr: Any, src_ptr: Any, num_bytes: Any) -> Any:
    return ptx("cp", "async", "bulk", "global", "shared::cta", "bulk_group")(
        dst_ptr, src_ptr, word(num_bytes)
    )


def tensor_load(
    dim: int, dst_ptr: Any, mbar: Any, tensormap_addr: Any, cta_mask: Any, cta_group: int, cache_hint: str, *coords: Any,
    multicast: bool | None = None,
) -> Any:  # fmt: skip
    if multicast is None:
        multicast = not (isinstance(cta_mask, int) and cta_mask.bit_count() <= 1)
    name = ("cp", "async", "bulk", "tensor", f"{dim}d", "shared::cluster", "global", _ON_MBARRIER)
    mask = [word(cta_mask, "uint16")] if multicast else []
    tokens = (
        "multicast::cluster" if multicast else "",
        f"cta_group::{cta_group}" if cta_group == 2 else "",
    )
    given = [word(c, "int32") for c in coords]
    return ptx(*name, *tokens)(dst_ptr, tensormap_addr, *given, mbar, *mask)


def tensor_store(dim: int, src_ptr: Any, tensormap_addr: Any, cache_hint: str, *coords: Any) -> Any:
    name = (
        "cp",
        "async",
        "bulk",
        "tensor",
        f"{dim}d",
        "global",
        "shared::cta",
        "tile",
        "bulk_group",
    )
    return ptx(*name)(tensormap_addr, *[word(c, "int32") for c in coords], src_ptr)


def bulk_wait(n: int = 0, read: bool = True) -> Any:
    return ptx("cp", "async", "bulk", "wait_group", "read" if read else "")(n)


# -- Hopper -----------------------------------------------------------------------------------------------------------


def wgmma(
    descA: Any, descB: Any, *accums: Any, M: int, N: int, K: int, in_dtype: str, out_dtype: str, transA: bool, transB: bool,
    scaleA: float, scaleB: float, scaleD: Any,
) -> Any:  # fmt: skip
    kinds = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}
    types = (kinds[out_dtype], kinds[in_dtype], kinds[in_dtype])
    flags = (int(scaleA), int(scaleB), int(transA), int(transB))
    name = ("wgmma", "mma_async", "sync", "aligned", f"m{M}n{N}k{K}")
    return ptx(*name, *types)(*accums, descA, descB, T.ptx.pred(scaleD), *flags)


def matrix_load(trans: bool, num: int, dtype: str, smem_ptr: Any, *handles: Any) -> Any:
    name = ("ldmatrix", "sync", "aligned", "m8n8", f"x{num}", "trans" if trans else "", "shared")
    return ptx(*name, dtype.lstrip("."))(*[elements(h, 1)[0] for h in handles], smem_ptr)


def matrix_store(
    trans: bool, num: int, dtype: str, smem_ptr: Any, *handles: Any, shape: str = "m8n8", space: str = "shared"
) -> Any:  # fmt: skip
    name = ("stmatrix", "sync", "aligned", shape, f"x{num}", "trans" if trans else "", space)
    return ptx(*name, dtype.lstrip("."))(smem_ptr, *[elements(h, 1)[0] for h in handles])
