"""What ``copy`` reads: a job of ours, one of Scrapy's own scheduler, or the queue of scrapy-redis.

A source is only read, and must stand still: it is locked, or looked at again at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy.utils.request import request_from_dict

from scrapy_bloom import file
from scrapy_bloom.commands.local_target import (
    LocalTarget,
    account_in,
    identity_in,
    priority_of,
    requests_in,
)
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.requests import StoredRequest, decoded
from scrapy_bloom.crawl.account import Account
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.filter.bloom import LocalFilter
from scrapy_bloom.local.job import (
    DIGEST,
    KIND,
    REQUESTS,
    Identity,
    lock_job,
    new_filter,
    spider_state,
)
from scrapy_bloom.local.later import stored_holds
from scrapy_bloom.local.scrapys import (
    SCRAPYS_MARKS,
    SCRAPYS_QUEUE,
    digest,
    read_seen,
    stored_requests,
    waits_with_scrapy,
    why_unclean,
)

if TYPE_CHECKING:
    from scrapy_bloom.commands.redis_target import RedisTarget
    from scrapy_bloom.local.store import Store

_WATCH: Final = 1.0  # seconds in which a running worker of scrapy-redis changes something
_BATCH: Final = 500  # requests that are read at once from Redis


@dataclass
class Source:
    """A stopped crawl.

    Attributes:
        identity: what its marks belong to.
        filter: its marks, but for those that come with requests.
        requests: each once, the oldest of a queue first, and the failed list last. Raises
            StateError if one cannot be read, and at the end if somebody has changed the source
            meanwhile.
        keeps_requests: whether requests belong to its marks; else it is a filter by itself.
        joins: whether its marks may be in a filter already that is where it goes.
        state: the spider's, pickled.
        holds: download slots that are left alone, each until when, in seconds since 1970.
        account: what has become of the pages that have no request any more. Only ours is known.
        starts: ids of start requests that are not filtered, each with as what it counts.
    """

    identity: Identity
    filter: LocalFilter
    requests: Iterable[StoredRequest]
    keeps_requests: bool = True
    joins: bool = False
    state: bytes = b""
    holds: dict[str, float] = field(default_factory=dict)
    account: Account | None = None
    starts: Iterable[tuple[bytes, str]] = ()


@contextmanager
def our_job(target: LocalTarget, project: Project) -> Iterator[Source]:
    """Open a job of ours, or a filter in a file; under Scrapy's scheduler, with Scrapy's queue.

    :raises StateError: if the requests of its marks are not there.
    """
    folder = target.folder
    # Locked before it is read: what a crawl still writes would not be in the copy.
    with lock_job(target.path.parent), target.reading() as store:
        meta, identity = store.meta, identity_in(store)
        requests, keeps = _of_store(store, project), meta.get(KIND) == REQUESTS
        if not keeps and not _has_its_requests(store, folder):
            raise StateError(
                f"{target.name}: its last run was killed, or {SCRAPYS_QUEUE} is not as that left"
                f" it, so requests are lost whose pages the filter calls seen. It was left as it"
                f" is. Start the crawl once more: it starts over, and no page is lost."
            )
        if not keeps and waits_with_scrapy(folder):
            owner = Project(project.given, project.spider or identity.spider)
            requests, keeps = _of_scrapy(folder, owner, _snapshot(folder)), True
        state, holds = spider_state(folder, meta), stored_holds(meta)
        yield Source(
            *(identity, store.filter, requests),
            keeps_requests=keeps,
            state=state,
            holds=holds,
            account=account_in(store),
            starts=((id_, start.ended) for id_, start in store.starts if start.ended),
        )


def _has_its_requests(store: Store, folder: Path) -> bool:
    """Return whether Scrapy's queue is as a clean stop with our filter left it."""
    left = store.meta.get(DIGEST)
    if left is None:  # a filter by itself
        return store.clean and not waits_with_scrapy(folder)
    return store.clean and bool(left == digest(folder))


def _of_store(store: Store, project: Project) -> Iterator[StoredRequest]:
    """Yield the requests that wait, and those on the failed list."""
    with file.refusing(store.path):
        for each in requests_in(store):
            if each.damaged:
                raise file.damaged(store.path, "a request does not match its checksum")
            yield each
        for _, failed in store.failed.stored():
            if failed is None:
                raise file.damaged(store.path, "a failed request does not match its checksum")
            request = decoded(failed.body)
            queue = project.queue_for(request.slot, request.priority)
            yield StoredRequest(*queue, request.priority, failed.body, failed=failed)


@contextmanager
def scrapys_job(target: LocalTarget, project: Project, *, stopped: bool) -> Iterator[Source]:
    """Open a job that only Scrapy's own scheduler and filter have used.

    :param stopped: whether the user knows that its last run was stopped, not killed.
    :raises StateError: if there is none, if its files show that it was killed, or if neither they
        nor the user say that it was not: pages would be seen whose requests are lost.
    :raises SettingError: if the spider is not named.
    """
    folder = target.folder
    marks = folder / SCRAPYS_MARKS
    if not (folder / SCRAPYS_QUEUE).exists() and not marks.exists():
        raise StateError(f"{target.name}: found no filter, and no job of Scrapy's own scheduler.")
    if not project.spider:
        raise SettingError(f"{target.name}: expected the name of its spider with --spider")
    with lock_job(folder):
        with file.refusing(folder):
            _check_stopped(folder, stopped=stopped)
            filter_ = new_filter(project.settings, digests=project.fingerprinter.digests)
            before = _snapshot(folder)
            if marks.exists():
                with marks.open("rb") as stream:
                    for mark in read_seen(stream):
                        filter_.add(mark)
            state = spider_state(folder, {})
        requests = _of_scrapy(folder, project, before)
        yield Source(project.identity, filter_, requests, state=state)


