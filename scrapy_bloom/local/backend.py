"""A crawl's requests, marks and state in its job directory, committed about every 50 ms."""

from __future__ import annotations

import logging
import pickle
import sqlite3
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Final

from scrapy_bloom import stats
from scrapy_bloom.crawl.account import Account
from scrapy_bloom.crawl.backend import Backend, Crawl
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.history import START, TRIES
from scrapy_bloom.crawl.later import IDLE_AFTER
from scrapy_bloom.crawl.outcomes import APART, Ended, Reason
from scrapy_bloom.crawl.report import end_crawl
from scrapy_bloom.crawl.scrapy.crawler import write_no_state
from scrapy_bloom.crawl.scrapy.loop import run_beside
from scrapy_bloom.crawl.serialize import Unstorable, read_fields, read_request, write_fields
from scrapy_bloom.crawl.whose import writer_of
from scrapy_bloom.errors import BloomError, StateError
from scrapy_bloom.file import log_size
from scrapy_bloom.local.failed import Reasons
from scrapy_bloom.local.feeds import NOTHING, complete_feeds, pack_due
from scrapy_bloom.local.job import Identity, Job, file_in
from scrapy_bloom.local.metadata import DONE, DUE, IN_FLIGHT, NOT_KEPT, REQUESTS, SEEN, THROUGH
from scrapy_bloom.local.queue import QueueClasses, Queues, Taken
from scrapy_bloom.local.scrapys import STATE
from scrapy_bloom.local.starts import ONLY_COUNTED, UNSTORED_DONE
from scrapy_bloom.settings import COMMIT_SYNC
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy import Request

    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.filter.info import FilterInfo

logger = logging.getLogger(__name__)

INTERVAL: Final = 0.05
"""Seconds between commits. A kill undoes what came after the last one."""

PAUSE: Final = 10
"""The next commit waits at least this many times as long as the last one took, so that what makes
commits slow, such as a large ``spider.state``, takes at most an eleventh of a crawl's time."""

SMALL: Final = 1 << 18
"""A file of this size, with its log, is opened at once, in some 15 ms."""

_COUNTED: Final = {ONLY_COUNTED: NOT_KEPT, UNSTORED_DONE: DONE}
"""Which count a start request without a row is in."""

_AT_ONCE: Final = 100  # most failed requests that are put back to find one that may be sent

_SLOWEST: Final = 5.0  # seconds between two attempts while the disk is full


