"""What becomes of redirects: six ideas, and where each is. Page A is redirected to T.

1. *Its chain.* T's request has the marks of the requests before it, see :mod:`.history`. If its own
   is one of them, as with a page that sets a cookie, it is let through; else its mark decides.
2. *Its way.* If T is new, its request stands for page A. If no callback gets it, A is listed, to be
   fetched from where it began, with its way: the marks of where it was led. When A has failed, or
   is put back, these are forgotten, as T may be found in another way.
3. *Redirected to a seen page.* If T was seen, A is listed at once, unparsed, and T's mark ends its
   way. Nothing waits for what becomes of T.
4. *Astray.* If T has failed and nobody has marked it since, A has failed, too. A job asks that when
   it opens and closes, see :meth:`.Store.fail_redirected`; Redis when a run begins, see ``look`` in
   ``_failed.lua``. Then A's way is forgotten, and pages that were redirected to there may follow.
5. *Forgotten with it.* If T is forgotten or lost in this run, so are the pages whose redirects to T
   were dropped: :class:`Dropped`. It also finds circles: each page in one was marked when another
   was redirected to it, and the redirect that closes the circle fails.
6. *The first link* to T that is dropped while T stands for A is kept: :class:`FirstLinks`. If no
   callback gets T, A may lead elsewhere when it comes again, and the page with the link is done:
   nothing would lead to T. So the link is let through, as a page of its own. If A is unparsed, T
   stays seen, and later links are dropped: a thousand pages may be redirected to one 404.

5 and 6 are only in memory: a kill, a stop and other workers do not know them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from scrapy_bloom.crawl.history import CHAIN
from scrapy_bloom.crawl.later import DELAY
from scrapy_bloom.crawl.serialize import write_fields

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request

    from scrapy_bloom.crawl.identity import MarkChain

MOST: Final = 10_000
"""Marks of redirects that are remembered; beyond that, the oldest is discarded."""

MOST_BYTES: Final = 10_000_000
"""Of links that are remembered, as they would be stored; likewise."""

_UNKNOWN: Final = 1000  # bytes of what cannot be stored


class Dropped:
    """Redirects that were dropped as seen: whose marks lead where."""

    def __init__(self) -> None:
        # By mark of a page on the way: the target's mark, and the marks of all on the way.
        self._to: dict[bytes, tuple[bytes, MarkChain]] = {}

    def record(self, chain: MarkChain, to: bytes) -> None:
        """Record that the pages of a chain were redirected to one that was seen."""
        for mark in chain:
            self._to.pop(mark, None)  # so that the oldest stay first
            self._to[mark] = to, chain
        while len(self._to) > MOST:
            del self._to[next(iter(self._to))]

    def leads_back(self, chain: MarkChain, to: bytes) -> bool:
        """Return whether a dropped redirect leads to a page whose own was dropped for this chain.

        Nobody parses any of them. Scrapy follows such a circle until it takes it for endless.
        """
        passed, at = set[bytes](), to
        while at in self._to and at not in passed:
            passed.add(at)
            at, _ = self._to[at]
        return not passed.isdisjoint(chain)

    def pop_leading_to(self, marks: Collection[bytes]) -> list[MarkChain]:
        """Remove and return the chains of pages whose redirects to one of these were dropped."""
        found = [(mark, chain) for mark, (to, chain) in self._to.items() if to in marks]
        for mark, _ in found:
            del self._to[mark]
        return [*dict.fromkeys(chain for _, chain in found)]


class FirstLinks:
    """The first link that was dropped to each page while a redirect there is under way."""

    def __init__(self) -> None:
        # By mark of where a redirect has led: the link, if there is one, and its size.
        self._links: dict[bytes, tuple[Request | None, int]] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        """Return whether any link is remembered."""
        return self._bytes > 0

    def expect(self, mark: bytes) -> None:
        """Record that a redirect is stored that leads to a page."""
        self.pop((mark,))
        self._links[mark] = None, 0
        self._bound()

    def add(self, mark: bytes, link: Request, due: float = 0.0) -> None:
        """Add a link that was dropped as seen, if it is the first to such a page.

        :param due: before when it must not be sent. Once let through, it waits at least as long.
        """
        if self._links.get(mark, (link,))[0] is not None:
            return
        try:
            # As a retry: only it is let through, and not where it is redirected.
            wish = {DELAY: max(0.0, due - time.monotonic())} if due else {}
            meta = {**link.meta, **wish, CHAIN: [mark.hex()]}
            copy = link.replace(dont_filter=True, meta=meta)
        except Exception:  # its class may take other arguments
            return
        try:
            size = len(write_fields(copy.replace(callback=None, errback=None).to_dict()))
        except Exception:  # its parts may raise anything
            size = _UNKNOWN + len(copy.body)
        self._links[mark] = copy, size
        self._bytes += size
        self._bound()

    def _bound(self) -> None:
        while len(self._links) > MOST or self._bytes > MOST_BYTES:
            self.pop((next(iter(self._links)),))

    def pop(self, marks: Collection[bytes]) -> list[Request]:
        """Remove pages to which redirects have led; return the links that go with them."""
        found = [self._links.pop(mark, (None, 0)) for mark in marks]
        self._bytes -= sum(size for _, size in found)
        return [link for link, _ in found if link is not None]
