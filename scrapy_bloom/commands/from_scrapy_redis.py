"""Copies a stopped crawl of scrapy-redis to a crawl of ours: its requests first, then its marks.

A mark without its request would suppress a page; a request without its mark is only fetched twice.
So each request is in our queue before anything is marked, and what scrapy-redis has stays. Until
all is there, the filter says that it has no requests beside it: ``scrapy_bloom.Scheduler`` refuses
it then, and a copy that was killed can be made again.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import islice
from typing import Any, Final

from scrapy import Request

from scrapy_bloom.commands.places import occupied
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.redis_target import RedisTarget
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.shard import MOST_BYTES, Call, Entry

_AT_ONCE: Final = 500  # requests, or marks
_WATCH: Final = 1.0  # seconds in which a worker that runs changes something

_EMPTY: Final = """
redis.call('UNLINK', KEYS[2])
redis.call('HSET', KEYS[1], 'waiting', 0, 'order', ARGV[1])
return 1
"""


def is_queue(source: RedisTarget) -> bool:
    """Return whether scrapy-redis keeps requests under a key.

    :raises SettingError: if it keeps its marks there.
    """
    with source.link() as link:
        kind = link.client.type(source.key)
    if kind == b"set":
        raise SettingError(
            f"{source.name}: found a set, expected a filter, or the queue of scrapy-redis. Give the"
            f" key of its queue, such as books:requests: the marks are copied after the requests."
        )
    return kind in (b"zset", b"list")


def copy_crawl(source: RedisTarget, target: RedisTarget, project: Project) -> tuple[int, list[str]]:
    """Copy the requests of a stopped crawl, and the marks if they mean the same to our filter.

    Nothing of the source is changed.

    :param target: where filter and queue go. A filter that was used beside scrapy-redis's scheduler
        may be there, or what is left of a copy that was killed.
    :returns: how many requests were copied, and what the user should know, as sentences.
    :raises SettingError: if the spider is not named, or the settings cannot be used.
    :raises StateError: if a worker uses the source or the target, or requests wait at the target.
    """
    if not project.spider:
        raise SettingError(f"key {source.key}: give the name of its spider with --spider")
    with source.link() as here:
        crawl = _Stopped(here.client, source.key, project)
        before = crawl.state()
        time.sleep(_WATCH)
        if crawl.state() != before:
            raise StateError(
                f"key {source.key}: it changes, so a worker of scrapy-redis is running. Stop all of"
                f" them. Nothing was changed."
            )
        with _filled(target, project) as shared:
            unreadable, marks = _copy_requests(crawl, shared, project)
            warnings = _copy_marks(crawl, unreadable, marks, shared)
            if crawl.state() != before:
                raise StateError(
                    f"key {source.key}: it has changed while it was copied, so a worker of"
                    f" scrapy-redis is running. Stop all of them, and copy again."
                )
    return crawl.size - len(unreadable), warnings


class _Stopped:
    """What a crawl of scrapy-redis has left.

    :param queue: the key of its requests.

    Attributes:
        size: how many requests it has.
        seen: the key of its marks; empty if it has none that may belong to these requests.
    """

    def __init__(self, client: Any, queue: str, project: Project) -> None:
        self._client, self._queue = client, queue
        self._is_list = client.type(queue) == b"list"
        self.size = client.llen(queue) if self._is_list else client.zcard(queue)
        settings, names = project.scrapys, {"spider": project.spider}
        key = str(settings.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter") % names
        own = str(settings.get("SCHEDULER_QUEUE_KEY") or "%(spider)s:requests") % names
        self.seen = key if queue == own and client.type(key) == b"set" else ""
        serializer: Any = settings.get("SCHEDULER_SERIALIZER") or pickle
        if isinstance(serializer, str):
            try:
                serializer = import_module(serializer)
            except ImportError as error:
                raise SettingError(
                    f"SCHEDULER_SERIALIZER = {serializer!r}: it cannot be imported ({error}). Give"
                    f" the module that scrapy-redis has used, or remove it."
                ) from error
        # As safe as scrapy-redis itself: who can write its queue can run code.
        self.loads = serializer.loads

    def state(self) -> tuple[object, ...]:
        """Return what a worker that runs would change."""
        size = self._client.llen if self._is_list else self._client.zcard
        ends = self._some(0, 0), self._some(-1, -1)
        return size(self._queue), ends, self.seen and self._client.scard(self.seen)

    def requests(self) -> Iterator[bytes]:
        """Yield the requests: the lowest score first, or the oldest, which ends a list."""
        for start in range(0, self.size, _AT_ONCE):
            yield from self._some(start, start + _AT_ONCE - 1)

    def _some(self, first: int, last: int) -> Sequence[bytes]:
        if self._is_list:
            found: list[bytes] = self._client.lrange(self._queue, -1 - last, -1 - first)
            return found[::-1]
        some: list[bytes] = self._client.zrange(self._queue, first, last)
        return some

    def marks(self) -> Iterator[bytes]:
        """Yield fingerprints, some of them twice."""
        for member in self._client.sscan_iter(self.seen, count=1000):
            yield bytes.fromhex(member.decode())

    def has(self, fingerprint: bytes) -> bool:
        """Return whether a fingerprint is marked."""
        return bool(self._client.sismember(self.seen, fingerprint.hex()))

    def count_marks(self) -> int:
        """Return how many marks there are."""
        return int(self._client.scard(self.seen))


@contextmanager
def _filled(target: RedisTarget, project: Project) -> Iterator[RedisFilter]:
    """Open a filter with an empty queue beside it; note at the end whose the requests are.

    :raises StateError: if a crawl uses what is there, or requests wait.
    """
    made_for, owner = _prepared(target, project), project.owner
    with target.opened(made_for) as shared:
        with target.link() as link:
            for shard in shared.shards:  # a copy that was killed may have left requests
                keys = shard.key, f"{beginning(shard.key)}queue"
                link.client.eval(_EMPTY, 2, *keys, owner["order"].partition(" ")[0])
        yield shared
        with target.link() as link:
            states = target.states(link)
            for state, plan in reversed([*zip(states, made_for, strict=True)]):
                owned = replace(
                    plan, project=owner["project"], spider=owner["spider"], order=owner["order"]
                )
                link.client.hset(state.key, "plan", owned.write(state.secret))


def _prepared(target: RedisTarget, project: Project) -> list[Plan]:
    """Return the plan of each shard, without requests beside it for now."""
    with target.link() as link:
        states = Reader(link, target.key).shards()
        if not states:
            if left := target.remains():
                raise occupied(target.name, f"{left:,} keys that a filter has left")
            target.check_free(link)
            return target.plans(project, requests=False)
        now = float(link.client.time()[0])
    if used := [name for one in states for name, end in one.leases.items() if end > now]:
        raise StateError(
            f"{target.name}: worker {used[0]} uses it, or was killed less than half a minute ago."
            f" Stop it, and copy again. Nothing was changed."
        )
    if states[0].plan.order:
        count = sum(one.waiting + one.taken for one in states)
        raise occupied(target.name, f"a crawl of scrapy_bloom.Scheduler with {count:,} requests")
    if len(states) < states[0].plan.shards:
        raise occupied(target.name, "a part of a filter")
    return [state.plan for state in states]


def _copy_requests(
    crawl: _Stopped, shared: RedisFilter, project: Project
) -> tuple[list[str], list[bytes]]:
    """Copy all requests, unfiltered: scrapy-redis's filter has let them through.

    :returns: why some could not be read, and fingerprints of some that are filtered.
    """
    made, dumps, shard = project.fingerprinter, project.queue_kind.dumps, shared.shards[0]
    unreadable: list[str] = []
    sample: list[bytes] = []
    entries: list[Entry] = []
    marks: list[bytes] = []
    size = 0

    def send() -> None:
        shard.call(Call([*entries]))
        shared.add_many(marks)
        sample.extend(marks[: _AT_ONCE - len(sample)])
        entries.clear()
        marks.clear()

    for body in crawl.requests():
        try:
            fields = crawl.loads(body)
            entry = Entry("p", None, dumps(fields), int(fields.get("priority", 0)))
            mark = made.fingerprint(_plain(fields))
        except Exception as error:  # noqa: BLE001 - its parts may raise anything
            unreadable.append(repr(error))
            continue
        size += len(entry.body)
        if entries and (size > MOST_BYTES or len(entries) == _AT_ONCE):
            send()
            size = len(entry.body)
        entries.append(entry)
        if not fields.get("dont_filter"):
            marks.append(mark)
    send()
    return unreadable, sample


def _copy_marks(
    crawl: _Stopped, unreadable: Sequence[str], sample: Sequence[bytes], shared: RedisFilter
) -> list[str]:
    """Copy the marks if they are made as ours are; return what should be known, as sentences."""
    if unreadable:
        text = (
            f"{len(unreadable):,} requests could not be read ({unreadable[0]}), and were not"
            f" copied. So no marks were copied either: their pages are fetched again where a link"
            f" leads to them. Is SCHEDULER_SERIALIZER as it was?"
        )
        return [text]
    if not crawl.seen:
        return []
    # Each request that is filtered has its mark in the set, if the same makes both.
    if not any(map(crawl.has, sample)):
        text = (
            f"Key {crawl.seen} holds {crawl.count_marks():,} fingerprints that are not made as"
            f" those of this project are. They were not copied: pages that were fetched are fetched"
            f" again where a link leads to them."
        )
        return [text]
    members = crawl.marks()
    while some := [*islice(members, _AT_ONCE)]:
        shared.add_many(some)
    text = (
        f"The marks in {crawl.seen} were copied. If a worker of scrapy-redis was killed, the pages"
        f" that it had in flight are marked there, and in no queue: they are not fetched. Then run"
        f" 'scrapy bloom delete' for the target, delete {crawl.seen}, and copy again."
    )
    return [text]


def _plain(fields: dict[str, Any]) -> Request:
    """Return a request of which a fingerprint is made; its callbacks are not needed for that."""
    names = ("url", "method", "headers", "body", "meta", "encoding")
    return Request(**{name: fields[name] for name in names if name in fields})
