"""Which pages are in flight, when one is done, and whether it has failed.

A page is finished when the engine is done with its request: its callback or errback has run, and
its items, retry or redirect have been handled. By then, everything it led to has been enqueued. It
is done once it is finished and nothing that came from it is left to wait for: a request that is
only in memory because it cannot be stored (its callback is a lambda, say), which only the page can
yield again; or the page to which it was redirected, if that is in flight for another page.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from scrapy.exceptions import CloseSpider, IgnoreRequest
from twisted.python.failure import Failure as Error

from scrapy_bloom import stats
from scrapy_bloom.crawl.history import AGAIN, ORIGINAL, START, TRIES
from scrapy_bloom.crawl.outcomes import MOST_MESSAGE, Ended, Failure, failure_of, place_of

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.engine import Engine


_MOST_TARGETS: Final = 10_000
"""Targets of redirects that any worker may take: so many of them are awaited."""


class Visit:
    """One request on its way from a queue to being done.

    Attributes:
        taken: what the backend has handed out; None if it could not be stored.
        marks: its marks, which the next run must ignore until it is done.
        parents: the pages that cannot be done before it is.
        roots: the stored pages that led to it, perhaps through others that are not stored.
        waits_for: how many must end first: the engine's work on it, and each request that has it
            as a parent.
        ended: how it counts if it has not failed.
        failure: why it has failed; None if it has not.
        may_deal: whether the spider may yet deal with its failed download.
        status: the status of a response that no callback got, 0 if one did.
        mark: of the page that it stands for by now, if it is a retry or a redirect.
        way: the marks of where redirects led: if it fails they are forgotten, but for the first.
        next_mark: the mark of what stands in its place, if that is so.
    """

    __slots__ = (
        *("ended", "failure", "mark", "marks", "may_deal", "next_mark", "parents", "roots"),
        *("status", "taken", "waits_for", "way"),
    )

    def __init__(
        self, taken: Any, marks: tuple[bytes, ...] = (), parents: tuple[Visit, ...] = ()
    ) -> None:
        self.taken = taken
        self.marks = marks
        self.parents = parents
        self.roots = _stored(parents)
        self.waits_for = 1
        self.ended = Ended.DONE
        self.failure: Failure | None = None
        self.may_deal = False
        self.status = 0
        self.mark: bytes | None = None
        self.way: tuple[bytes, ...] = ()
        self.next_mark: bytes | None = None


class InFlight:
    """The requests that were taken from the queues and are not done.

    :param engine: knows which requests it still has.
    :param report: writes to stats and log.
    :param identifier: says what a request is.
    :param statuses: those that are failures if no callback gets the response.

    Attributes:
        kept_marks: by mark, the requests that wait or waited in memory, until :meth:`release`.
        shared: whether other workers may take what was stored here.
    """

    def __init__(
        self, engine: Engine, report: Report, identifier: Identifier, statuses: Collection[int] = ()
    ) -> None:
        self._engine = engine
        self._report = report
        self._identifier = identifier
        self._statuses = statuses
        self._visits: dict[Request, Visit] = {}
        self._kept: dict[Request, Visit] = {}
        self.kept_marks: dict[bytes, list[Visit]] = {}
        self.shared = False
        self._targets: dict[bytes, list[Visit]] = {}  # of redirects: what waits for each
        self._anywhere: dict[bytes, list[Visit]] = {}  # likewise, of what any worker may take
        self._asked = 0  # verdicts that pages await
        self._undecided = 0  # how many failed downloads the spider may yet deal with
        self._done: list[Visit] = []
        engine.watch(self)

    def __len__(self) -> int:
        """Return how many requests are in flight."""
        return len(self._visits)

    def start(self, request: Request, taken: Any) -> None:
        """Record that a request was taken."""
        self._visits[request] = visit = Visit(taken)
        if AGAIN in request.meta:
            visit.ended = Ended.REPEATED
        if ORIGINAL in request.meta:
            with suppress(Exception):  # the project's fingerprinter
                visit.mark, _ = self._identifier.identify(request)
                waiting = self._anywhere.pop(visit.mark, [])
                self._targets.setdefault(visit.mark, []).extend(waiting)
                if before := self._identifier.before(request):
                    led_to = {*before, visit.mark} - {before[0]}
                    visit.way = (*led_to,)
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

    def note_duplicate(self, request: Request, mark: bytes, origin: Visit | None = None) -> None:
        """Record that a request was dropped as a duplicate.

        If the page it duplicates is only held in memory, the pages that led here must wait for it
        as well: only the stored ones, since a held page waits for nothing but what it has yielded.
        If a redirect led to the page and it is in flight, the pages that led here wait, too, and
        fail with it: its mark is forgotten then, and only they can yield it again. What waits for
        a redirect to it waits even while it is stored only.

        :param origin: the page that it came from, if :meth:`origin_of` has said so.
        """
        waiting = self._waiting_for_target(mark)
        if waiting is not None and (ORIGINAL in request.meta or self._has(mark)):
            for page in self._led_to(request) if origin is None else (origin,):
                self._await_target(page, mark, waiting)
        for held in self.kept_marks.get(mark, ()):
            if not held.waits_for:
                continue  # it is done
            for parent in _stored(self._led_to(request)) - held.roots:
                if held in self._waiting_for(parent):
                    continue
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
            visit = self._visits.pop(request)
            self._undecided -= visit.may_deal
            self._end(visit)
        done, self._done = self._done, []
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
                if visit.taken is None and visit.failure:  # only its parents can yield it again
                    for parent in visit.parents:
                        parent.failure = parent.failure or visit.failure
                stack += visit.parents
                if visit.mark is not None:
                    stack += self._end_target(visit, visit.mark)

    # What came from a page

    def origin_of(self, request: Request) -> Visit | None:
        """Return the page that a request came from, if its fate depends on that request."""
        if not (self._undecided or self.awaits_targets or ORIGINAL in request.meta):
            return None
        by = self._engine.yielded_by(request)
        return None if by is None else self._visits.get(by)

    def await_verdict(self, origin: Visit) -> None:
        """Record that a page ends only once it is known what came from it: see :meth:`decided`."""
        origin.waits_for += 1
        self._asked += 1

    def decided(self, origin: Visit) -> None:
        """Record that it is known what came from a page."""
        self._asked -= 1
        self._end(origin)

    def note_stored(self, origin: Visit, request: Request) -> None:
        """Record that a request was stored which came from a page: it may stand in its place."""
        if ORIGINAL not in request.meta:
            self._deal_with(origin)
            return
        origin.ended = Ended.REPLACED
        with suppress(Exception):  # the project's fingerprinter
            origin.next_mark, _ = self._identifier.identify(request)
            self._expect(origin.next_mark, [])

    def note_redirected(self, origin: Visit, request: Request, mark: bytes | None) -> None:
        """Record that a redirect of a page was dropped as seen. See :meth:`note_duplicate`.

        :param mark: of the page that it leads to; None if that cannot be told.
        """
        if origin.ended is Ended.DONE:
            origin.ended = Ended.REDIRECTED
        status = next(iter(request.meta.get("redirect_reasons", ())[-1:]), None)
        if status in self._statuses:
            self._fail(origin, Failure(str(status), f"redirected to {request.url}"[:MOST_MESSAGE]))
        if mark is not None and mark == origin.mark:  # more often than its history is long
            self._fail(origin, Failure("too many redirects", request.url[:MOST_MESSAGE]))

    @property
    def awaits_targets(self) -> bool:
        """Whether there are targets of redirects that are not done, or may be."""
        return bool(self._asked or self._targets or self._anywhere)

    def _await_target(self, page: Visit, mark: bytes, waiting: list[Visit]) -> None:
        if page.waits_for and not self._holds_up(page, mark):
            page.waits_for += 1
            waiting.append(page)

    def _holds_up(self, visit: Visit, mark: bytes) -> bool:
        """Return whether the page of a mark is this one, or waits for it in the end."""
        return any(each.mark == mark for each in self._waiting_for(visit))

    def _waiting_for(self, visit: Visit) -> set[Visit]:
        """Return a page with those that cannot be done before it."""
        stack, found = [visit], set[Visit]()
        while stack:
            each = stack.pop()
            if each not in found:
                found.add(each)
                stack += each.parents
                if each.mark is not None:
                    stack += self._waiting_for_target(each.mark) or ()
        return found

    def _waiting_for_target(self, mark: bytes) -> list[Visit] | None:
        """Return what waits for a redirect's target; None if the page is not one."""
        return self._targets.get(mark, self._anywhere.get(mark))

    def _has(self, mark: bytes) -> bool:
        """Return whether a request in flight stands for a page by now."""
        return any(visit.mark == mark for visit in self._visits.values())

    def _expect(self, mark: bytes, waiting: list[Visit]) -> None:
        """Note that a redirect's target is stored, and what waits for it."""
        if not self.shared or self._has(mark):
            self._targets.setdefault(mark, []).extend(waiting)
            return
        self._anywhere.setdefault(mark, []).extend(waiting)
        if len(self._anywhere) > _MOST_TARGETS:
            self._let_go(self._anywhere.pop(next(iter(self._anywhere))))

    def let_go(self) -> bool:
        """End what waits for targets of redirects, when nothing is in flight here any more.

        Others may have these targets: how they end is not known here.

        :returns: whether anything did.
        """
        for targets in (self._anywhere, self._targets):
            for mark in [*targets]:
                self._let_go(targets.pop(mark, []))
        return bool(self._done)

    def _let_go(self, waiting: list[Visit]) -> None:
        for page in waiting:
            self._end(page)

    def _end_target(self, visit: Visit, mark: bytes) -> list[Visit]:
        """Return the pages that have waited for a redirect's target, which has ended."""
        waiting = self._targets.pop(mark, [])
        if visit.ended is Ended.REPLACED and visit.next_mark is not None:
            self._expect(visit.next_mark, waiting)
            return []
        for page in waiting:
            page.failure = page.failure or visit.failure
        return waiting

    # What the engine tells

    def replaced(self, request: Request, by: Request) -> None:
        """Let a retry or redirect take the request along that the spider yielded."""
        visit = self._visits.get(request)
        if visit is not None:
            own = b"" if visit.taken is None else visit.taken.body
            by.meta[ORIGINAL] = request.meta.get(ORIGINAL) or own
            for key in (AGAIN, START):
                if key in request.meta:
                    by.meta[key] = request.meta[key]

    def answered(self, result: Any, request: Request) -> None:
        """Note what the downloader has answered. It has failed unless the spider deals with it."""
        for key in (ORIGINAL, TRIES, AGAIN, START):
            request.meta.pop(key, None)
        visit = self._visits.get(request)
        if visit is None:
            return
        visit.status = 0 if isinstance(result, Error) else result.status
        failure = failure_of(result, request, self._statuses)
        if failure is not None:
            self._fail_unless_dealt_with(request, visit, failure)

    def reached(self, request: Request) -> None:
        """Note that a response reaches its callback, which deals with its status."""
        visit = self._visits.get(request)
        if visit is not None:
            visit.status = 0
            self._deal_with(visit)

    def unreached(self, error: Error, request: Request) -> None:
        """Note that the response of a request does not reach its callback, due to an error."""
        visit = self._visits.get(request)
        if visit is None or not visit.status or visit.failure:  # no response, or it counts already
            return
        if not isinstance(error.value, IgnoreRequest):
            self._fail_unless_dealt_with(request, visit, Failure.of(error.value, place_of(error)))

    def _fail_unless_dealt_with(self, request: Request, visit: Visit, failure: Failure) -> None:
        """Note a failure that the spider may yet deal with, unless the spider is closing."""
        if self._engine.closing:
            del self._visits[request]  # it stays stored
            return
        visit.failure, visit.may_deal = failure, True
        self._undecided += 1

    def made_item(self, request: Request | None) -> None:
        """Note that a callback or errback has yielded an item."""
        if self._undecided and request in self._visits:
            self._deal_with(self._visits[request])

    def _deal_with(self, visit: Visit) -> None:
        if visit.may_deal:
            visit.failure, visit.may_deal = None, False
            self._undecided -= 1

    def item_failed(self, failure: Error, request: Request | None) -> None:
        """Note an error of a pipeline."""
        if request in self._visits:
            self._fail(self._visits[request], Failure.of(failure.value, place_of(failure)))

    def raised(self, failure: Error, request: Request) -> None:
        """Note an error of a callback or errback.

        A page whose callback closes the spider, or fails while the spider is closing, is never
        done: it stays stored, and the next run fetches it again.
        """
        error, visit = failure.value, self._visits.get(request)
        if visit is None:
            return
        closes = isinstance(error, CloseSpider)
        if not (closes or self._engine.closing):
            self._fail(visit, Failure.of(error, place_of(failure)))
            return
        self._undecided -= visit.may_deal
        del self._visits[request]
        self._report.once(
            logging.INFO,
            "%s %s (%s): the next run will fetch it again. More such pages are not shown.",
            request,
            "closed the spider" if closes else "failed while the spider was closing",
            getattr(error, "reason", error),
        )

    def _fail(self, visit: Visit, failure: Failure) -> None:
        self._undecided -= visit.may_deal
        visit.failure, visit.may_deal = visit.failure or failure, False  # the first one counts


def _stored(visits: tuple[Visit, ...]) -> frozenset[Visit]:
    """Return the stored visits among these, and the roots of the others.

    Those of a single one are shared and not copied, as a chain of held pages may be long.
    """
    if len(visits) == 1:
        (visit,) = visits
        return visit.roots if visit.taken is None else frozenset(visits)
    return frozenset[Visit]().union(*(_stored((visit,)) for visit in visits))
