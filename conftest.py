"""Loads phaseflip's pytest plugin where the package is not installed too, and pytester."""

pytest_plugins = ["phaseflip.pytest_plugin", "pytester"]
