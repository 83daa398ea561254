"""Leases that are over sooner: a test of what comes then would stand still for half a minute."""

import os

from scrapy.core.engine import ExecutionEngine

from scrapy_bloom.redis import upkeep

SHORT = 10.0
"""Seconds. Less, and a live worker counts as dead if its processor is taken away for five."""


def shorten(patch):
    """Make leases short in this process and in all that it starts, until the patch is undone."""
    patch.setattr(upkeep, "LEASE", SHORT)
    patch.setenv("SHORT_LEASES", str(SHORT))


def follow():
    """Make them short in this process if they are in the one that has started it."""
    if "SHORT_LEASES" in os.environ:
        upkeep.LEASE = float(os.environ["SHORT_LEASES"])
        # An idle worker looks for work, and for the end, more often than every 5 seconds.
        for name in ("_SLOT_HEARTBEAT_INTERVAL", "_MIN_BACK_IN_SECONDS"):
            if hasattr(ExecutionEngine, name):
                setattr(ExecutionEngine, name, 0.1)
