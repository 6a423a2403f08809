"""Named barriers whose threads a schedule could mix: one verdict under every schedule, also with fewer checks."""

import numpy as np
import pytest

from phaseflip import simulate
from tests.cases.harness import SCHEDULES, errors, lowered, run

SMALL = (128, 256, 128)


def found(name, *shape, **options):
    """Schedule -> code, line and other line of every error."""
    return {
        s: [
            (f.code, f.line, f.other and f.other.line)
            for f in errors(name, *shape, schedule=s, **options)
        ]
        for s in SCHEDULES
    }


def only(*findings):
    return dict.fromkeys(SCHEDULES, list(findings))


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("n29_collision_bad", (136, 79)),
        ("n29_id_collision_bad", (129, 75)),
        ("n09c_advice_followed", (129, 75)),
    ],
)
def test_two_groups_in_one_barrier_at_once_passed_under_some_schedules(name, lines):
    assert found(name, *SMALL) == only(("barrier-mismatch", *lines))
    (finding,) = errors(name, *SMALL)
    assert finding.what.startswith("256 threads enter barrier 12, which takes 128, from lines ")
    assert "give each group an id of its own" in finding.fix


def test_a_barrier_called_in_two_branches_hung_under_some_schedules_only():
    results = found("own_v9_two_places", 512, 256, 128, factory="hgemm_v9")
    pairs = [(189, 187), (204, 189), (206, 187), (206, 204)]
    assert results == only(*(("barrier-mismatch", *pair) for pair in pairs))


@pytest.mark.parametrize("shape", [(128, 384, 128), (128, 768, 64)])
def test_an_arrival_that_laps_the_sync_was_silent(shape):
    assert found("n27_arrive_twice_bad", *shape) == only(("barrier-mismatch", 134, 134))


def test_an_aligned_barrier_of_two_branches_was_silent():
    assert found("n09_split_bar_sync_bad", *SMALL) == only(("divergent-collective", 75, 129))
    (finding,) = errors("n09_split_bar_sync_bad", *SMALL)
    assert "T.ptx.barrier.sync(12, 256)" in finding.fix
    (note,) = run("n09_split_bar_sync_bad", *SMALL, profile="practice").findings
    assert (note.severity, note.line) == ("note", 75)


def test_an_allocation_by_two_warps_had_two_verdicts():
    results = found("alloc_by_two_warps_bad", 256, 128, 256, factory="hgemm_v7")
    assert results == only(("divergent-collective", 56, None), ("deadlock", 56, None))
    for finding in errors("alloc_by_two_warps_bad", 256, 128, 256, factory="hgemm_v7"):
        assert "one warp of the CTA" in finding.fix


@pytest.mark.parametrize("schedule", ["in-order", "lazy", "random:1", "random:7"])
@pytest.mark.parametrize("name", ["n29_collision_ok", "n09_split_bar_sync_ok"])
def test_the_cures_are_silent(name, schedule):
    assert not run(name, *SMALL, schedule=schedule).findings


@pytest.mark.parametrize("schedule", ["in-order", "lazy", "random:1", "random:7"])
def test_a_sync_in_place_of_the_arrival_is_no_error(schedule):
    assert not errors("n27_arrive_twice_ok", 128, 384, 128, schedule=schedule)


def test_protocol_checks_alone_find_the_same():
    kernel = lowered("n29_id_collision_bad", *SMALL)
    arrays = [np.zeros(shape, dtype) for _, dtype, shape in kernel.parameters]
    for schedule in ("in-order", "random:3"):
        found = simulate(kernel, arrays, schedule, checks="protocol").findings
        assert [(f.code, f.line) for f in found] == [("barrier-mismatch", 129)]
