"""Kernels from generated text: TVM's parser reads the source back, so it has to be found under a name.

And what the text may call while it is parsed.
"""

from __future__ import annotations

import linecache
from typing import Any


def function_of(source: str, name: str, function: str = "kernel") -> Any:
    """Execute TVMScript text and return the PrimFunc that it defines; its lines are those of "<name>"."""
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": name}
    exec(compile(source, file, "exec"), names)
    return names[function]


def in_cta(buffer: Any, rank: Any) -> Any:
    """The buffer of CTA `rank` of the cluster that corresponds to one in shared memory (mapa); for use in a kernel."""
    from tvm.ir import PointerType, PrimType
    from tvm.tirx import Var

    from phaseflip.spelling import T

    pointer = PointerType(PrimType(buffer.dtype), "shared")
    address = Var(f"{buffer.name}_in_cta", pointer)
    mapped = T.ptx.map_shared_rank(buffer.ptr_to([0] * len(buffer.shape)), rank)
    T.Bind(T.reinterpret(pointer, mapped), var=address)
    return T.decl_buffer(
        buffer.shape, buffer.dtype, data=address, scope="shared", layout=buffer.layout
    )
