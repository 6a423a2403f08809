"""wgmma, ldmatrix and stmatrix of TVM 0.27's table."""

from __future__ import annotations

import re
from collections.abc import Callable

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded
from ..arguments import number_of
from .copies import is_register
from .table import TableCall

_DTYPES = {"f16": "float16", "bf16": "bfloat16"}


def _registers(c: TableCall, name: str) -> list[ir.Address]:
    """The addresses of an operand's registers."""
    values = c.operands[name]
    for value in values:
        if not is_register(value):
            raise UnsupportedInstruction(
                f"{c.ptx} is not simulated with an operand that is no element of a register array"
            )
    return [ir.Address(value.buffer, value.index) for value in values]


def _wgmma(c: TableCall) -> Decoded:
    shape = re.fullmatch(r"m64n(\d+)k16", c.modifiers["shape"])
    assert shape is not None
    if any(number_of(c.operands[name]) != 1 for name in ("scale_a", "scale_b")):
        raise UnsupportedInstruction("wgmma.mma_async with a negated operand is not simulated")
    return Decoded(
        "wgmma.mma_async",
        {
            "a_desc": c.operands["a_desc"], "b_desc": c.operands["b_desc"], "scale_d": c.operands["scale_d"],
            "n": int(shape[1]), "k": 16, "in_dtype": _DTYPES[c.modifiers["atype"]],
            "trans_a": bool(number_of(c.operands["trans_a"])), "trans_b": bool(number_of(c.operands["trans_b"])),
            "registers": _registers(c, "d"),
        },
    )  # fmt: skip


def _matrix_move(mnemonic: str) -> Callable[[TableCall], Decoded]:
    def meaning(c: TableCall) -> Decoded:
        named = {"addr": c.operands["p"], "trans": bool(c.modifiers["trans"])}
        return Decoded(mnemonic, named | {"registers": _registers(c, "r")})

    return meaning


WARPGROUP: dict[str, Callable[[TableCall], Decoded]] = {
    "wgmma_fence": lambda c: Decoded("wgmma.fence"),
    "wgmma_commit_group": lambda c: Decoded("wgmma.commit_group"),
    "wgmma_wait_group": lambda c: Decoded(
        "wgmma.wait_group", {"newest": number_of(c.operands["group"])}
    ),
    "wgmma_f16_ss": _wgmma,
    "wgmma_bf16_ss": _wgmma,
    "ldmatrix": _matrix_move("ldmatrix"),
    "stmatrix": _matrix_move("stmatrix"),
}
"""Entry of the table -> its meaning."""
