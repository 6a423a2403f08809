"""Examples of faults: what goes and what comes in a kernel's TVMScript. Each is a test of its fault."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import dedent

from . import sites


@dataclass(frozen=True)
class Example:
    """What a fault does to one kernel: a piece of its TVMScript before and after.

    In a line `...` stands for anything; a line that is only `...` stands for any number of lines. Indentation counts
    from the first line. The rest of the kernel is the same before and after.
    """

    before: str
    after: str
    kernel: str = "hgemm_v2"
    site: int = 0
    shape: tuple[int, int, int] = (128, 128, 128)

    def describes(self, original: str, mutant: str) -> bool:
        """Whether the two scripts are those of the example, and alike outside the piece."""
        original, mutant = original.rstrip() + "\n", mutant.rstrip() + "\n"
        for old in _pattern(self.before).finditer(original):
            new = _pattern(self.after).search(mutant, old.start())
            if new is None or mutant[: new.start()] != original[: old.start()]:
                continue
            if mutant[new.end() :] == original[old.end() :]:
                return True
        return False


def _pattern(fragment: str) -> re.Pattern[str]:
    parts = []
    indent = "^(?P<indent> *)"
    for line in sites.printed(dedent(fragment)).strip().splitlines():
        if line == "...":
            parts.append("(?:.*\n)*?")
            indent = " *"
            continue
        parts.append(indent + re.escape(line).replace(re.escape("..."), ".*?") + "\n")
        indent = "(?P=indent)" if indent != " *" else indent
    return re.compile("".join(parts), re.MULTILINE)
