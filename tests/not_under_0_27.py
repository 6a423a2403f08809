"""Tests that have no meaning under TVM 0.27, and why; they are skipped there with that reason."""

_CHECKED_BY_TVM = "TVM 0.27 refuses such a number of registers itself, as the kernel is parsed"
_NOT_SPELLED = "phaseflip.spelling does not spell these instructions for TVM 0.27 yet"

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
}  # fmt: skip
"""A test, with or without its parameters, or a file of them -> the reason."""
