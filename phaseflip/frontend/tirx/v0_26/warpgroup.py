"""How TVM 0.26 spells wgmma, ldmatrix and stmatrix: their part of the table of decoders."""

from __future__ import annotations

from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded, Operands
from ..arguments import Decoder, Spelled, number_of, operands, spells, text_of


@spells("wgmma.mma_async")
def _wgmma(args: list[Any]) -> Operands:
    """[M, N, K, in_dtype, out_dtype, trans_a, trans_b, scale_a, scale_b, scale_d, a_desc, b_desc, *accumulators]."""
    m, n, k = (number_of(a) for a in args[:3])
    in_dtype, out_dtype = text_of(args[3]), text_of(args[4])
    if (m, k) != (64, 16) or in_dtype not in ("float16", "bfloat16") or out_dtype != "float32":
        raise UnsupportedInstruction(
            f"wgmma.mma_async.m{m}n{n}k{k} of {in_dtype} into {out_dtype} is not simulated"
        )
    if any(number_of(a) != 1 for a in args[7:9]):
        raise UnsupportedInstruction("wgmma.mma_async with a negated operand is not simulated")
    return {
            "a_desc": args[10], "b_desc": args[11], "scale_d": args[9], "n": n, "k": k, "in_dtype": in_dtype,
            "trans_a": bool(number_of(args[5])), "trans_b": bool(number_of(args[6])),
            "registers": [ir.Address(r.buffer, r.index) for r in args[12:]],
        }  # fmt: skip


def _matrix_move(mnemonic: str, to_registers: bool) -> Any:
    """ldmatrix: [trans, num, dtype, addr, *registers]; stmatrix: [trans, num, dtype, shape, space, addr, *registers]."""

    def decoder(args: list[Any]) -> Decoded:
        dtype, shape = text_of(args[2]).lstrip("."), "m8n8" if to_registers else text_of(args[3])
        if dtype != "b16" or shape != "m8n8":
            raise UnsupportedInstruction(
                f"{mnemonic}.{shape}.{dtype} is not simulated; use m8n8 and b16"
            )
        address, *registers = args[3:] if to_registers else args[5:]
        return Decoded(
            mnemonic, {"addr": address, "trans": bool(number_of(args[0])), "registers": registers}
        )

    return decoder


WARPGROUP: dict[str, Decoder] = {
    "tirx.ptx.wgmma_fence": operands("wgmma.fence"),
    "tirx.ptx.wgmma_mma_async_ss": _wgmma,
    "tirx.ptx.wgmma_commit_group": operands("wgmma.commit_group"),
    "tirx.ptx.wgmma_wait_group": Spelled(
        "wgmma.wait_group", lambda args: {"newest": number_of(args[0])}
    ),
    "tirx.ptx.wgmma_encode_matrix_descriptor": operands(
        "encode.wgmma_descriptor", "dst", "addr", "leading", "stride", "swizzle"
    ),
    "tirx.ptx.ldmatrix": _matrix_move("ldmatrix", True),
    "tirx.ptx.stmatrix": _matrix_move("stmatrix", False),
}
