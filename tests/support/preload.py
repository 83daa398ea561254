"""What many programs need: a process that has imported this is forked for each of them."""

import gc
import inspect
import re
import sys
from contextlib import suppress
from importlib import import_module

from scrapy.settings import default_settings

REACTOR = "twisted.internet.reactor"
IMPORTED = (
    "encodings.idna",
    "scrapy.cmdline",
    "scrapy.commands.check",
    "scrapy.commands.shell",
    "scrapy.squeues",
    "scrapy_bloom.addon",
    "scrapy_bloom.commands",
    "scrapy_bloom.local.backend",
    "scrapy_bloom.redis.backend",
    "scrapy_bloom.scheduler",
    "scrapy_redis.scheduler",
    "support.spiders",
)

# Whoever imports the reactor installs one, and each program chooses its own.
sys.modules[REACTOR] = None
parts = re.findall(r'"(scrapy\.[\w.]+)\.\w+"', inspect.getsource(default_settings))
for name in (*IMPORTED, *parts):
    with suppress(ImportError):
        import_module(name)
del sys.modules[REACTOR]
# All this stays to the end. A program that walks through it at each collection, and at its own end,
# takes twice as long.
gc.collect()
gc.freeze()
