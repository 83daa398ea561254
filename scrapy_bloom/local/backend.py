"""A crawl's requests, marks and state in its job directory, committed about every 50 ms."""

from __future__ import annotations

import json
import logging
import pickle
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from scrapy_bloom import stats
from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.backend import Backend, Crawl
from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.crawl.history import START, TRIES
from scrapy_bloom.crawl.later import REST
from scrapy_bloom.crawl.outcomes import Ended, Reason
from scrapy_bloom.crawl.report import give_up
from scrapy_bloom.crawl.scrapy.crawler import exit_with_error_code, write_no_state
from scrapy_bloom.crawl.scrapy.loop import pause, run_beside
from scrapy_bloom.crawl.serialize import Unstorable, read_fields, read_request
from scrapy_bloom.crawl.whose import writer_of
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.local.job import IN_FLIGHT, REQUESTS, Identity, Job
from scrapy_bloom.local.queue import QueueClasses, Queues, Taken
from scrapy_bloom.local.scrapys import STATE
from scrapy_bloom.local.starts import StoredStarts
from scrapy_bloom.settings import COMMIT_SYNC
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy import Request

    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.filter.info import FilterInfo

logger = logging.getLogger(__name__)

INTERVAL: Final = 0.05
"""Seconds between commits. A kill undoes what came after the last one."""

PAUSE: Final = 10
"""The next commit waits at least this many times as long as the last one took, so that what makes
commits slow, such as a large ``spider.state``, takes at most an eleventh of a crawl's time."""

MOST_NEW: Final = 16 << 20
"""The next commit does not wait so long once it has so many bytes of requests: they are in memory
until then, and a slow one after many of them would let many more pile up."""

SEEN: Final = "seen"
"""Key of a note: how many links all runs have dropped, because they led to pages seen before."""

STATUSES: Final = "statuses"
"""Key of a note: how many responses no callback got, by status."""

_AT_ONCE: Final = 100  # most failed requests that are put back to find one that may be sent

_SLOWEST: Final = 5.0  # seconds between two attempts while the disk is full


