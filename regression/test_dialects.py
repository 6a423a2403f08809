"""The kernels of the project give the same under every release of TVM: bits of D, findings, counters.

The inputs are integers whose sums are exact in float32, so that the bits are the same on every machine.

They are written once in each dialect. What they give under TVM 0.26 is recorded in baselines/dialects.json; to write it
anew, under that release:

    python -m regression.test_dialects
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip.frontend.tirx.version import installed_series
from phaseflip.gemm.inputs import make_inputs
from phaseflip.gemm.kernel import find_kernel, list_kernels
from phaseflip.run.simulator import simulate

BASELINE = Path(__file__).parent / "baselines" / "dialects.json"
RECORDED_UNDER = "0.26"
SCHEDULES = ("in-order", "eager", "lazy", "random:1")
OF_THE_DIALECT = {
    "ld.shared": "0.26 reads the address that tcgen05.alloc wrote at every use, 0.27 takes it for column 0",
    "bytes_shared_loaded": "as ld.shared",
    "mapa": "0.26 names a CTA with the arrival, 0.27 maps the barrier's address first",
    "cvta.to.shared": "0.27 spells it where an instruction takes a 32-bit address",
}
"""Counters that differ because the kernels are spelled differently -> why."""


def cases() -> list[tuple[str, tuple[int, int, int], str]]:
    """(kernel, shape, schedule): the smallest shape, and several tiles and chunks where the rule allows."""
    found = []
    for kernel in list_kernels():
        rule = kernel.shape_rule
        assert rule is not None
        m, n, k = kernel.smallest_shape
        for shape in dict.fromkeys([(m, n, k), rule.nearest(2 * m, 2 * n, 3 * k)]):
            found += [(kernel.name, shape, schedule) for schedule in SCHEDULES]
    return found


def outcome(name: str, shape: tuple[int, int, int], schedule: str) -> dict[str, Any]:
    """What a run gives, without what the dialect itself changes."""
    kernel = find_kernel(name)
    M, N, K = shape
    A, B = make_inputs("integers", M, N, K, seed=3, dtype="float16")
    run = simulate(kernel.build(*shape), [A, B, np.zeros((M, N), np.float16)], schedule)
    D = run.outputs[list(run.outputs)[-1]]
    counters = {c: n for c, n in sorted(run.counters.items()) if c not in OF_THE_DIALECT}
    return {
        "D": hashlib.sha256(D.tobytes()).hexdigest(),
        "findings": [f.title for f in run.findings],
        "counters": counters,
    }


def key(name: str, shape: tuple[int, int, int], schedule: str) -> str:
    """ "hgemm_v1 128x128x64 lazy" """
    return f"{name} {'x'.join(map(str, shape))} {schedule}"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    return json.loads(BASELINE.read_text())


@pytest.mark.parametrize("case", cases(), ids=lambda case: key(*case).replace(" ", "-"))
def test_a_kernel_gives_what_it_gave_under_the_first_release(
    case: tuple[str, tuple[int, int, int], str], recorded: dict[str, Any]
) -> None:
    assert outcome(*case) == recorded[key(*case)]


def test_every_case_is_recorded_and_nothing_else(recorded: dict[str, Any]) -> None:
    assert list(recorded) == [key(*case) for case in cases()]


def main() -> None:
    """Record what every case gives."""
    if installed_series() != RECORDED_UNDER:
        raise SystemExit(f"record it under TVM {RECORDED_UNDER}, not {installed_series()}")
    found = {key(*case): outcome(*case) for case in cases()}
    BASELINE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
