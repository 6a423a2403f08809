"""The final device IR as plain Python values: what the front end reads out of TVM and everything else works on.

No package but `frontend` ever touches a TVM object: looking up one attribute of one costs more than an addition, and a
run looks them up millions of times. Nor does any other know how TVM spells an instruction: a call carries its PTX meaning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..errors import UnsupportedInstruction

Operands = dict[str, Any]
"""Operand name -> expression of the device IR, a list of such, or a plain Python value known at translation."""


@dataclass(frozen=True)
class Site:
    """A place in the user's source: file and line (0 where the compiler kept none).

    callers: of a line of an inlined function, (file, line) of its call, and of the calls around that.
    """

    file: str = "<unknown>"
    line: int = 0
    callers: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(eq=False)
class Buffer:
    """A typed view of memory: name, element dtype, number of elements, TVM storage scope.

    `storage` is the allocation that it views (itself, for an allocation); `parameter` the pointer variable of a global
    buffer; `address` the expression that gives the base of any other view; `align_bytes` what TVM aligns an allocation to.
    """

    name: str
    dtype: str
    elements: int | None
    scope: str
    storage: Buffer | None = None
    parameter: Var | None = None
    address: Expr | None = None
    align_bytes: int = 64

    @property
    def root(self) -> Buffer:
        """The allocation behind this view."""
        return self if self.storage is None else self.storage.root

    @property
    def own_shared(self) -> bool:
        """Whether it is shared memory that the kernel allocates, so that its offset in the CTA's window is known."""
        return self.scope.startswith("shared") and self.parameter is None and self.address is None


@dataclass(frozen=True)
class Const:
    """A literal: int, float, bool or str; `dtype` is "str" for strings."""

    value: Any
    dtype: str


@dataclass(eq=False)
class Var:
    """An immutable variable (one thread's value of it); identity is the object."""

    name: str
    dtype: str


@dataclass(eq=False)
class Binary:
    """`op` is one of add sub mul div mod floordiv floormod min max eq ne lt le gt ge and or shl shr bitand bitor bitxor."""

    op: str
    a: Expr
    b: Expr
    dtype: str


@dataclass(eq=False)
class Unary:
    """`op` is `not` (boolean) or `bitnot`."""

    op: str
    a: Expr
    dtype: str


@dataclass(eq=False)
class Cast:
    """Conversion of value; `bits` keeps the bit pattern instead (TVM's reinterpret)."""

    a: Expr
    dtype: str
    bits: bool = False


@dataclass(eq=False)
class Select:
    """`condition ? a : b`; when `lazy`, the side not taken must not be evaluated (TVM's if_then_else)."""

    condition: Expr
    a: Expr
    b: Expr
    dtype: str
    lazy: bool


@dataclass(eq=False)
class Load:
    """The element `index` of a buffer."""

    buffer: Buffer
    index: Expr
    dtype: str


@dataclass(eq=False)
class Address:
    """The address of element `index` of a buffer (TVM's address_of, and buffer.data with index 0)."""

    buffer: Buffer
    index: Expr
    dtype: str = "handle"


@dataclass(eq=False)
class Vector:
    """`lanes` consecutive values: base, base + stride, ... (TVM's Ramp; Broadcast with stride None)."""

    base: Expr
    stride: Expr | None
    lanes: int
    dtype: str


@dataclass(frozen=True)
class Decoded:
    """One call of the kernel: mnemonic, operands by their PTX names, and the element type of its value, if any."""

    mnemonic: str
    operands: Operands = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """A call that has no meaning here: why not, with its line, and what PTX calls it, as far as its spelling tells."""

    mnemonic: str
    reason: str


@dataclass(eq=False)
class Call:
    """An operator or intrinsic of TVM by its full name, with its arguments as TVM orders them.

    `meaning` is what the front end made of it; None in the host part, which holds no instructions.
    """

    name: str
    args: list[Expr]
    dtype: str
    site: Site = field(default_factory=Site)
    meaning: Decoded | Refused | None = None

    @property
    def decoded(self) -> Decoded:
        """Its PTX meaning. UnsupportedInstruction names the instruction and its line when there is none."""
        if isinstance(self.meaning, Decoded):
            return self.meaning
        missing = f"{self.site}: {self.name} has not been decoded"
        raise UnsupportedInstruction(self.meaning.reason if self.meaning else missing)


Expr = Const | Var | Binary | Unary | Cast | Select | Load | Address | Vector | Call


@dataclass(eq=False)
class Let:
    """Bind `var` for all later statements of the enclosing scope."""

    var: Var
    value: Expr
    site: Site


@dataclass(eq=False)
class Allocate:
    """Storage of one thread (local), of the CTA (shared) or of TMEM."""

    buffer: Buffer
    site: Site


@dataclass(eq=False)
class Store:
    """buffer[index] = value."""

    buffer: Buffer
    index: Expr
    value: Expr
    site: Site


@dataclass(eq=False)
class Evaluate:
    """A call for its effect."""

    call: Expr
    site: Site


@dataclass(eq=False)
class Assert:
    """A check of the host part: exception kind and message."""

    condition: Expr
    kind: str
    message: str
    site: Site


@dataclass(eq=False)
class If:
    """Structured branch."""

    condition: Expr
    then: list[Stmt]
    orelse: list[Stmt]
    site: Site


@dataclass(eq=False)
class For:
    """for var in range(start, start + extent, step)."""

    var: Var
    start: Expr
    extent: Expr
    step: Expr
    body: list[Stmt]
    site: Site


@dataclass(eq=False)
class While:
    """while condition: body."""

    condition: Expr
    body: list[Stmt]
    site: Site


@dataclass(eq=False)
class Jump:
    """`kind` is break, continue or return."""

    kind: str
    site: Site


Stmt = Let | Allocate | Store | Evaluate | Assert | If | For | While | Jump


@dataclass(eq=False)
class Function:
    """One lowered function: `extents` maps thread axes ("blockIdx.x") to their sizes and `axes` to their variables."""

    name: str
    params: list[Var]
    body: list[Stmt]
    launch_params: list[str] = field(default_factory=list)
    extents: dict[str, int] = field(default_factory=dict)
    axes: dict[str, Var] = field(default_factory=dict)
