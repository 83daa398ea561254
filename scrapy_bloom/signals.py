"""Signals of a crawl, for ``crawler.signals.connect``."""

from __future__ import annotations

from typing import Final

before_commit: Final = object()
"""Sent by :class:`scrapy_bloom.Scheduler` just before a commit that makes pages done.

A pipeline that buffers items must write them here, because their pages are not fetched again after
a kill. A handler may be a coroutine function or return a Deferred; the commit waits for it. If a
handler raises, the pages are not done, and the next commit calls it again. It is called for the
last time when the spider closes, before any pipeline's ``close_spider``.
"""

forget_page: Final = object()
"""Sent by :func:`scrapy_bloom.forget`, with the ``request``; the answer is whether it was known."""

seen_page: Final = object()
"""Sent by :func:`scrapy_bloom.seen`, with the ``request``; the answer is whether its page was seen,
or None if that is not known here."""

hold_slot: Final = object()
"""Sent by :func:`scrapy_bloom.hold`, and where a host says ``Retry-After``, with the ``request``
whose download slot is to be paused, and for how many ``seconds``.
:class:`scrapy_bloom.Scheduler` answers True.
"""
