"""T.cuda of TVM 0.27: helpers that are CUDA C++ and no instruction of the table. Most are those of 0.26."""

from __future__ import annotations

from typing import Any

from ....ir import nodes as ir
from ....ir.instruction import Decoded
from ..arguments import Decoder, operands
from ..v0_26.intrinsics import DECODE_0_26


def _looping_wait(scope: str) -> Decoder:
    """mbarrier.try_wait.parity, repeated until it is true."""
    return lambda args: Decoded(
        "mbarrier.try_wait.parity", {"mbar": args[0], "parity": args[1], "scope": scope}
    )


_SHARED = {name: decoder for name, decoder in DECODE_0_26.items() if ".ptx." not in name}

DECODE_0_27: dict[str, Decoder] = {
    **_SHARED,
    "tirx.cuda.elect_sync": operands("elect.sync"),
    "tirx.cuda.mbarrier_wait": _looping_wait("cta"),
    "tirx.cuda.mbarrier_wait_acquire_cluster": _looping_wait("cluster"),
    "tirx.cuda.mov_sreg": DECODE_0_26["tirx.ptx.fetch_register"],
    "tirx.cuda.tcgen05_encode_matrix_descriptor": DECODE_0_26[
        "tirx.ptx.tcgen05_encode_matrix_descriptor"
    ],
    "tirx.cuda.wgmma_encode_matrix_descriptor": DECODE_0_26[
        "tirx.ptx.wgmma_encode_matrix_descriptor"
    ],
}
"""TVM 0.27 helper -> decoder of its argument list."""


def _tmem_address(args: list[Any]) -> ir.Expr:
    """get_tmem_addr(address, row, column): rows in the upper half, columns in the lower, each added in 16 bits."""
    base, row, column = (_unsigned(a) for a in args)
    if all(isinstance(e, ir.Const) and e.value == 0 for e in (row, column)):
        return base

    def plus(part: ir.Expr, more: ir.Expr) -> ir.Expr:
        total = ir.Binary("add", part, more, "uint32")
        return ir.Binary("bitand", total, _word(0xFFFF), "uint32")

    high = plus(ir.Binary("shr", base, _word(16), "uint32"), row)
    low = plus(ir.Binary("bitand", base, _word(0xFFFF), "uint32"), column)
    return ir.Binary("bitor", ir.Binary("shl", high, _word(16), "uint32"), low, "uint32")


def _low_word(args: list[Any]) -> ir.Expr:
    return ir.Cast(args[0], "uint32")


def _same_bits(dtype: str) -> Any:
    return lambda args: ir.Cast(args[0], dtype, bits=True)


def _word(value: int) -> ir.Const:
    return ir.Const(value, "uint32")


def _unsigned(e: Any) -> Any:
    if isinstance(e, ir.Const):
        return _word(int(e.value) & 0xFFFFFFFF)
    return e if getattr(e, "dtype", "") == "uint32" else ir.Cast(e, "uint32")


EXPRESSIONS: dict[str, Any] = {
    "tirx.cuda.get_tmem_addr": _tmem_address,
    "tirx.cuda.smem_addr_from_uint64": _low_word,
    "tirx.cuda.uint_as_float": _same_bits("float32"),
    "tirx.cuda.float_as_uint": _same_bits("uint32"),
}
"""Helper that is arithmetic -> its value, of its arguments."""
