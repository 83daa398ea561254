"""What differs between the layouts of a filter in Redis, for tests that run on each of them."""

from __future__ import annotations

from scrapy_bloom.redis import scripts
from scrapy_bloom.redis.layout import layout_of


def name_of_add(layout, error_rate, **more):
    """Return what a request has in it if and only if it adds to a filter of this error rate."""
    one = layout_of(layout)
    return scripts.add(one, one.hashes(error_rate), **more).sha.encode()


def name_of_join(layout):
    """Return what a request has in it if and only if it registers a worker."""
    return scripts.join(layout_of(layout)).sha.encode()


def name_of_forget(layout, error_rate):
    """Return what a request has in it if and only if it forgets in a filter of this error rate."""
    one = layout_of(layout)
    return scripts.forget(one, one.hashes(error_rate)).sha.encode()


def name_of_clear():
    """Return what a request has in it if and only if it clears a filter, or a part of it."""
    return scripts.CLEAR.sha.encode()
