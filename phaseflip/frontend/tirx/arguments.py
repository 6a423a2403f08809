"""What the decoders of TVM's intrinsics are made of: constants among the arguments, operands in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def as_ptx(name: str) -> str:
    """What PTX may call an intrinsic that is in no table, by its name: "tcgen05.mma_sp"; "encode..." for no instruction."""
    family, _, rest = name.removeprefix("tirx.ptx.").partition("_")
    if name == family or not name.startswith("tirx.ptx."):
        return name
    return f"encode.{family}" if rest.startswith("encode_") else f"{family}.{rest}".rstrip(".")


@dataclass(frozen=True)
class Spelled:
    """A decoder of one mnemonic, which thereby is known of the intrinsic before its arguments are: for mutation operators."""

    mnemonic: str
    named: Callable[[list[Any]], Operands]

    def __call__(self, args: list[Any]) -> Decoded:
        return Decoded(self.mnemonic, self.named(args))


def spells(mnemonic: str) -> Callable[[Callable[[list[Any]], Operands]], Spelled]:
    """The decorated function makes the operands of this instruction of the arguments."""
    return lambda named: Spelled(mnemonic, named)


def mnemonic_of(decoder: Decoder | None) -> str:
    """The mnemonic of a decoder; "" where it depends on the arguments, and for none."""
    return decoder.mnemonic if isinstance(decoder, Spelled) else ""


def operands(mnemonic: str, *names: str) -> Decoder:
    """The arguments are the operands, in this order."""
    return Spelled(mnemonic, lambda args: dict(zip(names, args, strict=True)))


def with_cta_group(mnemonic: str, *names: str) -> Decoder:
    """Operands, then the constant cta_group."""

    def named(args: list[Any]) -> Operands:
        return dict(zip(names, args[:-1], strict=True)) | {"cta_group": number_of(args[-1])}

    return Spelled(mnemonic, named)
