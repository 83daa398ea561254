"""A crawl's requests, marks and state, committed together, about every 50 ms."""

from __future__ import annotations

import logging
import pickle
import sqlite3
import time
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request, signals
from scrapy.exceptions import DontCloseSpider
from twisted.internet.defer import Deferred

from scrapy_bloom import stats
from scrapy_bloom.crawl.engine import (
    Engine,
    Timer,
    exit_with_error_code,
    pop_back,
    run_beside,
    write_no_state,
)
from scrapy_bloom.crawl.in_flight import InFlight, Visit
from scrapy_bloom.crawl.items import Items
from scrapy_bloom.crawl.later import DELAY, REST, pop_due, report_rest
from scrapy_bloom.crawl.report import Verdict
from scrapy_bloom.crawl.session import Session
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.local.job import IN_FLIGHT, REQUESTS, Identity, Job
from scrapy_bloom.local.later import Later
from scrapy_bloom.local.queue import QueueClasses, Queues
from scrapy_bloom.local.scrapys import STATE
from scrapy_bloom.local.starts import Starts
from scrapy_bloom.local.taking_over import take_over
from scrapy_bloom.settings import COMMIT_SYNC, Settings
from scrapy_bloom.signals import forget_page, hold_slot
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.report import Report

logger = logging.getLogger(__name__)

SEEN = Verdict.SEEN

INTERVAL: Final = 0.05
"""Seconds between commits. A kill undoes what came after the last one."""

PAUSE: Final = 10
"""The next commit waits at least this many times as long as the last one took, so that what makes
commits slow, such as a large ``spider.state``, takes at most an eleventh of a crawl's time."""

MOST_NEW: Final = 16 << 20
"""The next commit does not wait so long once it has so many bytes of requests: they are in memory
until then, and a slow one after many of them would let many more pile up."""

_SLOWEST: Final = 5.0  # seconds between two attempts while the disk is full

MOST_UNWRITTEN: Final = 1_000
"""Pages whose items could not be written out. With more, no request is sent: each has its items in
memory, and is fetched again after a kill."""


