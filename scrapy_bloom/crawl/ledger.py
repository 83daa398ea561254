"""The rule that orders everything: a page is done after all that was asked before.

What a page has led to is asked about before the page is done. Until that is answered, only this
process knows of it, so the page must stay stored: after a kill it is fetched again. A job directory
answers at once, so there a page waits only for its items to be written out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import count

from scrapy_bloom.crawl.page import Page


class Ledger:
    """Questions and pages that have ended, in the order in which they came.

    Whoever releases pages does so in three steps, since their items are to be written first::

        until = ledger.due()
        ...                        # write out the items of all pages that have ended by now
        for page in ledger.take(until):
            ...
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._questions: dict[int, None] = {}  # without an answer, oldest first
        self._pages: deque[tuple[int, Page]] = deque()

    def __len__(self) -> int:
        """Return how many pages have ended and are not released."""
        return len(self._pages)

    def ask(self) -> int:
        """Record a question; return its number."""
        number = next(self._numbers)
        self._questions[number] = None
        return number

    def answer(self, question: int) -> None:
        """Record that a question was answered. Others may have come before it."""
        del self._questions[question]

    def add(self, pages: Iterable[Page]) -> None:
        """Record pages that have ended: see :class:`~scrapy_bloom.crawl.page.Page`."""
        number = next(self._numbers)
        self._pages.extend((number, page) for page in pages)

    def due(self) -> int | None:
        """Return what to pass to :meth:`take`; None if no page can be released."""
        now = next(self._numbers)
        until = next(iter(self._questions), now)
        return until if self._pages and self._pages[0][0] < until else None

    def take(self, until: int) -> Iterator[Page]:
        """Yield the pages that could be released when :meth:`due` was called, oldest first.

        Each is here until the next one is asked for: an error in between loses none.
        """
        while self._pages and self._pages[0][0] < until:
            yield self._pages[0][1]
            self._pages.popleft()
