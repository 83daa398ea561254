"""What a project's settings say about Redis: which server, which key, what kind of filter."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from scrapy_bloom.errors import SettingError
from scrapy_bloom.fingerprinter import CanonicalFingerprinter
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.queue import SharedQueue
from scrapy_bloom.redis.worker import Worker
from scrapy_bloom.settings import (
    CAPACITY,
    ERROR_RATE,
    EXACT,
    REDIS_KEY,
    REDIS_TIMEOUT,
    REDIS_URL,
    WINDOW,
    Settings,
)
from scrapy_bloom.values import refusal

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.serialize import QueueKind
    from scrapy_bloom.crawl.session import Session


def server_of(settings: Settings) -> Server:
    """Return the server that the settings name.

    :raises SettingError: if its URL cannot be read.
    """
    return Server.of(settings[REDIS_URL], settings.redis_params)


def project_of(crawler: Crawler) -> str:
    """Return the name of the project: its ``BOT_NAME``."""
    return str(crawler.settings.get("BOT_NAME") or "")


def key_of(settings: Settings, *, spider: str, project: str) -> str:
    """Return the key of a spider's filter.

    :raises SettingError: if ``BLOOM_REDIS_KEY`` cannot be read.
    """
    try:
        key = settings[REDIS_KEY] % {"spider": spider, "project": project}
    except (KeyError, TypeError, ValueError):
        key = ""
    if not key:
        raise refusal(
            REDIS_KEY.setting,
            settings[REDIS_KEY],
            "write %(spider)s and %(project)s in the places of the spider's name and of BOT_NAME,"
            " and %% for a percent sign.",
        )
    return key


def plan_of(
    settings: Settings,
    fingerprinter: CanonicalFingerprinter,
    made_by: dict[str, Any],
    *,
    project: str = "",
    spider: str = "",
    order: str = "",
) -> Plan:
    """Return the plan of a crawl.

    :param fingerprinter: makes the fingerprints.
    :param made_by: its record, see :meth:`Rules.record`.
    :param project: whose requests are kept with the marks; empty, like what follows, if none are.
    :raises SettingError: with ``BLOOM_EXACT``.
    """
    if settings[EXACT]:
        raise SettingError(
            f"{EXACT.setting} = True: a filter in Redis cannot be exact. Set {ERROR_RATE.setting} ="
            f" 1e-12 instead, about 13 bytes per page, or crawl with a JOBDIR."
        )
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
    )


def queue_of(
    crawler: Crawler, settings: Settings, session: Session, kind: QueueKind, *, one_slot: bool
) -> SharedQueue:
    """Return the queue of a crawl.

    :param kind: the order of requests with the same priority, and their serialization.
    :param one_slot: whether hosts without a delay share one slot.
    :raises BloomError: if the crawl cannot be kept as configured.
    """
    project = project_of(crawler)
    assert crawler.spider is not None  # noqa: S101 - it is being opened
    spider = crawler.spider.name
    owner = {"project": project, "spider": spider, "order": str(kind)}
    plan = plan_of(settings, session.fingerprinter, session.made_by, **owner)
    worker = Worker(server_of(settings), settings[REDIS_TIMEOUT])
    key = key_of(settings, spider=spider, project=project)
    try:
        return SharedQueue(worker, key, plan, one_slot=one_slot)
    except BaseException:
        worker.close()
        raise
