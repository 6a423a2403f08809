"""Stand-ins for `phaseflip.study.mutant_run:run_item`, so that studies can be tested without a compiler.

What a run does is in the item's fault: "pass", "kill", "kill-large" (only from 256 rows on), "raise", "crash", "hang".
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from phaseflip.study.mutant_run import NOTICES, PASSES, blank_outcome
from phaseflip.study.plan import Plan

LOG = "PHASEFLIP_TEST_RUNS"
DELAY = "PHASEFLIP_TEST_DELAY"


def run(item: dict[str, Any]) -> dict[str, Any]:
    """An outcome that depends on the item only; each run is noted in the file that LOG names."""
    if LOG in os.environ:
        with Path(os.environ[LOG]).open("a") as log:
            log.write(f"{item['kernel']} {item['fault']} {item['shape']} {item['schedule']}\n")
    time.sleep(float(os.environ.get(DELAY, "0")))
    fault = item["fault"].split("/")[0]
    if fault == "raise":
        raise TypeError("not a number")
    if fault == "crash":
        os.abort()
    if fault == "hang":
        time.sleep(60)
    killed = fault == "kill" or (fault == "kill-large" and item["shape"][0] >= 256)
    outcome = blank_outcome(item) | {
        "fate": "killed as expected" if killed else "equivalent",
        "codes": ["race shared raw"] if killed else [],
        "kind": "control" if fault == "no-op" else "catalogue",
        "sentence": f"It is the fault {fault}.",
        "catalogued": True,
        "site": "kernels/fake.py:7",
        "source": "T.cuda.cta_sync()",
        "change": ["- T.cuda.cta_sync()"],
        "seconds": 0.25,
    }
    outcome["oracles"] = dict.fromkeys(outcome["oracles"], PASSES)
    if killed:
        outcome["oracles"]["ordering"] = NOTICES
    return outcome


def plan(faults: tuple[str, ...], kernels: tuple[str, ...] = ("fake_v1", "fake_v2")) -> Plan:
    """The control and `faults` on each kernel, two shapes, two schedules."""
    groups = [
        tuple(
            {
                "kernel": kernel,
                "fault": fault,
                "site": 0,
                "shape": [rows, 128, 64],
                "schedule": schedule,
                "seed": 0,
            }
            for schedule in ("in-order", "eager")
        )
        for kernel in kernels
        for fault in ("no-op", *faults)
        for rows in (128, 256)
    ]
    return Plan(tuple(groups), {"kernels": list(kernels), "faults": list(faults)})
