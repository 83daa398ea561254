"""Names and what they stand for, as import strings: a new entry is one file and one line here.

Imports nothing, so that whoever needs a name loads nothing for it.
"""

from __future__ import annotations

from typing import Final

BACKENDS: Final = {
    "local": "scrapy_bloom.backends.local:LocalBackend",
    "redis": "scrapy_bloom.backends.redis:RedisBackend",
}
"""Values of ``BLOOM_BACKEND``, beside ``auto``: classes that are a :class:`Backend`."""

LAYOUTS: Final = {
    "bitmap": "scrapy_bloom.redis.bitmap:BitmapLayout",
    "sets": "scrapy_bloom.redis.sets:SetsLayout",
}
"""Values of ``BLOOM_REDIS_LAYOUT``: classes that are a :class:`Layout`."""

COMMANDS: Final = {
    "plan": "scrapy_bloom.commands.plan",
    "info": "scrapy_bloom.commands.info",
    "contains": "scrapy_bloom.commands.contains",
    "add": "scrapy_bloom.commands.add",
    "forget": "scrapy_bloom.commands.forget",
    "copy": "scrapy_bloom.commands.copy",
    "delete": "scrapy_bloom.commands.delete",
    "queue": "scrapy_bloom.commands.queue",
    "canon": "scrapy_bloom.commands.canon",
}
"""Sub-commands of ``scrapy bloom``: modules that are a :class:`SubCommand`."""

READERS: Final = {
    "BLOOM_CANONICAL": "scrapy_bloom.canonical.rules:read_level",
    "BLOOM_CANONICAL_DROP_PARAMS": "scrapy_bloom.canonical.rules:read_names",
    "BLOOM_CANONICAL_KEEP_PARAMS": "scrapy_bloom.canonical.rules:read_names",
    "BLOOM_CANONICAL_RULES": "scrapy_bloom.canonical.rules:read_rules",
}
"""Functions that read the settings which `options` cannot read by itself."""
