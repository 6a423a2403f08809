"""Loads phaseflip's pytest plugin where the package is not installed too, and pytester; skips what TVM 0.27 has not."""

import pytest

from phaseflip.frontend.tirx.version import installed_series

pytest_plugins = ["phaseflip.pytest_plugin", "pytester"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if installed_series() != "0.27":
        return
    from tests.not_under_0_27 import NOT_UNDER_0_27

    for item in items:
        name, _, parameter = item.nodeid.partition("[")
        explored = f"tests/litmus/{parameter.partition('.')[0]}.py"
        keys = (item.nodeid, name, name.partition("::")[0], explored)
        reason = next((NOT_UNDER_0_27[key] for key in keys if key in NOT_UNDER_0_27), None)
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
