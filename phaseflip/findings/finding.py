"""A finding is a value: what is wrong, where, why, and what would fix it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.place import Place


@dataclass(frozen=True)
class Finding:
    """One defect of a kernel.

    `code` is from `RULES`; `memory` (global, shared, tmem, register) and `kind` (raw, war, waw) go with a race; `place`
    is the access that is reported, `other` the one it collides with; `what` names them and their agents, `why` the
    reason, `fix` what would mend it; `count` how often the same fault was met at the same lines; `details` more lines.
    `follows`: it comes of a missing wait, and what collides for want of that wait is told before it. `wrong_phase`: a race
    that comes of a wait for the wrong phase.
    """

    code: str
    why: str
    severity: str = "error"
    place: Place = Place()
    other: Place | None = None
    what: str = ""
    fix: str = ""
    memory: str = ""
    kind: str = ""
    count: int = 1
    details: tuple[str, ...] = ()
    data: Any = None
    follows: bool = False
    wrong_phase: bool = False

    @property
    def file(self) -> str:
        """File of the reported access."""
        return self.place.file

    @property
    def line(self) -> int:
        """Line of the reported access."""
        return self.place.line

    @property
    def message(self) -> str:
        """What and why, in one line."""
        return ": ".join(part for part in (self.what, self.why) if part)

    @property
    def title(self) -> str:
        """Code with memory and kind: "race shared raw"."""
        return " ".join(part for part in (self.code, self.memory, self.kind) if part)

    def __str__(self) -> str:
        return f"{self.severity}: {self.title} at {self.place}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Keys that scripts rely on."""
        other = None if self.other is None else _where(self.other)
        found = {
            "code": self.code,
            "severity": self.severity,
            "memory": self.memory or None,
            "kind": self.kind or None,
            "file": self.file,
            "line": self.line,
            "mnemonic": self.place.mnemonic or None,
            "callers": callers(self.place),
            "other": other,
            "message": self.message,
            "fix": self.fix or None,
            "count": self.count,
        }
        return found if self.data is None else found | {"details": self.data}


def callers(place: Place) -> list[dict[str, Any]]:
    """Where the inlined functions around a place are called, innermost first: file and line of each."""
    return [{"file": file, "line": line} for file, line in place.callers]


def _where(place: Place) -> dict[str, Any]:
    return {
        "file": place.file,
        "line": place.line,
        "mnemonic": place.mnemonic or None,
        "callers": callers(place),
    }