class LocalBackend(Backend):
    """The requests and marks of a crawl in the file of its job directory.

    :param job: the job, in which a run has begun.
    :param queues: its requests.
    :param starts: those of them that ``start()`` yields in each run.
    """

    kind: ClassVar[str] = "disk"

    def __init__(self, crawl: Crawl, job: Job, queues: Queues, starts: StoredStarts) -> None:
        self._job, self._store, self._queues = job, job.store, queues
        self._crawler, self._spider = crawl.crawler, crawl.spider
        self._report, self._engine = crawl.report, crawl.engine
        self._identify = crawl.identifier.identify
        self._sync = crawl.settings[COMMIT_SYNC] == "machine"
        self._kept_marks = job.store.marks.withheld = crawl.in_flight.kept_marks
        self._add, self._add_aged = job.store.filter.add, job.store.filter.add_aged
        self.may_be_cut = job.killed or not job.previous
        self.interval = INTERVAL
        self._failing = False
        self._starts = starts
        self._seen_before = job.store.meta.get(SEEN, 0)
        self._statuses = Counter(json.loads(job.store.meta.get(STATUSES) or "{}"))

    @classmethod
    async def open(
        cls, crawl: Crawl, folder: Path, classes: QueueClasses, *, unclean: bool
    ) -> LocalBackend:
        """Open the file of a job directory, or create it.

        All but Scrapy's classes work beside the event loop. The first step that fails releases the
        job directory, as it was:

        (1) Lock the job directory, and check whose it is
        (2) Check the file, and read the filter
        (3) Open Scrapy's priority queue over the stored requests
        (4) Commit that a run has begun, and give Scrapy the spider's state of the last commit

        :param classes: Scrapy's queues, as chosen by the settings.
        :param unclean: whether the last run was killed, and its files were moved away.
        :raises BloomError: if the crawl cannot be kept as configured. Nothing is changed then.
        """
        settings, fingerprinter = crawl.settings, crawl.identifier.fingerprinter
        made_by, writer = crawl.identifier.made_by, writer_of(crawl.spider)
        owner = Identity(crawl.spider.name, fingerprinter.wrapped, made_by, writer)
        digests = fingerprinter.digests
        job = await run_beside(partial(Job, folder, owner, REQUESTS))
        with job.opening():
            await run_beside(partial(job.open, settings, digests=digests))
            queues = Queues(crawl.crawler, crawl.spider, crawl.engine, job.store, classes)
            await run_beside(queues.read_waiting)
            starts = await run_beside(partial(StoredStarts, job.store, queues))
            await run_beside(job.begin)
        opened = cls(crawl, job, queues, starts)
        _report_opened(crawl.report, job, len(opened), unclean=unclean or job.killed)
        return opened

    def __len__(self) -> int:
        return len(self._queues)

    # Marks and requests

    def offer(
        self, request: Request, due: float, mark: bytes | None, max_age: float | None
    ) -> bool:
        """Add a mark and store its request with the next commit.

        A request that cannot be serialized is marked all the same.
        """
        if mark is not None and (
            self._add(mark) if max_age is None else self._add_aged(mark, max_age)
        ):
            return True
        is_start = mark is None and self._engine.is_from_start(request)
        digest = self._starts.digest(request) if is_start and not due else b""
        if digest and self._starts.take(digest):
            return False  # it has waited since an earlier run
        if is_start:
            self._note_start(request)
        error = self._queues.push(request, due)
        if self.due == inf:
            self._changed()
        elif self._store.new_bytes > MOST_NEW and not self._failing:
            self.due = min(self.due, time.monotonic() + INTERVAL)
        if error is not None:
            raise Unstorable(error) from error
        if digest:
            self._starts.note(digest, self._queues.taken.row)
        return False

    def _note_start(self, request: Request) -> None:
        """Count a start request once, and let it take the place of its like that has failed."""
        with suppress(Exception):  # the project's fingerprinter
            request.meta[START], _ = self._identify(request)
            self._reopen(request.meta[START])
            failed = self._store.failed.take_start(request.meta[START])
            before = {} if failed is None else read_fields(failed.body)["meta"]
            if TRIES in before:
                request.meta[TRIES] = before[TRIES]

    def _reopen(self, start: bytes) -> None:
        """Let a start request count no more as what it did: it comes again, or ends again."""
        ended = self._store.starts.get(start)
        if ended is not None:
            self._store.starts.set(start, None)
            self._count(ended, -1)

    def _count(self, ended: str, by: int) -> None:
        name, _, status = ended.partition(" ")
        meta = self._store.meta
        meta[name] = meta.get(name, 0) + by
        if status:
            self._statuses[status] += by
            meta[STATUSES] = json.dumps(+self._statuses)

    def __contains__(self, mark: bytes) -> bool:
        return mark in self._store.filter

    def forget_many(self, marks: Collection[bytes]) -> list[bool]:
        self._changed()
        return self._store.filter.forget_many(marks)

    def withhold(self, marks: Collection[bytes], *, is_over: bool = False) -> None:  # noqa: ARG002 - either way
        """Record marks that the next run must not know, or may again."""
        self._changed()
        self._store.marks.withheld_changed(marks)

    def take(self) -> tuple[Request, Taken] | None:
        if self.broken or not self._queues.has_room:
            return None
        try:
            taken = self._queues.pop() or self._take_failed()
            if self._queues.postponed:
                self._changed()
        except sqlite3.Error as error:
            self.give_up(
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
        return taken

    def release(
        self, taken: Taken | None, ended: Ended, status: str = "", start: bytes = b""
    ) -> None:
        """Delete the row of a request with the next commit, and count its page."""
        if taken is not None:
            self._store.done(taken.row)
        if ended is Ended.REPLACED:
            return
        if start:
            self._reopen(start)
            self._store.starts.set(start, f"{ended.value} {status}")
        self._count(f"{ended.value} {status}", 1)

    def fail(
        self, taken: Taken, reason: Reason, way: Collection[bytes], start: bytes = b""
    ) -> None:
        """Move the row of a request to the failed list with the next commit."""
        if start:
            self._reopen(start)
        self._store.fail(taken.row, Failed.of(taken.body, reason, time.time()), start or None)
        if way:
            self._store.filter.forget_many(way)

    def _take_failed(self) -> tuple[Request, Taken] | None:
        """Take a request that failed in an earlier run, if no other may be sent now.

        Each is put back only when its turn comes: put back earlier, it would be sent before what
        waits if Scrapy's queue takes the newest first, or if its priority is higher.
        """
        list_, queues, taken = self._store.failed, self._queues, None
        for _ in range(_AT_ONCE):  # those of hosts that are left alone wait with the others
            left = list_.left
            if taken or not left or queues.ready or not queues.has_room:
                break
            self._put_back()
            if list_.left == left:  # the others are start requests, and start() is not through
                break
            taken = queues.pop()
        return taken

    def _put_back(self) -> None:
        """Put a failed request of an earlier run back."""
        list_ = self._store.failed
        for id_, failed in list_.due(1, starts=self._engine.has_started):
            try:
                if failed is None:
                    raise ValueError("its bytes do not match their checksum")
                problem = self._queues.push(read_request(failed.body, self._spider))
            except Exception as error:  # its parts may raise anything
                problem = error
            if problem is not None:
                self._queues.unreadable.append(problem)
            elif failed is not None:
                list_.remove(id_, failed)
            self._changed()

    # Download slots

    def hold(self, request: Request, seconds: float) -> None:
        self._queues.hold(self._queues.slot_of(request), seconds)
        self._changed()

    def held_until(self, request: Request) -> float:
        return self._queues.held_until(request)

    # Commits

    @property
    def dirty(self) -> bool:
        return self._store.dirty

    def _changed(self) -> None:
        if self.due == inf:
            self.due = time.monotonic() + self.interval

    async def exchange(self, *, busy: bool, in_memory: bool) -> bool:  # noqa: ARG002 - all is known here
        """Commit what has changed."""
        self.due = inf
        if self.broken or not self._store.dirty:
            return not self.broken
        try:
            await self._let_log_catch_up()
            while self._store.write_ahead():
                await pause(0)
                await self._let_log_catch_up()
                if self.broken:
                    return False
            began = perf_counter()
            self._note_state()
            self._store.meta[IN_FLIGHT] = self._store.in_flight
            self._note_seen()
            self._store.commit(sync=self._sync)
        except BloomError as error:
            self.give_up(error)
            return False
        except (sqlite3.Error, OSError) as error:
            self._log_failure(error)
            return False
        finally:
            if not self._queues.has_room:  # what was postponed is in the way of others
                self._queues.postponed = 0
                self._engine.wake()
        if self._failing:
            self._failing = False
            logger.info("%s: commits work again.", self._store.path, extra={"spider": self._spider})
        self.interval = max(INTERVAL, PAUSE * (perf_counter() - began))
        self._report.set(stats.WAITING, len(self._store) - self._store.in_flight)
        return True

    async def _let_log_catch_up(self) -> None:
        if self._store.log.is_long:
            await run_beside(self._store.log.catch_up)

    def _note_seen(self) -> None:
        self._store.meta[SEEN] = self._seen_before + self._report.seen

    def stop(self) -> None:
        """Note the spider's last state, which the last exchange writes."""
        self._note_state()

    async def close(self) -> bool:
        """Close the job.

        (1) Write the filter's blocks, note that the run was stopped cleanly, and close the file
        (2) Release the job directory
        """
        self._note_seen()
        stored = not self.broken and await run_beside(self._job.close)
        account = self.account()  # what is still in flight waits now
        self._report.account = account._replace(
            waiting=account.waiting + account.in_flight, in_flight=0
        )
        if self.broken:  # the file is left as it is
            self._job.abandon()
        info = self._store.filter.info()  # minus what the next run will not know
        self._report.describe(replace(info, items=info.items - len(self._kept_marks)))
        self._report.set(stats.WAITING, len(self._store))
        self._report.flush()
        return stored

    # What waits

    @property
    def later(self) -> int:
        return self._queues.later

    def pending(self) -> bool:
        if self._store.failed.left:
            return True
        if self._queues.ready:
            return True
        return len(self) > 0 and self._queues.next_due <= time.monotonic() + REST

    @property
    def over(self) -> bool:
        return not (len(self) or self._store.failed.left)

    @property
    def next_start(self) -> float:
        # Without room a commit wakes the engine.
        return self._queues.next_due if self._queues.has_room else inf

    def resting(self) -> tuple[int, float]:
        return len(self) - self._queues.ready, self._queues.next_due

    def account(self) -> Account:
        store = self._store
        return account_of(store.meta, store.failed.reasons, len(store), store.in_flight)

    def info(self) -> FilterInfo:
        return self._store.filter.info()

    def describe(self) -> tuple[str, ...]:
        """Say how many hosts are left alone."""
        held = len(self._queues.held)
        return (f"{counted(held, 'host')} left alone",) if held else ()

    # Faults

    def _log_failure(self, error: Exception) -> None:
        self._report.add(stats.COMMIT_ERRORS)
        self.interval = min(_SLOWEST, self.interval * 2)
        if not self._failing:
            self._failing = True
            logger.error(
                "%s: %s. The crawl continues and retries. Until that succeeds, a kill takes it"
                " back to the last commit: no page is lost, but some are fetched again.",
                self._store.path,
                error,
                extra={"spider": self._spider},
            )

    def _note_state(self) -> None:
        """Note ``spider.state`` if it has changed."""
        state = getattr(self._spider, "state", None)
        if state is None:
            return
        try:
            pickled = pickle.dumps(state, protocol=4)
        except Exception as error:  # it may contain anything
            self._report.once(
                logging.WARNING,
                "spider.state cannot be pickled (%r), so it is not stored: after a kill the spider"
                " has the state that was stored last. Keep in it what can be pickled.",
                error,
            )
            return
        self._store.meta[STATE] = pickled

    def give_up(self, error: BloomError) -> None:
        """Stop writing: the file cannot be trusted, or is not ours alone. End the crawl."""
        if not self.broken:
            self.broken = True
            exit_with_error_code(self._crawler)
            write_no_state(self._crawler)  # it would not be that of the last commit
            give_up(self._crawler, self._report, error)


def _report_opened(report: Report, job: Job, waiting: int, *, unclean: bool) -> None:
    """Log and count what a job has at the start of a run."""
    contents, again = "", job.store.failed.left
    if job.previous or job.restored or waiting:
        to_fetch = counted(waiting + again, "request")
        contents = f"{counted(job.restored, 'page')} known, {to_fetch} to fetch"
    if job.in_flight:
        contents += f", {job.in_flight:,} of them were in flight when the crawl was killed"
        report.set(stats.RECOVERED, job.in_flight)
    if again:
        contents += f", {again:,} of them failed in earlier runs"
    resumed = ", resumed after a kill" if job.killed else ", resumed" if job.previous else ""
    report.opened(
        "Crawl state",
        f"in {job.path}{resumed}",
        contents,
        job.store.filter.info(),
        restored=job.restored,
        unclean=unclean,
    )
    report.set(stats.WAITING, len(job.store))
    if not again and job.is_finished(waiting=waiting > 0):
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


def account_of(
    meta: Mapping[str, Any], failed: Mapping[str, int], stored: int, in_flight: int
) -> Account:
    """Return what has become of the pages of a crawl.

    :param meta: its notes.
    :param failed: how many have failed for each reason.
    :param stored: how many requests are not done, those in flight among them.
    """
    return Account(
        done=meta.get(Ended.DONE.value, 0),
        redirected=meta.get(Ended.REDIRECTED.value, 0),
        failed=sum(failed.values()),
        waiting=stored - in_flight,
        in_flight=in_flight,
        reasons=failed,
        statuses=json.loads(meta.get(STATUSES) or "{}"),
        seen=meta.get(SEEN, 0),
    )
