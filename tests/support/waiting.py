"""Waiting for a thing that happens elsewhere."""

import time


def until(condition, seconds=30):
    """Wait until the condition holds, and fail if it does not in time; return what it returned."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return result
