"""Tests that have no meaning under TVM 0.27, and why; they are skipped there with that reason."""

_CHECKED_BY_TVM = "TVM 0.27 refuses such a number of registers itself, as the kernel is parsed"
_NOT_SPELLED = "phaseflip.spelling does not spell these instructions for TVM 0.27 yet"
_HARMLESS = (
    "the seed kernels take TMEM column 0 for their accumulator there and never read the address, "
    "so nothing needs that barrier"
)
_FAULT = "regression/test_fault_detection.py::test_fault_is_reported_as_the_catalogue_says"

NOT_UNDER_0_27 = {
    "tests/litmus/test_setmaxnreg.py::test_the_number_is_a_multiple_of_8": _CHECKED_BY_TVM,
    "tests/litmus/test_setmaxnreg.py::test_the_number_is_at_least_24": _CHECKED_BY_TVM,
    "tests/litmus/test_setmaxnreg.py::test_the_number_is_at_most_256": _CHECKED_BY_TVM,
    "tests/litmus/test_explore.py::test_all_interleavings_of_a_litmus_program_give_the_same[test_setmaxnreg.roles fewer=44]":
        _CHECKED_BY_TVM,
    "tests/litmus/test_cp_async.py": _NOT_SPELLED,
    "tests/litmus/test_flags.py": _NOT_SPELLED,
    "tests/litmus/test_launch_control.py": _NOT_SPELLED,
    "tests/litmus/test_mbarrier_polls.py": _NOT_SPELLED,
    f"{_FAULT}[hgemm_v1 missing-init-sync": _HARMLESS,
    f"{_FAULT}[hgemm_v2 missing-init-sync": _HARMLESS,
    f"{_FAULT}[hgemm_v3 missing-init-sync": _HARMLESS,
    "regression/test_fault_detection.py::test_the_record_has_the_whole_catalogue_and_nothing_else": "it is the record of 0.26",
}  # fmt: skip
"""How the name of a test begins, or its file -> the reason."""