class LocalBackend(Backend):
    """The requests and marks of a crawl in the file of its job directory.

    :param job: the job, in which a run has begun.
    :param queues: its requests.
    """

    kind: ClassVar[str] = "disk"

    def __init__(self, crawl: Crawl, job: Job, queues: Queues) -> None:
        self._job, self._store, self._queues = job, job.store, queues
        self._crawler, self._spider = crawl.crawler, crawl.spider
        self._report, self._engine = crawl.report, crawl.engine
        self._start_of = crawl.start_of
        self._sync = crawl.settings[COMMIT_SYNC] == "machine"
        self._add, self._add_aged = job.store.filter.add, job.store.filter.add_aged
        self.interval = INTERVAL
        self._failing = False
        self._failed_turn, self._late = False, time.monotonic() + APART
        self._seen_before = job.store.meta.get(SEEN, 0)

    @classmethod
    async def open(
        cls, crawl: Crawl, folder: Path, classes: QueueClasses, *, unclean: bool
    ) -> LocalBackend:
        """Open the file of a job directory, or create it.

        All but Scrapy's classes work beside the event loop, unless the file is small: with some
        reactors a crawl of Scrapy is open once ``Crawler.crawl()`` returns. The first step that
        fails releases the job directory, as it was:

        (1) Lock the job directory, and check whose it is
        (2) Check the file, and read the filter
        (3) Open Scrapy's priority queue over the stored requests
        (4) Append to feeds what the last commit has for them
        (5) Commit that a run has begun, and give Scrapy the spider's state of the last commit

        :param classes: Scrapy's queues, as chosen by the settings.
        :param unclean: whether the last run was killed, and its files were moved away.
        :raises BloomError: if the crawl cannot be stored as configured. Nothing is changed then.
        """
        settings, fingerprinter = crawl.settings, crawl.identifier.fingerprinter
        made_by, writer = crawl.identifier.made_by, writer_of(crawl.spider)
        owner = Identity(crawl.spider.name, fingerprinter.wrapped, made_by, writer)
        digests = fingerprinter.digests
        here = _is_small(file_in(folder))
        job = await run_beside(partial(Job, folder, owner, REQUESTS), here=here)
        with job.opening():
            await run_beside(partial(job.open, settings, digests=digests), here=here)
            queues = Queues(crawl.crawler, crawl.spider, crawl.engine, job.store, classes)
            await run_beside(queues.read_waiting, here=here)
            due = bytes(job.store.meta.get(DUE, NOTHING))
            await run_beside(partial(complete_feeds, job.folder, due), here=here)
            await run_beside(job.begin, here=here)
        opened = cls(crawl, job, queues)
        _report_opened(crawl.report, job, len(opened), unclean=unclean or job.killed)
        return opened

    def __len__(self) -> int:
        return len(self._queues)

    # Marks and requests

    def offer(
        self, request: Request, not_before: float, mark: bytes | None, max_age: float | None
    ) -> bool:
        """Add a mark and store its request with the next commit.

        A request that cannot be serialized is marked all the same.
        """
        if mark is not None and (
            self._add(mark) if max_age is None else self._add_aged(mark, max_age)
        ):
            return True
        start = self._start_of(request) if mark is None else b""
        before = self._store.starts[start] if start else None
        if start and self._is_there(before, start, request):
            return False
        try:
            self._queues.push(request, not_before)
            self._uncount(before)
        except Exception as error:
            raise Unstorable(error, request, write_fields) from error
        finally:
            if self.exchange_at == inf:
                self._changed()
        return False

    def _is_there(self, row: int | None, start: bytes, request: Request) -> bool:
        """Return whether a start request of an earlier run is not done yet.

        Otherwise this one takes its place: the earlier one is no longer counted as it ended, and
        its failures count on.
        """
        if row and self._queues.has(row):
            return True
        request.meta[START] = start
        failed = self._store.failed.pop(row) if row else None
        if failed is not None:
            with suppress(Exception):  # its parts may raise anything
                request.meta[TRIES] = read_fields(failed.body)["meta"][TRIES]
        elif row and row > 0 and not self._store.has(row):
            self._count(DONE, -1)
        return False

    def _uncount(self, before: int | None) -> None:
        """Count a start request that had no row no longer as what it was."""
        if before in _COUNTED:
            self._count(_COUNTED[before], -1)

    def _count(self, name: str, by: int) -> None:
        self._store.meta[name] = self._store.meta.get(name, 0) + by

    def __contains__(self, mark: bytes) -> bool:
        return mark in self._store.filter

    def forget_many(self, marks: Collection[bytes]) -> list[bool]:
        self._changed()
        return self._store.filter.forget_many(marks)

    def withhold(self, marks: Collection[bytes], *, is_over: bool = False) -> None:
        """Record marks that the next run must not know, or may again."""
        self._changed()
        self._store.marks.withhold(marks, is_over=is_over)

    def take(self) -> tuple[Request, Taken] | None:
        if self.broken:
            return None
        try:
            before = self.unwritten
            taken = self._take()
            if self.unwritten != before:  # some were postponed, or came back
                self._changed()
        except sqlite3.Error as error:
            self.give_up(
                StateError(
                    f"{self._store.path} cannot be read ({error}); nothing more is written. Start"
                    f" the crawl again: it resumes if only a single read failed. If it is refused,"
                    f" restore the job directory from a copy, or delete it and crawl again."
                )
            )
            return None
        if self._queues.unreadable:
            errors, self._queues.unreadable = self._queues.unreadable, []
            _log_unreadable(self._report, self._store.path, errors)
        return taken

    def release(self, taken: Taken | None, ended: Ended, start: bytes = b"") -> None:
        """Delete the row of a request with the next commit, and count its page."""
        if taken is not None:
            self._store.delete(taken.row)
        if ended is not Ended.REPLACED:
            self._count_ended(UNSTORED_DONE, b"" if taken is not None else start)

    def fail(
        self,
        taken: Taken | None,
        reason: Reason,
        way: Collection[bytes],
        start: bytes = b"",
    ) -> bool:
        """Move the row of a request to the failed list with the next commit."""
        if taken is None:
            self._count_ended(ONLY_COUNTED, start)
            return True
        failed = FailedPage.of(taken.body, reason, time.time(), way=way)
        if way and not failed.unparsed:
            self._store.filter.forget_many(way)
            failed = failed._replace(way=(*way,))  # what is redirected there has failed, too
        if not self._store.fail(taken.row, failed):
            self._count_ended(ONLY_COUNTED, start)
            self._report.not_kept(self._store.failed.reasons.decisions.total())
        return failed.unparsed

    def _count_ended(self, row: int, start: bytes) -> None:
        """Count a page that has ended; a start request that has no row once, as it ended last."""
        self._count(_COUNTED[row], 1)
        if start:
            self._uncount(self._store.starts[start])
            self._store.starts[start] = row

    def _take(self) -> tuple[Request, Taken] | None:
        """Take a request: one that failed in an earlier run when those have their turn.

        That is once nothing else may be sent and nothing, such as a login, is in flight. A run that
        never gets there puts one back with each request that it takes, an hour after it began.
        """
        failed, queues = self._store.failed, self._queues
        if failed.left and time.monotonic() >= self._late:
            return self._take_failed() or queues.pop()
        if (taken := queues.pop()) is not None or not failed.left:
            return taken
        if not self._failed_turn and self._engine.has_started and not self._engine.busy:
            self._failed_turn = not queues.ready
        return self._take_failed() if self._failed_turn and not queues.ready else None

    def _take_failed(self) -> tuple[Request, Taken] | None:
        """Put requests back that failed in an earlier run until one may be sent, and take it.

        Each is put back only when its turn comes: earlier, it would be sent before what waits if
        Scrapy's queue takes the newest first, or if its priority is higher.
        """
        for _ in range(_AT_ONCE):  # those of hosts that are paused wait with the others
            if not self._put_back():
                break
            if (taken := self._queues.pop()) is not None:
                return taken
        return None

    def _put_back(self) -> bool:
        """Put the next failed request of an earlier run back; return whether there was one."""
        list_ = self._store.failed
        due = list_.pop_due() if list_.left else None
        if due is None:
            return False
        id_, failed = due
        self._changed()
        try:
            if failed is None:
                raise ValueError("its bytes do not match their checksum")
            self._queues.push(read_request(failed.body, self._spider))
        except Exception as error:  # its parts may raise anything
            self._queues.unreadable.append(error)
        else:
            list_.remove(id_, failed)
        return True

    # Download slots

    def pause_host(self, request: Request, seconds: float) -> None:
        self._queues.pause(self._queues.slot_of(request), seconds)
        self._changed()

    def paused_until(self, request: Request) -> float:
        return self._queues.paused_until(request)

    # Commits

    @property
    def unwritten(self) -> int:
        return self._store.new_bytes

    @property
    def dirty(self) -> bool:
        return self._store.dirty

    def _changed(self) -> None:
        if self.exchange_at == inf:
            self.exchange_at = time.monotonic() + self.interval

    def store_due(self, due: Mapping[str, tuple[int, bytes]]) -> bool:
        self._store.meta[DUE] = pack_due(due)
        return True

    async def exchange(self, *, busy: bool, in_memory: bool) -> bool:  # noqa: ARG002 - all is known here
        """Commit what has changed."""
        self.exchange_at = inf
        if self.broken or not self._store.dirty:
            return not self.broken
        try:
            await self._let_log_catch_up()
            began = perf_counter()
            self._record_state()
            self._store.meta[IN_FLIGHT] = self._store.in_flight
            self._record_seen()
            self._store.commit(sync=self._sync)
        except BloomError as error:
            self.give_up(error)
            return False
        except (sqlite3.Error, OSError) as error:
            self._log_failure(error)
            return False
        if self._failing:
            self._failing = False
            logger.info("%s: commits work again.", self._store.path, extra={"spider": self._spider})
        self.interval = max(INTERVAL, PAUSE * (perf_counter() - began))
        self._report.set(stats.WAITING, len(self._store) - self._store.in_flight)
        return True

    async def _let_log_catch_up(self) -> None:
        if self._store.log.is_long:
            await run_beside(self._store.log.catch_up)

    def _record_seen(self) -> None:
        self._store.meta[SEEN] = self._seen_before + self._report.seen

    def stop(self) -> None:
        """Record the spider's last state, which the last exchange writes."""
        self._record_state()

    async def close(self) -> bool:
        """Close the job.

        (1) Write the filter's blocks, record that the run was stopped cleanly, and close the file
        (2) Release the job directory
        """
        self._record_seen()
        self._store.meta[THROUGH] = int(self._report.through)
        stored = not self.broken and await run_beside(self._job.close)
        account = self.account()  # what is still in flight waits now
        self._report.account = account._replace(
            waiting=account.waiting + account.in_flight, in_flight=0
        )
        if self.broken:  # the file is left as it is
            self._job.abandon()
        info = self._store.filter.info()  # minus what the next run will not know
        self._report.describe(replace(info, items=info.items - len(self._store.marks.withheld)))
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
        return len(self) > 0 and self._queues.next_due <= time.monotonic() + IDLE_AFTER

    @property
    def over(self) -> bool:
        return not (len(self) or self._store.failed.left)

    @property
    def next_start(self) -> float:
        return self._queues.next_due

    def idle_until(self) -> tuple[int, float]:
        return 0 if self._queues.ready else len(self), self._queues.next_due

    def account(self) -> Account:
        store = self._store
        return account_of(store.meta, store.failed.reasons, len(store), store.in_flight)

    def info(self) -> FilterInfo:
        return self._store.filter.info()

    def describe(self) -> tuple[str, ...]:
        """Return how many hosts are paused, as text."""
        paused = len(self._queues.paused)
        return (f"{counted(paused, 'host')} paused",) if paused else ()

    # Faults

    def _log_failure(self, error: Exception) -> None:
        self._report.add(stats.COMMIT_ERRORS)
        self.interval = min(_SLOWEST, self.interval * 2)
        if not self._failing:
            self._failing = True
            logger.error(
                "%s: %s. The crawl waits and retries. Until that succeeds, a kill takes it back"
                " to the last commit: no page is lost, but some are fetched again.",
                self._store.path,
                error,
                extra={"spider": self._spider},
            )

    def _record_state(self) -> None:
        """Record ``spider.state`` if it has changed."""
        state = getattr(self._spider, "state", None)
        if state is None:
            return
        try:
            pickled = pickle.dumps(state, protocol=4)
        except Exception as error:  # it may contain anything
            self._report.once(
                logging.WARNING,
                "spider.state cannot be pickled (%r), so it is not stored: after a kill the spider"
                " gets the last state that was stored. Put only what can be pickled into it.",
                error,
            )
            return
        self._store.meta[STATE] = pickled

    def give_up(self, error: BloomError) -> None:
        """Stop writing: the file cannot be trusted, or is not ours alone. End the crawl."""
        if not self.broken:
            self.broken = True
            write_no_state(self._crawler)  # it would not be that of the last commit
            end_crawl(self._crawler, self._report, error)


