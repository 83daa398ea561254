"""The filter and the requests of a crawl that is kept in a job directory."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import scrapy
from scrapy.utils.misc import build_from_crawler

from scrapy_bloom import stats
from scrapy_bloom.core.growth import generation_length
from scrapy_bloom.frontier import file
from scrapy_bloom.frontier.buckets import BucketMaker
from scrapy_bloom.frontier.local import LocalFrontier
from scrapy_bloom.frontier.opening import (
    Found,
    check_complete,
    open_store,
    replay,
    start_priorities,
)
from scrapy_bloom.frontier.requests import QueueKind
from scrapy_bloom.frontier.under_way import watch_engine
from scrapy_bloom.layers.exact import (
    NOTE,
    ExactFilter,
    ExactLists,
    FrozenLists,
    remove_lists,
)
from scrapy_bloom.options import (
    COMMIT_SYNC,
    EXACT,
    WINDOW,
    CommitSync,
    write_span,
)
from scrapy_bloom.session.engine import engine_of
from scrapy_bloom.session.kept_crawl import Queues, Unserializable
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.errors import BloomError
    from scrapy_bloom.frontier.store import Store
    from scrapy_bloom.frontier.upkeep import Frozen
    from scrapy_bloom.session.session import OnMark, Session
    from scrapy_bloom.storage.snapshot import PendingSnapshot
    from scrapy_bloom.storage.store import JobStore

logger = logging.getLogger(__name__)


class LocalCrawl:
    """A :class:`KeptCrawl` in a job directory; :func:`open_local` makes it.

    :param frontier: commits requests and marks.
    :param queue: the priority queue over it.
    :param memory: the priority queue of requests that cannot be stored.
    :param seen: marks a request, and returns whether it is a duplicate.
    """

    def __init__(
        self,
        crawler: Crawler,
        spider: Spider,
        frontier: LocalFrontier,
        queue: Any,
        memory: Any,
        seen: Callable[[Request], bool],
        description: str,
    ) -> None:
        assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
        self.description = description
        self._frontier = frontier
        self._queue = queue
        self._memory = memory
        self._seen = seen
        self._count = crawler.stats.inc_value
        self._unserializable = Unserializable(crawler, spider)

    def __len__(self) -> int:
        """Return how many requests wait."""
        return len(self._queue) + len(self._memory)

    def enqueue(self, request: Request) -> bool:
        """Push a request unless it is a duplicate; return whether it was pushed."""
        frontier = self._frontier
        frontier.keep_marks()  # made by somebody else, outside of this method
        if not request.dont_filter and self._seen(request):
            frontier.keep_marks()
            return False
        error = frontier.push(self._queue, request)
        if error is None:
            self._count("scheduler/enqueued/disk")
        else:
            self._unserializable.tell(request, error)
            self._memory.push(request)
            self._count("scheduler/enqueued/memory")
        self._count("scheduler/enqueued")
        return True

    def next(self) -> Request | None:
        """Return the next request to send; those that could not be stored come first."""
        request: Request | None = self._memory.pop()
        if request is not None:
            request = self._frontier.start_held(request)
            self._count("scheduler/dequeued/memory")
        else:
            request = self._frontier.pop(self._queue)
            if request is None:
                return None
            self._count("scheduler/dequeued/disk")
        self._count("scheduler/dequeued")
        return request

    def pending(self) -> bool:
        """Return whether a request waits."""
        return len(self) > 0

    def finish(self, request: Request) -> None:
        """Take note that the engine is through with a request."""
        self._frontier.finish(request)

    async def close(self) -> bool:
        """Commit and store everything; return whether all of it is stored."""
        return await self._frontier.close()


def open_local(
    crawler: Crawler,
    spider: Spider,
    queues: Queues,
    *,
    open_filter: Callable[[OnMark], Session],
    seen: Callable[[Request], bool],
    snapshot_after: int,
    give_up: Callable[[BloomError], None],
) -> LocalCrawl:
    """Open filter and requests of a job directory, and connect them.

    :param open_filter: opens the filter; it is given what is to be called with each new mark.
    :param seen: as for :class:`LocalCrawl`.
    :param snapshot_after: marks after which the filter is stored in mid-run.
    :param give_up: closes the spider for an error in mid-run; called at most once.
    :raises BloomError: if the crawl cannot be kept as the settings say. Nothing stays open then.
    """
    settings = Settings(crawler.settings, warn=False)
    to_disk = settings[COMMIT_SYNC] is CommitSync.MACHINE
    kind, start_kind = queues.kind, queues.start_kind
    alive = watch_engine(engine_of(crawler), scrapy.__version__)
    fresh: list[bytes] = []
    with ExitStack() as undo:
        session = open_filter(fresh.append)
        job = session.opened.job
        assert job is not None  # noqa: S101 - it is journaled
        undo.callback(job.release)  # a crawl that is refused changes nothing
        store, found = open_store(job, kind, start_kind, every_commit=to_disk)
        undo.callback(store.abandon)
        lists = _open_lists(session, store, job)
        frontier = LocalFrontier(
            crawler,
            spider,
            store,
            fresh,
            alive=alive,
            freeze=_freezer(job, lists),
            dumps=kind.dumps,
            to_disk=to_disk,
            journal=min(snapshot_after, _MOST_UNLISTED) if lists else snapshot_after,
            at_once=job.filter.is_set_back,
            give_up=give_up,
        )
        undo.callback(frontier.abandon)
        queue = _open_queue(crawler, queues, kind, start_kind, frontier)
        restored = _restore(session, frontier, found)
        _tell(crawler, found, restored)
        undo.pop_all()
    description = _describe(frontier, found, restored)
    return LocalCrawl(crawler, spider, frontier, queue, queues.memory, seen, description)


_MOST_UNLISTED: Final = 200_000
"""Marks in memory for which there is no list yet: about 90 bytes each."""


class FrozenExact:
    """A filter as it is at one moment, with its exact list."""

    def __init__(self, snapshot: PendingSnapshot, lists: FrozenLists) -> None:
        self.generation = snapshot.generation
        self._snapshot = snapshot
        self._lists = lists

    def write(self) -> None:
        """Write both to the disk."""
        self._snapshot.write()
        self._lists.write()

    def written(self) -> dict[str, str | bytes]:
        """Return the note that names the lists."""
        return {NOTE: self._lists.use()}

    def put_in_place(self) -> None:
        """Give the snapshot its name."""
        self._snapshot.put_in_place()

    def placed(self) -> None:
        """Remove lists that are in the new one."""
        self._lists.tidy_up()


def _freezer(job: JobStore, lists: ExactLists | None) -> Callable[[], Frozen]:
    """Return what returns the filter as it is at one moment."""
    if lists is not None:
        return lambda: FrozenExact(job.freeze(), lists.freeze())
    return job.freeze


def _open_lists(session: Session, store: Store, job: JobStore) -> ExactLists | None:
    """Open the exact lists of a job if its filter is to be exact; if not, remove them.

    :raises StateError: if one of them cannot be used. All stay as they are.
    """
    try:
        noted = str(store.noted(NOTE) or "")
        filter_ = session.opened.filter
        lists = None
        if isinstance(filter_, ExactFilter):
            lists = ExactLists(job.folder, filter_)
            if noted and job.restored_from:
                lists.resume(noted)
            else:  # without a snapshot the filter is another one, and the journal has its marks
                lists.begin()
                _tell_unlisted(filter_, job)
            noted_now = lists.note()
        else:
            noted_now = ""
        if noted_now != noted:
            store.note(NOTE, noted_now)
            store.commit()
        if lists is None and noted:
            remove_lists(job.folder)
            logger.warning(
                "%s: BLOOM_EXACT was taken out, and the exact list of marks is deleted. If it comes"
                " back, what is marked until then is called seen without a look-up.",
                store.path,
            )
    except sqlite3.Error as error:
        raise file.unusable(store.path, error) from error
    except ValueError as error:
        raise file.damaged(store.path, f"notes that make no sense, {error!r}") from error
    return lists


def _tell_unlisted(filter_: ExactFilter, job: JobStore) -> None:
    """Log from when on a filter is exact, if it has marks of before."""
    if not filter_.old:
        return
    window = filter_.inner.window
    start = "now"
    if window is not None:
        span = write_span(generation_length(window))
        start = f"the next generation of {WINDOW.setting}, at the latest in {span},"
    logger.info(
        "%s: %s is new to this job: it holds for what is marked from %s on. The %s fingerprints of"
        " before are in no list, and what the filter takes for one of them is called seen without a"
        " look-up.",
        job.folder,
        EXACT.setting,
        start,
        f"{job.restored:,}",
    )


def _open_queue(
    crawler: Crawler,
    queues: Queues,
    kind: QueueKind,
    start_kind: QueueKind | None,
    frontier: LocalFrontier,
) -> Any:
    """Return Scrapy's priority queue over the stored requests."""
    store = frontier.store

    def maker(kind: QueueKind) -> BucketMaker:
        return BucketMaker(store, queues.folder, kind.order, frontier)

    queue = build_from_crawler(
        queues.priority,
        crawler,
        downstream_queue_cls=maker(kind),
        key=queues.folder,
        startprios=start_priorities(store, queues.priority),
        start_queue_cls=start_kind and maker(start_kind),
    )
    check_complete(store, queue)
    return queue


