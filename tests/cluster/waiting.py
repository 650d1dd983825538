"""Waiting for what another process does."""

import time

import pytest


def eventually(condition, seconds):
    """The condition's first true value. Fails when it has none within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    return pytest.fail(f"not within {seconds} s: {condition.__doc__ or condition}")