def _is_small(path: Path) -> bool:
    """Return whether opening the file of a job takes no longer than some turns of an event loop."""
    size = path.stat().st_size if path.exists() else 0
    return size + log_size(path) <= SMALL


def _report_opened(report: Report, job: Job, waiting: int, *, unclean: bool) -> None:
    """Log and count what a job has at the start of a run."""
    contents, again = "", job.store.failed.left
    if job.previous or job.restored or waiting:
        to_fetch = counted(waiting, "request")
        contents = f"{counted(job.restored, 'mark')}, {to_fetch} to fetch"
    if job.in_flight:
        contents += f", {job.in_flight:,} of them were in flight"
        report.set(stats.RECOVERED, job.in_flight)
    if again:
        contents += f", {again:,} on the failed list"
    resumed = (
        ", resumed after an unclean stop" if job.killed else ", resumed" if job.previous else ""
    )
    report.opened(
        "Crawl state",
        f"in {job.path}{resumed}",
        contents,
        job.store.filter.info(),
        restored=job.restored,
        unclean=unclean,
    )
    report.set(stats.WAITING, len(job.store))


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


def account_of(meta: Mapping[str, Any], reasons: Reasons, stored: int, in_flight: int) -> Account:
    """Return what has become of the pages of a crawl.

    :param meta: its metadata.
    :param reasons: of those that have failed or are unparsed.
    :param stored: how many requests are not done, those in flight among them.
    """
    return Account(
        done=meta.get(DONE, 0),
        waiting=stored - in_flight,
        in_flight=in_flight,
        failures=reasons.failures,
        decisions=reasons.decisions,
        not_kept=meta.get(NOT_KEPT, 0),
        seen=meta.get(SEEN, 0),
    )
