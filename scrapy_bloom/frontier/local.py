"""A crawl's requests, marks and state, committed together every few milliseconds."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom import stats
from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.buckets import Bodies, rows_ahead
from scrapy_bloom.frontier.clock import call_later, later
from scrapy_bloom.frontier.items import Items
from scrapy_bloom.frontier.requests import decode, encode
from scrapy_bloom.frontier.spider_state import SpiderState
from scrapy_bloom.frontier.stopping import keep_what_fails
from scrapy_bloom.frontier.store import Store
from scrapy_bloom.frontier.under_way import Alive, UnderWay
from scrapy_bloom.frontier.upkeep import Frozen, Upkeep

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

logger = logging.getLogger(__name__)

CLEAN: Final = "clean"
"""Key of a note: 1 if the last run ended by itself, 0 while one is on."""

UNDER_WAY: Final = "under way"
"""Key of a note: how many requests were under way at the last commit."""

COMMIT_INTERVAL: Final = 0.05
"""Seconds from one commit to the next: what was done since the last one is done again after a kill.

Shorter, and commits take a share of the crawl that one can measure.
"""

_GATHERED: Final = 5_000
"""Changed rows that are committed at once, before the next one is due."""

_SLOWEST: Final = 5.0  # seconds between two attempts while the disk is full
_POLL: Final = 0.02  # seconds between two looks at a thread when the crawl is over


class LocalFrontier(Bodies):
    """Commits what a scheduler pushes, takes and marks.

    :param store: where it goes.
    :param fresh: to which each new mark is added.
    :param alive: tells whether the engine still has a request; None if it says so by itself.
    :param freeze: returns the filter as it is now.
    :param dumps: writes a request, as a dict.
    :param to_disk: whether what is written goes to the disk itself.
    :param journal: makes a snapshot of the filter when there are more marks than this.
    :param at_once: whether to make one as soon as possible.
    :param give_up: closes the spider for an error; called at most once.

    Attributes:
        store: the store.
        fresh: marks that were made and do not belong to a request yet.
        forgotten: fingerprints that are new once more.
    """

    def __init__(  # noqa: PLR0913 - the parts of a crawl
        self,
        crawler: Crawler,
        spider: Spider,
        store: Store,
        fresh: list[bytes],
        *,
        alive: Alive | None,
        freeze: Callable[[], Frozen],
        dumps: Callable[[dict[str, Any]], bytes],
        to_disk: bool,
        journal: int,
        at_once: bool,
        give_up: Callable[[BloomError], None],
    ) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self.store = store
        self.fresh = fresh
        self.forgotten: Container[bytes] = ()
        self._spider = spider
        self._stats = crawler.stats
        self._slot_of: Callable[[Request], str] = crawler.engine.downloader.get_slot_key
        self._dumps = dumps
        self._under_way: UnderWay[int] = UnderWay(self, alive)
        self._items = Items(crawler, to_disk=to_disk)
        self._state = SpiderState(store, spider)
        self._upkeep = Upkeep(store, freeze, journal, at_once=at_once)
        self._delay = COMMIT_INTERVAL
        self._give_up = give_up
        self._pid = os.getpid()
        self._timer: Any = None
        self._closing = False
        self._broken = False
        self._failing = self._said_failed = False
        self._said_unreadable = False
        self._ahead = rows_ahead(0)
        keep_what_fails(crawler, spider, self._under_way.keep)

    # What the queues ask for

    def encode(self, request: Request) -> bytes:
        """Return a request as bytes; raises whatever it will if that cannot be."""
        return encode(request, self._spider, self._dumps)

    def take(self, row: int, body: bytes) -> Request | None:
        """Return the request of a row and take note that it is under way."""
        try:
            request = decode(body, self._spider)
        except Exception as error:  # noqa: BLE001 - its parts may raise anything
            self._say_unreadable(error)
            return None
        self._under_way.start(request, row)
        return request

    def slot(self, request: Request) -> str:
        """Return the download slot of a request."""
        return self._slot_of(request)

    # What the scheduler does

    def push(self, queue: Any, request: Request) -> Exception | None:
        """Add a request, with its marks, to a priority queue over the store.

        :return: why the request cannot be stored, None if it is. Then it is for a queue in memory:
            its marks are withheld, and the pages that may have led to it stay, until it is done.
        """
        error = None
        try:
            queue.push(request)
        except Exception as failure:  # noqa: BLE001 - raised, it would cost the page
            error = failure
            self._under_way.hold(request, tuple(self.fresh))
            self._stats.inc_value(stats.HELD.key)
        else:
            self.store.mark(self.fresh)
        self.fresh.clear()
        if self.store.gathered >= _GATHERED and not self._failing:
            self.commit()
        self.arm()
        return error

    def pop(self, queue: Any) -> Request | None:
        """Take the next request that can be read from a priority queue over the store."""
        if self._broken:
            return None
        try:
            request: Request | None = queue.pop()
            while request is None and len(queue):  # there was one that could not be read
                request = queue.pop()
        except (sqlite3.Error, LookupError) as error:
            self._break(error)
            return None
        if request is not None:
            self.arm()
        return request

    def start_held(self, request: Request) -> Request:
        """Take note that a request was taken from the memory queue; return what to send."""
        self.arm()
        return self._under_way.start_held(request)

    def keep_marks(self) -> None:
        """Keep marks that belong to no request."""
        if self.fresh:
            self.store.mark(self.fresh)
            self.fresh.clear()

    def finish(self, request: Request) -> None:
        """Take note that the engine is through with a request."""
        self._under_way.finish(request)

    def forget(self, marks: Iterable[bytes]) -> None:
        """Have the next run take marks for new that this one takes for new from now on."""
        self.keep_marks()
        self.store.withhold(marks)
        self.arm()

    def arm(self) -> None:
        """Have a commit made when it is due."""
        if self._timer is None and not self._closing:
            self._timer = call_later(self._delay, self._tick)

    def commit(self) -> bool:
        """Commit what has changed; return whether everything is stored."""
        if self._broken or os.getpid() != self._pid:
            return False
        self._under_way.settle()
        self._upkeep.before_commit()
        if not self.store.dirty and not self._upkeep.waits_for_commit:
            return not self._failing
        if not self._items.flush():
            self._try_later()
            return False
        error = self._write()
        if error is not None:
            self._say_failed(error)
            return False
        self._say_better()
        self._read_less_ahead()
        try:
            self._upkeep.after_commit()
        except sqlite3.Error as failure:
            self._say_failed(failure)
        return True

    async def close(self) -> bool:
        """Commit, store the filter and close the store; return whether all of that is done."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._items.pipelines_are_closed()
        try:
            await self._finish_upkeep()
            needed = self.store.journal or self._upkeep.due
            if needed and not self._failing and not self._broken:
                self._upkeep.begin_snapshot()
                await self._finish_upkeep()
            if self._failing or self._broken:
                self._say_not_stored()
                self.abandon()
                return False
            self._describe()
            self.store.note(CLEAN, 1)
            self.store.note(UNDER_WAY, 0)
            self.store.commit()
            self.store.close()
        except (sqlite3.Error, OSError) as error:
            self._say_failed(error)
            self.abandon()
            return False
        return True

    def abandon(self) -> None:
        """Let go of the store and write nothing more."""
        self._broken = True
        self.store.abandon()

    # What becomes of requests that were under way

    def done(self, row: int) -> None:
        """Let go of a request."""
        self.store.done(row)

    def withhold(self, marks: tuple[bytes, ...]) -> None:
        """Keep marks of a request that cannot be stored back from the next run."""
        self.store.withhold(marks)

    def mark(self, marks: tuple[bytes, ...]) -> None:
        """Keep the marks of a request that was not stored, and is done."""
        self.store.mark(marks)
        self.store.withhold(mark for mark in marks if mark in self.forgotten)

    # Commits

    def _tick(self) -> None:
        self._timer = None
        self.commit()
        if self._broken:
            return
        if len(self._under_way) or self.store.dirty or self._upkeep.busy:
            self.arm()

    def _write(self) -> sqlite3.Error | None:
        self._state.note()
        self.store.note(UNDER_WAY, len(self.store.busy))
        try:
            self.store.commit()
        except sqlite3.Error as error:
            return error
        self._stats.set_value(stats.PENDING.key, len(self.store))
        return None

    def _try_later(self) -> None:
        self._failing = True
        self._delay = min(_SLOWEST, self._delay * 2)

    def _say_failed(self, error: Exception) -> None:
        self._stats.inc_value(stats.COMMIT_ERRORS.key)
        if isinstance(error, sqlite3.Error) and file.is_damage(error):
            self._break(error)
            return
        self._try_later()
        if not self._said_failed:
            self._said_failed = True
            logger.error(
                "%s: %s. The crawl goes on and tries again; until that works, a kill takes it back"
                " to the last commit. No page is lost, some are fetched again.",
                self.store.path,
                error,
                extra={"spider": self._spider},
            )

    def _say_better(self) -> None:
        self._failing = False
        self._delay = COMMIT_INTERVAL
        if self._said_failed:
            self._said_failed = False
            logger.info("%s: commits work again.", self.store.path, extra={"spider": self._spider})

    def _say_not_stored(self) -> None:
        if not self._broken:  # that was said, and closed the spider
            logger.error(
                "%s: what came since the last commit could not be stored before the end. The next"
                " run goes on from there, as after a kill. No page is lost, some are fetched"
                " again.",
                self.store.path,
                extra={"spider": self._spider},
            )

    def _say_unreadable(self, error: Exception) -> None:
        self._stats.inc_value(stats.UNREADABLE.key)
        if not self._said_unreadable:
            self._said_unreadable = True
            logger.error(
                "%s: a stored request cannot be read (%r). Its page is not fetched, nor any page"
                " that only it leads to. The request stays in the file. If the code of the spider"
                " has changed, go back to what it was and start again; else crawl again in another"
                " JOBDIR. More such errors are counted in %s and not shown.",
                self.store.path,
                error,
                stats.UNREADABLE.key,
                extra={"spider": self._spider},
            )

    def _break(self, error: Exception) -> None:
        """Write nothing more: what is in the file cannot be trusted."""
        if not self._broken:
            self._broken = True
            self._give_up(file.damaged(self.store.path, error))

    def _read_less_ahead(self) -> None:
        """Have all queues keep fewer rows where there are many more queues than before."""
        ahead = rows_ahead(self.store.queues)
        if ahead * 2 <= self._ahead:
            self._ahead = ahead
            for watcher in self.store.watchers():
                watcher.committed()
        elif ahead > self._ahead:
            self._ahead = ahead

    async def _finish_upkeep(self) -> None:
        """Commit until nothing goes on beside the crawl any more."""
        while self.commit() and self._upkeep.busy:
            await later(_POLL)

    def _describe(self) -> None:
        self._stats.set_value(stats.PENDING.key, len(self.store))
