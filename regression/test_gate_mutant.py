"""The mutant that proves the gate on times: more work of the same kind, the same bits, nothing to find."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phaseflip.gemm.kernel import find_kernel
from phaseflip.gemm.verify import verify
from regression import prove_gate
from regression.slower import slower
from tests import fake_gpu

SMALL = (128, 128, 320)
PER_CHUNK = {"wgmma.mma_async": 32, "cp.async.bulk.tensor.g2s": 2, "bytes_global_to_shared": 32768}
"""Of one CTA: four MMAs in each of eight warps."""

CASES = [(SMALL, "in-order", repeats) for repeats in prove_gate.STRENGTHS]
CASES += [
    (shape, schedule, 5)
    for shape in ((128, 128, 64), (256, 128, 512))
    for schedule in ("in-order", "eager", "lazy", "random:3")
]


@pytest.mark.parametrize(("shape", "schedule", "repeats"), CASES)
def test_it_is_right_and_silent(shape: tuple[int, int, int], schedule: str, repeats: int) -> None:
    kernel = find_kernel("hgemm_sm90")
    mutant = verify(slower(kernel, repeats), *shape, schedule=schedule, gate="all")
    assert mutant.passed and mutant.findings == [], mutant.message
    original = verify(kernel, *shape, schedule=schedule, checks="none")
    assert np.array_equal(mutant.D.view(np.uint16), original.D.view(np.uint16))


def test_it_does_so_many_chunks_more() -> None:
    kernel = find_kernel("hgemm_sm90")
    before, after = (
        verify(k, *SMALL, checks="none").run.counters for k in (kernel, slower(kernel, 4))
    )
    for name, per_chunk in PER_CHUNK.items():
        assert after[name] - before[name] == 4 * per_chunk, name


def test_the_proof_reports_each_strength(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    fake_gpu.install(monkeypatch)
    monkeypatch.setattr(prove_gate, "SHAPE", fake_gpu.SHAPE)
    monkeypatch.setattr(prove_gate, "REPEATS", 3)
    folder = tmp_path / "gate"
    folder.mkdir()
    fake_gpu.kernel(folder / "reference", 200.0, "hgemm_sm90")
    for repeats, us in zip(prove_gate.STRENGTHS, (202.0, 210.0, 212.5), strict=True):
        fake_gpu.kernel(prove_gate.mutants_folder(folder, repeats), us, "hgemm_sm90")
    assert prove_gate.main([str(folder)]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    flagged = {name: r["flagged"] for name, r in report.items() if "flagged" in r}
    assert flagged == {
        "unchanged": 0, "5.00% more chunks": 0, "6.25% more chunks": 3, "7.50% more chunks": 3,
    }  # fmt: skip
    for words in ([], ["build"], ["x", "y"]):
        assert prove_gate.main(words) == 2
    assert prove_gate.main([str(tmp_path / "none")]) == 2