class LocalFrontier:
    """The requests and marks of a crawl in the file of its job directory.

    Each commit adds new requests with their marks, and removes pages that are done, once their
    items are written out. So whenever a crawl is killed, every marked page is done, stored, or
    eligible again.

    It is opened in these steps; the first that fails releases the job directory, as it was:

    (1) Lock the job directory, and check whose it is
    (2) Take over a job of Scrapy's own scheduler, if there is one
    (3) Check the file, and read the filter
    (4) Open Scrapy's priority queue over the stored requests
    (5) Commit that a run has begun, and give Scrapy the spider's state of the last commit

    :param report: writes to stats and log.
    :param folder: the job directory.
    :param classes: Scrapy's queues, as chosen by the settings.
    :param memory: Scrapy's queue for requests that cannot be stored.
    :param unclean: whether the last run was killed, and its files were moved away.
    :raises BloomError: if the crawl cannot be kept as configured. Nothing is changed then.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        report: Report,
        folder: Path,
        classes: QueueClasses,
        memory: Any,
        *,
        unclean: bool,
    ) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        settings, engine = Settings.of(crawler), Engine(crawler)
        self._crawler, self._engine = crawler, engine
        self._session = session = Session(crawler, settings, report)
        fingerprinter = session.fingerprinter
        digests = fingerprinter.digests
        job = Job(folder, Identity(spider.name, fingerprinter.wrapped, session.made_by), REQUESTS)
        with job.opening():
            if job.previous != REQUESTS:
                take_over(job, settings, classes.plain, classes.start, digests=digests)
            job.open(settings, digests=digests)
            self._queues = Queues(crawler, spider, engine, job.store, classes)
            self._later = Later(job.store, self._queues, engine, memory)
            self._starts = Starts(job.store, self._queues)
            job.begin()
        self._job, self._store, self._memory = job, job.store, self._later.memory
        self._rest_logged = False
        session.filter = job.store.filter
        self._spider, self._report, self._inc = spider, report, report.inc
        self._sync = settings[COMMIT_SYNC] == "machine"
        self._in_flight = InFlight(engine, report)
        job.store.marks.withheld = self._in_flight.kept_marks
        unsure = job.killed or not job.previous
        self._items = Items(crawler, engine, report, sync=self._sync, unclean=unsure)
        self._unwritten: list[Visit] = []  # done, but their items are not written out yet
        self._delay = INTERVAL
        self._timer = Timer(self._tick)
        self._ticking: Deferred[None] | None = None
        self._closing = self._broken = self._failing = False
        _report_opened(report, job, len(self), unclean=unclean or job.killed)
        crawler.signals.connect(self.forget, signal=forget_page)
        crawler.signals.connect(self.hold, signal=hold_slot)
        crawler.signals.connect(self._spider_idle, signal=signals.spider_idle)

    def __len__(self) -> int:
        """Return how many requests are waiting."""
        return len(self._queues) + len(self._later) + len(self._memory) - self._memory.later

    # What the scheduler calls

    def enqueue(self, request: Request) -> bool:
        """Store a request with its mark; return False if it is a duplicate.

        If that fails, what led to the request stays, and is fetched again by the next run.
        """
        try:
            return self._enqueue(request)
        except Exception as error:  # noqa: BLE001 - no memory, or a queue of the project's own
            self._leave(request, error)
            return True

    def _enqueue(self, request: Request) -> bool:
        due = pop_due(request, self._report)
        filtered = not (pop_back(request) or request.dont_filter)
        if filtered and self._session.check(request) is SEEN:
            # A held request is lost at a stop: the pages that led to it are fetched again.
            if self._in_flight.kept_marks:
                for mark in self._marks_of(request):
                    self._in_flight.note_duplicate(request, mark)
            self._arm()
            return False
        is_start = not (filtered or due) and self._engine.is_from_start(request)
        digest = self._starts.digest(request) if is_start else b""
        if digest and self._starts.take(digest):
            return True
        error = self._later.push(request, due) if due else self._queues.push(request)
        if error is None:
            if digest:
                self._starts.note(digest, self._queues.row)
            self._inc("scheduler/enqueued/disk")
        else:
            self._keep_in_memory(request, error, due, filtered=filtered)
            self._inc("scheduler/enqueued/memory")
        self._inc("scheduler/enqueued")
        self._arm()
        if due:
            self._later.await_due()
        return True

    def next(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first."""
        if len(self._unwritten) > MOST_UNWRITTEN:
            return None
        request, row = self._memory.pop(self._later.held_until), None
        if request is not None:
            self._inc("scheduler/dequeued/memory")
        else:
            taken = self._pop()
            if taken is None:
                self._later.await_due()
                return None
            request, row = taken
            self._inc("scheduler/dequeued/disk")
        self._inc("scheduler/dequeued")
        self._arm()
        # Last, as then nothing may be raised: what is in flight and not with the engine is done.
        if row is None:
            self._in_flight.start_kept(request)
        else:
            self._in_flight.start(request, row)
        return request

    def pending(self) -> bool:
        """Return whether a request may be sent soon.

        While all that waits has to wait for longer, the spider is idle: some are fed only then.
        """
        soon = time.monotonic() + REST
        return self._ready > 0 or (len(self) > 0 and self._later.next_due <= soon)

    @property
    def _ready(self) -> int:
        """How many requests may be sent now."""
        here = len(self._memory) - self._memory.later
        return here + self._queues.ready

    def forget(self, request: Request, failed: bool = False) -> bool:  # noqa: FBT001, FBT002 - a signal
        """Make a page eligible again (next run if it has failed); return whether it was known."""
        known = self._session.forget(request, failed)
        self._arm()
        return known

    def hold(self, request: Request, seconds: float) -> bool:
        """Leave the download slot of a request alone; return that it was done."""
        slot = self._queues.slot_of(request)
        self._later.hold(slot, seconds)
        self._engine.take_back(slot, **{DELAY: seconds})
        self._arm()
        return True

    def held_until(self, request: Request) -> float:
        """Return until when a request on its way must wait, 0 if it need not."""
        return self._later.held_until(request) if self._engine.is_downloading(request) else 0.0

    def describe(self) -> tuple[str, ...]:
        """Bring the stats of the filter up to date; return what else is known, as phrases."""
        self._report.describe(self._store.filter.info())
        held = len(self._later.held)
        hosts = (f"{counted(held, 'host')} left alone",) if held else ()
        return f"{len(self._in_flight):,} in flight", *hosts

    async def close(self) -> bool:
        """Store everything; return whether that worked.

        (1) Wait for a commit that is in progress
        (2) Write out items, and commit the pages that are done
        (3) Write the filter's blocks, note that the run was stopped cleanly, and close the file
        (4) Release the job directory
        """
        self._closing = True
        self._timer.cancel()
        if self._ticking is not None:
            await self._ticking
        self._later.close()
        self._note_state()
        await self._commit(last=True)
        stored = not self._broken and await run_beside(self._job.close)
        if self._broken:  # the file is left as it is
            self._job.abandon()
        info = self._store.filter.info()  # minus what the next run will not know
        self._report.describe(replace(info, items=info.items - len(self._in_flight.kept_marks)))
        self._report.set(stats.PENDING, len(self._store))
        self._report.flush()
        return stored

    # Requests in flight

    def _pop(self) -> tuple[Request, int] | None:
        later = self._later
        if self._broken or not later.has_room:
            return None
        try:
            later.move_due()
            taken = self._queues.pop()
            while taken is not None and (until := later.held_until(taken[0])):
                if not later.postpone(*taken, until):
                    break
                self._arm()
                taken = self._queues.pop() if later.has_room else None
        except sqlite3.Error as error:
            self._break(
                StateError(
                    f"{self._store.path} cannot be read ({error}); nothing more is written. Start"
                    f" the crawl again first: it resumes if the disk only failed to read once. If"
                    f" it is refused then, restore the job directory from a copy, or delete it and"
                    f" crawl again."
                )
            )
            return None
        if self._queues.unreadable:
            errors, self._queues.unreadable = self._queues.unreadable, []
            _log_unreadable(self._report, self._store.path, errors)
        if taken is not None:
            self._rest_logged = False
        return taken

    def _spider_idle(self) -> None:
        """Keep the spider open while requests wait for their time.

        :raises DontCloseSpider: in that case.
        """
        if self._broken or not len(self):
            return
        due, resting = self._later.next_due, len(self) - self._ready
        # None rests if what there is was enqueued by a handler before this one.
        if resting and not self._rest_logged and due > time.monotonic() + REST:
            self._rest_logged = True
            report_rest(self._report, resting, due)
        raise DontCloseSpider

    def _keep_in_memory(
        self, request: Request, error: Exception, due: float, *, filtered: bool
    ) -> None:
        """Hold a request in memory, and keep the page that yielded it in the store."""
        marks = self._marks_of(request) if filtered else ()
        request = self._in_flight.keep(request, error, marks)
        self._store.marks.withheld_changed(marks)
        self._memory.push(request, due)

    def _marks_of(self, request: Request) -> tuple[bytes, ...]:
        try:
            return self._session.marks_of(request)
        except Exception:  # noqa: BLE001 - not checked either, so not marked
            return ()

    # Commits

    def _arm(self) -> None:
        """Schedule the next commit, soon if much waits for it in memory, unless commits fail."""
        if self._closing or self._ticking is not None:
            return
        hurries = self._store.new_bytes > MOST_NEW and not (self._failing or self._unwritten)
        self._timer.set(INTERVAL if hurries else self._delay)

    def _tick(self) -> None:
        if self._ticking is not None:  # a handler of `before_commit` has set the timer
            return
        self._ticking = Deferred.fromCoroutine(self._commit())
        self._ticking.addBoth(self._ticked)

    def _ticked(self, _: None) -> None:
        self._ticking = None
        self._later.note_committed()
        busy = len(self._in_flight) or self._unwritten or self._store.dirty
        if busy and not self._broken:
            self._arm()

    async def _commit(self, *, last: bool = False) -> None:
        """Commit what has changed. Never raises, because the file must be closed in any case.

        :param last: whether to give up on items that cannot be written: their pages stay stored.
        """
        try:
            await self._commit_done(last=last)
        except BloomError as error:
            self._break(error)
        except Exception as error:
            self._report.add(stats.COMMIT_ERRORS)
            self._delay = min(_SLOWEST, self._delay * 2)
            if not self._failing:
                self._failing = True
                logger.error(  # noqa: TRY400 - a traceback only if unexpected
                    "%s: %s. The crawl continues and retries. Until that succeeds, a kill takes it"
                    " back to the last commit: no page is lost, but some are fetched again.",
                    self._store.path,
                    error,
                    exc_info=None if isinstance(error, sqlite3.Error) else error,
                    extra={"spider": self._spider},
                )

    async def _commit_done(self, *, last: bool) -> None:
        if self._broken:
            return
        self._unwritten += self._in_flight.pop_done()
        if not self._unwritten and not self._store.dirty:
            return
        done, self._unwritten = self._unwritten, []
        written = await self._items.flush()
        if not written:  # the pages stay stored; what they led to is committed
            if last:
                self._items.log_kept(len(done))
            else:
                self._unwritten = done + self._unwritten
            done = []
        for visit in done:
            if visit.row is not None:
                self._store.done(visit.row)
            self._in_flight.release(visit)
            self._store.marks.withheld_changed(visit.marks)
        if self._broken:  # leave the file as it is
            return
        began = perf_counter()
        self._note_state()
        self._store.meta[IN_FLIGHT] = self._store.in_flight
        self._store.commit(sync=self._sync)
        if self._failing:
            self._failing = False
            logger.info("%s: commits work again.", self._store.path, extra={"spider": self._spider})
        delay = max(INTERVAL, PAUSE * (perf_counter() - began))
        self._delay = delay if written else max(delay, min(_SLOWEST, self._delay * 2))
        if len(done) > MOST_UNWRITTEN:
            self._engine.wake()
        self._report.set_if_used(stats.LATER, len(self._later))
        self._report.set(stats.PENDING, len(self._store))

    def _note_state(self) -> None:
        """Note ``spider.state`` if it has changed."""
        state = getattr(self._spider, "state", None)
        if state is None:
            return
        try:
            pickled = pickle.dumps(state, protocol=4)
        except Exception as error:  # noqa: BLE001 - it may contain anything
            self._report.once(
                logging.WARNING,
                "spider.state cannot be pickled (%r), so it is not stored: after a kill the spider"
                " has the state that was stored last. Keep in it what can be pickled.",
                error,
            )
            return
        self._store.meta[STATE] = pickled

    def _leave(self, request: Request, error: Exception) -> None:
        """Leave to the next run what led to a request that could not be enqueued."""
        self._report.once(
            logging.ERROR,
            "%s could not be enqueued. The page that led to it is not done: the next run fetches it"
            " again. More such errors are not shown.",
            request,
            failure=error,
        )
        try:
            self._in_flight.leave(request)
            sure = self._session.withdraw(request)
        except Exception:  # noqa: BLE001 - no memory
            sure = False
        if not sure:
            self._break(
                StateError(
                    f"{self._store.path}: a request could not be enqueued ({error!r}), and neither"
                    f" could its page be forgotten, so nothing more is written. Start the crawl"
                    f" again: it resumes from the last commit."
                )
            )

    def _break(self, error: BloomError) -> None:
        """Stop writing: the file cannot be trusted, or is not ours alone. End the crawl."""
        if not self._broken:
            self._broken = True
            exit_with_error_code(self._crawler)
            write_no_state(self._crawler)  # it would not be that of the last commit
            self._report.give_up(error)


