"""Copies a stopped crawl of scrapy-redis to a crawl of ours: its requests first, then its marks.

A mark without its request would suppress a page, a request without its mark is only fetched twice.
So each request is in our queue before anything is marked, and what scrapy-redis has stays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from scrapy import Request
from scrapy.utils.misc import load_object

from scrapy_bloom.backends.base import Crawl
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.frontier.requests import QueueKind, frame
from scrapy_bloom.frontier.scrapy_redis import ScrapyRedis
from scrapy_bloom.options import ON_BACKEND_ERROR, REDIS_KEY, REDIS_URL
from scrapy_bloom.redis.queue.base import COPYING, Entry
from scrapy_bloom.settings import Settings
from scrapy_bloom.tools.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Self

    from scrapy_bloom.core.info import FilterInfo
    from scrapy_bloom.redis.foreign import ForeignKey
    from scrapy_bloom.tools.project import Project
    from scrapy_bloom.tools.redis_target import RedisTarget

_AT_ONCE: Final = 500  # requests, or marks
_WATCH: Final = 1.0  # seconds in which a worker that runs changes something


@dataclass
class Copied:
    """What came of copying a crawl.

    Attributes:
        info: the filter that it has now.
        requests: how many requests were copied.
        warnings: what whoever resumes the crawl should know, as sentences.
    """

    info: FilterInfo
    requests: int
    warnings: list[str]


def copy_crawl(
    queue: ForeignKey, target: RedisTarget, project: Project, progress: Progress
) -> Copied:
    """Copy the requests of a stopped crawl, and the marks if they mean the same to our filter.

    Nothing of the source is changed. After an error the target holds a part: delete it, and begin
    again.

    :param queue: scrapy-redis's queue.
    :param target: where filter and queue go. A filter that was used beside scrapy-redis's scheduler
        may be there.
    :param project: whose settings the crawl will have.
    :raises SettingError: if the spider is not named, or the settings cannot be used.
    :raises StateError: if a worker uses the source or the target, or requests wait at the target.
    :raises BackendError: if a server cannot be used.
    """
    if not project.spider:
        raise SettingError(f"{queue.key}: give the name of its spider with --spider")
    theirs = ScrapyRedis.of(project.scrapys, project.spider)
    disk = load_object(project.scrapys["SCHEDULER_DISK_QUEUE"])
    kind = QueueKind.of("SCHEDULER_DISK_QUEUE", disk)
    target.check_no_requests()
    seen = queue.beside(theirs.seen) if queue.key == theirs.queue else None
    try:
        before = _state(queue, seen)
        time.sleep(_WATCH)
        if _state(queue, seen) != before:
            raise StateError(
                f"key {queue.key}: it changes, so a worker of scrapy-redis is running. Stop all of"
                f" them. Nothing was changed."
            )
        with _Ours(target, project, kind) as ours:
            ours.note(COPYING)
            read = _copy_requests(queue, theirs, ours, progress)
            warnings = _copy_marks(seen, read, ours, progress)
            if _state(queue, seen) != before:
                raise StateError(
                    f"key {queue.key}: it has changed while it was copied, so a worker of"
                    f" scrapy-redis is running. Stop all of them, run 'scrapy bloom delete' for the"
                    f" target, and copy again."
                )
            ours.note(before[0])
            return Copied(ours.info(), read.copied, warnings)
    finally:
        if seen is not None:
            seen.close()


@dataclass
class _Read:
    """What was read of a queue.

    Attributes:
        copied: how many requests.
        unreadable: how many could not be read.
        problem: why the first of them could not.
        marks: fingerprints of some requests that are filtered.
    """

    copied: int
    unreadable: int
    problem: str
    marks: list[bytes]


class _Ours:
    """The filter and the queue that the crawl will use; as a context manager it closes both."""

    def __init__(self, target: RedisTarget, project: Project, kind: QueueKind) -> None:
        # Imported only here: redis is an extra.
        from scrapy_bloom.backends.redis import RedisBackend  # noqa: PLC0415

        written = {
            **project.scrapys,
            REDIS_URL.setting: target.url,
            REDIS_KEY.setting: target.key.replace("%", "%%"),
            ON_BACKEND_ERROR.setting: "close",
        }
        self.fingerprinter = project.fingerprinter
        self.dumps = kind.dumps
        digests = self.fingerprinter.digests
        crawl = Crawl(project.identity, digests, None, shared_queue=True, queue=kind.form)
        self._opened = RedisBackend().open(Settings(written, warn=False), crawl)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened.queue is not None:
            self._opened.queue.close()
        self._opened.close()

    def note(self, note: str) -> None:
        assert self._opened.queue is not None  # noqa: S101 - it was opened with its form
        self._opened.queue.note_copy(note)

    def push(self, entries: Sequence[Entry]) -> None:
        assert self._opened.queue is not None  # noqa: S101 - it was opened with its form
        self._opened.queue.offer(entries)

    def mark(self, fingerprints: Sequence[bytes]) -> None:
        self._opened.filter.add_many(fingerprints)

    def info(self) -> FilterInfo:
        return self._opened.filter.info()


def _state(queue: ForeignKey, seen: ForeignKey | None) -> tuple[str, int]:
    """Return what a worker that runs would change."""
    return queue.digest(), seen.size() if seen else 0


def _copy_requests(
    queue: ForeignKey, theirs: ScrapyRedis, ours: _Ours, progress: Progress
) -> _Read:
    """Copy all requests, unfiltered: scrapy-redis's filter has let them through."""
    done = _Read(0, 0, "", [])
    after = 0
    with progress(f"copying {queue.key}", queue.size(), "requests") as told:
        while bodies := queue.oldest(_AT_ONCE, after):
            after += len(bodies)
            entries, marks = [], []
            for body in bodies:
                try:
                    fields = theirs.loads(body)
                    entry = Entry(frame(ours.dumps(fields)), int(fields.get("priority", 0)), None)
                    mark = ours.fingerprinter.fingerprint(_plain(fields))
                except Exception as error:  # noqa: BLE001 - its parts may raise anything
                    done.problem = done.problem or repr(error)
                    done.unreadable += 1
                    continue
                entries.append(entry)
                if not fields.get("dont_filter"):
                    marks.append(mark)
            if entries:
                ours.push(entries)
            ours.mark(marks)
            done.copied += len(entries)
            done.marks = done.marks or marks
            told(len(bodies))
    return done