def _check_stopped(folder: Path, *, stopped: bool) -> None:
    """Check that no page is marked whose request is lost.

    :raises StateError: if files show that the last run was killed, or if neither they nor the user
        say how it ended.
    """
    why = why_unclean(folder, by_times=not stopped)
    if stopped and not why:
        return
    doubt = why or "Scrapy does not note whether its last run was stopped or killed"
    way = "" if stopped else " If its log ends with 'Spider closed', add --stopped."
    raise StateError(
        f"{folder}: {doubt}, and after a kill requests are lost whose pages it has marked. It was"
        f" left as it is.{way} Else crawl again in another JOBDIR."
    )


def _of_scrapy(folder: Path, project: Project, before: object) -> Iterator[StoredRequest]:
    """Yield what waits in Scrapy's queue.

    :param before: as it was before anything was read.
    """
    for path, slot, body in stored_requests(folder, project.queue_kind, project.start_kind):
        yield StoredRequest(path, slot, priority_of(path), body)
    if _snapshot(folder) != before:
        raise StateError(
            f"{folder}: it is changing, so a crawl is running there. Stop it, and copy again."
        )


def _snapshot(folder: Path) -> object:
    """Return what a crawl with Scrapy's own scheduler would change: it locks nothing."""
    paths = [folder / SCRAPYS_MARKS, *sorted((folder / SCRAPYS_QUEUE).rglob("*"))]
    stats = ((path, path.stat()) for path in paths if path.exists())
    return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]


@contextmanager
def scrapy_redis_queue(target: RedisTarget, project: Project) -> Iterator[Source]:
    """Open the queue that a crawl of scrapy-redis has left; its marks are made from its requests.

    :raises StateError: if the key is not a queue, or a worker is using it.
    :raises SettingError: if the spider is not named.
    """
    with target.connected() as link:
        kind = link.client.type(target.key)
        if kind not in (b"zset", b"list"):
            contents = "nothing" if kind == b"none" else f"a {kind.decode()}"
            raise StateError(
                f"{target.name}: found {contents}, expected the queue of scrapy-redis, such as"
                f" books:requests. A filter in Redis is copied by Redis itself: as a replica, or by"
                f" its RDB file."
            )
        if not project.spider:
            raise SettingError(f"key {target.key}: expected the name of its spider with --spider")
        queue = _Queue(link.client, target.key, is_list=kind == b"list")
        time.sleep(_WATCH)
        queue.check()
        filter_ = new_filter(project.settings, digests=project.fingerprinter.digests)
        yield Source(project.identity, filter_, _of_scrapy_redis(queue, project), joins=True)


class _Queue:
    """The requests that a crawl of scrapy-redis has left."""

    def __init__(self, client: Any, key: str, *, is_list: bool) -> None:
        self.key, self._client, self._is_list = key, client, is_list
        self._before = self._ends()

    def __iter__(self) -> Iterator[bytes]:
        """Yield them, the lowest score first, or the oldest, which ends a list."""
        for start in range(0, self._before[0], _BATCH):
            yield from self._part(start, start + _BATCH - 1)

    def check(self) -> None:
        """Check that no running worker has changed it.

        :raises StateError: if one has.
        """
        if self._ends() != self._before:
            raise StateError(
                f"key {self.key}: it is changing, so a worker of scrapy-redis is running. Stop"
                f" all workers, and copy again."
            )

    def _ends(self) -> tuple[int, Sequence[bytes], Sequence[bytes]]:
        size = self._client.llen if self._is_list else self._client.zcard
        return int(size(self.key)), self._part(0, 0), self._part(-1, -1)

    def _part(self, first: int, last: int) -> Sequence[bytes]:
        if self._is_list:
            newest_first: list[bytes] = self._client.lrange(self.key, -1 - last, -1 - first)
            return newest_first[::-1]
        members: list[bytes] = self._client.zrange(self.key, first, last)
        return members


def _of_scrapy_redis(queue: _Queue, project: Project) -> Iterator[StoredRequest]:
    """Yield the requests as our scheduler writes them, each with its mark."""
    fingerprinter, reading = project.fingerprinter, project.reading
    for body in queue:
        try:
            fields = reading.fields(body)
            plain = request_from_dict({**fields, "callback": None, "errback": None})
            mark = None if plain.dont_filter else fingerprinter.fingerprint(plain)
            stored = reading.write(fields)
            queue_of = project.queue_for(decoded(stored).slot, plain.priority)
            request = StoredRequest(*queue_of, plain.priority, stored, mark=mark)
        except Exception as error:
            raise StateError(
                f"key {queue.key}: found a request that cannot be read ({error!r}), and was left as"
                f" it is. Run this in the project. If another SCHEDULER_SERIALIZER than pickle has"
                f" written it, finish the crawl with scrapy-redis; else remove it."
            ) from error
        yield request
    queue.check()
