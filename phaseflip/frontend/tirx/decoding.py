"""Decoding of TVM's intrinsics to PTX mnemonics with named operands. A call that is in no table is an error that names it."""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedInstruction
from ...ir import nodes as ir
from ...ir.instruction import INLINE, REGISTRY, Decoded
from .arguments import Decoder, text_of
from .dialect import decoders
from .v0_26.intrinsics import HELPERS_0_26


def decode(call: ir.Call) -> Decoded:
    """The PTX meaning of a TVM call; UnsupportedInstruction names the intrinsic and its line when there is none."""
    if call.meaning is not None:
        if isinstance(call.meaning, Decoded):
            return call.meaning
        raise UnsupportedInstruction(f"{call.site}: {call.meaning}")
    decoder = decoders().get(call.name)
    if call.name == "tirx.cuda.func_call":
        name = text_of(call.args[0])
        decoder = HELPERS_0_26.get(name)
        if decoder is None:
            raise UnsupportedInstruction(
                f"{call.site}: the simulator does not know the CUDA helper {name}; "
                "use an intrinsic of TVM in its place, or add its meaning to HELPERS_0_26 in"
                " phaseflip/frontend/tirx/v0_26/intrinsics.py"
            )
        return _decoded(decoder, call, call.args[1:-1])  # the last one is the source text
    if decoder is None:
        raise UnsupportedInstruction(
            f"{call.site}: the simulator does not know the instruction {call.name.removeprefix('tirx.')}; "
            "CONTRIBUTING.md says how to add it"
        )
    decoded = _decoded(decoder, call, call.args)
    if decoded.mnemonic not in REGISTRY and decoded.mnemonic not in INLINE:
        raise UnsupportedInstruction(
            f"{call.site}: the simulator does not know the instruction {decoded.mnemonic} ({call.name}); "
            "CONTRIBUTING.md says how to add it"
        )
    return decoded


def _decoded(decoder: Decoder, call: ir.Call, args: list[Any]) -> Decoded:
    """The decoder's result; its refusal, and arguments that it was not written for, name the line."""
    try:
        return decoder(args)
    except UnsupportedInstruction as error:
        raise UnsupportedInstruction(f"{call.site}: {error}") from None
    except (KeyError, IndexError, ValueError) as error:
        name = call.name.removeprefix("tirx.")
        raise UnsupportedInstruction(
            f"{call.site}: the simulator does not know this form of {name} ({len(args)} arguments)"
        ) from error
