"""Scrapy duplicate filter on Bloom filters: every page once, in a few bytes per URL."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from scrapy_bloom._version import __version__

if TYPE_CHECKING:
    from scrapy_bloom.addon import Addon
    from scrapy_bloom.core.info import FilterInfo
    from scrapy_bloom.core.local import LocalFilter
    from scrapy_bloom.core.window import WindowedFilter
    from scrapy_bloom.dupefilter import BloomDupeFilter
    from scrapy_bloom.errors import (
        BackendError,
        BloomError,
        FilterLostError,
        JobInUseError,
        SettingError,
        StateError,
    )
    from scrapy_bloom.fingerprinter import CanonicalFingerprinter
    from scrapy_bloom.forgetting import ForgetFailed, forget
    from scrapy_bloom.redis.filter import RedisFilter
    from scrapy_bloom.redis.options import RedisOptions
    from scrapy_bloom.redis.reader import RedisReader
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
        "RedisOptions",
        "RedisReader",
        "Scheduler",
        "SettingError",
        "StateError",
        "WindowedFilter",
        "__version__",
        "forget",
    ]

_ROOMS = {
    "Addon": "addon",
    "BackendError": "errors",
    "BloomDupeFilter": "dupefilter",
    "BloomError": "errors",
    "CanonicalFingerprinter": "fingerprinter",
    "FilterInfo": "core.info",
    "FilterLostError": "errors",
    "ForgetFailed": "forgetting",
    "JobInUseError": "errors",
    "LocalFilter": "core.local",
    "RedisFilter": "redis.filter",
    "RedisOptions": "redis.options",
    "RedisReader": "redis.reader",
    "Scheduler": "scheduler",
    "SettingError": "errors",
    "StateError": "errors",
    "forget": "forgetting",
    "WindowedFilter": "core.window",
}

_NEED_REDIS = {"RedisFilter", "RedisReader"}


def __getattr__(name: str) -> object:
    # Every `scrapy` command imports this package; names are fetched when they are used.
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
    # Also what `import *` fetches, name by name.
    missing = set() if find_spec("redis") else _NEED_REDIS
    return sorted({"__version__", *_ROOMS} - missing)
