"""The filter and the requests of a crawl that any number of workers share in Redis."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import scrapy

from scrapy_bloom.errors import BackendError, StateError
from scrapy_bloom.frontier.scrapy_redis import ScrapyRedis
from scrapy_bloom.frontier.shared import SharedFrontier
from scrapy_bloom.frontier.under_way import watch_engine
from scrapy_bloom.options import WINDOW
from scrapy_bloom.redis.queue.base import COPYING
from scrapy_bloom.session.engine import engine_of
from scrapy_bloom.session.kept_crawl import Queues, Unserializable
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.backends.base import Opened
    from scrapy_bloom.errors import BloomError
    from scrapy_bloom.redis.queue.base import Form
    from scrapy_bloom.session.session import Session


logger = logging.getLogger(__name__)

_FINISHED = (
    "An earlier crawl has finished %(place)s: %(count)s fingerprints are there, and no request"
    " waits or is under way. This crawl fetches those pages again that were forgotten, or are old"
    " enough by bloom_max_age, and start requests that are not filtered, and then ends. To fetch"
    " everything again, run 'scrapy bloom delete --spider %(spider)s' first, or set BLOOM_WINDOW or"
    " another BLOOM_REDIS_KEY."
)
_UNMARKED = (
    "%(count)s requests wait %(place)s, but the filter was gone: it was deleted or emptied, or the"
    " server has lost it. The requests are fetched, and pages may be fetched twice. To crawl anew"
    " instead, stop all workers and run 'scrapy bloom delete --spider %(spider)s'."
)


def open_shared(
    crawler: Crawler,
    spider: Spider,
    queues: Queues,
    *,
    open_filter: Callable[[Form], Session],
    dropped: Callable[[Request], None],
    give_up: Callable[[BloomError], None],
) -> SharedFrontier:
    """Open filter and requests in Redis.

    :param open_filter: opens the filter, with a queue of that form beside it.
    :param dropped: is told of a request that turned out to be a duplicate after it was taken.
    :param give_up: closes the spider for an error in mid-run; called at most once.
    :raises BloomError: if the crawl cannot be kept as the settings say. Nothing stays open then.
    """
    settings = Settings(crawler.settings, warn=False)
    kind = queues.kind
    alive = watch_engine(engine_of(crawler), scrapy.__version__)
    with ExitStack() as undo:
        session = open_filter(kind.form)
        undo.callback(session.close)
        queue = session.opened.queue
        assert queue is not None  # noqa: S101 - it was opened for this
        undo.callback(queue.close)
        frontier = SharedFrontier(
            crawler,
            spider,
            session,
            queue,
            alive=alive,
            dumps=kind.dumps,
            settings=settings,
            dropped=dropped,
            unserializable=Unserializable(crawler, spider).tell,
            give_up=give_up,
        )
        session.carry_out = frontier.forget
        if COPYING in queue.copied:
            raise StateError(
                f"{session.opened.place}: found an unfinished copy of a crawl of scrapy-redis,"
                f" expected a finished one: requests are missing. Run 'scrapy bloom delete', and"
                f" 'scrapy bloom copy' again."
            )
        state = queue.state()
        if session.opened.marked and not (state.waiting or state.elsewhere):
            _check_scrapy_redis(crawler, spider, session.opened, queue.copied)
        undo.pop_all()
    if not (state.waiting or state.elsewhere or settings[WINDOW]):
        _warn(spider, session.opened, _FINISHED, session.opened.restored)
    _warn(spider, session.opened, _UNMARKED, session.opened.unmarked)
    frontier.description = (
        f"Crawl kept {session.opened.place}: {state.waiting:,} requests waiting,"
        f" {state.elsewhere:,} taken by other workers"
    )
    return frontier


def _warn(spider: Spider, opened: Opened, text: str, count: int) -> None:
    """Log what an earlier crawl has left, if there is any of it."""
    if count:
        values = {"place": opened.place, "count": f"{count:,}", "spider": spider.name}
        logger.warning(text, values, extra={"spider": spider})


def _check_scrapy_redis(
    crawler: Crawler, spider: Spider, opened: Opened, copied: frozenset[str]
) -> None:
    """Refuse a filter whose marks are those of requests that scrapy-redis still has.

    Unless these very requests were copied: then they were fetched.

    :raises StateError: then: their pages would count as seen, and this crawl would not fetch them.
    """
    assert opened.foreign is not None  # noqa: S101 - the filter is in Redis
    theirs = ScrapyRedis.of(crawler.settings, spider.name)
    try:
        queue = opened.foreign(theirs.queue)
        try:
            count = queue.size() if queue.kind() in ("zset", "list") else 0
            if count and copied and copied == {queue.digest()}:
                return
        finally:
            queue.close()
    except BackendError as error:  # this user may have no right to keys that are not ours
        text = "Could not check whether scrapy-redis has left requests under %s: %s"
        why = "this user has no right to read it" if error.refused else error
        logger.info(text, theirs.queue, why, extra={"spider": spider})
        return
    if count:
        raise StateError(
            f"{opened.place}: found fingerprints and no requests, and {count:,} requests of"
            f" scrapy-redis under {theirs.queue}, which this crawl would not fetch. Nothing was"
            f" changed. Copy them with 'scrapy bloom copy', or delete that key if they are not"
            f" wanted any more."
        )
