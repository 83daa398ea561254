"""What a project's settings say about Redis: which server, which key, what kind of filter."""

from __future__ import annotations

import json
import time
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from scrapy_bloom.crawl.scrapy.loop import pause, run_beside
from scrapy_bloom.crawl.whose import writer_of
from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.settings import (
    CAPACITY,
    ERROR_RATE,
    ON_BACKEND_ERROR,
    REDIS_KEY,
    REDIS_TIMEOUT,
    REDIS_URL,
    WINDOW,
    Settings,
)
from scrapy_bloom.values import refusal

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.serialize import QueueKind


def server_of(settings: Settings) -> Server:
    """Return the server that the settings name.

    :raises SettingError: if its URL cannot be read.
    """
    return Server.of(settings[REDIS_URL], settings.redis_params)


def project_of(crawler: Crawler) -> str:
    """Return the name of the project: its ``BOT_NAME``."""
    return str(crawler.settings.get("BOT_NAME") or "")


class _Fields(dict[str, Any]):
    """What a template of a key may name, as one of Scrapy's feeds may."""

    def __init__(self, own: dict[str, Any], spider: Spider | None) -> None:
        super().__init__(own)
        self._spider = spider

    def __missing__(self, name: str) -> Any:
        if self._spider is None:
            problem = (
                "only a crawl knows that. Name the key at the end of the target, as in"
                " redis://localhost#books:books:bloom."
            )
        elif hasattr(self._spider, name):
            return getattr(self._spider, name)
        else:
            problem = f"the spider has no such attribute. Set it, or give it with -a {name}=…"
        raise SettingError(f"{REDIS_KEY.setting} names %({name})s: {problem}")


def key_of(settings: Settings, *, spider: str, project: str, made: Spider | None = None) -> str:
    """Return the key of a spider's filter.

    :param made: the spider, whose attributes the key may name; None outside of a crawl.
    :raises SettingError: if ``BLOOM_REDIS_KEY`` cannot be read, or the spider lacks an attribute.
    """
    fields = _Fields({"spider": spider, "project": project}, made)
    try:
        key = settings[REDIS_KEY] % fields
    except SettingError:
        raise
    except (TypeError, ValueError):
        key = ""
    if not key:
        raise refusal(
            REDIS_KEY.setting,
            settings[REDIS_KEY],
            "write %(spider)s and %(project)s in the places of the spider's name and of BOT_NAME,"
            " %(NAME)s for an attribute of the spider, and %% for a percent sign.",
        )
    return REDIS_KEY.read(REDIS_KEY.setting, key)


def plan_of(
    settings: Settings,
    fingerprinter: CanonicalRequestFingerprinter,
    made_by: dict[str, Any],
    *,
    project: str = "",
    spider: str = "",
    order: str = "",
    writer: str = "",
) -> Plan:
    """Return the plan of a crawl.

    :param fingerprinter: makes the fingerprints.
    :param made_by: its record, see :meth:`Rules.record`.
    :param project: whose requests are stored with the marks; empty, like what follows, if none are.
    """
    return Plan(
        settings[CAPACITY],
        settings[ERROR_RATE],
        fingerprinter.digests,
        fingerprinter.wrapped,
        json.dumps(made_by, sort_keys=True),
        settings[WINDOW] or 0.0,
        project=project,
        spider=spider,
        order=order,
        writer=writer,
    )


async def queue_of(
    crawler: Crawler, identifier: Identifier, report: Report, kind: QueueKind
) -> SharedQueue:
    """Return the queue of a crawl, once the server can be used.

    Where nothing has ever answered, the crawl waits for :data:`upkeep.FIRST_ANSWER` at most; under
    the policy ``close`` it does not wait at all.

    :param kind: the order of requests with the same priority.
    :raises BloomError: if the crawl cannot be stored as configured.
    """
    settings, project = Settings.of(crawler), project_of(crawler)
    assert crawler.spider is not None  # it is being opened
    spider = crawler.spider.name
    owner = {"project": project, "spider": spider, "order": kind.order}
    writer = writer_of(crawler.spider)
    plan = plan_of(settings, identifier.fingerprinter, identifier.made_by, writer=writer, **owner)
    server = server_of(settings)
    key = key_of(settings, spider=spider, project=project, made=crawler.spider)
    begin = partial(_open, server, settings[REDIS_TIMEOUT], key, plan)
    began, warned, answered = time.monotonic(), -inf, False
    while True:
        try:
            return await run_beside(begin)
        except BackendError as error:
            if settings[ON_BACKEND_ERROR] == "close" or not error.temporary:
                raise
            now, answered = time.monotonic(), answered or error.answered
            if not answered and now - began > upkeep.FIRST_ANSWER:
                raise BackendError(
                    f"{error} Nothing has answered there for {upkeep.FIRST_ANSWER:g} s: check"
                    f" BLOOM_REDIS_URL."
                ) from None
            if now - warned > upkeep.WARN:
                warned = now
                report.warn(f"{error} The crawl waits until it can be used.")
        await pause(upkeep.RETRY)


def _open(server: Server, timeout: float, key: str, plan: Plan) -> SharedQueue:
    link = Link(server, timeout, max(upkeep.CALL, timeout))
    try:
        return SharedQueue(link, key, plan)
    except BaseException:
        link.close()
        raise
