"""Register arrays of the threads: which of their bytes have been written, and reads of what has not, or not yet.

A thread's local arrays lie side by side in a frame of bytes. What has been written is one bit a byte, kept in one int for
every warp, since lanes of a warp mostly write together, and for single lanes beside it where they do not.

Source: PTX ISA 9.1, "Register State Space", "Local State Space"; tcgen05.wait::ld.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from ...findings import Finding, agree
from ...ir.instruction import traits_of

if TYPE_CHECKING:
    from ...ir.place import Place
    from ..cta import CTA
    from .warp import Group

Bits = int
"""Bytes of a frame: bit i stands for byte i."""


class WrittenRegisters:
    """The bytes of their frames that the threads of a CTA have written."""

    def __init__(self, threads: int) -> None:
        self.warps = [0] * (-(-threads // 32))
        self.lanes: defaultdict[int, Bits] = defaultdict(int)

    def write(self, g: Group, first: Any, nbytes: int) -> None:
        """The threads write nbytes from byte `first` (see `_bits`)."""
        bits = _bits(g, first, nbytes)
        if isinstance(bits, list):
            for lane, own in zip(g.lanes.tolist(), bits, strict=True):
                self.lanes[lane] |= own
            return
        whole, loose = g.whole_and_loose()
        for warp in whole:
            self.warps[warp] |= bits
        for lane in loose:
            self.lanes[lane] |= bits

    def lacking(self, g: Group, first: Any, nbytes: int) -> tuple[list[int], int] | None:
        """Lanes that have not written all of what they read, and the first such byte; None if there are none."""
        bits = _bits(g, first, nbytes)
        if isinstance(bits, int):
            warps = [warp for warp in g.warp_list() if bits & ~self.warps[warp]]
            if not warps:
                return None
        lanes = g.lanes.tolist()
        wanted = bits if isinstance(bits, list) else [bits] * len(lanes)
        rest = {
            lane: left
            for lane, own in zip(lanes, wanted, strict=True)
            if (left := own & ~self.warps[lane >> 5] & ~self.lanes[lane])
        }
        if not rest:
            if isinstance(bits, int):
                for warp in g.whole_and_loose()[0]:
                    self.warps[warp] |= bits  # what all of its lanes have written, each on its own
            return None
        lowest = min(left & -left for left in rest.values())
        return list(rest), lowest.bit_length() - 1


def _bits(g: Group, first: Any, nbytes: int) -> Bits | list[Bits]:
    """nbytes from byte `first`, as bits: one int where they are the same for all lanes, else one for each.

    first: an int; one for each lane; (steps, lanes) flattened; or (steps, 1), the same for all lanes.
    """
    width = (1 << nbytes) - 1
    if first.__class__ is int:
        return width << first
    steps = first.reshape(-1, 1 if first.ndim == 2 else g.n)
    if (steps == steps[:, :1]).all():
        return _union(steps[:, 0].tolist(), nbytes)
    return [_union(column, nbytes) for column in steps.T.tolist()]


def _union(firsts: list[int], nbytes: int) -> Bits:
    bits, width = 0, (1 << nbytes) - 1
    for first in firsts:
        bits |= width << first
    return bits


def initialised(g: Group, place: Place, name: str, value: Any, stored: Any) -> Any:
    """A register that some path may read before it is written: its value, or a finding and 0.

    stored: 1 where something has been stored to it, for each lane or for all; None if no lane has.
    """
    if stored.__class__ is int:
        return value
    lacking = g.lanes if stored is None else g.lanes[stored == 0]
    if len(lacking):
        _report_unwritten(g, place, lacking, name, f"give {name} a value where it is declared")
    return 0 if value is None else value


def _report_unwritten(g: Group, place: Place, lanes: np.ndarray, name: str, fix: str) -> None:
    who = g.agents(lanes)
    g.cta.report(
        Finding(
            "uninitialised-read",
            "nothing has been stored to it: it holds whatever the register held before",
            place=place,
            memory="register",
            what=f"{who} {agree(who, 'reads', 'read')} {name}",
            fix=fix,
        )
    )


def write_registers(g: Group, first: Any, nbytes: int) -> None:
    """The threads write nbytes from byte `first` of their frames, which may be of any form that `_bits` takes."""
    if g.cta.written is not None:
        g.cta.written.write(g, first, nbytes)


def check_registers(g: Group, place: Place, first: Any, nbytes: int) -> None:
    """Report a read of registers that nothing has written, or that an unfinished tcgen05.ld will write.

    The threads read nbytes from byte `first` of their frames, which may be of any form that `_bits` takes.
    """
    if g.cta.loading:
        _check_loading(g, place, first, nbytes)
    written = g.cta.written
    found = None if written is None else written.lacking(g, first, nbytes)
    if found is None:
        return
    assert written is not None
    lanes, byte = found
    written.write(g, first, nbytes)  # told once
    fix = "store to every element of the array before it is read"
    _report_unwritten(g, place, np.array(lanes), g.cta.program.local_name(byte), fix)


def start_loading(cta: CTA, warp: int, first: int, end: int, place: Place) -> None:
    """An unfinished instruction will write these bytes of the registers of a warp."""
    held = cta.loading.setdefault(warp, {})
    held[place] = held.get(place, 0) | (1 << end - first) - 1 << first


def _check_loading(g: Group, place: Place, first: Any, nbytes: int) -> None:
    low, high = int(np.min(first)), int(np.max(first)) + nbytes
    read = (1 << high - low) - 1 << low
    for warp in g.warp_list():
        for load_place, bits in g.cta.loading.get(warp, {}).items():
            if bits & read:
                why, fix = _awaits(g.cta, warp, load_place)
                g.cta.report(
                    Finding(
                        "uninitialised-read",
                        f"it is asynchronous, and {why}",
                        place=place,
                        other=load_place,
                        memory="register",
                        what=f"{g} {agree(g, 'reads', 'read')} registers that the {load_place.mnemonic} at line "
                        f"{load_place.line} writes",
                        fix=f"{fix} between it and the first use of its registers",
                    )
                )
                return


def _awaits(cta: CTA, warp: int, load: Place) -> tuple[str, str]:
    """What an instruction in flight into registers of a warp lacks, and the calls that would supply it."""
    awaited = traits_of(load.mnemonic).completes
    if awaited == "wgmma.wait_group" and any(r.place == load for r in cta.warpgroup_mma[warp].open):
        return (
            "no wgmma.commit_group of this warp has made it part of a group, so no wgmma.wait_group waits for it",
            f"T.ptx.wgmma.commit_group(), then {_CALLS[awaited]},",
        )
    return f"no {awaited} of this warp has completed it", _CALLS.get(awaited, awaited)


_CALLS = {
    "tcgen05.wait::ld": "T.ptx.tcgen05.wait.ld()",
    "wgmma.wait_group": "T.ptx.wgmma.wait_group(0)",
}
"""What completes an operation -> how a kernel writes it."""
