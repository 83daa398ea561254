"""Which pages are in flight, and when one is done.

A page is finished when the engine is done with its request: its callback or errback has run, and
its items, retry or redirect have been handled. By then, everything it led to has been enqueued. It
is done once it is finished and no request that came from it is still held in memory because it
cannot be stored (its callback is a lambda, say): only the page can yield such a request again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from scrapy.exceptions import CloseSpider

from scrapy_bloom import stats

if TYPE_CHECKING:
    from scrapy import Request
    from twisted.python.failure import Failure

    from scrapy_bloom.crawl.engine import Engine
    from scrapy_bloom.crawl.report import Report


class Visit:
    """One request on its way from a queue to being done.

    Attributes:
        row: its row in the file, or the :class:`Taken` of Redis; None if it could not be stored.
        marks: its marks, which the next run must ignore until it is done.
        parents: the pages that cannot be done before it is.
        roots: the stored pages that led to it, perhaps through others that are not stored.
        waits_for: how many must end first: the engine's work on it, and each request that has it
            as a parent.
    """

    __slots__ = ("marks", "parents", "roots", "row", "waits_for")

    def __init__(
        self,
        row: Any,
        marks: tuple[bytes, ...] = (),
        parents: tuple[Visit, ...] = (),
    ) -> None:
        self.row = row
        self.marks = marks
        self.parents = parents
        self.roots = _stored(parents)
        self.waits_for = 1


class InFlight:
    """The requests that were taken from the queues and are not done.

    :param engine: knows which requests it still has.
    :param report: writes to stats and log.

    Attributes:
        kept_marks: by mark, the requests that wait or waited in memory, until :meth:`release`.
    """

    def __init__(self, engine: Engine, report: Report) -> None:
        self._engine = engine
        self._report = report
        self._visits: dict[Request, Visit] = {}
        self._kept: dict[Request, Visit] = {}
        self.kept_marks: dict[bytes, list[Visit]] = {}
        self._done: list[Visit] = []
        engine.watch(self._raised)

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._visits)

    def start(self, request: Request, row: Any) -> None:
        """Record that the request of a row was taken."""
        self._visits[request] = Visit(row)
        self._engine.sent(request)

    def keep(self, request: Request, error: Exception, marks: tuple[bytes, ...] = ()) -> Request:
        """Record a request that waits in memory because it cannot be stored.

        The page that yielded it waits for it. If that page is unknown or not in flight, all pages
        wait whose answers the spider has: one of them led to it, unless ``start()`` did.

        :param error: why it cannot be stored.
        :param marks: its marks.
        :returns: the request to send later: a copy if the same object already waits or is in
            flight, because the engine keeps a set.
        """
        visit = Visit(None, marks, self._led_to(request))
        for each in visit.parents:
            each.waits_for += 1
        for mark in marks:
            self.kept_marks.setdefault(mark, []).append(visit)
        if request in self._kept or request in self._visits:
            request = request.copy()
        self._kept[request] = visit
        self._report.add(stats.HELD)
        self._report.inc("scheduler/unserializable")
        self._report.once(
            logging.WARNING,
            "Unable to serialize request: %s - reason: %s. It waits in memory. After a kill or a"
            " stop the page that led to it is fetched again - no more such requests will be logged"
            " (stats being collected)",
            request,
            error,
        )
        if not visit.parents:
            self._report.once(
                logging.WARNING,
                "%s waits in memory, and no page led to it: after a kill or a stop it is lost"
                " unless the spider yields it again, as start() does. More such requests are not"
                " shown.",
                request,
            )
        return request

    def leave(self, request: Request) -> None:
        """Record that a request could not be enqueued: the pages that led to it are never done."""
        for visit in self._led_to(request):
            visit.waits_for += 1

    def note_duplicate(self, request: Request, mark: bytes) -> None:
        """Record that a request was dropped as a duplicate.

        If the page it duplicates is only held in memory, the pages that led here must wait for it
        as well: only the stored ones, since a held page waits for nothing but what it has yielded.
        """
        for held in self.kept_marks.get(mark, ()):
            if not held.waits_for:
                continue  # it is done
            for parent in _stored(self._led_to(request)) - held.roots:
                parent.waits_for += 1
                held.parents += (parent,)
                held.roots |= {parent}

    def _led_to(self, request: Request) -> tuple[Visit, ...]:
        if self._engine.is_from_start(request):
            return ()
        by = self._engine.yielded_by(request)
        parent = None if by is None else self._visits.get(by)
        if parent is not None:
            return (parent,)
        may_be = self._engine.may_have_led_to_others
        return tuple(visit for page, visit in self._visits.items() if may_be(page))

    def start_kept(self, request: Request) -> None:
        """Record that a held request was taken."""
        self._visits[request] = self._kept.pop(request)
        self._engine.sent(request)

    def pop_done(self) -> list[Visit]:
        """Return the visits that were done since the last call, to be released."""
        has = self._engine.has
        for request in [request for request in self._visits if not has(request)]:
            self._end(self._visits.pop(request))
        done, self._done = self._done, []
        self._report.count_done(len(done))
        return done

    def release(self, visit: Visit) -> None:
        """Forget the marks of a visit that is done."""
        for mark in visit.marks:
            self.kept_marks[mark].remove(visit)
            if not self.kept_marks[mark]:
                del self.kept_marks[mark]

    def _end(self, visit: Visit) -> None:
        stack = [visit]
        while stack:
            visit = stack.pop()
            visit.waits_for -= 1
            if not visit.waits_for:
                self._done.append(visit)
                stack += visit.parents

    def _raised(self, failure: Failure, request: Request) -> None:
        """Keep a page whose callback closes the spider, or fails while the spider is closing.

        It is never done, so the next run fetches it again.
        """
        error = failure.value
        closes = isinstance(error, CloseSpider)
        if not (closes or self._engine.closing) or self._visits.pop(request, None) is None:
            return
        self._report.once(
            logging.INFO,
            "%s %s (%s): the next run will fetch it again. More such pages are not shown.",
            request,
            "closed the spider" if closes else "failed while the spider was closing",
            getattr(error, "reason", error),
        )


def _stored(visits: tuple[Visit, ...]) -> frozenset[Visit]:
    """Return the stored visits among these, and the roots of the others.

    Those of a single one are shared and not copied, as a chain of held pages may be long.
    """
    if len(visits) == 1:
        (visit,) = visits
        return visit.roots if visit.row is None else frozenset(visits)
    return frozenset[Visit]().union(*(_stored((visit,)) for visit in visits))
