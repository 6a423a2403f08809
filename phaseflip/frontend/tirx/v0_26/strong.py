"""How TVM 0.26 spells strong loads and stores: their part of the table of decoders."""

from __future__ import annotations

from typing import Any

from ....errors import UnsupportedInstruction
from ....ir import nodes as ir
from ....ir.instruction import Decoded, Operands, dtype_bytes
from ..arguments import Decoder, number_of, text_of

_ELEMENT_BYTES = {"8": 1, "16": 2, "32": 4, "64": 8, "128": 16}


def vector_bytes(space: str, vec: str, ptx_type: str) -> int:
    """Bytes of one access. UnsupportedInstruction for a vector that PTX has not.

    Of 256 bits are v8 of 32 and v4 of 64 bits, in global memory alone (PTX ISA 9.1, ld and st).
    """
    width, count = _ELEMENT_BYTES[ptx_type[1:]], int(vec.removeprefix("v") or 1)
    wide = space == "global" and (count, width) in ((8, 4), (4, 8))
    if count == 8 and not wide or count * width > 16 and not wide:
        raise UnsupportedInstruction(
            f"PTX has no {space}.{vec}.{ptx_type}: v8 is of 32-bit elements, more than 128 bits in all are"
            " v8 or v4.b64, and both are of global memory"
        )
    return count * width


_STORED = {
    "8": "uint8", "16": "uint16", "32": "uint32", "64": "uint64",
}  # fmt: skip


def _load(mnemonic: str) -> Decoder:
    """[(dst,) addr, (policy,) type, scope, space, vec, ptx_type, has_policy, number of dst, l1, l2, prefetch]."""

    def decoder(args: list[Any]) -> Decoded:
        operands, attributes = args[:-10], args[-10:]
        scope = {"scope": text_of(attributes[1])}
        nbytes = vector_bytes(*map(text_of, attributes[2:5]))
        return _loaded(mnemonic, operands, number_of(attributes[6]), attributes[0], nbytes, scope)

    return decoder


def _load_volatile(args: list[Any]) -> Decoded:
    """[(dst,) addr, type, space, vec, ptx_type, number of dst, prefetch]."""
    operands, (dtype, space, vec, ptx_type, registers, _) = args[:-6], args[-6:]
    nbytes = vector_bytes(text_of(space), text_of(vec), text_of(ptx_type))
    return _loaded("ld.volatile", operands, number_of(registers), dtype, nbytes, {})


def _loaded(
    mnemonic: str, operands: list[Any], registers: int, dtype: Any, nbytes: int, scope: Operands
) -> Decoded:  # fmt: skip
    if registers > 1:
        raise UnsupportedInstruction(
            f"{mnemonic} into scattered registers is not simulated; pass dst= the first of neighbouring ones"
        )
    named: Operands = {"nbytes": nbytes, **scope}
    if registers:
        return Decoded(mnemonic, named | {"dst": operands[0], "addr": operands[1]})
    return Decoded(mnemonic, named | {"addr": operands[0], "dtype": text_of(dtype)})


def _load_global_acquire(args: list[Any]) -> Decoded:
    """[register, addr]: ld.acquire.gpu.global."""
    register = args[0]
    if not isinstance(register, ir.Load):
        raise UnsupportedInstruction("ld_global_acquire into something else than a register")
    dst = ir.Address(register.buffer, register.index)
    named: Operands = {"dst": dst, "addr": args[1], "nbytes": dtype_bytes(register.buffer)}
    return Decoded("ld.acquire", named | {"scope": "gpu"})


def _store(mnemonic: str, attributes: int) -> Decoder:
    """[addr, values or src, (policy, scope,) space, vec, ptx_type, (has_policy, l1, l2,) from_src]."""

    def decoder(args: list[Any]) -> Decoded:
        operands, rest = args[:-attributes], args[-attributes:]
        named: Operands = {"addr": operands[0]}
        at = 0
        if attributes > 4:
            named["scope"] = text_of(rest[1])
            at = 2
        space, vec, ptx_type = map(text_of, rest[at : at + 3])
        named["nbytes"] = vector_bytes(space, vec, ptx_type)
        if number_of(rest[-1]):
            return Decoded(mnemonic, named | {"src": operands[1]})
        if len(operands) != 2:
            raise UnsupportedInstruction(
                f"{mnemonic} of several values is not simulated; pass src= a register buffer"
            )
        value = operands[1]
        return Decoded(mnemonic, named | {"value": value, "dtype": _stored_type(value, ptx_type)})

    return decoder


def _stored_type(value: Any, ptx_type: str) -> str:
    """The element type in which a value is stored: its own, or unsigned of that size."""
    dtype = getattr(value, "dtype", "")
    bits = ptx_type[1:]
    return dtype if dtype and dtype.endswith(bits) else _STORED[bits]


STRONG: dict[str, Decoder] = {
    "tirx.ptx.ld_acquire": _load("ld.acquire"),
    "tirx.ptx.ld_relaxed": _load("ld.relaxed"),
    "tirx.ptx.ld_volatile": _load_volatile,
    "tirx.ptx.ld_global_acquire": _load_global_acquire,
    "tirx.ptx.st_release": _store("st.release", 9),
    "tirx.ptx.st_relaxed": _store("st.relaxed", 9),
    "tirx.ptx.st_volatile": _store("st.volatile", 4),
}
"""TVM 0.26 intrinsic -> decoder of its argument list."""
