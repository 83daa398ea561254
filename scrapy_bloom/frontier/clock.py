"""Calling something later, with a reactor or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred


def call_later(seconds: float, do: Callable[[], object]) -> Any:
    """Call `do` after some seconds; return what has a ``cancel``."""
    try:
        from scrapy.utils.asyncio import call_later as scrapys  # noqa: PLC0415 - from Scrapy 2.14
    except ImportError:
        from twisted.internet import reactor  # noqa: PLC0415 - installs one, which Scrapy has

        twisted: Any = reactor  # its module is not typed
        return twisted.callLater(seconds, do)
    return scrapys(seconds, do)


def later(seconds: float) -> Deferred[None]:
    """Return what a coroutine awaits to go on after some seconds."""
    passed: Deferred[None] = Deferred()
    call_later(seconds, lambda: passed.callback(None))
    return passed
