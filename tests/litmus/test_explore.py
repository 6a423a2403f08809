"""Every litmus program under all interleavings: the same findings in each, and equal outputs where none is an error.

At most 30 runs for each program, of a part of them; with PHASEFLIP_ACCEPTANCE=full 1,000 runs for each of all programs.
`python -m tests.litmus.test_explore [LIMIT]` prints how many finish, which do not, and what it took.
"""

import importlib
import os
import pkgutil
import sys
import time
from collections import Counter

import numpy as np
import pytest

from phaseflip import simulate
from tests.litmus import __path__ as folder
from tests.litmus import harness

FULL = os.environ.get("PHASEFLIP_ACCEPTANCE") == "full"
LIMIT = 1_000 if FULL else 30
STRIDE = 1 if FULL else 7

DIFFERENT = {
    "loads init_sync=False": "the elected lane is the initialising thread, or another one",
    "meeting": "its output says which lane was elected",
    "product commit_after=False": "tcgen05.dealloc before the MMA lands hides its race with tcgen05.ld",
    "product wait=False": "the same",
    "product parity=1": "the same",
    "copied wait=False": "the same, of tcgen05.cp",
    "refills wait_load=False": "the two loads overrun the phase in one order only",
}
"""Programs whose findings or outputs depend on the interleaving, and why."""


def programs():
    """(name, factory, flags) of all variants that the litmus tests name."""
    for module in pkgutil.iter_modules(folder):
        if module.name.startswith("test_") and module.name != "test_explore":
            importlib.import_module(f"tests.litmus.{module.name}")
    for factory, flags in harness.PROGRAMS:
        words = [factory.__name__, *(f"{k}={v}" for k, v in flags)]
        yield " ".join(words), factory, flags


def explored(factory, flags, limit):
    """What exploring a program comes to."""
    lowered = harness._lowered(factory, flags)
    arrays = [np.zeros(shape, dtype) for _, dtype, shape in lowered.parameters]
    return simulate(lowered, arrays, "explore", limit=limit).explored


PROGRAMS = list(programs())


@pytest.mark.parametrize(
    ("name", "factory", "flags"), PROGRAMS[::STRIDE], ids=[name for name, *_ in PROGRAMS[::STRIDE]]
)
def test_all_interleavings_of_a_litmus_program_give_the_same(name, factory, flags):
    result = explored(factory, flags, LIMIT)
    assert result.difference is None or name in DIFFERENT, str(result)


def write(line):
    """A line on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    """Explore all programs and print the figures."""
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    count, started = Counter(), time.perf_counter()
    for name, factory, flags in PROGRAMS:
        result = explored(factory, flags, limit)
        count[result.verdict] += 1
        count["runs"] += result.runs
        count["tried"] += result.tried
        if result.verdict != "all":
            write(f"{factory.__module__.rpartition('.')[2]} {name}: {result}")
    seconds = time.perf_counter() - started
    write(
        f"{len(PROGRAMS)} programs, limit {limit}: {count['all']} finish without a difference, {count['different']} differ,"
        f" {count['incomplete']} do not finish; {count['runs']} interleavings, {count['tried']} runs, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
