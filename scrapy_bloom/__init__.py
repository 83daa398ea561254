"""A duplicate filter and scheduler for Scrapy, based on Bloom filters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from scrapy_bloom._version import __version__ as __version__

if TYPE_CHECKING:  # each name twice: it is exported
    from scrapy_bloom.addon import Addon as Addon
    from scrapy_bloom.callbacks import forget as forget
    from scrapy_bloom.callbacks import hold as hold
    from scrapy_bloom.callbacks import seen as seen
    from scrapy_bloom.crawl.scrapy.feeds import FeedExporter as FeedExporter
    from scrapy_bloom.dupefilter import BloomDupeFilter as BloomDupeFilter
    from scrapy_bloom.errors import BackendError as BackendError
    from scrapy_bloom.errors import BloomError as BloomError
    from scrapy_bloom.errors import FilterLostError as FilterLostError
    from scrapy_bloom.errors import JobInUseError as JobInUseError
    from scrapy_bloom.errors import SettingError as SettingError
    from scrapy_bloom.errors import StateError as StateError
    from scrapy_bloom.filter.bloom import LocalFilter as LocalFilter
    from scrapy_bloom.filter.info import FilterInfo as FilterInfo
    from scrapy_bloom.fingerprinter import (
        CanonicalRequestFingerprinter as CanonicalRequestFingerprinter,
    )
    from scrapy_bloom.redis.filter import RedisFilter as RedisFilter
    from scrapy_bloom.retry_after import RetryAfterMiddleware as RetryAfterMiddleware
    from scrapy_bloom.scheduler import Scheduler as Scheduler

_EXPORTS = {
    "Addon": "addon",
    "BackendError": "errors",
    "BloomDupeFilter": "dupefilter",
    "BloomError": "errors",
    "CanonicalRequestFingerprinter": "fingerprinter",
    "FeedExporter": "crawl.scrapy.feeds",
    "FilterInfo": "filter.info",
    "FilterLostError": "errors",
    "JobInUseError": "errors",
    "LocalFilter": "filter.bloom",
    "RedisFilter": "redis.filter",
    "RetryAfterMiddleware": "retry_after",
    "Scheduler": "scheduler",
    "SettingError": "errors",
    "StateError": "errors",
    "forget": "callbacks",
    "hold": "callbacks",
    "seen": "callbacks",
}


def __getattr__(name: str) -> object:
    # Every `scrapy` command imports this package, so names are imported when first used.
    if name == "__all__":
        return __dir__()
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted({"__version__", *_EXPORTS})