def _report_opened(report: Report, job: Job, waiting: int, *, unclean: bool) -> None:
    """Log and count what a job has at the start of a run."""
    contents = ""
    if job.previous or job.restored or waiting:
        contents = f"{counted(job.restored, 'page')} known, {counted(waiting, 'request')} to fetch"
    if job.in_flight:
        contents += f", {job.in_flight:,} of them were in flight when the crawl was killed"
        report.set(stats.RECOVERED, job.in_flight)
    resumed = ", resumed after a kill" if job.killed else ", resumed" if job.previous else ""
    report.opened(
        "Crawl state",
        f"in {job.path}{resumed}",
        contents,
        job.store.filter.info(),
        restored=job.restored,
        unclean=unclean,
    )
    report.set(stats.PENDING, len(job.store))
    if job.is_finished(waiting=waiting > 0):
        report.finished(job.folder, job.restored)


def _log_unreadable(report: Report, path: Path, errors: list[Exception]) -> None:
    """Count stored requests that could not be read, and log the first one."""
    report.add(stats.UNREADABLE, len(errors))
    report.once(
        logging.ERROR,
        "%s: a stored request cannot be read (%r). Its page is not fetched, nor any page that"
        " only it leads to. The request stays in the file. Restore the spider's code if it has"
        " changed, or fix what in its meta or cb_kwargs cannot be unpickled, and start again;"
        " otherwise crawl again in another JOBDIR. More such errors are counted in %s and not"
        " shown.",
        path,
        errors[0],
        stats.UNREADABLE.key,
    )
