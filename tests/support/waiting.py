"""Waiting for a thing that happens elsewhere."""

import asyncio
import time

PATIENCE = 600
"""Seconds for what takes a few, on any machine."""


def until(condition, seconds=PATIENCE):
    """Wait until the condition holds, and fail if it does not in time; return what it returned."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return result


async def until_later(condition, seconds=PATIENCE):
    """Do the same, and let the event loop go on meanwhile."""
    deadline = time.monotonic() + seconds
    while True:
        if result := condition():
            return result
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.01)
