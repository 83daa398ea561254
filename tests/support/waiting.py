"""Waiting for a thing that happens elsewhere."""

import time

PATIENCE = 600
"""Seconds for what takes a few, on any machine."""


def until(condition):
    """Wait until the condition holds, and fail if it does not; return what it returned."""
    deadline = time.monotonic() + PATIENCE
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return result
