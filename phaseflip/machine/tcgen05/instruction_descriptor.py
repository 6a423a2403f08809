"""The instruction descriptor of `tcgen05.mma`: shape, element formats, major-ness.

Source: PTX ISA 9.1, "Instruction descriptor", "Matrix Shape".
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from phaseflip.errors import BadInput
from phaseflip.machine.operands.matrix_descriptor import SharedMatrixDescriptor

_KINDS = ("f16", "tf32", "f8f6f4", "i8")
_INPUT_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "float16", 1: "bfloat16"},
    "tf32": {2: "tfloat32"},
    "f8f6f4": {
        0: "float8_e4m3fn",
        1: "float8_e5m2",
        3: "float6_e2m3fn",
        4: "float6_e3m2fn",
        5: "float4_e2m1fn",
    },
    "i8": {0: "uint8", 1: "int8"},
}
_OUTPUT_FORMATS: dict[str, dict[int, str]] = {
    "f16": {0: "float16", 1: "float32"},
    "tf32": {1: "float32"},
    "f8f6f4": {0: "float16", 1: "float32"},
    "i8": {2: "int32"},
}
_ELEMENT_BYTES = {"f16": 2, "tf32": 4, "f8f6f4": 1, "i8": 1}


@dataclass(frozen=True)
class InstructionDescriptor:
    """The 32-bit instruction descriptor of `tcgen05.mma` for .kind f16, tf32, f8f6f4 and i8.

    m and n are those of the whole instruction (both CTAs for cta_group::2). Formats are NumPy or
    ml_dtypes names, and "tfloat32" for the upper 19 bits of a float32. max_shift is 0, 8, 16 or 32
    (`.ws` only). Source: PTX "Instruction descriptor format for .kind::tf32, .kind::f16,
    .kind::f8f6f4 and .kind::i8".
    """

    kind: str
    m: int
    n: int
    d_format: str
    a_format: str
    b_format: str
    negate_a: bool = False
    negate_b: bool = False
    a_mn_major: bool = False
    b_mn_major: bool = False
    sparse: bool = False
    sparsity_selector: int = 0
    saturate: bool = False
    max_shift: int = 0

    @property
    def element_bytes(self) -> int:
        """Bytes of one A or B element in shared memory (6- and 4-bit ones too: 16 to a unit)."""
        return _ELEMENT_BYTES[self.kind]

    @property
    def k(self) -> int:
        """K of one dense instruction in elements: always 32 bytes; twice that for sparse A."""
        return (64 if self.sparse else 32) // self.element_bytes

    @classmethod
    def decode(cls, idesc: int, kind: str) -> InstructionDescriptor:
        """Fields of the 32-bit value `idesc` under `.kind::{kind}`. Raises BadInput."""
        return _decode_instruction(int(idesc), kind)

    def encode(self) -> int:
        """The 32-bit value; the mirror of decode. Raises BadInput for what has no code."""
        if self.kind not in _KINDS:
            raise BadInput(
                f"instruction descriptor: .kind::{self.kind} is not one of {', '.join(_KINDS)}."
            )
        if self.n % 8 or self.m % 16 or not 0 <= self.n < 512 or not 0 <= self.m < 512:
            raise BadInput(
                f"instruction descriptor: M={self.m} must be a multiple of 16 and N={self.n} of 8, "
                "below 512."
            )
        if not 0 <= self.sparsity_selector < 4 or self.max_shift not in (0, 8, 16, 32):
            raise BadInput(
                "instruction descriptor: the sparsity selector is 0 to 3 and the maximum shift 0, "
                "8, 16 or 32."
            )
        return (
            self.sparsity_selector
            | self.sparse << 2
            | self.saturate << 3
            | _code(_OUTPUT_FORMATS[self.kind], self.d_format, self.kind, "D") << 4
            | _code(_INPUT_FORMATS[self.kind], self.a_format, self.kind, "A") << 7
            | _code(_INPUT_FORMATS[self.kind], self.b_format, self.kind, "B") << 10
            | self.negate_a << 13
            | self.negate_b << 14
            | self.a_mn_major << 15
            | self.b_mn_major << 16
            | self.n >> 3 << 17
            | self.m >> 4 << 24
            | (0, 8, 16, 32).index(self.max_shift) << 30
        )

    def check_shape(self, cta_group: int, ws: bool = False) -> None:
        """Raise BadInput unless M and N are legal for cta_group (1 or 2) and `.ws`.

        Source: PTX "Various combinations of .kind and shapes", and for N-major 8-bit B "Various
        combinations of N shape with .cta_group qualifier for 8bit transpose B". (CUTLASS and TVM
        allow less: for M = 128 or cta_group::2 they ask for twice the step in N.)
        """
        if cta_group not in (1, 2):
            raise BadInput(f"tcgen05.mma: cta_group is {cta_group}, but must be 1 or 2.")
        if ws and cta_group == 2:
            raise BadInput("tcgen05.mma.ws exists for cta_group::1 only.")
        if self.max_shift and not ws:
            raise BadInput(
                f"tcgen05.mma: maximum shift {self.max_shift} in the instruction descriptor is for "
                ".ws only."
            )
        legal_m, legal_n = _legal_shapes(self.kind, cta_group, ws, self.sparse, self.b_mn_major)
        if self.m not in legal_m or self.n not in legal_n:
            short = [*legal_n[:2], "...", legal_n[-1]] if len(legal_n) > 3 else legal_n
            raise BadInput(
                f"tcgen05.mma{'.ws' if ws else ''}.cta_group::{cta_group}.kind::{self.kind}: "
                f"M={self.m} N={self.n} is not legal; M must be "
                f"{' or '.join(map(str, legal_m))} and N one of {', '.join(map(str, short))}."
            )

    def check_operand(self, desc: SharedMatrixDescriptor, operand: str) -> None:
        """Raise BadInput if operand "A" or "B" has a swizzle its major-ness does not allow.

        Source: PTX "Valid Combinations of Type-Size, Major-ness and Swizzling".
        """
        mn_major = self.a_mn_major if operand == "A" else self.b_mn_major
        if mn_major and (self.kind == "tf32") != (desc.swizzle == "128B-atom32B"):
            want = "only" if self.kind == "tf32" else "any swizzle but"
            raise BadInput(
                f"tcgen05.mma.kind::{self.kind}: a transposed (MN-major) matrix {operand} takes "
                f"{want} 128B swizzling with 32-byte atoms, and the descriptor says {desc.swizzle}."
            )


def _code(formats: dict[int, str], name: str, kind: str, matrix: str) -> int:
    for code, known in formats.items():
        if known == name:
            return code
    raise BadInput(
        f"tcgen05.mma.kind::{kind}: matrix {matrix} cannot be {name}; use "
        f"{' or '.join(formats.values())}."
    )


def _legal_shapes(
    kind: str, cta_group: int, ws: bool, sparse: bool, b_mn_major: bool
) -> tuple[list[int], list[int]]:
    if ws:
        return [32, 64, 128], [64, 128] if sparse else [64, 128, 256]
    if cta_group == 2:
        step = 32 if kind == "i8" or (kind == "f8f6f4" and b_mn_major) else 16
        return [128, 256], list(range(step, 257, step))
    step = 16 if b_mn_major and _ELEMENT_BYTES[kind] == 1 else 8
    sizes = [n for n in range(step, 257, step) if kind != "i8" or n <= 32 or n % 16 == 0]
    return [64, 128], sizes


@functools.lru_cache(maxsize=256)
def _decode_instruction(idesc: int, kind: str) -> InstructionDescriptor:
    if kind not in _KINDS:
        raise BadInput(f"instruction descriptor: .kind::{kind} is not one of {', '.join(_KINDS)}.")
    if not 0 <= idesc < 1 << 32:
        raise BadInput(f"instruction descriptor: {idesc:#x} is not an unsigned 32-bit value.")
    where = f"instruction descriptor {idesc:#010x} of .kind::{kind}"
    if idesc & (1 << 6 | 1 << 23 | 1 << 29):
        raise BadInput(f"{where}: the reserved bits 6, 23 and 29 must be 0.")

    def name(formats: dict[int, str], code: int, matrix: str) -> str:
        if code not in formats:
            known = ", ".join(f"{c} ({f})" for c, f in formats.items())
            raise BadInput(
                f"{where}: format code {code} of matrix {matrix} is invalid; use {known}."
            )
        return formats[code]

    result = InstructionDescriptor(
        kind=kind,
        m=(idesc >> 24 & 0x1F) << 4,
        n=(idesc >> 17 & 0x3F) << 3,
        d_format=name(_OUTPUT_FORMATS[kind], idesc >> 4 & 3, "D"),
        a_format=name(_INPUT_FORMATS[kind], idesc >> 7 & 7, "A"),
        b_format=name(_INPUT_FORMATS[kind], idesc >> 10 & 7, "B"),
        negate_a=bool(idesc >> 13 & 1),
        negate_b=bool(idesc >> 14 & 1),
        a_mn_major=bool(idesc >> 15 & 1),
        b_mn_major=bool(idesc >> 16 & 1),
        sparse=bool(idesc >> 2 & 1),
        sparsity_selector=idesc & 3,
        saturate=bool(idesc >> 3 & 1),
        max_shift=(0, 8, 16, 32)[idesc >> 30],
    )
    inputs = (result.a_format, result.b_format)
    if result.d_format == "float16" and "bfloat16" in inputs:
        raise BadInput(f"{where}: bfloat16 inputs need a float32 matrix D, not float16.")
    if kind == "i8" and (result.negate_a or result.negate_b):
        raise BadInput(f"{where}: bits 13 and 14 (negate) must be 0 for integers.")
    if kind != "i8" and result.saturate:
        raise BadInput(f"{where}: bit 3 (saturate) must be 0 for floating point.")
    return result
