"""Moves filters as they are: out of one place, into another, several into one, away."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from scrapy_bloom.core.merging import merge_states
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.storage.snapshot import Identity
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.progress import Progress, silent
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import SCHEMES, Where, target_of
from scrapy_bloom.tools.target import Target


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
    """

    source: str
    target: str
    items: int
    bytes: int
    error_rate: float
    error_rate_now: float
    slices: int
    warnings: Sequence[str] = ()


def export(
    where: Where | None,
    path: Path | str | BinaryIO,
    *,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> Moved:
    """Write a filter to one file, which any other place takes: by :func:`copy` or :func:`import_`.

    The same filter gives the same bytes, wherever it is.

    :param where: a target, see :func:`target_of`, like `key` and `project`.
    :param path: the file, or a stream that is open for writing bytes. A file that is there must be
        such a file, too; it is replaced.
    :raises BloomError: if the filter cannot be read, or the file not be written. A file that was
        there is as it was.
    """
    source = target_of(where, key=key, project=project)
    contents = source.read(progress)
    if isinstance(path, io.IOBase):
        for chunk in contents.chunks(None):
            path.write(chunk)
        path.flush()
        return _moved(source.name, "standard output", contents, _warnings(source, contents))
    target = FileTarget(Path(str(path)))
    with target.change(make=True) as change:
        change.contents = None  # its generation does not count outside of a job
        change.put(contents, progress)
    return _moved(source.name, target.name, contents, _warnings(source, contents))


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

    If this fails or is interrupted, nothing has changed.

    :param source: a target, see :func:`target_of`, like `key` and `project`.
    :param target: likewise, with `target_key`. The spider of `project`, if one is named, is whose
        filter it becomes.
    :raises StateError: if something is there already.
    :raises BloomError: if the filter cannot be read, or not be put there.
    """
    source = target_of(source, key=_key(key, source, [target]), project=project)
    target = target_of(target, key=target_key or _key(key, target, [source]))
    contents = _renamed(source.read(progress), project)
    with target.change(make=True) as change:
        if change.contents is not None:
            raise StateError(
                f"{target.name}: found a filter, expected none. Nothing was changed. 'scrapy bloom"
                f" merge' puts one into another, 'scrapy bloom delete' makes room."
            )
        change.put(contents, progress)
    return _moved(source.name, target.name, contents, _warnings(source, contents))


def merge(
    sources: Sequence[Where],
    target: Where,
    *,
    key: str = "",
    target_key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> Moved:
    """Put filters together in one, which has every page that any of them has.

    That is possible for copies of one filter, which share its secret. Slices of the same size
    become one, bit by bit; others stay slices beside each other. All of it happens, or nothing.

    :param sources: targets, see :func:`target_of`, like `key` and `project`.
    :param target: where the result goes. A filter that is there is one of those put together.
    :raises SettingError: if the filters hash in different ways.
    :raises BloomError: if one cannot be read, or the result not be put there.
    """
    read = [target_of(one, key=_key(key, one, [*sources, target])) for one in sources]
    target = target_of(target, key=target_key or _key(key, target, sources))
    found = [_renamed(one.read(progress), project) for one in read]
    names = ", ".join(one.name for one in read)
    with target.change(make=True) as change:
        there = change.contents
        parts = [*([there] if there else []), *found]
        merged = merge_contents(parts)
        change.put(merged, progress)
    notes = [note for pair in zip(read, found, strict=True) for note in _warnings(*pair)]
    if there:
        notes += _waiting_there(target, there)
    return _moved(names, target.name, merged, [*_crowded(merged), *notes])


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


def merge_contents(parts: Sequence[Contents]) -> Contents:
    """Return one filter out of several.

    :raises SettingError: if they hash in different ways, or belong to different spiders.
    """
    first = parts[0]
    for other in parts[1:]:
        _check_alike(first.identity, other.identity)
        if len(other.shards) != len(first.shards):
            raise SettingError(
                f"the filters have {len(first.shards)} and {len(other.shards)} shards. Only filters"
                f" with the same number of shards can be merged."
            )
    shards = [
        merge_states([part.shards[number] for part in parts]) for number in range(len(first.shards))
    ]
    let_through = frozenset(first.let_through).union(*(part.let_through for part in parts[1:]))
    return replace(
        first,
        shards=shards,
        error_rate=max(part.error_rate for part in parts),
        let_through=let_through,
    )


def _check_alike(one: Identity, other: Identity) -> None:
    if one.fingerprinter and other.fingerprinter and one.fingerprinter != other.fingerprinter:
        raise SettingError(
            f"the fingerprints of one filter are made by {one.fingerprinter}, those of the other by"
            f" {other.fingerprinter}: their marks mean different pages."
        )


def _renamed(contents: Contents, project: Project | None) -> Contents:
    if project is None or not project.spider:
        return contents
    return replace(contents, identity=replace(contents.identity, spider=project.spider))


def _key(key: str, where: Where | None, others: Sequence[Where | None]) -> str:
    """Return the key for one of several places: it is for those in Redis, if any is."""
    return "" if any(map(_in_redis, others)) and not _in_redis(where) else key


def _in_redis(where: Where | None) -> bool:
    if isinstance(where, Target):
        return not isinstance(where, (FileTarget, JobTarget))
    return str(where).startswith(SCHEMES)


def _moved(source: str, target: str, contents: Contents, warnings: Sequence[str]) -> Moved:
    info = contents.info()
    return Moved(
        source,
        target,
        contents.items,
        contents.bytes,
        contents.error_rate,
        info.estimated_fp_rate,
        info.slices,
        warnings,
    )


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


def _waiting_there(target: Target, before: Contents) -> list[str]:
    """Return what to know of a crawl that is under way where other filters were merged into."""
    if not before.waiting and not before.beside:
        return []
    waiting = f"{before.waiting:,} requests wait" if before.waiting else "requests wait"
    note = (
        f"{target.name}: {waiting} there. What they lead to is not fetched by that crawl if a"
        f" filter that was merged in calls it seen."
    )
    return [note]


def _crowded(contents: Contents) -> list[str]:
    info = contents.info()
    if info.estimated_fp_rate <= contents.error_rate:
        return []
    told = (
        f"The merged filter is fuller than it was made for: it calls"
        f" {info.estimated_fp_rate:.2g} of new pages seen, instead of {contents.error_rate:g}."
    )
    return [told]
