"""Filters in Redis as tests make them, and their scripts as a proxy sees them."""

from contextlib import contextmanager
from hashlib import sha1
from unittest.mock import patch

from scrapy_bloom.redis import link
from scrapy_bloom.redis import plan as plans
from scrapy_bloom.redis.client import script
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.values import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE


def plan_of(*, capacity=DEFAULT_CAPACITY, error_rate=DEFAULT_ERROR_RATE, window=None, **options):
    return Plan(capacity, error_rate, window=float(window or 0), **options)


def name_of(name):
    """Return what a request has in it if and only if it runs this script."""
    return sha1(script(name).encode()).hexdigest().encode()


@contextmanager
def small_keys():
    """Let keys have one block of 8 KB instead of 511, so that small filters have many of them."""
    read = link.script
    assert "KEY_BLOCKS = 32, 511" in read("upkeep")

    def read_small(name):
        return read(name).replace("KEY_BLOCKS = 32, 511", "KEY_BLOCKS = 32, 1")

    with patch.object(link, "script", read_small), patch.object(plans, "KEY_BLOCKS", 1):
        yield
