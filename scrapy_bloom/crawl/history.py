"""What a request has behind it: what redirects, retries and earlier runs have made of it.

It is in the request's meta until there is a response, and then taken out: many spiders pass
``response.meta`` on. A middleware may have copied it to where it stays, so only what the downloader
has made of a request is let have it.

**Its chain.** A redirected request is not a duplicate of its own chain: a page that redirects to
itself, or to another spelling of its own URL, would never be parsed. So what a downloader
middleware makes of a request takes along the marks of the requests before it.

**Its original.** A page that fails after redirects is fetched again from where it began.

**Its failures.** A page that has failed in several runs is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary, WeakSet

from scrapy import Request

from scrapy_bloom.crawl.scrapy.engine import BACK, watch_engine

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

CHAIN: Final = "bloom_chain"
"""Key in a request's meta: marks of the requests before it in its redirect chain, as hex."""

ORIGINAL: Final = "bloom_original"
"""Key in a request's meta: the request that the spider yielded, as it was stored, of which retries
and redirects have made this one; empty if it could not be stored."""

TRIES: Final = "bloom_tries"
"""Key in a request's meta: in how many runs its page has failed, and when that was last counted, in
seconds since 1970."""

START: Final = "bloom_start"
"""Key in a request's meta: what identifies the start request that it is, or was made of, if that is
not filtered. Each run and worker may send it, and it is one page."""

OURS: Final = frozenset({BACK, CHAIN, ORIGINAL, START, TRIES})
"""These keys, and that of what goes back."""

LONGEST_CHAIN: Final = 100
"""A chain ends after so many requests, or ``REDIRECT_MAX_TIMES`` if that is more: then the mark
decides. What a longer one led to would stay marked if its page fails."""

MOST_TIMES: Final = 20
"""It also ends when it has come to one page so often, or a middleware could go on for ever. If what
leads back there is neither a redirect nor a retry, as with a request that a middleware returns with
another token, it ends after ``RETRY_TIMES``."""


class Chains:
    """Gives requests their chains where the engine receives what the downloader has made of them.

    It takes all such keys from other requests.

    If this version of Scrapy does not show that, there are none: a page that redirects to itself is
    dropped, as Scrapy does it.

    :param crawler: the crawl, whose spider is being opened.
    :param mark_of: makes the mark of a request. It may raise anything.
    """

    def __init__(self, crawler: Crawler, mark_of: Callable[[Request], bytes]) -> None:
        self._mark_of = mark_of
        self._longest = max(LONGEST_CHAIN, crawler.settings.getint("REDIRECT_MAX_TIMES"))
        self._returns = max(1, crawler.settings.getint("RETRY_TIMES"))
        self._chains: WeakKeyDictionary[Request, tuple[bytes, ...]] = WeakKeyDictionary()
        self._made: WeakSet[Request] = WeakSet()
        watch_engine(crawler, self._record, self._record_arrived)

    def of(self, request: Request) -> tuple[bytes, ...]:
        """Return the marks of the requests before a request in its chain, in order."""
        chain = request.meta.get(CHAIN)
        return self._chains.get(request, ()) if chain is None else _read(chain)

    def _record(self, output: object, request: Request) -> None:
        """Record what the downloader has made of a request: another one, a response, a failure."""
        if not isinstance(output, Request):
            if CHAIN in request.meta:
                self._chains[request] = _read(request.meta.pop(CHAIN))
            return
        self._made.add(output)
        if BACK not in output.meta:
            self._lengthen(output, request)

    def _record_arrived(self, request: Request) -> None:
        # Asked first, as most requests have none of these keys.
        if not OURS.isdisjoint(request.meta) and request not in self._made:
            for key in OURS & request.meta.keys():
                del request.meta[key]

    def _lengthen(self, after: Request, before: Request) -> None:
        chain = before.meta.get(CHAIN, [])
        if before.dont_filter and not chain:
            return  # it is not filtered, and nor is what is made of it
        mark, following = self._mark_of(before).hex(), self._mark_of(after).hex()
        leads_back = following in {*chain, mark}
        is_retry = after.dont_filter and leads_back
        if before.dont_filter and not is_retry:
            after.dont_filter = False  # a retry's, which Scrapy leaves to where it redirects
        if not (is_retry and mark in chain):
            chain = [*chain, mark]
        most = self._returns if leads_back and not is_scrapys(after, before) else MOST_TIMES
        after.meta[CHAIN] = chain
        if len(chain) > self._longest or chain.count(mark) > most:
            self._chains[after] = _read(after.meta.pop(CHAIN))


def is_scrapys(after: Request, before: Request) -> bool:
    """Return whether a redirect or retry of Scrapy's has made a request of another."""
    counts = "redirect_times", "retry_times"
    return any(after.meta.get(each, 0) > before.meta.get(each, 0) for each in counts)


def _read(chain: list[str]) -> tuple[bytes, ...]:
    return (*map(bytes.fromhex, chain),)
