"""What a fault is: a named rewrite of a kernel's IR, its sites, what must report it, and an example that is a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import BadInput
from ..findings.finding import RULES, Finding, errors
from ..gemm.kernel import find_kernel
from ..grammar import counted
from .example import Example

if TYPE_CHECKING:
    from ..frontend.tirx.edit.code import Code, Edit
    from ..gemm.kernel import Kernel

KINDS = ("catalogue", "mutation", "control")
NUMERIC_ORACLES = ("tolerance", "bound", "exact")
Finder = Callable[["Code"], Iterable["Edit"]]
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Site:
    """A place where a fault can be injected: its number among them, what stands there, and where."""

    index: int
    text: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Fault:
    """One kind of mistake in a kernel.

    `kernels` are those it is catalogued for (none: any that has a site). `expected` are alternatives of finding titles
    that must all be reported: a code ("race"), or a code with memory and kind ("race shared raw"). `chunks` and `tiles`
    are the fewest K chunks, and tiles of D by rows and columns, with which the mistake matters. `blames` names the
    statements at which it may be reported besides the site itself ("store shared" is a store to that memory).
    """

    name: str
    sentence: str
    find: Finder = field(repr=False)
    kernels: tuple[str, ...] = ()
    expected: tuple[tuple[str, ...], ...] = ()
    example: Example | None = None
    chunks: int = 1
    tiles: tuple[int, int] = (1, 1)
    blames: tuple[str, ...] = ()
    kind: str = "catalogue"

    def sites(self, func: Any) -> list[Site]:
        """Every place of the PrimFunc where the fault can be injected, in program order."""
        found = [edit.statement for edit in self._edits(func)[1]]
        return [Site(i, s.text, s.file, s.line) for i, s in enumerate(found)]

    def apply(self, func: Any, site: Site) -> Any:
        """A new PrimFunc with the fault at that site; BadInput if the function has no such site."""
        code, edits = self._edits(func)
        if not 0 <= site.index < len(edits):
            raise BadInput(
                f"{self.name} has {counted(len(edits), 'site')} here, and none is number {site.index}"
            )
        found = edits[site.index].statement
        if (found.text, found.line) != (site.text, site.line):
            raise BadInput(
                f"site {site.index} of {self.name} is {found.text!r} in line {found.line} here, "
                f"not {site.text!r} in line {site.line}"
            )
        return code.rewritten(edits[site.index])

    def lines(self, func: Any, site: Site) -> set[int]:
        """Lines at which the mutant may be reported: the site's, and those of the statements that it affects."""
        from ..frontend.tirx.edit.code import Code

        mutant = Code(self.apply(func, site))
        names = {s: f"store {s.memory}" if s.name == "store" else s.name for s in mutant.statements}
        return {site.line} | {s.line for s, name in names.items() if name in self.blames}

    def applies_to(self, kernel: str) -> bool:
        """Whether the fault is meant for the kernel of that name; its sites say whether it has one."""
        return not self.kernels or kernel.partition(":")[0] in self.kernels

    def _edits(self, func: Any) -> tuple[Code, list[Edit]]:
        from ..frontend.tirx.edit.code import Code

        code = Code(func)
        edits = sorted(self.find(code), key=lambda e: code.statements.index(e.statement))
        return code, edits


FAULTS: dict[str, Fault] = {}
"""Every declared fault by name, in the order of declaration."""


def fault(
    name: str,
    sentence: str,
    *,
    kernels: Sequence[str] = (),
    expected: Sequence[Sequence[str]] = (),
    example: Example | None = None,
    chunks: int = 1,
    tiles: tuple[int, int] = (1, 1),
    blames: Sequence[str] = (),
    kind: str = "catalogue",
) -> Callable[[Finder], Fault]:
    """Declare a fault: the decorated function yields an `Edit` of the `Code` for each of its sites."""

    def declare(find: Finder) -> Fault:
        if name in FAULTS:
            raise ValueError(f"the fault {name} is declared twice")
        if kind not in KINDS:
            raise ValueError(
                f"{name} is of the unknown kind {kind!r}; kinds are {', '.join(KINDS)}"
            )
        alternatives = tuple(tuple(titles) for titles in expected)
        for title in (t for titles in alternatives for t in titles):
            if title.split()[0] not in RULES:
                raise ValueError(f"{name} expects the unknown finding {title!r}")
        FAULTS[name] = Fault(
            name, sentence, find, tuple(kernels), alternatives, example, chunks, tiles, tuple(blames), kind
        )  # fmt: skip
        return FAULTS[name]

    return declare


def as_expected(
    fault: Fault, findings: Iterable[Finding], failed_oracles: Iterable[str] = ()
) -> bool:
    """Whether all titles of one alternative are among the errors found.

    An oracle that failed counts as the finding that it stands for: "wrong-result", "unwritten-output".
    """
    return bool(matching(fault, findings, failed_oracles))


def matching(
    fault: Fault, findings: Iterable[Finding], failed_oracles: Iterable[str] = ()
) -> tuple[str, ...]:
    """The titles of the first alternative that is satisfied; empty if none is."""
    titles = {f.title for f in errors(findings)}
    failed = set(failed_oracles)
    if failed & set(NUMERIC_ORACLES):
        titles.add("wrong-result")
    if "unwritten-output" in failed:
        titles.add("unwritten-output")
    for alternative in fault.expected:
        if all(any(is_title(found, wanted) for found in titles) for wanted in alternative):
            return alternative
    return ()


def is_title(found: str, wanted: str) -> bool:
    """Whether a finding's title is the wanted one, or a more precise one."""
    return found == wanted or found.startswith(f"{wanted} ")


def as_studied(kernel: Kernel) -> Kernel:
    """A kernel as faults are injected into it: a persistent one with one CTA, or one cluster, for all tiles.

    So it meets a second tile at small shapes. A kernel whose name gives the arguments of its factory stays as it is.
    """
    persistent = "ctas" in inspect.signature(kernel.factory).parameters
    return find_kernel(f"{kernel.name}:ctas=1") if persistent and ":" not in kernel.name else kernel


def shapes_for(fault: Fault, kernel: Kernel) -> list[Shape]:
    """Up to three shapes that show the fault: the smallest, one tile, several tiles and chunks.

    Clipped to the kernel's rule; only shapes with as many tiles and chunks as the fault needs.
    """
    rule = kernel.shape_rule
    if rule is None:
        raise BadInput(f"{kernel.name} has no shape rule; give the shapes")
    m, n, k = rule.m_multiple, rule.n_multiple, rule.k_multiple
    rows, columns = fault.tiles
    smallest = (m * rows, n * columns, k * fault.chunks)
    wanted = [smallest, (m, n, k * max(4, fault.chunks)), (2 * m, 3 * n, k * max(3, fault.chunks))]
    found: list[Shape] = []
    for shape in wanted:
        legal = rule.nearest(*shape)
        if legal not in found and all(a >= b for a, b in zip(legal, smallest, strict=True)):
            found.append(legal)
    return found
