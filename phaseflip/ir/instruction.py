"""The instruction registry: an instruction's meaning is one function in `machine/`, registered under its PTX mnemonic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..errors import UnsupportedInstruction, located
from . import nodes as ir
from .nodes import Decoded as Decoded
from .nodes import Operands as Operands
from .traits import UNKNOWN, Traits

Spelled = dict[str, tuple[str, ...]]
"""Release series of TVM -> (intrinsic "tirx...." or CUDA helper, names of its arguments in order)."""


@dataclass(frozen=True)
class Instruction:
    """Meaning of one mnemonic: `function(group, site, **operands)` returns a value, None, or (if `waits`) a Wait.

    `uniform` names operands that must be one value for all lanes that execute together: the translator splits the
    group by value first. `traits` is what everything else knows of it. `spelled` is for the front end, where the operands
    are the arguments of TVM's call as they are: an intrinsic that needs more has a decoder there.
    """

    mnemonic: str
    function: Callable[..., Any]
    waits: bool = False
    uniform: tuple[str, ...] = ()
    traits: Traits = UNKNOWN
    spelled: Spelled = field(default_factory=dict)


REGISTRY: dict[str, Instruction] = {}

_PACKED = ("float4", "int4", "uint4", "int2", "uint2", "int1x", "uint1x")

INLINE = {"add.pointer", "add.matrix_descriptor"}
"""Decoded calls that are arithmetic, written in place: they have no function."""


def instruction(
    mnemonic: str,
    *,
    waits: bool = False,
    uniform: tuple[str, ...] = (),
    spelled: Spelled | None = None,
    **facts: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as the meaning of `mnemonic`; `facts` are fields of `Traits`."""
    traits = Traits(**facts)

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if mnemonic in REGISTRY:
            raise ValueError(f"{mnemonic} is registered twice: each mnemonic has one function")
        REGISTRY[mnemonic] = Instruction(
            mnemonic, located(function), waits, uniform, traits, spelled or {}
        )
        return function

    return register


def traits_of(mnemonic: str) -> Traits:
    """What is known of an instruction; of anything else ("load", a tile primitive, ""), nothing."""
    found = REGISTRY.get(mnemonic)
    return found.traits if found is not None else UNKNOWN


def with_trait(holds: Callable[[Traits], Any]) -> set[str]:
    """The mnemonics whose traits fulfil a condition."""
    return {mnemonic for mnemonic, i in REGISTRY.items() if holds(i.traits)}


def dtype_bytes(buffer: ir.Buffer) -> int:
    """Size in bytes of one element of the buffer."""
    return dtype_size(buffer.dtype)


def dtype_size(dtype: str) -> int:
    """Size in bytes of one element of `dtype` ("float16" 2, "bool" 1, "float8_e4m3fn" 1, "float6_e2m3fn" 1, "handle" 8).

    UnsupportedInstruction for elements of less than a byte, of which TVM packs several into one.
    """
    if dtype in ("bool", "int8", "uint8") or dtype.startswith(("float8_", "float6_")):
        return 1
    if dtype.startswith(_PACKED):
        raise UnsupportedInstruction(
            f"single elements of {dtype} are not simulated: several share a byte"
        )
    if dtype == "handle":
        return 8
    digits = "".join(c for c in dtype.split("x")[0] if c.isdigit())
    lanes = int(dtype.split("x")[1]) if "x" in dtype else 1
    return int(digits) // 8 * lanes
