"""Filters in Redis as tests make them, and their scripts as a proxy sees them."""

from __future__ import annotations

from hashlib import sha1

from scrapy_bloom.redis.client import script
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.values import DEFAULT_CAPACITY, DEFAULT_ERROR_RATE


def plan_of(*, capacity=DEFAULT_CAPACITY, error_rate=DEFAULT_ERROR_RATE, window=None, **options):
    """Return the plan of a filter."""
    return Plan(capacity, error_rate, window=float(window or 0), **options)


def name_of(name):
    """Return what a request has in it if and only if it runs this script."""
    return sha1(script(name).encode()).hexdigest().encode()
