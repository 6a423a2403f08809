"""What the instructions of a kernel ask of a GPU: some architectures alone have wgmma, others alone have tcgen05."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from phaseflip.errors import BadInput
from phaseflip.gpu.devices import ARCHS

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel
    from phaseflip.ir import nodes as ir

HOMES = {
    "wgmma": ("sm_90a",),
    "tcgen05": ("sm_100a", "sm_103a"),
    "clusterlaunchcontrol": ("sm_100a", "sm_103a"),
}
"""Family of instructions -> the architectures that have it."""


def foreign_instruction(function: ir.Function, arch: str) -> str:
    """ "uses wgmma.fence, which sm_100a has not, but sm_90a", for the first instruction that is not of `arch`, or ""."""
    for mnemonic, family in _special(function):
        if arch not in HOMES[family]:
            return f"uses {mnemonic}, which {arch} has not, but {' or '.join(HOMES[family])}"
    return ""


def needed(kernel: Kernel, shape: tuple[int, int, int], arch: str = "") -> tuple[int, int]:
    """The compute capability that a kernel needs: what it says itself, else what its instructions at this shape ask for.

    A kernel that any architecture runs is taken to need that of `arch`, by default Blackwell's. It is lowered where it
    says nothing. BadInput if no GPU has all of its instructions.
    """
    if kernel.needs is not None:
        return kernel.needs
    from phaseflip.frontend.tirx.lowering import DEFAULT_ARCH, lower_once

    lowered = lower_once(kernel.function(*shape), arch or DEFAULT_ARCH)
    used = {family: mnemonic for mnemonic, family in _special(lowered.device)}
    if len(used) > 1:
        raise BadInput(f"{kernel.name} uses {' and '.join(used.values())}, and no GPU has both")
    homes = next((HOMES[family] for family in used), (lowered.arch,))
    return next(capability for capability, name in ARCHS.items() if name == homes[0])


def _special(function: ir.Function) -> Iterator[tuple[str, str]]:
    """(mnemonic, family) of the instructions that not every architecture has, in program order."""
    from phaseflip.ir.queries import calls, roots, walk

    for statement in walk(function.body):
        for call in calls(*roots(statement)):
            name = call.name.removeprefix("tirx.ptx.")
            family = name.partition("_")[0]
            if family in HOMES and name != call.name and "_encode_" not in name:
                yield _mnemonic(call, name), family


def _mnemonic(call: ir.Call, name: str) -> str:
    from phaseflip.errors import UnsupportedInstruction
    from phaseflip.frontend.tirx.decoding import decode

    try:
        return decode(call).mnemonic
    except UnsupportedInstruction:  # a GPU may run what the simulator does not
        return name.replace("_", ".", 1)
