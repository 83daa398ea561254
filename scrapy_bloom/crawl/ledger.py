"""In which order pages are released: after all questions that were asked before they ended.

A page waits by itself for the verdicts on its links, see :meth:`.Page.wait_for_one_more`. Here are
questions of no page that is known: a link of unknown origin, a page to be forgotten. Until they are
answered, only this process knows of them, so no page that has ended later is done: after a kill it
is fetched again. A job directory answers at once, so there a page waits only for its items.
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
