"""Helpers for property tests."""

from __future__ import annotations

from hypothesis import assume
from scrapy import Request


def request_for(url, **options):
    """Return a request; give the example up if Scrapy takes no such URL."""
    try:
        request = Request(url, **options)
    except ValueError:
        request = None
    assume(request is not None)
    return request
