"""What a kernel asks of a GPU: which architectures there are, and which of them alone have wgmma, or tcgen05."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from phaseflip.errors import BadInput
from phaseflip.ir.traits import homes

if TYPE_CHECKING:
    from phaseflip.gemm.kernel import Kernel
    from phaseflip.ir import nodes as ir

ARCHS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
"""Compute capability -> architecture to compile for. Code for one of these runs on that capability alone."""


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


def fits(needs: tuple[int, int], capability: tuple[int, int]) -> bool:
    """Whether a GPU of this capability runs kernels that need that one: the same major number, no smaller minor one."""
    return (
        capability in ARCHS and needs[0] == capability[0] and needs[1] <= capability[1]
    )  # tcgen05 and wgmma are specific to their architecture


def default_arch(needs: tuple[int, int]) -> str:
    """The architecture to compile for where no GPU says otherwise. BadInput if none is known for that capability."""
    if needs not in ARCHS:
        known = ", ".join(f"{major}.{minor}" for major, minor in ARCHS)
        raise BadInput(
            f"no architecture is known for compute capability {needs[0]}.{needs[1]}; known are {known}"
        )
    return ARCHS[needs]


def check_arch(kernel: Kernel, arch: str) -> None:
    """BadInput unless `arch` is one that the kernel, whose needs are known, can be compiled for."""
    assert kernel.needs is not None
    legal = [a for capability, a in ARCHS.items() if fits(kernel.needs, capability)]
    if arch not in legal:
        major, minor = kernel.needs
        raise BadInput(
            f"{kernel.name} needs compute capability {major}.{minor} and cannot be compiled for {arch!r};"
            f" use {' or '.join(legal) or 'a kernel for another one'}"
        )


def _special(function: ir.Function) -> Iterator[str]:
    """The mnemonics of the instructions that not every architecture has, in program order.

    Of those that the simulator does not know too, by what their spelling tells: a GPU may run what it does not.
    """
    from phaseflip.ir.queries import calls, roots, walk

    for statement in walk(function.body):
        for call in calls(*roots(statement)):
            if call.meaning is not None and homes(call.meaning.mnemonic):
                yield call.meaning.mnemonic
