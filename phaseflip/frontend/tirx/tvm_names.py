"""What TVM 0.26 and 0.27 keep in different modules."""

from __future__ import annotations

from typing import Any

import tvm

StringImm = tvm.ir.StringImm if hasattr(tvm.ir, "StringImm") else tvm.tirx.StringImm
"""A constant string."""

Region = tvm.ir.TensorRegion if hasattr(tvm.ir, "TensorRegion") else tvm.tirx.BufferRegion
"""A part of a buffer, as tile primitives take it."""

Analyzer = tvm.sym.Analyzer if hasattr(tvm, "sym") else tvm.arith.Analyzer
"""Simplifies expressions."""


def buffer_of(part: Any) -> Any:
    """The buffer of a load or of a region."""
    return part.source if hasattr(part, "source") else part.buffer
