"""What a project's settings say about Redis: which server, which key, what kind of filter."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.canonical.rules import difference
from scrapy_bloom.errors import BloomError, SettingError
from scrapy_bloom.redis.client import Target, eviction_policy
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.reader import Reader, State, describe
from scrapy_bloom.redis.worker import Worker
from scrapy_bloom.settings import (
    CAPACITY,
    ERROR_RATE,
    EXACT,
    REDIS_KEY,
    REDIS_URL,
    WINDOW,
    Settings,
)
from scrapy_bloom.values import counted, refusal

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.session import Session


def target_of(settings: Settings) -> Target:
    """Return the server that the settings name.

    :raises SettingError: if its URL cannot be read.
    """
    return Target.of(settings[REDIS_URL], settings.redis_params)


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
    made: CanonicalFingerprinter,
    made_by: dict[str, Any],
    *,
    project: str = "",
    spider: str = "",
    order: str = "",
) -> Plan:
    """Return the plan of a crawl.

    :param made: makes the fingerprints.
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
        made.digests,
        made.wrapped,
        json.dumps(made_by, sort_keys=True),
        settings[WINDOW] or 0.0,
        project=project,
        spider=spider,
        order=order,
    )


def report_opened(
    report: Report, session: Session, worker: Worker, key: str, *, crawl: bool = False
) -> State | None:
    """Log the state in which a filter was found, unless the server is unavailable.

    :param crawl: whether the requests are there, too.
    :returns: the state; None if the server is unavailable.
    """
    if worker.client is None:
        return None
    try:
        state = Reader(worker, key).state()
        with worker.explained():
            policy = eviction_policy(worker.client, key)
    except BloomError:  # checks will report it
        state = None
    if state is None:
        return None
    restored = state.items
    contents = f"{restored:,} pages known"
    if not crawl:
        contents += "; a kill loses what this process has to fetch"
    elif restored or state.waiting or state.taken:
        contents += f", {counted(state.waiting, 'request')} waiting"
    else:
        contents = ""
    noun = "Crawl state" if crawl else "Bloom filter"
    place = f"in Redis at {worker.where}, key {key}"
    report.opened(noun, place, contents, describe(state), restored=restored)
    if policy not in ("", "noeviction"):
        report.warn(
            f"Redis at {worker.where}: maxmemory-policy is {policy}, expected noeviction. If the"
            f" server deletes keys of a crawl because it is full, the crawl starts over, and pages"
            f" are fetched again."
        )
    changed = difference(json.loads(state.plan.canonical), session.made_by)
    if restored and changed:
        report.warn(changed)
    return state


def report_state(report: Report, worker: Worker, key: str) -> None:
    """Write the state of a filter to the stats, if the server can be used."""
    info = None
    if worker.usable.is_set():
        with suppress(BloomError):  # logged when the outage began
            info = Reader(worker, key).info()
    report.describe(info)
