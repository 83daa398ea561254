"""The scripts of the server, as a proxy sees them."""

from __future__ import annotations

from hashlib import sha1

from scrapy_bloom.redis.client import script


def name_of(name, layout):
    """Return what a request has in it if and only if it runs this script."""
    return sha1(script(name, layout).encode()).hexdigest().encode()
