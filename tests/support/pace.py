"""Leases that are over sooner: a test of what comes then would stand still for ten seconds."""

import os

from scrapy_bloom.redis import pace

SHARE = 0.4
"""Of the usual length. Less, and a machine that is busy takes live workers for dead."""

_VARIABLE = "SHORT_LEASES"
_NAMES = [name for name in vars(pace) if name.isupper() and name not in ("MAX_GAP", "WAIT")]
"""What gets short. The gaps of a machine that is busy do not."""

_WAIT = "WAIT_FOR_REDIS"


def shorten(patch):
    """Make leases short in this process and in all that it starts, until the patch is undone."""
    for name in _NAMES:
        patch.setattr(pace, name, getattr(pace, name) * SHARE)
    patch.setenv(_VARIABLE, str(SHARE))


def wait(patch, seconds):
    """Let all that this process starts wait so long for Redis, until the patch is undone."""
    patch.setattr(pace, "WAIT", seconds)
    patch.setenv(_WAIT, str(seconds))


def usual(patch):
    """Make them as long as they are, for a test of what must be done within one."""
    for name in _NAMES:
        patch.setattr(pace, name, getattr(pace, name) / SHARE)


def follow():
    """Make them short in this process if they are in the one that has started it."""
    for name in _NAMES:
        setattr(pace, name, getattr(pace, name) * float(os.environ.get(_VARIABLE, "1")))
    pace.WAIT = float(os.environ.get(_WAIT, pace.WAIT))
