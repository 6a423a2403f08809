"""What the rest of the package knows of an instruction: facts that its `@instruction` states, and those of its family."""

from __future__ import annotations

from dataclasses import dataclass

MBARRIER = "mbarrier"
"""`Traits.completes` of operations that complete on an mbarrier which they name themselves."""


@dataclass(frozen=True)
class Traits:
    """Facts of one instruction; the default is what most have.

    called: what reports call it, by default the mnemonic.
    synchronises: it orders others, signals or waits. Mutation operators leave such instructions out and move them, and a
        mutant that executes fewer of them does no less work.
    owns: it takes or gives back a resource of the CTA; mutation operators treat it alike.
    stores_global: it writes global memory at an operand.
    arrives: it arrives on the mbarrier at its operand `mbar`, at once or when it completes.
    tells: mnemonics of operations whose completion such an arrival tells.
    supplies: the kind of Wait that it helps to end, other than that for the phase of an mbarrier.
    looks: the kind of its Wait, if that is a look at a phase or flag that may end in vain.
    completes: of an asynchronous operation, the instruction that tells its completion, or MBARRIER.
    alone: it may stand alone in a loop whose iterations run as one: it reads registers and writes elsewhere.
    measure: the row of `compare` that counts it.
    """

    called: str = ""
    synchronises: bool = False
    owns: bool = False
    stores_global: bool = False
    arrives: bool = False
    tells: tuple[str, ...] = ()
    supplies: type | None = None
    looks: type | None = None
    completes: str = ""
    alone: bool = False
    measure: str = ""


UNKNOWN = Traits()

FAMILIES: dict[str, tuple[str, ...]] = {}
"""Family of instructions that not every architecture has -> the architectures that have it."""


def family(name: str, *, archs: tuple[str, ...]) -> None:
    """State which architectures alone ("sm_90a") have the instructions whose mnemonic begins with `name` and a dot."""
    FAMILIES[name] = archs


def homes(mnemonic: str) -> tuple[str, ...]:
    """The architectures that have an instruction; () for one that all have."""
    return FAMILIES.get(mnemonic.partition(".")[0], ())
