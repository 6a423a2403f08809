"""What the instructions of a kernel ask of a GPU: some architectures alone have wgmma, others alone have tcgen05."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from phaseflip.errors import BadInput
from phaseflip.gpu.devices import ARCHS
from phaseflip.ir.traits import homes

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel
    from phaseflip.ir import nodes as ir


def foreign_instruction(function: ir.Function, arch: str) -> str:
    """ "uses wgmma.fence, which sm_100a has not, but sm_90a", for the first instruction that is not of `arch`, or ""."""
    for mnemonic in _special(function):
        if arch not in homes(mnemonic):
            return f"uses {mnemonic}, which {arch} has not, but {' or '.join(homes(mnemonic))}"
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
    used = {homes(mnemonic): mnemonic for mnemonic in _special(lowered.device)}
    common = [arch for arch in next(iter(used), (lowered.arch,)) if all(arch in h for h in used)]
    if not common:
        raise BadInput(f"{kernel.name} uses {' and '.join(used.values())}, and no GPU has both")
    return next(capability for capability, name in ARCHS.items() if name == common[0])


def _special(function: ir.Function) -> Iterator[str]:
    """The mnemonics of the instructions that not every architecture has, in program order.

    Of those that the simulator does not know too, by what their spelling tells: a GPU may run what it does not.
    """
    from phaseflip.ir.queries import calls, roots, walk

    for statement in walk(function.body):
        for call in calls(*roots(statement)):
            if call.meaning is not None and homes(call.meaning.mnemonic):
                yield call.meaning.mnemonic