def _copy_marks(seen: ForeignKey | None, read: _Read, ours: _Ours, progress: Progress) -> list[str]:
    """Copy the marks if they are made as ours are; return what should be known, as sentences."""
    if read.unreadable:
        text = (
            f"{read.unreadable:,} requests could not be read ({read.problem}), and were not copied."
            f" So no marks were copied either: their pages are fetched again where a link leads to"
            f" them. Is SCHEDULER_SERIALIZER as it was?"
        )
        return [text]
    if seen is None or seen.kind() != "set":
        return []
    # Each request that is filtered has its mark in the set, if the same makes both.
    if not any(seen.has(mark.hex()) for mark in read.marks):
        text = (
            f"Key {seen.key} holds {seen.size():,} fingerprints that are not made as those of this"
            f" project are. They were not copied: pages that were fetched are fetched again where a"
            f" link leads to them."
        )
        return [text]
    with progress(f"copying {seen.key}", seen.size(), "marks") as told:
        members = seen.members()
        while some := list(islice(members, _AT_ONCE)):
            ours.mark([bytes.fromhex(one.decode()) for one in some])
            told(len(some))
    text = (
        f"The marks in {seen.key} were copied. If a worker of scrapy-redis was killed, the pages"
        f" that it had under way are marked there, and in no queue: they are not fetched. Then run"
        f" 'scrapy bloom delete' for the target, delete {seen.key}, and copy again."
    )
    return [text]


def _plain(fields: dict[str, Any]) -> Request:
    """Return a request of which a fingerprint is made; its callbacks are not needed for that."""
    names = ("url", "method", "headers", "body", "meta", "encoding")
    return Request(**{name: fields[name] for name in names if name in fields})
