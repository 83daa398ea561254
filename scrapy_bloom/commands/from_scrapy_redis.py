"""Copies a stopped crawl of scrapy-redis to a crawl of ours: its requests first, then their marks.

A mark without its request would suppress a page; a request without its mark is only fetched twice.
So each request is in our queue before anything is marked, and what scrapy-redis has stays. Until
all is there, the filter says that it has no requests beside it: ``scrapy_bloom.Scheduler`` refuses
it then, and a copy that was killed can be made again.

Its own marks follow if the project makes its fingerprints as scrapy-redis does. Else they mean
nothing here, and pages that were fetched are fetched again if a link leads to them.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, Final

from scrapy import Request

from scrapy_bloom.commands.bits import batches
from scrapy_bloom.commands.places import occupied
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.redis_target import RedisTarget, plans_in
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.options import counted
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.shard import Call, Surprise

_AT_ONCE: Final = 500  # requests, or marks
_WATCH: Final = 1.0  # seconds in which a worker that runs changes something

_EMPTY: Final = """
redis.call('UNLINK', KEYS[2])
redis.call('HSET', KEYS[1], 'waiting', 0, 'order', ARGV[1])
return 1
"""


def check_queue(source: RedisTarget) -> None:
    """Look whether scrapy-redis keeps requests under a key.

    :raises StateError: if not.
    """
    with source.link() as link:
        kind = link.client.type(source.key)
    if kind not in (b"zset", b"list"):
        found = "nothing" if kind == b"none" else f"a {kind.decode()}"
        raise StateError(
            f"{source.name}: found {found}, expected the queue of scrapy-redis, such as"
            f" books:requests. A filter in Redis is copied by Redis itself: as a replica, or by its"
            f" RDB file."
        )


def copy_crawl(
    source: RedisTarget, target: RedisTarget, project: Project, on_request: Callable[[int], None]
) -> str:
    """Copy the requests of a stopped crawl, then mark their pages. The source stays as it is.

    :param target: where filter and queue go. A filter that was used beside scrapy-redis's scheduler
        may be there, or what is left of a copy that was killed.
    :param on_request: is called with the number of requests that came to Redis just now.
    :returns: what the user should know.
    :raises SettingError: if the spider is not named, or the settings cannot be used.
    :raises StateError: if a worker uses the source or the target, or requests wait at the target.
    """
    if not project.spider:
        raise SettingError(f"key {source.key}: expected the name of its spider with --spider")
    owner = project.owner
    with source.link() as here:
        crawl = _Stopped(here.client, source.key, project)
        before = crawl.state()
        time.sleep(_WATCH)
        crawl.check(before)
        made_for = _prepared(target, project)
        with target.opened(made_for) as shared, target.link() as link:
            for shard in shared.shards:  # a copy that was killed may have left requests
                keys = shard.key, f"{beginning(shard.key)}queue"
                link.client.eval(_EMPTY, 2, *keys, owner["order"].partition(" ")[0])
            try:
                for entries in batches(crawl.requests()):
                    shared.shards[0].call(Call(entries))
                    on_request(len(entries))
            except Surprise as surprise:
                raise StateError(f"{target.name}: {surprise}. Copy again.") from None
            shared.add_many(crawl.marked)
            kept = _copy_marks(crawl, shared)
            crawl.check(before)
        with target.link() as link:  # from now on it has requests; the first shard leads
            for state, plan in reversed([*zip(target.states(link), made_for, strict=True)]):
                owned = Plan(**{**vars(plan), **owner})
                link.client.hset(state.key, "plan", owned.write(state.secret))
    if unreadable := crawl.unreadable:
        return (
            f"{counted(len(unreadable), 'request')} could not be read and not be copied"
            f" ({unreadable[0]}), so the marks of scrapy-redis were not copied either. Is"
            f" SCHEDULER_SERIALIZER as it was?"
        )
    return kept


def _copy_marks(crawl: _Stopped, shared: RedisFilter) -> str:
    """Mark what scrapy-redis has marked, if all that waits is there under the same fingerprint.

    :returns: what the user should know.
    """
    if crawl.unreadable or not crawl.marked or not crawl.has_marks(crawl.marked[:_AT_ONCE]):
        return ""
    marks = crawl.marks()
    while some := [*islice(marks, _AT_ONCE)]:
        shared.add_many(some)
    return (
        f"the marks in {crawl.seen} were copied, too. If a worker of scrapy-redis was killed, the"
        f" pages that it had in flight are marked there and in no queue: then delete {crawl.seen}"
        f" and the target, and copy again"
    )


class _Stopped:
    """What a crawl of scrapy-redis has left.

    :param queue: the key of its requests.

    Attributes:
        marked: fingerprints of the requests that were read, but for unfiltered ones.
        unreadable: why requests could not be read.
        seen: the key of its marks.
    """

    def __init__(self, client: Any, queue: str, project: Project) -> None:
        self._client, self._queue = client, queue
        self._made, self._dumps = project.fingerprinter, project.queue_kind.dumps
        self._is_list = client.type(queue) == b"list"
        self.marked: list[bytes] = []
        self.unreadable: list[str] = []
        serializer: Any = project.scrapys.get("SCHEDULER_SERIALIZER") or pickle
        if isinstance(serializer, str):
            try:
                serializer = import_module(serializer)
            except ImportError as error:
                raise SettingError(
                    f"SCHEDULER_SERIALIZER = {serializer!r}: it cannot be imported ({error}). Set"
                    f" the module that scrapy-redis used, or remove it."
                ) from error
        # As safe as scrapy-redis itself: who can write its queue can run code.
        self._loads = serializer.loads
        key = project.scrapys.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter"
        self.seen = str(key) % {"spider": project.spider}

    def state(self) -> tuple[object, ...]:
        """Return what a worker that runs would change."""
        return self._size(), self._part(0, 0), self._part(-1, -1)

    def check(self, before: tuple[object, ...]) -> None:
        """Look whether it has changed.

        :raises StateError: if so.
        """
        if self.state() != before:
            raise StateError(
                f"key {self._queue}: it is changing, so a worker of scrapy-redis is running. Stop"
                f" all workers, and copy again."
            )

    def requests(self) -> Iterator[tuple[int, bytes]]:
        """Yield priority and bytes of the requests that can be read, as our scheduler writes them.

        The lowest score first, or the oldest, which ends a list.
        """
        for start in range(0, self._size(), _AT_ONCE):
            for body in self._part(start, start + _AT_ONCE - 1):
                try:
                    fields = self._loads(body)
                    mark = self._made.fingerprint(_plain(fields))
                    found = int(fields.get("priority", 0)), self._dumps(fields)
                except Exception as error:  # noqa: BLE001 - its parts may raise anything
                    self.unreadable.append(repr(error))
                    continue
                if not fields.get("dont_filter"):
                    self.marked.append(mark)
                yield found

    def has_marks(self, fingerprints: Sequence[bytes]) -> bool:
        """Return whether all of these are marked."""
        if self._client.type(self.seen) != b"set":
            return False
        return all(self._client.sismember(self.seen, each.hex()) for each in fingerprints)

    def marks(self) -> Iterator[bytes]:
        """Yield the fingerprints that are marked, some of them twice."""
        for member in self._client.sscan_iter(self.seen, count=1000):
            yield bytes.fromhex(member.decode())

    def _size(self) -> int:
        size = self._client.llen if self._is_list else self._client.zcard
        return int(size(self._queue))

    def _part(self, first: int, last: int) -> Sequence[bytes]:
        if self._is_list:
            found: list[bytes] = self._client.lrange(self._queue, -1 - last, -1 - first)
            return found[::-1]
        some: list[bytes] = self._client.zrange(self._queue, first, last)
        return some


def _prepared(target: RedisTarget, project: Project) -> list[Plan]:
    """Return the plan of each shard, without requests beside it for now.

    :raises StateError: if a crawl uses what is there, or requests wait.
    """
    with target.link() as link:
        states = Reader(link, target.key).shards()
        if not states:
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
    return plans_in(states)


def _plain(fields: dict[str, Any]) -> Request:
    """Return a request of which a fingerprint is made; its callbacks are not needed for that."""
    names = ("url", "method", "headers", "body", "meta", "encoding")
    return Request(**{name: fields[name] for name in names if name in fields})
