"""A family of instructions is one new file: CONTRIBUTING's example is added to a copy of the package, and kernels use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "tests" / "data" / "relay_kernels.py"


def example() -> tuple[str, str]:
    """Path and text of the module that the section "Add a family" shows."""
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a family\n")[2]
    path = re.search(r"`(phaseflip/machine/\w+\.py)`; `tests/test_new_family", section)
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert path is not None and code is not None
    return path[1], code[1]


def environment(package: Path) -> dict[str, str]:
    """What a process imports phaseflip of the folder `package` with, and all else as this one does."""
    path = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `relay_kernels.py` prints with the copy of the package."""
    copy = tmp_path_factory.mktemp("copy")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "phaseflip", copy / "phaseflip", ignore=ignored)
    path, code = example()
    assert not (copy / path).exists()
    (copy / path).write_text(code)
    done = subprocess.run(
        [sys.executable, str(KERNELS)],
        capture_output=True,
        text=True,
        env=environment(copy),
        cwd=copy,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert Path(found["package"]).is_relative_to(copy)
    return found


def test_it_is_simulated_and_counted(seen: dict[str, Any]) -> None:
    run = seen["handover"]
    assert run["findings"] == [] and run["output"] == 7
    assert run["counters"] == {"relay.put": 1, "relay.wait": 1}


def test_a_race_is_told_in_its_words(seen: dict[str, Any]) -> None:
    (race,) = seen["race"]["findings"]
    assert race["title"] == "race shared raw"
    assert race["what"].endswith(" that put of CTA 0 warp 0 lane 0 writes")
    assert race["why"] == f"no barrier orders line {race['put']} before line {race['read']}"
    assert race["fix"] == (
        f"relay.wait after the put at line {race['put']}, by the threads that issue it, "
        f"then T.cuda.warp_sync() before line {race['read']}"
    )


def test_what_the_report_of_the_race_advises_cures_it(seen: dict[str, Any]) -> None:
    assert seen["advised"]["findings"] == []


def test_a_deadlock_report_knows_that_it_arrives(seen: dict[str, Any]) -> None:
    (found,) = seen["deadlock"]["findings"]
    assert found["title"] == "deadlock"
    supplier = f"relay.put at line {found['put']}, which arrives on bar, was executed once"
    assert supplier in found["details"]


def test_mutation_operators_leave_it_out(seen: dict[str, Any]) -> None:
    assert {"relay_put", "relay_wait"} <= set(seen["dropped"])


def test_an_architecture_without_it_is_named(seen: dict[str, Any]) -> None:
    assert seen["on_hopper"] == "uses relay.put, which sm_90a has not, but sm_100a or sm_103a"
    assert seen["on_blackwell"] == ""


def test_it_has_its_row_in_the_comparison(seen: dict[str, Any]) -> None:
    assert seen["measured"] == ["relay.put"]


def test_without_its_file_the_kernel_is_refused_by_name_and_line() -> None:
    done = subprocess.run(
        [sys.executable, str(KERNELS)],
        capture_output=True,
        text=True,
        env=environment(ROOT),
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(r"UnsupportedInstruction: .*relay_kernels.py:\d+: .*helper relay_put", last)
