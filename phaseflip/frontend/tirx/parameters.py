"""Parameters of a kernel that are passed by value."""

from __future__ import annotations

from ...errors import BadInput

SCALARS = ("int32", "int64", "uint32", "float32", "float64")
"""Types of numbers that TVM's runtime can pass to a kernel by value."""


def by_value(name: str, dtype: str) -> str:
    """The dtype of a parameter that is no buffer; BadInput if it is no number that TVM's runtime can pass to a kernel."""
    if dtype in SCALARS:
        return dtype
    if dtype in ("handle", "void"):
        raise BadInput(
            f"parameter {name} of the kernel is neither a buffer nor a number; declare it as T.Buffer(shape, dtype)"
        )
    raise BadInput(
        f"parameter {name} of the kernel is a {dtype} by value; TVM's runtime passes {', '.join(SCALARS)}"
    )
