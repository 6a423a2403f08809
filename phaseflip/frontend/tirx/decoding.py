"""Decoding: each call of a device function gets its PTX meaning, mnemonic and named operands, once, when it is read.

Nothing but the front end knows how TVM spells an instruction. `release` has the tables of the installed TVM; a call that
is in none of them keeps a refusal that names it, raised when the kernel is to be simulated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import UnsupportedInstruction
from ...ir import nodes as ir
from ...ir.instruction import INLINE, REGISTRY
from ...ir.nodes import Decoded
from ...ir.queries import calls, roots, walk
from .arguments import Decoder, as_ptx, text_of
from .release import spelling
from .version import installed_series

FUNC_CALL = "tirx.cuda.func_call"
"""TVM's call of a CUDA helper whose source text it carries: [name, arguments..., source]."""


def decode_calls(function: ir.Function) -> None:
    """Give every call of a device function its `meaning`."""
    for statement in walk(function.body):
        for call in calls(*roots(statement)):
            _attach(call)


def _attach(call: ir.Call) -> None:
    """A meaning for the call, if it has none, and for those among its operands that the decoder has made."""
    if call.meaning is not None:
        return
    try:
        call.meaning = decode(call)
    except UnsupportedInstruction as error:
        reason = str(error)
        if not reason.startswith(str(call.site)):
            reason = f"{call.site}: {reason}"
        call.meaning = ir.Refused(as_ptx(call.name), reason)
        return
    for inner in calls(*_expressions(call.meaning)):
        _attach(inner)


def _expressions(decoded: Decoded) -> Iterator[Any]:
    for operand in decoded.operands.values():
        yield from operand if isinstance(operand, list) else [operand]


def decode(call: ir.Call) -> Decoded:
    """The PTX meaning of a TVM call; UnsupportedInstruction names the intrinsic and its line when there is none."""
    release = spelling(installed_series())
    if call.name == FUNC_CALL:
        name = text_of(call.args[0])
        decoder = release.helpers.get(name)
        if decoder is None:
            raise UnsupportedInstruction(
                f"{call.site}: the simulator does not know the CUDA helper {name}; use an intrinsic of TVM in its place, "
                'or add its meaning as CONTRIBUTING.md says under "Add an instruction"'
            )
        return _decoded(decoder, call, call.args[1:-1])  # the last one is the source text
    decoder = release.intrinsics.get(call.name)
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
