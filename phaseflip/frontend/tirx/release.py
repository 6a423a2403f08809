"""How the installed release of TVM spells instructions: its tables of decoders, with what `@instruction` says itself."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ... import machine
from ...ir.instruction import REGISTRY
from .arguments import Decoder, mnemonic_of, operands
from .v0_26.intrinsics import DECODE_0_26, HELPERS_0_26

Tables = tuple[dict[str, Decoder], dict[str, Decoder]]


def _tables(series: str) -> Tables:
    """Decoders by intrinsic, and by CUDA helper. A release is added here, with a folder beside v0_26."""
    if series == "0.27":
        from .v0_27.helpers import DECODE_0_27

        return DECODE_0_27, HELPERS_0_26
    return DECODE_0_26, HELPERS_0_26


@dataclass(frozen=True)
class Spelling:
    """One release: decoders by intrinsic ("tirx.ptx.ld"), and by CUDA helper that is called as source text."""

    intrinsics: dict[str, Decoder]
    helpers: dict[str, Decoder]


@functools.cache
def spelling(series: str) -> Spelling:
    """Of a release series: its tables, and the spellings given with the instructions themselves."""
    machine.load()
    found = Spelling(*map(dict, _tables(series)))
    for mnemonic, definition in REGISTRY.items():
        if series in definition.spelled:
            name, *names = definition.spelled[series]
            table = found.intrinsics if name.startswith("tirx.") else found.helpers
            table[name] = operands(mnemonic, *names)
    return found


def mnemonic_called(name: str, helper: str = "") -> str:
    """What PTX calls an intrinsic ("tirx.ptx.bar_sync"), or a CUDA helper that it calls; "" where its arguments decide.

    The names are those of 0.26, which edits of a kernel use under every release.
    """
    tables = spelling("0.26")
    return mnemonic_of(tables.helpers.get(helper) if helper else tables.intrinsics.get(name))
