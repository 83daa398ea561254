"""One crawl's filter, as the doors use it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scrapy.utils.job import job_dir

from scrapy_bloom import stats
from scrapy_bloom.backends.base import Crawl, Opened, backend_name, backend_of
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import BloomError
from scrapy_bloom.options import EXACT, FORGET_FAILED, MAX_AGE, WINDOW
from scrapy_bloom.session.ages import Ages
from scrapy_bloom.session.dropped import DroppedChains
from scrapy_bloom.session.layers import check_layers, made_exact
from scrapy_bloom.session.redirects import (
    chain_before,
    follows_itself,
    note_mark,
    step_fingerprint,
)
from scrapy_bloom.session.reporter import Reporter
from scrapy_bloom.session.resolver import Resolver
from scrapy_bloom.session.rules import rules_of
from scrapy_bloom.session.sessions import note_session
from scrapy_bloom.session.verdict import Verdict
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from scrapy_bloom.canonical.fingerprint import Change
    from scrapy_bloom.redis.queue.base import Form

OnMark = Callable[[bytes], None]
"""Called with each fingerprint that was not in the filter and now is."""

Tell = Callable[[Sequence[bytes]], object]
"""Called with those marks of a page that were there before they were forgotten."""

CountPage = Callable[[Sequence[bytes], Sequence[bytes]], object]
"""Called with all marks of a page, and with those that were there before they were forgotten."""

NEW, SEEN, EXEMPT, ERROR = Verdict  # looking up a global is faster than a member of the enum


class Session:
    """The open filter of a crawl.

    If a check fails, its verdict is ``ERROR``: the page is fetched, perhaps twice, but never lost.
    Only :meth:`open` raises errors.

    :param opened: the filter.
    :param resolver: makes the fingerprints.
    :param reporter: writes to stats and log.
    :param on_mark: called with each new mark, during the check that makes it; None costs no time.
    :param window: seconds that a page is seen; None for ever.
    :param forgets_failed: whether :meth:`forget_failed` will be called.

    Attributes:
        ages: reads the greatest ages that requests ask for.
        opened: the filter, and how it was opened.
        resolver: makes the fingerprints.
        emptied: whether the filter was emptied when it was last asked for that.
        let_through: fingerprints that are new once more, though the filter has them.
        failed: fingerprints of this run that were forgotten because their requests failed. They
            are tried again in the next run, and seen in this one.
        carry_out: forgets the marks of one page, and hands on those that were there. Whoever keeps
            marks somewhere else, too, puts another function here.
    """

    def __init__(
        self,
        opened: Opened,
        resolver: Resolver,
        reporter: Reporter,
        on_mark: OnMark | None = None,
        *,
        window: float | None = None,
        forgets_failed: bool = False,
    ) -> None:
        self.ages = Ages(window, reporter)
        self.opened = opened
        self.resolver = resolver
        self._reporter = reporter
        self._on_mark = on_mark
        self.let_through = opened.let_through
        self.failed: set[bytes] = set()
        self._dropped = DroppedChains()
        self.carry_out: Callable[[Sequence[bytes], Tell], object] = self.forget_now
        self._resolve = resolver.resolve
        self._count = reporter.count
        if on_mark is None:
            self._add, self._add_many = opened.filter.add, opened.filter.add_many
        else:
            self._add, self._add_many = self._add_and_tell, self._add_many_and_tell
        if forgets_failed:
            self._add_untried, self._add_many_untried = self._add, self._add_many
            self._add, self._add_many = self._add_unless_failed, self._add_many_unless_failed
        self.emptied = False
        self._at_end = False

    @classmethod
    def open(
        cls,
        crawler: Crawler,
        reporter: Reporter,
        *,
        shared_queue: bool = False,
        empty: bool = False,
        on_mark: OnMark | None = None,
        journaled: bool = False,
        queue: Form | None = None,
    ) -> Self:
        """Open the filter of a crawl as its settings say, and log it.

        :param shared_queue: whether its requests wait in Redis, for any worker.
        :param empty: whether to empty it at once, as :meth:`clear` does.
        :param on_mark: as for the class.
        :param journaled: whether marks are kept with the requests, see :class:`Crawl`.
        :param queue: the form of the requests if they are kept with the marks in Redis.
        :raises BloomError: if that cannot be done. No lock and no connection stays open then.
        """
        settings = Settings(crawler.settings)
        backend = backend_name(settings, shared_queue=shared_queue)
        check_layers(settings, backend, journaled=journaled)
        folder = job_dir(crawler.settings)
        place = Path(folder) if folder else None
        resolver = Resolver(crawler, rules_of(settings), place, reporter)
        crawl = Crawl(
            Identity(spider_name(crawler), resolver.fingerprinter.wrapped, resolver.record),
            digests=resolver.fingerprinter.digests,
            job_dir=place,
            shared_queue=shared_queue,
            journaled=journaled,
            queue=queue,
            starts_over=reporter.starts_over,
        )
        opened = backend_of(settings, shared_queue=shared_queue).open(settings, crawl)
        if settings[EXACT] and isinstance(opened.filter, LocalFilter):
            opened = made_exact(opened, opened.filter)
        forgets_failed = settings[FORGET_FAILED] is not False
        self = cls(
            opened,
            resolver,
            reporter,
            on_mark,
            window=settings[WINDOW],
            forgets_failed=forgets_failed,
        )
        try:
            emptied = empty and self.clear()
            reporter.opened(opened, emptied=emptied)
            if not emptied:
                resolver.compare(opened.filled_with)
        except BaseException:
            opened.close()
            raise
        note_session(crawler, self)
        return self

    def check(self, request: Request) -> Verdict:
        """Mark a request, and return the verdict on it."""
        try:
            fingerprint, change = self._resolve(request)
            if request.method != "GET":
                note_mark(request, fingerprint)
            aged = MAX_AGE in request.meta
            seen = self._add_aged(request, fingerprint) if aged else self._add(fingerprint)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            return self.fail(request, error)
        if seen or change:
            return self._judge(request, fingerprint, change, seen=seen)
        self._count(NEW)  # by far the most common case, kept short
        return NEW

    def check_many(self, requests: Iterable[Request]) -> list[Verdict]:
        """Mark requests, and return the verdict on each, in order.

        The filter is asked once for all of them; with Redis that is one round trip for each 500. Of
        two equal requests the second one is seen.
        """
        requests = list(requests)
        if any(MAX_AGE in request.meta for request in requests):
            return [self.check(request) for request in requests]
        found = [(request, self.identify(request)) for request in requests]
        try:
            seen = iter(self._add_many([resolved[0] for _, resolved in found if resolved]))
        except Exception as error:  # noqa: BLE001 - raised, it would cost the pages
            return [self.fail(request, error) if resolved else ERROR for request, resolved in found]
        return [
            self._judge(request, *resolved, seen=next(seen)) if resolved else ERROR
            for request, resolved in found
        ]

    def identify(self, request: Request) -> tuple[bytes, Change | None] | None:
        """Return the fingerprint of a request, and what canonicalization has changed in its URL.

        None if that fails: the verdict is ``ERROR`` then, and that is told.
        """
        try:
            fingerprint, change = self._resolve(request)
            if request.method != "GET":
                note_mark(request, fingerprint)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            self.fail(request, error)
            return None
        return fingerprint, change

    def max_age(self, request: Request) -> float | None:
        """Return the seconds after which the page of a request is new again; None for never."""
        return self.ages.of(request)

    def next_step(self, request: Request, fingerprint: bytes) -> bytes | None:
        """Return what to ask about a request that was seen: the mark of its step in a chain.

        None if it does not go on with a chain of redirects that began with the same page. Raises
        whatever the fingerprinter does.
        """
        if follows_itself(request, fingerprint, self.resolver.fingerprinter.fingerprint):
            return step_fingerprint(len(request.meta["redirect_urls"]), fingerprint)
        return None

    def tell(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool, step: bool
    ) -> None:
        """Count a verdict that was reached elsewhere.

        :param step: whether what was asked about is :meth:`next_step`.
        """
        try:
            if change or seen:
                self.resolver.note(request, fingerprint, change, seen=seen)
            if seen and "redirect_urls" in request.meta:
                self._note_dropped(request, fingerprint)
        except Exception as error:  # noqa: BLE001 - the verdict stays
            self._reporter.check_failed(request, error)
        if seen:
            self._count(SEEN)
        else:
            self._count(EXEMPT if step else NEW)

    def fail(self, request: Request, error: Exception) -> Verdict:
        """Return the verdict on a request that could not be checked, and tell of it."""
        if isinstance(error, BloomError):  # of the filter: it is lost, out, or refused
            self._reporter.give_up(error)
        else:
            self._reporter.check_failed(request, error)
        self._count(ERROR)
        return ERROR

    def withdraw(self, request: Request) -> None:
        """Let the next request for the same page through: this one was new, and is lost.

        Does nothing if the page is not marked.
        """
        try:
            marks = [*islice(self._marks_of(request), 2)]
            found = self.opened.filter.contains_many(marks)
        except Exception as error:  # noqa: BLE001 - the crawl goes on without
            self._reporter.check_failed(request, error)
            return
        self.let_through.update(mark for mark, seen in zip(marks, found, strict=True) if seen)
        self._reporter.add(stats.WITHDRAWN.key, int(found[0]))

    def forget(self, request: Request) -> None:
        """Make the page of a request new once more: for the next link to it, or for the next run.

        With it go the pages whose redirects have led to it, also where these were dropped: the next
        link to one of them is new as well. Never raises.
        """
        self._forget(request, self._count_forgotten)

    def forget_failed(self, request: Request) -> None:
        """Make the page of a request that has failed new for the next run. Never raises.

        In this run it stays seen: a page that cannot be had may have many links to it.
        """
        self._forget(request, self._count_failed)

    def forget_now(self, marks: Sequence[bytes], tell: Tell) -> list[bytes]:
        """Forget the marks of one page; return those that were there, and hand them to `tell`.

        :raises BloomError: if the filter cannot do that now.
        """
        found = self.forget_marks(marks)
        there = [mark for mark, seen in zip(marks, found, strict=True) if seen]
        tell(there)
        return there

    def forget_marks(self, marks: Sequence[bytes]) -> list[bool]:
        """Forget marks without a word; return for each, in order, whether it was there.

        :raises BloomError: if the filter cannot do that now.
        """
        return self.opened.filter.forget_many(marks)

    def finish(self, request: Request) -> None:
        """Tell the filter that the response of a request is here, and so the end of its redirects.

        Then a mark that Redis has lost may be made again: it no longer hides a lost request.
        """
        if self.opened.finish is None:
            return
        try:
            fingerprint, _ = self._resolve(request)
            self.opened.finish(fingerprint, added=not request.dont_filter)
            for _, marks in chain_before(request, self.resolver.fingerprinter.fingerprint):
                self.opened.finish(marks[0], added=False)
        except Exception as error:  # noqa: BLE001 - the page is crawled, and perhaps once more
            self._reporter.check_failed(request, error)

    def clear(self, *, at_end: bool = False) -> bool:
        """Empty the filter; return False where it stays, because others use it or nobody knows.

        :param at_end: whether the crawl is over.
        """
        clear = (self.opened.delete if at_end else None) or self.opened.filter.clear
        try:
            self._describe()
            self._at_end = at_end
            self.emptied = clear()
            if self.emptied:
                self.let_through.clear()
        except BloomError as error:
            self._reporter.error(error)
            self.emptied = False
        return self.emptied

    @property
    def closes_slowly(self) -> bool:
        """Whether :meth:`close` takes so long that it should run beside the reactor."""
        return self.opened.closes_slowly()

    def close(self) -> None:
        """Store what is to be stored and write the last stats."""
        self._describe()
        self.resolver.close()
        self._reporter.set(stats.NOT_STORED.key, 0)
        try:
            self.opened.close()
        except BloomError as error:
            self._reporter.set(stats.NOT_STORED.key, 1)
            self._reporter.error(error)
        self._reporter.flush()

    def _describe(self) -> None:
        """Write the filter's state to the stats; one that was emptied at the end keeps the last."""
        try:
            info = self.opened.filter.info()
        except BloomError:  # it was said when it began
            return
        if info.items or not (self.emptied or self._at_end):
            self._reporter.describe(info)

    def _forget(self, request: Request, count: CountPage) -> None:
        """Forget the marks of a page, and of those whose redirects to it were dropped."""
        try:
            marks = [*self._marks_of(request)]

            def tell(there: Sequence[bytes]) -> None:
                count(marks, there)
                # Not before: until now redirects to it were dropped.
                self._forget_chains(request, self._dropped.pop(marks), count)

            self.carry_out(marks, tell)
        except Exception as error:  # noqa: BLE001 - in a callback it would cost the items
            self._reporter.forget_failed(request, error)

    def _forget_chains(
        self, request: Request, chains: Sequence[Sequence[bytes]], count: CountPage
    ) -> None:
        """Forget pages whose redirects were dropped, all at once: they may be many.

        :param request: that of the page to which they were redirected.
        """

        def tell(there: Sequence[bytes]) -> None:
            known = {*there}
            for marks in chains:
                if found := [mark for mark in marks if mark in known]:
                    count(marks, found)

        if not chains:
            return
        try:
            self.carry_out([*dict.fromkeys(chain.from_iterable(chains))], tell)
        except Exception as error:  # noqa: BLE001 - likewise, and the page itself is forgotten
            self._reporter.forget_failed(request, error)

    def _count_forgotten(self, marks: Sequence[bytes], there: Sequence[bytes]) -> None:
        found = {*there, *self.failed.intersection(marks)}
        self.failed.difference_update(marks)
        self._reporter.add((stats.FORGOTTEN if found else stats.NOT_FORGOTTEN).key)

    def _count_failed(self, _: Sequence[bytes], there: Sequence[bytes]) -> None:
        if there:
            self.failed.update(there)
            self._reporter.add(stats.FAILED.key)

    def _note_dropped(self, request: Request, fingerprint: bytes) -> None:
        """Note the pages that have led to one that was seen; forget them if that has failed.

        :param fingerprint: the mark of what was seen.
        """
        before = self._marks_before(request)
        marks = [mark for mark in before if mark != fingerprint and mark not in self.failed]
        if not marks:
            return
        if fingerprint in self.failed:
            chains = [(*marks,), *self._dropped.pop(marks)]
            self._forget_chains(request, chains, self._count_failed)
        else:
            self._dropped.add(fingerprint, marks)

    def _marks_of(self, request: Request) -> Iterator[bytes]:
        """Yield the mark of a page, and that of its step in a chain of redirects, if it is in one.

        Then follow the same of each page before it in the chain, the nearest one first.
        """
        fingerprint, _ = self._resolve(request)
        yield fingerprint
        if step := len(request.meta.get("redirect_urls", ())):
            yield step_fingerprint(step, fingerprint)
        yield from self._marks_before(request)

    def _marks_before(self, request: Request) -> Iterator[bytes]:
        """Yield the same of the pages before it only."""
        for step, marks in chain_before(request, self.resolver.fingerprinter.fingerprint):
            for mark in marks:
                yield mark
                if step:
                    yield step_fingerprint(step, mark)

    def _add_aged(self, request: Request, fingerprint: bytes) -> bool:
        """Mark a request that asks for a greatest age; return whether its page is not so old."""
        max_age = self.ages.of(request)
        if max_age is None or fingerprint in self.failed:
            return self._add(fingerprint)
        seen = self.opened.filter.add_aged(fingerprint, max_age)
        if not seen:
            self._reporter.add(stats.AGED.key)
            if self._on_mark:
                self._on_mark(fingerprint)
        return seen

    def _add_and_tell(self, fingerprint: bytes) -> bool:
        seen = self.opened.filter.add(fingerprint)
        if not seen and self._on_mark:
            self._on_mark(fingerprint)
        return seen

    def _add_many_and_tell(self, fingerprints: Iterable[bytes]) -> list[bool]:
        fingerprints = list(fingerprints)
        answers = self.opened.filter.add_many(fingerprints)
        for fingerprint, seen in zip(fingerprints, answers, strict=True):
            if not seen and self._on_mark:
                self._on_mark(fingerprint)
        return answers

    def _add_unless_failed(self, fingerprint: bytes) -> bool:
        return fingerprint in self.failed or self._add_untried(fingerprint)

    def _add_many_unless_failed(self, fingerprints: Iterable[bytes]) -> list[bool]:
        fingerprints, failed = list(fingerprints), self.failed
        seen = iter(self._add_many_untried([one for one in fingerprints if one not in failed]))
        return [one in failed or next(seen) for one in fingerprints]

    def _judge(
        self, request: Request, fingerprint: bytes, change: Change | None, *, seen: bool
    ) -> Verdict:
        """Return the verdict on a request whose fingerprint is marked; tell of it."""
        try:
            if not seen or (self.let_through and self._is_let_through(fingerprint)):
                verdict = NEW
            elif "redirect_urls" in request.meta and self._is_next_step(request, fingerprint):
                verdict = EXEMPT
            else:
                verdict = SEEN
                if "redirect_urls" in request.meta:
                    self._note_dropped(request, fingerprint)
            if change or verdict is SEEN:
                self.resolver.note(request, fingerprint, change, seen=verdict is SEEN)
        except Exception as error:  # noqa: BLE001 - raised, it would cost the page
            return self.fail(request, error)
        self._count(verdict)
        return verdict

    def _is_next_step(self, request: Request, fingerprint: bytes) -> bool:
        """Return whether the request only goes on with the chain of redirects that it is in."""
        step = self.next_step(request, fingerprint)
        if step is None:
            return False
        return not self._add(step) or self._is_let_through(step)

    def _is_let_through(self, fingerprint: bytes) -> bool:
        """Return whether a mark is to be called new once more, which is done then."""
        if fingerprint not in self.let_through or fingerprint in self.failed:
            return False
        self.let_through.remove(fingerprint)
        if self._on_mark:
            self._on_mark(fingerprint)
        self._reporter.add(stats.LET_THROUGH.key)
        return True


def spider_name(crawler: Crawler) -> str:
    """Return the spider's name. A class may leave that to its instances, or have none at all."""
    name = getattr(crawler.spider or crawler.spidercls, "name", None)
    return name or crawler.spidercls.__name__


class NoSession:
    """Stands for a session that could not be opened, or is closed: every request is crawled.

    :param error: why there is none.
    """

    emptied: Final = False

    closes_slowly = False

    def __init__(self, error: Exception, reporter: Reporter) -> None:
        self.error = error
        self._reporter = reporter

    def check(self, request: Request) -> Verdict:
        """Return that the request could not be checked."""
        self._reporter.check_failed(request, self.error)
        self._reporter.count(ERROR)
        return ERROR

    def withdraw(self, request: Request) -> None:
        """Do nothing: nothing is marked."""

    def finish(self, request: Request) -> None:
        """Do nothing: nothing is marked."""

    def clear(self, *, at_end: bool = False) -> bool:  # noqa: ARG002 - as for a session
        """Return that nothing was emptied."""
        return False

    def close(self) -> None:
        """Write the last stats."""
        self._reporter.flush()
