"""Copies a stopped crawl of scrapy-redis to a crawl of ours: its requests first, then its marks.

A mark without its request would suppress a page; a request without its mark is only fetched twice.
So each request is in our queue before anything is marked, and what scrapy-redis has stays. Until
all is there, the filter says that it has no requests beside it: ``scrapy_bloom.Scheduler`` refuses
it then, and a copy that was killed can be made again.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request

from scrapy_bloom.commands.redis_target import RedisTarget, plans_of
from scrapy_bloom.commands.target import Owner
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.shard import MOST_BYTES, Call, Entry

if TYPE_CHECKING:
    from scrapy_bloom.commands.output import Output
    from scrapy_bloom.commands.project import Project
    from scrapy_bloom.redis.filter import RedisFilter
    from scrapy_bloom.redis.plan import Plan
    from scrapy_bloom.redis.worker import Worker as Link

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


def copy_crawl(
    source: RedisTarget, target: RedisTarget, project: Project, output: Output
) -> tuple[int, list[str]]:
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
    theirs = _Theirs.of(project)
    owner = project.owner_of_requests()
    with source.link() as here:
        queue = _Key(here, source.key)
        seen = _Key(here, theirs.seen) if source.key == theirs.queue else None
        before = queue.state(seen)
        time.sleep(_WATCH)
        if queue.state(seen) != before:
            raise StateError(
                f"key {queue.name}: it changes, so a worker of scrapy-redis is running. Stop all of"
                f" them. Nothing was changed."
            )
        made_for = _prepared(target, project)
        with target.opened(made_for) as shared:
            _begin(target, shared, owner.order.partition(" ")[0])
            read = _copy_requests(queue, theirs, shared, project, output)
            warnings = _copy_marks(seen, read, shared, output)
            if queue.state(seen) != before:
                raise StateError(
                    f"key {queue.name}: it has changed while it was copied, so a worker of"
                    f" scrapy-redis is running. Stop all of them, and copy again."
                )
            _finish(target, made_for, owner)
            return read.copied, warnings


@dataclass(frozen=True)
class _Theirs:
    """What scrapy-redis's settings say of one spider's crawl.

    Attributes:
        queue: key of its requests.
        seen: key of its fingerprints.
        loads: reads a request, as a dict.
    """

    queue: str
    seen: str
    loads: Callable[[bytes], dict[str, Any]]

    @classmethod
    def of(cls, project: Project) -> _Theirs:
        settings, names = project.scrapys, {"spider": project.spider}
        serializer = settings.get("SCHEDULER_SERIALIZER")
        if isinstance(serializer, str):
            try:
                serializer = import_module(serializer)
            except ImportError as error:
                raise SettingError(
                    f"SCHEDULER_SERIALIZER = {serializer!r}: it cannot be imported ({error}). Give"
                    f" the module that scrapy-redis has used, or remove it."
                ) from error
        return cls(
            str(settings.get("SCHEDULER_QUEUE_KEY") or "%(spider)s:requests") % names,
            str(settings.get("SCHEDULER_DUPEFILTER_KEY") or "%(spider)s:dupefilter") % names,
            # As safe as scrapy-redis itself: who can write its queue can run code.
            serializer.loads if serializer else pickle.loads,
        )


class _Key:
    """Reads what scrapy-redis keeps under a key, and changes nothing."""

    def __init__(self, link: Link, name: str) -> None:
        self.name, self._client = name, link.client
        self.kind = self._client.type(name)

    def size(self) -> int:
        ask = {b"set": "scard", b"zset": "zcard", b"list": "llen"}.get(self.kind)
        return int(getattr(self._client, ask)(self.name)) if ask else 0

    def oldest(self, after: int, count: int = _AT_ONCE) -> list[bytes]:
        """Return requests: those with the lowest score, or the oldest, which end a list."""
        if self.kind == b"zset":
            return list(self._client.zrange(self.name, after, after + count - 1))
        return list(reversed(self._client.lrange(self.name, -after - count, -after - 1)))

    def state(self, seen: _Key | None) -> tuple[object, ...]:
        """Return what a worker that runs would change."""
        size = self.size()
        return size, self.oldest(0, 1), self.oldest(max(size - 1, 0), 1), seen and seen.size()

    def has(self, fingerprint: bytes) -> bool:
        return bool(self._client.sismember(self.name, fingerprint.hex()))

    def members(self) -> Iterator[bytes]:
        """Yield fingerprints, some of them twice."""
        for member in self._client.sscan_iter(self.name, count=1000):
            yield bytes.fromhex(member.decode())


@dataclass
class _Read:
    """What was read of a queue.

    Attributes:
        copied: how many requests.
        unreadable: how many could not be read.
        problem: why the first of them could not.
        marks: fingerprints of some requests that are filtered.
    """

    copied: int = 0
    unreadable: int = 0
    problem: str = ""
    marks: list[bytes] = field(default_factory=list)


def _prepared(target: RedisTarget, project: Project) -> list[Plan]:
    """Return the plan of each shard, without requests beside it for now.

    :raises StateError: if a crawl uses what is there, or requests wait.
    """
    with target.link() as link:
        states = Reader(link, target.key).shards()
        if not states:
            if left := target.leftovers():
                raise target.occupied(f"{len(left):,} keys that a filter has left")
            target.check_free(link)
            return plans_of(replace(project.new, owner=Owner()))
        now = float(link.client.time()[0])
    if used := [name for one in states for name, end in one.leases.items() if end > now]:
        raise StateError(
            f"{target.name}: worker {used[0]} uses it, or was killed less than half a minute ago."
            f" Stop it, and copy again. Nothing was changed."
        )
    if states[0].plan.order:
        count = sum(one.waiting + one.taken for one in states)
        raise target.occupied(f"a crawl of scrapy_bloom.Scheduler with {count:,} requests")
    if len(states) < states[0].plan.shards:
        raise target.occupied("a part of a filter")
    return [state.plan for state in states]


def _begin(target: RedisTarget, shared: RedisFilter, order: str) -> None:
    """Delete what a copy that was killed has put into the queue, and set the order."""
    with target.link() as link:
        for shard in shared.shards:
            keys = shard.key, f"{beginning(shard.key)}queue"
            link.client.eval(_EMPTY, 2, *keys, order)


def _finish(target: RedisTarget, made_for: Sequence[Plan], owner: Owner) -> None:
    """Note whose the requests are; from then on a crawl takes them."""
    with target.link() as link:
        states = target.states(link)
        for state, plan in reversed([*zip(states, made_for, strict=True)]):
            whole = replace(plan, **owner._asdict()).write(state.secret)
            link.client.hset(state.key, "plan", whole)


def _copy_requests(
    queue: _Key, theirs: _Theirs, shared: RedisFilter, project: Project, output: Output
) -> _Read:
    """Copy all requests, unfiltered: scrapy-redis's filter has let them through."""
    done, after, made = _Read(), 0, project.fingerprinter
    dumps, shard = project.queue_kind.dumps, shared.shards[0]
    with output.progress(f"copying {queue.name}", queue.size(), "requests") as told:
        while bodies := queue.oldest(after):
            after += len(bodies)
            entries, marks = [], []
            for body in bodies:
                try:
                    fields = theirs.loads(body)
                    entry = Entry("p", None, dumps(fields), int(fields.get("priority", 0)))
                    mark = made.fingerprint(_plain(fields))
                except Exception as error:  # noqa: BLE001 - its parts may raise anything
                    done.problem = done.problem or repr(error)
                    done.unreadable += 1
                    continue
                entries.append(entry)
                if not fields.get("dont_filter"):
                    marks.append(mark)
            for some in _portions(entries):
                shard.call(Call(some))
            shared.add_many(marks)
            done.copied += len(entries)
            done.marks = done.marks or marks
            told(len(bodies))
    return done


