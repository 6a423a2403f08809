"""Tests that have no meaning under TVM 0.27, and why; they are skipped there with that reason."""

_CHECKED_BY_TVM = "TVM 0.27 refuses such a number of registers itself, as the kernel is parsed"

NOT_UNDER_0_27 = {
    "tests/litmus/test_setmaxnreg.py::test_the_number_is_a_multiple_of_8": _CHECKED_BY_TVM,
    "tests/litmus/test_setmaxnreg.py::test_the_number_is_at_least_24": _CHECKED_BY_TVM,
    "tests/litmus/test_setmaxnreg.py::test_the_number_is_at_most_256": _CHECKED_BY_TVM,
}
"""Test, without its parameters -> the reason."""
