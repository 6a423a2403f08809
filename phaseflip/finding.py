"""Findings are values: what is wrong, where, why, and what would fix it; one function renders them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One defect of a kernel. `code` is from the table of finding names; `severity` is "error" or "note"."""

    code: str
    message: str
    severity: str = "error"
    file: str = ""
    line: int = 0
    count: int = 1

    def __str__(self) -> str:
        return f"{self.severity}: {self.code} at {self.file}:{self.line}: {self.message}"

    def to_json(self) -> dict[str, Any]:
        """Keys that scripts rely on."""
        return {
            "code": self.code,
            "severity": self.severity,
            "file": self.file,
            "line": self.line,
            "message": self.message,
            "count": self.count,
        }
