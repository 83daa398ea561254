"""What many programs need: a process that has imported this is forked for each of them."""

import gc
import sys
from contextlib import suppress
from importlib import import_module

from scrapy.settings import default_settings

REACTOR = "twisted.internet.reactor"
IMPORTED = (
    "hypothesis.strategies",
    "pytest",
    "scrapy.cmdline",
    "scrapy.commands.check",
    "scrapy.commands.shell",
    "scrapy.core.engine",
    "scrapy.core.scheduler",
    "scrapy.linkextractors",
    "scrapy.squeues",
    "scrapy_bloom.addon",
    "scrapy_bloom.commands",
    "scrapy_bloom.dupefilter",
    "scrapy_bloom.local.frontier",
    "scrapy_bloom.redis.filter",
    "scrapy_bloom.redis.frontier",
    "scrapy_bloom.scheduler",
    "scrapy_redis.scheduler",
    "scrapy_redis.spiders",
    "encodings.idna",
)


def parts():
    """Return the modules of the parts that Scrapy's default settings name."""
    for name, value in vars(default_settings).items():
        if name.isupper():
            of_each = [*value, *value.values()] if isinstance(value, dict) else [value]
            for path in of_each:
                if isinstance(path, str) and path.startswith("scrapy."):
                    yield path.rpartition(".")[0]


# Whoever imports the reactor installs one, and each program chooses its own.
sys.modules[REACTOR] = None
for name in (*IMPORTED, *parts()):
    with suppress(ImportError):
        import_module(name)
del sys.modules[REACTOR]
# All this stays to the end. A program that walks through it at each collection, and at its own end,
# takes twice as long.
gc.collect()
gc.freeze()
