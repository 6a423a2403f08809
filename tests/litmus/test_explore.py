"""Every litmus program under all interleavings: the same findings in each, and equal outputs where none is an error.

At most 100 runs for each program, of a part of them; with PHASEFLIP_ACCEPTANCE=full 1,000 runs for each of all programs.
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
LIMIT = 1_000 if FULL else 100
STRIDE = 1 if FULL else 7

DIFFERENT = {
    "test_tma.loads init_sync=False": "the elected lane is the thread that initialised the barrier, or another one",
    "test_tcgen05_cp.piped other_thread=True": "the elected lane is the other thread, or not",
    "test_tcgen05_pairs.accumulators second_thread=True": "the elected lane is the second thread, or not",
    "test_tcgen05.product elect=False": "the lowest lane stands for all that issue an MMA; the elected one commits",
    "test_warp_instructions.meeting": "its output says which lane was elected",
    "test_tma.refills wait_load=False": "after its over-arrival, bytes come for a phase that is over, or is not",
}
"""Programs whose findings or outputs depend on the interleaving, and why: the elected lane, but for the last."""

INCOMPLETE = {
    "test_tcgen05.product commit_elect=False": "32 commits where one is expected, in any order",
    "test_tcgen05.product parity=1": "four warps may read before the MMA has written, or after",
    "test_tma.loads parity=1": "the same of a load",
    "test_setmaxnreg.roles dec=False more=264": "a second setmaxnreg looks at the other warps",
    "test_setmaxnreg.roles twice=True": "the same",
    "test_setmaxnreg.roles meet=False twice=True": "the same",
    "test_wgmma.rounds product=False": "128 threads may each lap another",
    "test_wgmma.rounds newest=1": "the same",
    "test_launch_control.stealing meet=False": "two warps lap each other for as many rounds as there are tiles",
}
"""Programs that 100 runs do not finish, and what has too many orders."""


def programs():
    """(name, factory, flags) of all variants that the litmus tests name."""
    for module in pkgutil.iter_modules(folder):
        if module.name.startswith("test_") and module.name != "test_explore":
            importlib.import_module(f"tests.litmus.{module.name}")
    for factory, flags in harness.PROGRAMS:
        module = factory.__module__.rpartition(".")[2]
        words = [f"{module}.{factory.__name__}", *(f"{k}={v}" for k, v in flags)]
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
    assert (result.difference is None) == (name not in DIFFERENT), str(result)
    assert result.verdict != "incomplete" or name in INCOMPLETE, str(result)


def test_at_least_95_of_100_programs_finish_without_a_difference():
    named = {name for name, *_ in PROGRAMS}
    assert named >= {*DIFFERENT, *INCOMPLETE}
    assert len(DIFFERENT) + len(INCOMPLETE) <= 0.05 * len(named)


def write(line):
    """A line on standard output, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    """Explore all programs and print the figures."""
    limit = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    count, started = Counter(), time.perf_counter()
    for name, factory, flags in PROGRAMS:
        result = explored(factory, flags, limit)
        count[result.verdict] += 1
        count["runs"] += result.runs
        count["tried"] += result.tried
        if result.verdict != "all":
            write(f"{name}: {result}")
    seconds = time.perf_counter() - started
    write(
        f"{len(PROGRAMS)} programs, limit {limit}: {count['all']} finish without a difference, {count['different']} differ,"
        f" {count['incomplete']} do not finish; {count['runs']} interleavings, {count['tried']} runs, {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
