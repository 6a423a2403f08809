"""Every fault of the catalogue is reported under its name in each kernel that it is listed for, under every schedule.

At the first shape at which the fault matters. Normally one fault in 24 under four schedules; under
PHASEFLIP_ACCEPTANCE=full all of them under 23: in-order, eager, lazy and random:0 to random:19.
"""

import os

import pytest

from phaseflip.faults import as_studied, catalogue, shapes_for
from phaseflip.gemm.kernel import list_kernels
from phaseflip.study.mutant_run import run_item

FULL = os.environ.get("PHASEFLIP_ACCEPTANCE") == "full"
SEEDS = 20 if FULL else 1
SCHEDULES = ("in-order", "eager", "lazy", *(f"random:{seed}" for seed in range(SEEDS)))
STEP = 1 if FULL else 24
LISTED = [
    pytest.param(kernel, fault, id=f"{kernel.name}-{fault.name}")
    for kernel in list_kernels()
    for fault in catalogue()
    if fault.applies_to(kernel.name)
][::STEP]


@pytest.mark.parametrize(("kernel", "fault"), LISTED)
def test_a_listed_fault_has_its_name_under_every_schedule(kernel, fault):
    studied = as_studied(kernel)
    shape = first_shape_that_shows(studied, fault)
    sites = fault.sites(studied.build(*shape))
    assert sites
    for site in sites:
        told = {}
        for schedule in SCHEDULES:
            outcome = run_item(item(studied, fault, site.index, shape, schedule))
            told.setdefault((outcome["fate"], *outcome["codes"]), []).append(schedule)
        fates = {fate for fate, *_ in told}
        assert fates in ({"killed as expected"}, {"equivalent"}), told


def first_shape_that_shows(kernel, fault):
    """The first shape that suits the fault at which a site of it is reported as expected."""
    for shape in shapes_for(fault, kernel):
        for site in fault.sites(kernel.build(*shape)):
            outcome = run_item(item(kernel, fault, site.index, shape, "in-order"))
            if outcome["fate"] == "killed as expected":
                return shape
    raise AssertionError(f"{fault.name} is not reported in {kernel.name} at any of its shapes")


def item(kernel, fault, site, shape, schedule):
    """What `run_item` runs."""
    return {
        "kernel": kernel.name,
        "fault": fault.name,
        "site": site,
        "shape": list(shape),
        "schedule": schedule,
        "seed": 0,
    }