def _restore(session: Session, frontier: LocalFrontier, found: Found) -> int:
    """Bring the stored marks into the filter; return how many there were."""
    session.resolver.compare(found.filled_with)
    job = session.opened.job
    assert job is not None  # noqa: S101 - it is journaled
    filter_ = session.opened.filter
    into = filter_ if isinstance(filter_, ExactFilter) else job.filter
    restored = replay(frontier.store, into)
    frontier.store.follow(job.filter)
    frontier.fresh.clear()
    session.opened.filter.forget_many(frontier.store.withheld)
    frontier.forgotten = session.let_through
    session.carry_out = lambda marks, tell: frontier.forget(session.forget_now(marks, tell))
    return restored


def _tell(crawler: Crawler, found: Found, restored: int) -> None:
    assert crawler.stats is not None  # noqa: S101 - Scrapy makes it before any component
    if found.killed:
        crawler.stats.set_value(stats.UNCLEAN_STOP.key, 1)
    if found.under_way:
        crawler.stats.set_value(stats.RECOVERED.key, found.under_way)
    crawler.stats.set_value(stats.PENDING.key, found.waiting)
    crawler.stats.inc_value(stats.RESTORED.key, restored)


def _describe(frontier: LocalFrontier, found: Found, restored: int) -> str:
    killed = ", resumed after a kill" if found.killed else ""
    marks = f", {restored:,} more fingerprints restored from it" if restored else ""
    return f"Crawl kept in {frontier.store.path}{killed}: {found}{marks}"
