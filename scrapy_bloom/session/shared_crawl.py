"""The filter and the requests of a crawl that any number of workers share in Redis."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import scrapy

from scrapy_bloom.frontier.shared import SharedFrontier
from scrapy_bloom.frontier.under_way import watch_engine
from scrapy_bloom.session.engine import engine_of
from scrapy_bloom.session.kept_crawl import Queues, Unserializable
from scrapy_bloom.settings import Settings

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.errors import BloomError
    from scrapy_bloom.redis.queue.base import Form
    from scrapy_bloom.session.session import Session


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
        undo.pop_all()
    state = queue.state()
    frontier.description = (
        f"Crawl kept {session.opened.place}: {state.waiting:,} requests waiting,"
        f" {state.elsewhere:,} under way in other workers"
    )
    return frontier