def _portions(entries: list[Entry]) -> Iterator[list[Entry]]:
    """Yield entries in calls that a slow link carries in time."""
    some: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(entry.body)
        if some and size > MOST_BYTES:
            yield some
            some, size = [], len(entry.body)
        some.append(entry)
    if some:
        yield some


def _copy_marks(seen: _Key | None, read: _Read, shared: RedisFilter, output: Output) -> list[str]:
    """Copy the marks if they are made as ours are; return what should be known, as sentences."""
    if read.unreadable:
        text = (
            f"{read.unreadable:,} requests could not be read ({read.problem}), and were not copied."
            f" So no marks were copied either: their pages are fetched again where a link leads to"
            f" them. Is SCHEDULER_SERIALIZER as it was?"
        )
        return [text]
    if seen is None or seen.kind != b"set":
        return []
    # Each request that is filtered has its mark in the set, if the same makes both.
    if not any(seen.has(mark) for mark in read.marks):
        text = (
            f"Key {seen.name} holds {seen.size():,} fingerprints that are not made as those of this"
            f" project are. They were not copied: pages that were fetched are fetched again where a"
            f" link leads to them."
        )
        return [text]
    with output.progress(f"copying {seen.name}", seen.size(), "marks") as told:
        members = seen.members()
        while some := list(islice(members, _AT_ONCE)):
            shared.add_many(some)
            told(len(some))
    text = (
        f"The marks in {seen.name} were copied. If a worker of scrapy-redis was killed, the pages"
        f" that it had in flight are marked there, and in no queue: they are not fetched. Then run"
        f" 'scrapy bloom delete' for the target, delete {seen.name}, and copy again."
    )
    return [text]


def _plain(fields: dict[str, Any]) -> Request:
    """Return a request of which a fingerprint is made; its callbacks are not needed for that."""
    names = ("url", "method", "headers", "body", "meta", "encoding")
    return Request(**{name: fields[name] for name in names if name in fields})
