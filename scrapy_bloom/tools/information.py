"""What a filter is, how full it is, whose it is, and who uses it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.core.buckets import bucket_bytes
from scrapy_bloom.core.info import FilterInfo
from scrapy_bloom.core.sizing import BLOCK_BYTES
from scrapy_bloom.layers.exact import listed
from scrapy_bloom.storage.marker import SNAPSHOT, Marker, is_outdated, read_marker
from scrapy_bloom.storage.snapshot import read_head
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import Where, target_of
from scrapy_bloom.tools.target import Target

if TYPE_CHECKING:
    from scrapy_bloom.core.growth import SliceSpec
    from scrapy_bloom.redis.header import Header
    from scrapy_bloom.redis.reader import Worker

CLEAN: Final = "stopped cleanly"
RUNNING: Final = "running"
KILLED: Final = "killed"
UNKNOWN: Final = "running or killed"


@dataclass(frozen=True)
class SliceInfo:
    """One slice of a filter.

    Attributes:
        shard: number of its shard.
        capacity: items that it is sized for.
        items: items that it has.
        bytes: bytes of its bits.
        error_rate: its share of the error rate, when it is full.
        fill_ratio: share of its bits that are set, 0 to 1; None for Redis, where that takes long.
    """

    shard: int
    capacity: int
    items: int
    bytes: int
    error_rate: float
    fill_ratio: float | None


@dataclass(frozen=True)
class Information:
    """What is known of a filter. Its secret is not in it.

    Attributes:
        target: where it is.
        kind: ``job``, ``file`` or ``redis``.
        filter: its state.
        hashes: bits set for each item.
        digests: whether fingerprints of 20 bytes are taken as SHA-1 digests.
        slices: its slices, oldest first.
        shards: how many shards it has.
        spider: name of its spider; empty if that is not known.
        fingerprinter: what makes its fingerprints; empty if that is not known.
        canonical: the rules by which URLs were rewritten before, and the versions of the libraries.
        written_by: what wrote its file; empty if it has none.
        let_through: how many fingerprints are to be called new once more.
        exact: how many fingerprints are in its exact lists; None if it has none.
        crawl: whether its crawl has stopped cleanly, runs or was killed; empty if it has none.
        process: the process that runs, or ran, in its job directory; empty if none is known.
        clean_stop: when its crawl last stopped cleanly, or its file was written; None if unknown.
        stops: how many clean stops and snapshots there were.
        journal: marks that came after the last snapshot, with ``scrapy_bloom.Scheduler``.
        waiting: how many requests wait; None if that is not known.
        under_way: how many of them were under way at the last commit; None if that is not known.
        workers: the workers that are registered, in Redis.
        losses: how often parts of it were lost, in Redis.
        layout: how it is stored.
    """

    target: str
    kind: str
    filter: FilterInfo
    hashes: int
    digests: bool
    slices: Sequence[SliceInfo]
    shards: int
    spider: str
    fingerprinter: str
    canonical: Mapping[str, Any]
    written_by: str = ""
    let_through: int = 0
    exact: int | None = None
    crawl: str = ""
    process: str = ""
    clean_stop: datetime | None = None
    stops: int = 0
    journal: int = 0
    waiting: int | None = None
    under_way: int | None = None
    workers: Sequence[Worker] = ()
    losses: int = 0
    layout: str = "bitmap"


def info(where: Where | None, *, key: str = "", project: Project | None = None) -> Information:
    """Return what is known of a filter, also while a crawl uses it.

    :param where: a target, see :func:`target_of`, like `key` and `project`.
    :raises BloomError: if there is no filter, or if it cannot be read.
    """
    target = target_of(where, key=key, project=project)
    if isinstance(target, JobTarget):
        return _of_job(target)
    if isinstance(target, FileTarget):
        return _of_contents(target, "file", clean_stop=_written(target))
    return _of_redis(target)


def _of_contents(target: Target, kind: str, **more: Any) -> Information:
    contents = target.read().live(time.time())
    slices = [
        SliceInfo(
            shard,
            spec.capacity,
            count.items,
            count.bytes_at_capacity,
            spec.error_rate,
            count.used / count.room,
        )
        for shard, state in enumerate(contents.shards)
        for spec, count in zip([one.spec for one in state.slices], state.count(), strict=True)
    ]
    first = contents.shards[0]
    identity = contents.identity
    return Information(
        target.name,
        kind,
        contents.info(),
        first.hashes,
        first.digests,
        slices,
        len(contents.shards),
        identity.spider,
        identity.fingerprinter,
        identity.canonical,
        contents.written_by,
        len(contents.let_through),
        layout=first.layout,
        **more,
    )


def _of_job(target: JobTarget) -> Information:
    marker = read_marker(target.folder)
    look = target.look()
    head = read_head(target.folder / SNAPSHOT)
    clean = look.clean if look else marker is None or is_outdated(marker, head)
    return _of_contents(
        target,
        "job",
        crawl=CLEAN if clean else _liveness(marker),
        process=f"{marker.pid} on {marker.host}" if marker and marker.pid and not clean else "",
        clean_stop=_written(FileTarget(target.folder / SNAPSHOT)) if head else None,
        stops=head.generation if head else 0,
        exact=listed(target.folder, look.exact, time.time()) if look and look.exact else None,
        journal=look.journal if look else 0,
        waiting=look.waiting if look else None,
        under_way=look.under_way if look else None,
    )


def _liveness(marker: Marker | None) -> str:
    """Return whether the process of a marker runs, as far as this machine can tell."""
    if marker is None:
        return KILLED
    if marker.host != socket.gethostname() or os.name == "nt":
        return UNKNOWN
    try:
        os.kill(marker.pid, 0)  # asks only whether it is there
    except ProcessLookupError:
        return KILLED
    except OSError:
        pass  # it is there, and somebody else's
    return RUNNING


def _written(target: FileTarget) -> datetime | None:
    try:
        return datetime.fromtimestamp(target.path.stat().st_mtime, tz=timezone.utc)
    except OSError:
        return None


def _of_redis(target: Target) -> Information:
    # Imported only here: redis is an extra.
    from scrapy_bloom.tools.redis_target import RedisTarget  # noqa: PLC0415

    assert isinstance(target, RedisTarget)  # noqa: S101 - there is no other kind
    with target.reader() as reader:
        headers = [part.read() for part in reader.parts()]
        slices = [
            _of_spec(shard, header, spec)
            for shard, header in enumerate(headers)
            for spec in header.slices
        ]
        looks = [look for queue in reader.queues() if (look := queue.look())]
        return Information(
            target.name,
            "redis",
            reader.info(),
            headers[0].hashes,
            reader.digests,
            slices,
            reader.shards,
            reader.spider(),
            reader.fingerprinter,
            json.loads(reader.canonical),
            let_through=sum(header.again for header in headers) + sum(look.again for look in looks),
            waiting=sum(look.waiting for look in looks) if looks else None,
            under_way=sum(look.taken for look in looks) if looks else None,
            workers=reader.workers(),
            losses=sum(header.losses for header in headers),
            layout=headers[0].plan.layout,
        )


def _of_spec(shard: int, header: Header, spec: SliceSpec) -> SliceInfo:
    newest = spec is header.slices[-1]
    bits = header.plan.layout == "bitmap"
    return SliceInfo(
        shard,
        spec.capacity,
        header.filled if newest else spec.capacity,
        spec.blocks * BLOCK_BYTES if bits else bucket_bytes(spec, spec.capacity),
        spec.error_rate,
        None,
    )
