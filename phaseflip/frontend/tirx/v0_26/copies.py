"""How TVM 0.26 spells bulk copies and tcgen05.cp: their part of the table of decoders."""

from __future__ import annotations

from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded, Operands
from ..arguments import Decoder, Spelled, number_of, operands, spells, text_of


@spells("cp.async.bulk.tensor.g2s")
def _bulk_tensor_load(args: list[Any]) -> Operands:
    """[rank, dst, mbar, map, cta_mask, cta_group, policy, has_policy, mode, mbar_is_address, multicast, *coordinates].

    `mbar_is_address`: the barrier is given by its 32-bit shared address, which may lie in another CTA.
    """
    if text_of(args[8]) != "tile":
        raise UnsupportedInstruction("cp.async.bulk.tensor with gather4 is not simulated")
    named: Operands = {
        "dst": args[1],
        "mbar": args[2],
        "tensor_map": args[3],
        "coordinates": list(args[11:]),
        "cta_mask": args[4] if number_of(args[10]) else None,
        "cta_group": number_of(args[5]),
    }
    return named


def _bulk_tensor_load_cta(args: list[Any]) -> Decoded:
    """As for the cluster, without the mask and the flag for multicast."""
    zero = ir.Const(0, "int32")
    return _bulk_tensor_load([*args[:4], zero, *args[4:9], zero, *args[9:]])


@spells("cp.async.bulk.tensor.s2g")
def _bulk_tensor_store(args: list[Any]) -> Operands:
    """[rank, src, map, policy, has_policy, *coordinates]."""
    return {"src": args[1], "tensor_map": args[2], "coordinates": list(args[5:])}


@spells("cp.async.bulk.wait_group")
def _bulk_wait(args: list[Any]) -> Operands:
    return {"newest": number_of(args[0]), "reads_only": bool(number_of(args[1]))}


@spells("cp.async.bulk.g2s")
def _bulk_load_cta(args: list[Any]) -> Operands:
    """[dst, src, bytes, left, right, mbar, policy, has_policy, ignore_oob]."""
    if number_of(args[8]):
        raise UnsupportedInstruction("cp.async.bulk with .ignore_oob is not simulated")
    named: Operands = {"dst": args[0], "src": args[1], "nbytes": args[2], "mbar": args[5]}
    return named | {"own": True, "cta_mask": None}


@spells("cp.async.bulk.g2s")
def _bulk_load_cluster(args: list[Any]) -> Operands:
    """[dst, src, bytes, mbar, cta_mask, policy, has_policy, multicast]."""
    named: Operands = {"dst": args[0], "src": args[1], "nbytes": args[2], "mbar": args[3]}
    mask = args[4] if number_of(args[7]) else None
    return named | {"own": False, "cta_mask": mask}


@spells("cp.async.bulk.s2g")
def _bulk_store(args: list[Any]) -> Operands:
    """[dst, src, bytes, byte_mask, policy, has_policy, cp_mask]."""
    if number_of(args[6]):
        raise UnsupportedInstruction("cp.async.bulk with .cp_mask is not simulated")
    return {"dst": args[0], "src": args[1], "nbytes": args[2]}


@spells("tcgen05.cp")
def _tensor_copy(args: list[Any]) -> Operands:
    """[taddr, descriptor, shape, cta_group, multicast, decompress, row, column]."""
    if text_of(args[5]):
        raise UnsupportedInstruction(f"tcgen05.cp with .{text_of(args[5])} is not simulated")
    named: Operands = {"taddr": args[0], "desc": args[1], "row": args[6], "column": args[7]}
    named |= {"shape": text_of(args[2]), "multicast": text_of(args[4])}
    return named | {"cta_group": number_of(args[3])}


def _cp_async(args: list[Any]) -> Decoded:
    """[dst, src, size, policy, has_policy, prefetch_size, predicate (-1: none), fill_mode ("" or "zero")]."""
    if len(args) != 8:
        raise UnsupportedInstruction(
            "cp.async with offsets beside its pointers is not simulated; use T.ptx.cp_async(dst, src, size)"
        )
    named: Operands = {"dst": args[0], "src": args[1], "nbytes": number_of(args[2])}
    predicate = args[6]
    if text_of(args[7]) == "zero":
        return Decoded("cp.async", named | {"fill": predicate})
    if isinstance(predicate, ir.Const) and int(predicate.value) == -1:
        return Decoded("cp.async", named)
    return Decoded("cp.async", named | {"pred": predicate})


_TO_PEER = operands("cp.async.bulk.s2s", "dst", "src", "nbytes", "mbar")

COPIES: dict[str, Decoder] = {
    "tirx.ptx.cp_async": _cp_async,
    "tirx.ptx.cp_async_raw": _cp_async,
    "tirx.ptx.cp_async_commit_group": operands("cp.async.commit_group"),
    "tirx.ptx.cp_async_wait_group": Spelled(
        "cp.async.wait_group", lambda args: {"newest": number_of(args[0])}
    ),
    "tirx.ptx.cp_async_mbarrier_arrive": Spelled(
        "cp.async.mbarrier.arrive",
        lambda args: {"mbar": args[0], "noinc": bool(number_of(args[1]))},
    ),
    "tirx.ptx.tcgen05_cp": _tensor_copy,
    "tirx.ptx.cp_async_bulk_g2s_cta": _bulk_load_cta,
    "tirx.ptx.cp_async_bulk_g2s_cluster": _bulk_load_cluster,
    "tirx.ptx.cp_async_bulk_s2s_cluster": _TO_PEER,
    "tirx.ptx.cp_async_bulk_shared_to_cluster": _TO_PEER,
    "tirx.ptx.cp_async_bulk_s2g": _bulk_store,
    "tirx.ptx.cp_async_bulk_tensor_g2s_cta": _bulk_tensor_load_cta,
    "tirx.ptx.cp_async_bulk_tensor_g2s_cluster": _bulk_tensor_load,
    "tirx.ptx.cp_async_bulk_tensor_shared_to_global": _bulk_tensor_store,
    "tirx.ptx.cp_async_bulk_tensor_prefetch": lambda args: Decoded("cp.async.bulk.prefetch.tensor"),
    "tirx.ptx.cp_async_bulk_commit_group": operands("cp.async.bulk.commit_group"),
    "tirx.ptx.cp_async_bulk_wait_group": _bulk_wait,
    "tirx.ptx.prefetch_tensormap": Spelled(
        "prefetch.tensormap", lambda args: {"tensor_map": args[0]}
    ),
}
"""TVM 0.26 intrinsic -> decoder of its argument list."""
