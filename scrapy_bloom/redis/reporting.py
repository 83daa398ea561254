"""What a worker writes about Redis to stats and log."""

from __future__ import annotations

import json
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from scrapy_bloom import stats
from scrapy_bloom.canonical.rules import difference
from scrapy_bloom.crawl.outcomes import MOST_UNPARSED
from scrapy_bloom.crawl.whose import warn_of_another
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis.client import eviction_policy
from scrapy_bloom.redis.worker import MOST_DEATHS
from scrapy_bloom.values import counted

if TYPE_CHECKING:
    from scrapy_bloom.crawl.account import Account
    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.crawl.scrapy.downloads import Downloads
    from scrapy_bloom.redis.link import Link
    from scrapy_bloom.redis.queue import SharedQueue
    from scrapy_bloom.redis.worker import Worker

_WORKERS: Final = ("workers died with it", "workers were blocked by it", "unreadable")
"""Reasons for which the scripts list requests."""


def report_opened(
    report: Report,
    identifier: Identifier,
    link: Link,
    worker: Worker,
    *,
    crawl: bool = False,
) -> None:
    """Log the state in which a filter was found.

    :param crawl: whether the requests are there, too.
    """
    state, counts = worker.state, worker.state.counts
    contents = counted(state.items, "mark")
    if not crawl:
        contents += "; if this process is killed, its pending requests are lost"
    elif state.items or any((counts.waiting, counts.taken, counts.failed, counts.unparsed)):
        contents += f", {counted(counts.waiting, 'request')} to fetch"
        if counts.failed:
            contents += f", {counts.failed:,} on the failed list"
    else:
        contents = ""
    noun = "Crawl state" if crawl else "Bloom filter"
    report.opened(noun, f"in {worker.place}", contents, state.info(), restored=state.items)
    try:
        with link.explained():
            policy = eviction_policy(link.client)
    except BackendError:  # checks will report it
        return
    if policy not in ("", "noeviction"):
        report.warn(
            f"Redis at {link.address}: maxmemory-policy is {policy}, expected noeviction. If the"
            f" server deletes keys of a crawl because it is full, the crawl starts over, and pages"
            f" are fetched again."
        )
    changed = difference(json.loads(state.plan.canonical), identifier.made_by)
    if state.items and changed:
        report.warn(changed)


def report_crawl(report: Report, identifier: Identifier, queue: SharedQueue) -> None:
    """Log the state in which a crawl was found, and what may be wrong with it."""
    report_opened(report, identifier, queue.link, queue.worker, crawl=True)
    worker, setting = queue.worker, "BLOOM_REDIS_KEY, as '%(project)s:%(spider)s:%(ARGUMENT)s'"
    stored, own = worker.state.plan.writer, worker.plan.writer
    warn_of_another(worker.place, stored, own, setting=setting)


def log_unreadable(report: Report, error: Exception) -> None:
    """Count a request that this worker could not read, and log the first one."""
    report.add(stats.UNREADABLE)
    report.once(
        logging.ERROR,
        "A request in Redis cannot be read by this worker (%r). It is on the failed list:"
        " the next run fetches it, or another worker an hour later. More are counted in %s and not"
        " shown.",
        error,
        stats.UNREADABLE.key,
    )


def warn_of_refused(report: Report, error: Exception) -> None:
    """Warn, once per crawl, that a request may have been written by a stranger."""
    report.once(
        logging.WARNING,
        "A request in Redis contains more than data, none of which was run (%s). If no worker of"
        " this crawl stored it, with a class of a module that is not imported here, somebody else"
        " did: check who can write to Redis.",
        error,
    )


def log_delay_rules(report: Report, downloads: Downloads) -> None:
    """Log which pace the workers keep together."""
    if downloads.adjusts:
        report.info("AutoThrottle adjusts one delay per host, shared by all workers.")
    elif delay := downloads.default.delay:
        report.info(f"DOWNLOAD_DELAY = {delay:g} applies per host across all workers.")


def log_waiting(report: Report, taken: int) -> None:
    """Log that other workers have all there is to fetch."""
    report.info(
        f"Nothing to fetch right now: waiting for {counted(taken, 'request')} in flight. If a"
        f" worker was killed, its requests come back when its lease ends."
    )


def warn_of_failed(report: Report, account: Account, spider: str) -> None:
    """Warn if requests are listed that no site is to blame for."""
    listed = Counter(account.failures) + Counter(account.decisions)
    if failed := sum(listed[kind] for kind in _WORKERS):
        report.warn(
            f"{counted(failed, 'request')} given up, or on the failed list: no worker could read"
            f" it, or {MOST_DEATHS} workers died with it or were blocked by it. 'scrapy bloom queue"
            f" --spider {spider} --failed', and '--unparsed', list them; '--retry' puts them back."
        )


def write_stats(report: Report, queue: SharedQueue) -> None:
    """Write to the stats how many requests there are, and what went over the wire."""
    link = queue.link
    for stat, value in (
        (stats.REQUEUED, queue.worker.requeued),
        (stats.FROM_BACKEND["outages"], link.outages),
        (stats.FROM_BACKEND["losses"], queue.surprises),
    ):
        report.set_if_used(stat, value)
    counts = queue.worker.counts
    if counts.not_kept and counts.unparsed >= MOST_UNPARSED:  # else they were only in memory
        report.not_kept(counts.unparsed)
    # What was sent may be there, and its answer lost.
    report.set(stats.WAITING, queue.worker.counts.waiting + queue.offering)
    report.set(stats.FROM_BACKEND["round_trips"], link.round_trips)


def describe_crawl(worker: Worker) -> tuple[str, ...]:
    """Return who shares the crawl, as last reported: nothing is asked for this."""
    counts = worker.counts
    if not counts.workers:  # nobody has looked yet
        return ()
    paused = f", {counts.paused:,} paused" if counts.paused else ""
    hosts = counted(counts.hosts, "host") + paused
    return f"{counts.taken:,} across {counted(counts.workers, 'worker')}", hosts
