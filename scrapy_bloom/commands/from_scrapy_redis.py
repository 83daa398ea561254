"""Copies a stopped crawl of scrapy-redis to a crawl of ours: its requests first, then their marks.

A mark without its request would suppress a page; a request without its mark is only fetched twice.
So each request is in our queue before its page is marked, and what scrapy-redis has stays. Until
everything is copied, the filter says that it has no requests beside it: ``scrapy_bloom.Scheduler``
refuses it, and an interrupted copy can be repeated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from scrapy.utils.request import request_from_dict

from scrapy_bloom.commands.from_job import arrived, batches
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.redis_target import RedisTarget, occupied
from scrapy_bloom.commands.requests import slot_in
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.key import Call
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH, Plan
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.worker import Worker

_WATCH: Final = 1.0  # seconds in which a running worker changes something


def copy_crawl(source: RedisTarget, target: RedisTarget, project: Project) -> None:
    """Copy the requests of a stopped crawl, and mark their pages. The source stays as it is.

    :param source: the queue of scrapy-redis.
    :param target: where filter and queue go. A filter that was used beside scrapy-redis's scheduler
        may be there, or what an interrupted copy left.
    :raises SettingError: if the spider is not named, or the settings cannot be used.
    :raises StateError: if a worker uses the source or the target, if requests wait at the target,
        or if one cannot be read.
    """
    with source.connected() as source_worker:
        queue = _Queue(source_worker.client, source)
        if not project.spider:
            raise SettingError(f"key {source.key}: expected the name of its spider with --spider")
        owner = project.owner
        before = queue.state()
        time.sleep(_WATCH)
        queue.check(before)
        with target.connected() as worker:
            copied = 0
            with target.opened(_plan(target, worker)) as filter_:
                fields = {"order": owner["order"].partition(" ")[0], "waiting": 0}
                worker.client.hset(target.key, mapping=fields)
                # An interrupted copy may have left requests.
                worker.client.unlink(f"{beginning(target.key)}queue")
                for entries in batches(queue.entries(project)):
                    filter_.shared.call(Call(entries))
                    filter_.add_many(entry.source for entry in entries if entry.source)
                    copied += len(entries)
            queue.check(before)
            state = arrived(worker, target, copied)
            plan = replace(state.plan, **owner).write(state.secret)
            worker.client.hset(target.key, "plan", plan)  # from now on it has requests


def _plan(target: RedisTarget, worker: Worker) -> Plan:
    """Return the plan of the filter, without requests beside it for now.

    :raises StateError: if a crawl uses what is there, or requests wait.
    """
    state = Reader(worker, target.key).state()
    if state is None or worker.client.ttl(target.key) > 0:
        target.check_free(worker)
        return target.plan()
    now = float(worker.client.time()[0])
    if used := [name for name, end in state.leases.items() if end > now]:
        raise StateError(
            f"{target.name}: worker {used[0]} uses it, or was killed less than half a minute ago."
            f" Stop it, and copy again. Nothing was changed."
        )
    if state.plan.order:
        count = state.counts.waiting + state.counts.taken
        raise occupied(target.name, f"a crawl of scrapy_bloom.Scheduler with {count:,} requests")
    return state.plan


def _loads_of(project: Project) -> Callable[[bytes], Any]:
    """Return what reads the requests of scrapy-redis: pickles as we read our own.

    :raises SettingError: if they are written by marshal.
    """
    chosen = project.scrapys.get("SCHEDULER_SERIALIZER") or "pickle"
    serializer: Any = import_module(chosen) if isinstance(chosen, str) else chosen
    name = getattr(serializer, "__name__", "")
    if name == "marshal":
        raise SettingError(
            "SCHEDULER_SERIALIZER is marshal: such requests are not read, because whoever can"
            " write to Redis could crash what reads them. Finish the crawl with scrapy-redis."
        )
    is_pickle = name in ("pickle", "scrapy_redis.picklecompat")
    loads: Callable[[bytes], Any] = project.reading.fields if is_pickle else serializer.loads
    return loads


class _Queue:
    """The requests that a crawl of scrapy-redis has left.

    :raises StateError: if the key is not a queue.
    """

    def __init__(self, client: Any, source: RedisTarget) -> None:
        self._client, self._key = client, source.key
        kind = client.type(source.key)
        if kind not in (b"zset", b"list"):
            contents = "nothing" if kind == b"none" else f"a {kind.decode()}"
            raise StateError(
                f"{source.name}: found {contents}, expected the queue of scrapy-redis, such as"
                f" books:requests. A filter in Redis is copied by Redis itself: as a replica, or by"
                f" its RDB file."
            )
        self._is_list = kind == b"list"

    def state(self) -> tuple[object, ...]:
        """Return what a running worker would change."""
        return self._size(), self._part(0, 0), self._part(-1, -1)

    def check(self, before: tuple[object, ...]) -> None:
        """Check that it has not changed.

        :raises StateError: if it has.
        """
        if self.state() != before:
            raise StateError(
                f"key {self._key}: it is changing, so a worker of scrapy-redis is running. Stop"
                f" all workers, and copy again."
            )

    def entries(self, project: Project) -> Iterator[Entry]:
        """Yield the requests as our scheduler writes them; `source` is the mark to be made.

        The lowest score first, or the oldest, which ends a list.

        :raises StateError: if one cannot be read.
        """
        fingerprinter, reading = project.fingerprinter, project.reading
        loads = _loads_of(project)
        for start in range(0, self._size(), BATCH):
            for body in self._part(start, start + BATCH - 1):
                try:
                    fields = loads(body)
                    plain = request_from_dict({**fields, "callback": None, "errback": None})
                    mark = None if plain.dont_filter else fingerprinter.fingerprint(plain)
                    stored = reading.write(fields)
                    slot = slot_in(stored)
                    entry = Entry("p", None, stored, plain.priority, source=mark, slot=slot)
                except Exception as error:
                    raise StateError(
                        f"key {self._key}: found a request that cannot be read ({error!r}), and was"
                        f" left as it is. Run this in the project, with SCHEDULER_SERIALIZER as it"
                        f" was; if nothing can read the request, remove it."
                    ) from error
                yield entry

    def _size(self) -> int:
        size = self._client.llen if self._is_list else self._client.zcard
        return int(size(self._key))

    def _part(self, first: int, last: int) -> Sequence[bytes]:
        if self._is_list:
            newest_first: list[bytes] = self._client.lrange(self._key, -1 - last, -1 - first)
            return newest_first[::-1]
        members: list[bytes] = self._client.zrange(self._key, first, last)
        return members
