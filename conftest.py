"""Loads phaseflip's pytest plugin where the package is not installed too, and pytester; skips what TVM 0.27 has not."""

import pytest

from phaseflip.frontend.tirx.version import installed_series

pytest_plugins = ["phaseflip.pytest_plugin", "pytester"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if installed_series() != "0.27":
        return
    from tests.not_under_0_27 import NOT_UNDER_0_27

    for item in items:
        module = item.nodeid.partition("[")[2].partition(".")[0]  # of a program that is explored
        names = (item.nodeid, f"tests/litmus/{module}.py")
        reason = next(
            (r for key, r in NOT_UNDER_0_27.items() if any(n.startswith(key) for n in names)), None
        )
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
