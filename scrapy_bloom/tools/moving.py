"""Moves filters as they are: from one place to another, and away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from scrapy_bloom.errors import SettingError
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.progress import Progress, silent
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import SCHEMES, Where, target_of
from scrapy_bloom.tools.target import Target

if TYPE_CHECKING:
    from scrapy_bloom.redis.foreign import ForeignKey
    from scrapy_bloom.tools.redis_target import RedisTarget


@dataclass(frozen=True)
class Moved:
    """A filter that was put somewhere.

    Attributes:
        source: where it came from.
        target: where it is now.
        items: how many items it has.
        bytes: bytes of its bits.
        error_rate: bound for its error rate, as it was made for.
        error_rate_now: chance that the next new item is called seen.
        slices: how many slices it has.
        warnings: what whoever uses it should know, as sentences.
        requests: how many requests came with it, from a crawl of scrapy-redis.
    """

    source: str
    target: str
    items: int
    bytes: int
    error_rate: float
    error_rate_now: float
    slices: int
    warnings: Sequence[str] = ()
    requests: int = 0


def copy(
    source: Where | None,
    target: Where,
    *,
    key: str = "",
    target_key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> Moved:
    """Copy a filter to a place where there is none.

    The same filter gives the same file, wherever it is. If this fails or is interrupted, nothing
    has changed.

    :param source: a target, see :func:`target_of`, like `key` and `project`. Or the queue of a
        stopped crawl of scrapy-redis, whose requests and then marks are copied: after an error
        delete the target and begin again.
    :param target: likewise, with `target_key`. The spider of `project`, if one is named, is whose
        filter it becomes.
    :raises StateError: if something is there already.
    :raises BloomError: if the filter cannot be read, or not be put there.
    """
    source = target_of(source, key=_key(key, source, target), project=project)
    target = target_of(target, key=target_key or _key(key, target, source))
    if queue := _queue_of_scrapy_redis(source):
        return _copy_crawl(queue, target, project or Project(), progress)
    contents = _renamed(source.read(progress), project)
    with target.making() as change:
        change.put(contents, progress)
    info = contents.info()
    return Moved(
        source.name,
        target.name,
        contents.items,
        contents.bytes,
        contents.error_rate,
        info.estimated_fp_rate,
        info.slices,
        _warnings(source, contents),
    )


def delete(
    where: Where | None,
    *,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> None:
    """Delete a filter and, in a job directory of ``scrapy_bloom.Scheduler``, what waits there.

    :param where: a target, see :func:`target_of`, like `key` and `project`.
    :raises StateError: if there is none, or a crawl uses it. Nothing was changed then.
    :raises JobInUseError: likewise.
    """
    target_of(where, key=key, project=project).delete(progress)


def delete_leftovers(
    where: Where | None,
    *,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> int:
    """Delete what filters that are gone have left in Redis; return how many keys.

    :param where: a target in Redis, see :func:`target_of`, like `key` and `project`. There need be
        no filter.
    :raises SettingError: if it is not in Redis.
    """
    target = target_of(where, key=key, project=project)
    if isinstance(target, (FileTarget, JobTarget)):
        raise SettingError(f"{target.name} is not in Redis: leftovers are looked for there only")
    return target.delete_leftovers(progress)


def _queue_of_scrapy_redis(source: Target) -> ForeignKey | None:
    """Return what is under a key of Redis that scrapy-redis keeps its requests in."""
    if isinstance(source, (FileTarget, JobTarget)):
        return None
    key = cast("RedisTarget", source).foreign()
    kind = key.kind()
    if kind in ("zset", "list"):
        return key
    key.close()
    if kind == "set":
        raise SettingError(
            f"{source.name}: found a set, expected a filter, or the queue of scrapy-redis. Give the"
            f" key of its queue, such as books:requests: the marks are copied after the requests."
        )
    return None


def _copy_crawl(queue: ForeignKey, target: Target, project: Project, progress: Progress) -> Moved:
    try:
        if isinstance(target, (FileTarget, JobTarget)):
            raise SettingError(
                f"key {queue.key}: found a queue of scrapy-redis. Its crawl can only be copied into"
                f" Redis, and {target.name} is not there"
            )
        # Imported only here: redis is an extra.
        from scrapy_bloom.tools.from_scrapy_redis import copy_crawl  # noqa: PLC0415

        copied = copy_crawl(queue, cast("RedisTarget", target), project, progress)
    finally:
        queue.close()
    info = copied.info
    return Moved(
        f"key {queue.key}",
        target.name,
        info.items,
        info.bytes,
        info.error_rate,
        info.estimated_fp_rate,
        info.slices,
        copied.warnings,
        copied.requests,
    )


def _renamed(contents: Contents, project: Project | None) -> Contents:
    if project is None or not project.spider:
        return contents
    return replace(contents, identity=replace(contents.identity, spider=project.spider))


def _key(key: str, where: Where | None, other: Where | None) -> str:
    """Return the key for one of two places: it is for that in Redis, if one is."""
    return "" if _in_redis(other) and not _in_redis(where) else key


def _in_redis(where: Where | None) -> bool:
    if isinstance(where, Target):
        return not isinstance(where, (FileTarget, JobTarget))
    return str(where).startswith(SCHEMES)


def _warnings(source: Target, contents: Contents) -> list[str]:
    """Return what whoever takes a copy of a filter should know."""
    notes = []
    if contents.waiting:
        notes.append(
            f"{source.name}: {contents.waiting:,} requests wait there. Its filter calls their pages"
            f" seen, but the requests are not copied: a crawl with the copy alone would not fetch"
            f" them."
        )
    if contents.beside:
        notes.append(
            f"Requests wait in {contents.beside}. The filter calls their pages seen, but the"
            f" requests are not copied: a crawl with the copy alone would not fetch them."
        )
    if contents.lost:
        notes.append(
            f"Redis has lost {len(contents.lost)} parts of this filter: the pages in them are"
            f" fetched again."
        )
    return notes
