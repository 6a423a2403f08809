"""Outcomes of two simulators do not belong into one table: a study knows the sources of the whole package."""

from __future__ import annotations

from pathlib import Path

import pytest

from phaseflip.study import plan


def test_a_change_in_any_package_makes_another_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Path(plan.__file__).parents[1]
    assert package.name == "phaseflip" and (package / "__init__.py").exists()
    files = [tmp_path / "phaseflip" / name for name in ("study/plan.py", "machine/sync/bar.py")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("")
    monkeypatch.setattr(plan, "__file__", str(files[0]))
    digests = [plan._own_sources()]
    for file in files:
        file.write_text("changed = True\n")
        digests.append(plan._own_sources())
    assert len(set(digests)) == 3
