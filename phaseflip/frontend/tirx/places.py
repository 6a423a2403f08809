"""Places in the user's source: what TVM's spans say of them, and marks that carry them through its passes."""

from __future__ import annotations

from typing import Any

import tvm

from ...ir import nodes as ir
from .tvm_names import StringImm

_LIBRARY = tvm.__file__.rsplit("/", 1)[0] + "/"
LINE_MARK = "phaseflip.line"
"""Key of the attribute statements that carry a user's source line through TVM's passes (node: file, value: line)."""


def mark_node(file: str, callers: tuple[tuple[str, int], ...] = ()) -> Any:
    """The node of a line mark: the file, and a line for each call of the inlined functions around the statement."""
    return StringImm("\n".join([file, *(f"{name}:{line}" for name, line in callers)]))


def marked_site(mark: Any) -> ir.Site:
    """What a line mark says."""
    file, *callers = str(mark.node.value).split("\n")
    calls = (call.rpartition(":") for call in callers)
    return ir.Site(file, int(mark.value), tuple((name, int(line)) for name, _, line in calls))


def user_site(span: Any) -> ir.Site | None:
    """File and line of a span outside TVM's own library, of inlined functions the innermost, with their calls; or None."""
    site = span_site(span)
    return None if site is None or _in_library(site.file) else site


def statement_site(s: Any) -> ir.Site | None:
    """File and line of a statement: where passes have dropped its span, or it never had one, of a part that begins it."""
    parts = (getattr(s, name, None) for name in ("condition", "buffer"))
    spans = [s.span, *(part.span for part in parts if part is not None)]
    return next((site for span in spans if (site := user_site(span)) is not None), None)


def span_site(span: Any) -> ir.Site | None:
    if span is None:
        return None
    if hasattr(span, "spans"):
        found = [s for part in span.spans if (s := span_site(part)) is not None]  # calls come first
        users = [s for s in found if not _in_library(s.file)]
        if not users:
            return found[0] if found else None
        *calls, site = users
        return ir.Site(site.file, site.line, tuple((s.file, s.line) for s in reversed(calls)))
    return ir.Site(str(span.source_name.name), int(span.line))


def _in_library(file: str) -> bool:
    return file.startswith(_LIBRARY)
