"""What the decoders of TVM's intrinsics are made of: constants among the arguments, operands in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import UnsupportedInstruction
from ...ir import nodes as ir
from ...ir.instruction import Decoded, Operands

Decoder = Callable[[list[Any]], Decoded]
"""The arguments of a call -> its mnemonic and operands. UnsupportedInstruction for a form that is not simulated."""


def text_of(e: Any) -> str:
    """The value of a constant argument, as text."""
    if not isinstance(e, ir.Const):
        raise UnsupportedInstruction(f"an instruction modifier is not a constant: {e}")
    return str(e.value)


def number_of(e: Any) -> int:
    """The value of a constant argument, as an int."""
    if not isinstance(e, ir.Const):
        raise UnsupportedInstruction(f"an instruction modifier is not a constant: {e}")
    return int(e.value)


def operands(mnemonic: str, *names: str) -> Decoder:
    """The arguments are the operands, in this order."""
    return lambda args: Decoded(mnemonic, dict(zip(names, args, strict=True)))


def with_cta_group(mnemonic: str, *names: str) -> Decoder:
    """Operands, then the constant cta_group."""

    def decoder(args: list[Any]) -> Decoded:
        named: Operands = dict(zip(names, args[:-1], strict=True))
        return Decoded(mnemonic, named | {"cta_group": number_of(args[-1])})

    return decoder
