"""Fixtures of the regression tests."""

import signal

import pytest


@pytest.fixture
def heeds_interrupts():
    """As a process in the foreground; one in the background of a script ignores them, and its children do."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
