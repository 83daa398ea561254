"""A duplicate filter and scheduler for Scrapy, based on Bloom filters."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from scrapy_bloom._version import __version__

if TYPE_CHECKING:
    from scrapy_bloom.addon import Addon
    from scrapy_bloom.dupefilter import BloomDupeFilter
    from scrapy_bloom.errors import (
        BackendError,
        BloomError,
        FilterLostError,
        JobInUseError,
        SettingError,
        StateError,
    )
    from scrapy_bloom.filter.bloom import LocalFilter
    from scrapy_bloom.filter.info import FilterInfo
    from scrapy_bloom.fingerprinter import CanonicalFingerprinter
    from scrapy_bloom.forgetting import ForgetFailed, forget
    from scrapy_bloom.redis.filter import RedisFilter
    from scrapy_bloom.retry_after import RetryAfter
    from scrapy_bloom.scheduler import Scheduler

    __all__ = [
        "Addon",
        "BackendError",
        "BloomDupeFilter",
        "BloomError",
        "CanonicalFingerprinter",
        "FilterInfo",
        "FilterLostError",
        "ForgetFailed",
        "JobInUseError",
        "LocalFilter",
        "RedisFilter",
        "RetryAfter",
        "Scheduler",
        "SettingError",
        "StateError",
        "__version__",
        "forget",
    ]

_ROOMS = {
    "Addon": "addon",
    "BackendError": "errors",
    "BloomDupeFilter": "dupefilter",
    "BloomError": "errors",
    "CanonicalFingerprinter": "fingerprinter",
    "FilterInfo": "filter.info",
    "FilterLostError": "errors",
    "ForgetFailed": "forgetting",
    "JobInUseError": "errors",
    "LocalFilter": "filter.bloom",
    "RedisFilter": "redis.filter",
    "RetryAfter": "retry_after",
    "Scheduler": "scheduler",
    "SettingError": "errors",
    "StateError": "errors",
    "forget": "forgetting",
}

_NEED_REDIS = {"RedisFilter"}


def __getattr__(name: str) -> object:
    # Every `scrapy` command imports this package, so names are imported when first used.
    if name == "__all__":
        return __dir__()
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "redis":
            raise
        raise ModuleNotFoundError(
            f"scrapy_bloom.{name} needs the package redis: pip install 'scrapy-bloom[redis]'",
            name=error.name,
        ) from None


def __dir__() -> list[str]:
    # Also what `import *` imports, name by name.
    missing = set() if find_spec("redis") else _NEED_REDIS
    return sorted({"__version__", *_ROOMS} - missing)
