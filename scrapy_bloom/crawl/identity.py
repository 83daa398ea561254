"""What a request is: the mark of its page, the chain behind it, and how long the mark counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scrapy_bloom.crawl.history import CHAIN, Chains
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter
from scrapy_bloom.settings import MAX_AGE, WINDOW, Settings
from scrapy_bloom.values import read_age

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

MarkChain = tuple[bytes, ...]
"""The mark of a page, and those of the pages that redirected to it."""


class Identifier:
    """Says of the requests of one crawl what each is.

    A request is a duplicate if its mark is there, unless a request of its own chain made it. Any
    method may raise whatever the project's fingerprinter does.

    :param settings: the project's.

    Attributes:
        fingerprinter: makes the marks.
        made_by: the rules they are made with, as stored with a filter.
        identify: returns the mark of a request, and the names of the steps that have changed its
            URL.
        window: for how many seconds a page is seen; None for ever.
    """

    def __init__(self, crawler: Crawler, settings: Settings) -> None:
        theirs = crawler.request_fingerprinter
        self.fingerprinter = CanonicalRequestFingerprinter.wrapping(theirs, settings.rules)
        self.made_by = self.fingerprinter.rules.record()
        self.identify = self.fingerprinter.resolve
        self.window = settings[WINDOW]
        self._chains = Chains(crawler, self.fingerprinter.fingerprint)

    def max_age(self, request: Request) -> float | None:
        """Return for how many seconds the mark of a request counts; None if it does not say.

        It is half of what it says after a redirect: the page that redirected here was let through a
        little earlier than this one, so this one would be dropped when that one is due.

        :raises SettingError: if its ``bloom_max_age`` is invalid.
        """
        wish = request.meta[MAX_AGE]
        if wish is None:
            return None
        seconds = read_age(f"meta[{MAX_AGE!r}]", wish)
        if self.window is not None:
            seconds = min(seconds, self.window)
        return seconds / 2 if CHAIN in request.meta else seconds

    def before(self, request: Request) -> MarkChain:
        """Return the marks of the pages that redirected to a request."""
        return self._chains.of(request)

    def chain_of(self, request: Request) -> MarkChain:
        """Return the mark of a page, and those of the pages that redirected to it."""
        mark, _ = self.identify(request)
        return (*dict.fromkeys((mark, *self._chains.of(request))),)
