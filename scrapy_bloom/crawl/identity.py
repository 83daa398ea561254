"""What a request is: the mark of its page, the chain behind it, and how long the mark counts."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from scrapy_bloom.crawl.history import CHAIN, Chains
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter
from scrapy_bloom.settings import MAX_AGE, WINDOW, Settings
from scrapy_bloom.values import read_age

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

_SHORT: Final = 8
"""Half the length of what identifies a start request: one half stands for its page."""

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
        identify: returns the mark of a request.
        window: for how many seconds a page is seen; None for ever.
    """

    def __init__(self, crawler: Crawler, settings: Settings) -> None:
        theirs = crawler.request_fingerprinter
        self.fingerprinter = CanonicalRequestFingerprinter.wrapping(theirs, settings.rules)
        self.made_by = self.fingerprinter.rules.record()
        self.identify = self.fingerprinter.fingerprint
        self.window = settings[WINDOW]
        self._chains = Chains(crawler, self.fingerprinter.fingerprint)
        self.start_over()

    def max_age(self, request: Request) -> float | None:
        """Return for how many seconds the mark of a request counts; None if it does not say.

        After a redirect it is half of what the request says: the page that redirected here was let
        through a little earlier, so this one would be dropped when that one is due.

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

    def way_of(self, request: Request) -> MarkChain:
        """Return the marks of where redirects have led by now, from the page where they began."""
        before = self._chains.of(request)
        if not before or (request.dont_filter and len(before) == 1):  # a retry of that page
            return ()
        return (*({*before, self.identify(request)} - {before[0]}),)

    def chain_of(self, request: Request) -> MarkChain:
        """Return the mark of a page, and those of the pages that redirected to it."""
        mark = self.identify(request)
        return (*dict.fromkeys((mark, *self._chains.of(request))),)

    def start_over(self) -> None:
        """Record that ``start()`` runs from its beginning."""
        self._came = LocalFilter(error_rate=1e-6)  # a dictionary would take 100 bytes for each
        self._came_again: dict[bytes, int] = {}

    def start_id(self, request: Request) -> bytes:
        """Return what identifies a start request; nothing if its page cannot be identified.

        ``start()`` runs in each run and worker, and Scrapy does not filter what it yields by
        default. The first request for a page with a callback and a ``cookiejar`` is one in all of
        them, and so is the second, whatever else is in it: its meta may differ in each process.

        :returns: 16 bytes, or none.
        """
        try:
            mark = self.identify(request)
        except Exception:  # the project's fingerprinter
            return b""
        jar = request.meta.get("cookiejar")
        session = f" {jar}" if isinstance(jar, str | int) else ""
        name = f"{getattr(request.callback, '__name__', '')}{session}".encode(errors="replace")
        if self._came.add(first := start_page(mark) + _short(name)):
            count = self._came_again[first] = self._came_again.get(first, 0) + 1
            return start_page(mark) + _short(b"%b %d" % (name, count))
        return first


def start_page(mark: bytes) -> bytes:
    """Return how the ids of the start requests of a page begin."""
    return _short(mark)


def pages_of(start_ids: Iterable[bytes]) -> set[bytes]:
    """Return how the ids of start requests begin."""
    return {id_[:_SHORT] for id_ in start_ids}


def _short(value: bytes) -> bytes:
    return blake2b(value, digest_size=_SHORT).digest()
