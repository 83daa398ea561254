"""What waits to be fetched, in the order in which it will be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from scrapy_bloom.errors import StateError
from scrapy_bloom.frontier.reader import StoreReader
from scrapy_bloom.frontier.waiting import WaitingRequest, readable
from scrapy_bloom.redis.queue.member import Stored
from scrapy_bloom.storage import scrapy_queue
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.progress import Progress, silent
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import Where, target_of
from scrapy_bloom.tools.target import Target

MOST: Final = 1_000_000
"""Requests that are read to count their hosts, if nothing else is said."""


@dataclass(frozen=True)
class Waiting:
    """What waits.

    Attributes:
        target: where.
        total: how many requests are not done.
        under_way: how many of them were under way at the last commit.
        by_priority: how many have each priority, the highest first.
        by_host: how many are for each host, the most first, among those that were read.
        read: how many were read for that.
        first: the first ones, in the order in which they will be fetched.
        failed: those that were given up, or cannot be read.
        marked: whether the filter is there that has their marks.
    """

    target: str
    total: int
    under_way: int
    by_priority: Mapping[int, int]
    by_host: Mapping[str, int]
    read: int
    first: Sequence[WaitingRequest]
    failed: Sequence[WaitingRequest]
    marked: bool = True


def queue(  # noqa: PLR0913 - by keyword
    where: Where | None,
    *,
    peek: int = 20,
    failed: bool = False,
    most: int = MOST,
    newest_first: bool = True,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> Waiting:
    """Look at the requests of ``scrapy_bloom.Scheduler`` that wait, also while the crawl runs.

    Requests are read without running any code of the crawl.

    :param where: a target, see :func:`target_of`, like `key` and `project`.
    :param peek: how many of the first ones to return.
    :param failed: whether to return those that were given up, instead of the first ones.
    :param most: how many to read at most, to count their hosts.
    :param newest_first: whether the crawl's queues are LIFO, Scrapy's default.
    :raises StateError: if there is no such queue, or if it cannot be read.
    """
    target = target_of(where, key=key, project=project)
    if isinstance(target, FileTarget):
        if not target.exists():
            raise target.missing()
        raise StateError(
            f"{target.name}: found a file, which has no requests, expected a job directory or the"
            f" URL of a Redis server."
        )
    if not isinstance(target, JobTarget):
        return _in_redis(target, peek, most, progress, failed=failed)
    if not target.requests.exists():
        own = target.folder / scrapy_queue.NAME
        found = f"Scrapy's own {own}" if own.exists() else "no requests"
        raise StateError(
            f"{target.name}: found {found}, expected those of scrapy_bloom.Scheduler, which keeps"
            f" them in {target.requests.name}."
        )
    with StoreReader(target.requests) as reader:
        look = reader.look()
        hosts: Counter[str] = Counter()
        first: list[WaitingRequest] = []
        problems: list[WaitingRequest] = []
        read = 0
        total = min(look.waiting, most)
        with progress("reading requests", total, "requests") as told:
            for request in islice(reader.requests(newest_first=newest_first), most):
                read += 1
                hosts[request.host] += 1
                if len(first) < peek:
                    first.append(request)
                if request.problem and len(problems) < peek:
                    problems.append(request)
                told(1)
    return Waiting(
        target.name,
        look.waiting,
        look.under_way,
        look.by_priority,
        dict(hosts.most_common()),
        read,
        () if failed else first,
        problems,
    )


def _in_redis(target: Target, peek: int, most: int, progress: Progress, *, failed: bool) -> Waiting:
    # Imported only here: redis is an extra.
    from scrapy_bloom.tools.redis_target import RedisTarget  # noqa: PLC0415

    assert isinstance(target, RedisTarget)  # noqa: S101 - there is no other kind
    with target.queues() as opened:
        queues = opened.readers
        looks = [look for queue in queues if (look := queue.look())]
        if not looks:
            raise StateError(
                f"{target.name}: found no requests, expected those of scrapy_bloom.Scheduler."
                f" scrapy-redis keeps its own queue, which is not read here."
            )
        total = sum(look.waiting for look in looks)
        hosts: Counter[str] = Counter()
        priorities: Counter[int] = Counter()
        read = 0
        with progress("reading requests", min(total, most), "requests") as told:
            waiting = (stored for queue in queues for stored in queue.waiting())
            for stored in islice(waiting, most):
                read += 1
                priorities[stored.priority] += 1
                hosts[_shown(stored).host] += 1
                told(1)
        first = sorted(
            (stored for queue in queues for stored in queue.first(peek)),
            key=lambda stored: -stored.priority,
        )
        given_up = [stored for queue in queues for stored in queue.failed(peek)][:peek]
        return Waiting(
            target.name,
            total,
            sum(look.taken for look in looks),
            dict(sorted(priorities.items(), reverse=True)),
            dict(hosts.most_common()),
            read,
            () if failed else [_shown(stored) for stored in first[:peek]],
            [_shown(stored) for stored in given_up],
            marked=bool(opened.shards),
        )


def _shown(stored: Stored) -> WaitingRequest:
    return readable(stored.body, stored.priority)
