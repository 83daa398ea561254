"""Reads all of a filter and tells what is wrong, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from scrapy_bloom.core.numbers import NumbersState
from scrapy_bloom.core.sizing import BLOCK_BITS
from scrapy_bloom.core.state import FilterState
from scrapy_bloom.errors import BloomError
from scrapy_bloom.frontier.reader import StoreReader
from scrapy_bloom.layers.exact import check_lists
from scrapy_bloom.redis import pace
from scrapy_bloom.storage.exact_file import ExactKey
from scrapy_bloom.storage.marker import (
    REQUESTS,
    SNAPSHOT,
    has_lost_requests,
    is_outdated,
    read_marker,
)
from scrapy_bloom.storage.snapshot import Snapshot, read_snapshot
from scrapy_bloom.tools.contents import Contents
from scrapy_bloom.tools.information import RUNNING, info
from scrapy_bloom.tools.local_target import FileTarget, JobTarget
from scrapy_bloom.tools.progress import Progress, silent
from scrapy_bloom.tools.project import Project
from scrapy_bloom.tools.resolve import Where, target_of

if TYPE_CHECKING:
    from scrapy_bloom.redis.reader import RedisReader
    from scrapy_bloom.tools.redis_target import RedisTarget

Level = Literal["good", "note", "bad"]

_SIGMAS: Final = 6.0  # how far a count may be from what its bits say


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``good``, ``note`` for what is worth knowing, or ``bad``.
        what: what was looked at.
        found: what was found.
        advice: what to do; empty if there is nothing to do.
    """

    level: Level
    what: str
    found: str
    advice: str = ""


def check(
    where: Where | None,
    *,
    key: str = "",
    project: Project | None = None,
    progress: Progress = silent,
) -> list[Finding]:
    """Read all of a filter, and what is kept beside it; return what was found.

    Changes nothing, and may be called while a crawl uses the filter.

    :param where: a target, see :func:`target_of`, like `key` and `project`.
    :raises StateError: if there is no filter at all.
    :raises BackendError: if its server cannot be used.
    """
    target = target_of(where, key=key, project=project)
    if left := target.leftovers():
        return [
            Finding("bad", "filter", f"{target.name}: found no filter, only what one has left"),
            _leftovers(left),
        ]
    if not target.exists():
        raise target.missing()
    if isinstance(target, JobTarget):
        return [*_check_job(target)]
    try:
        contents = target.read(progress)
    except BloomError as error:
        return [_refused("filter", error)]
    if isinstance(target, FileTarget):
        return _check_filter(contents.live(time.time()))
    return [*_check_filter(contents), *_check_redis(cast("RedisTarget", target), contents)]


def _refused(what: str, error: BloomError) -> Finding:
    return Finding("bad", what, str(error))


def _check_filter(contents: Contents) -> list[Finding]:
    whole = f"whole: {contents.items:,} items, {contents.bytes:,} bytes"
    return [Finding("good", "filter", whole), *_check_counts(contents)]


def _check_counts(contents: Contents) -> Iterator[Finding]:
    """Compare the items that were counted with those that the bits show."""
    if contents.counted is not None:
        yield _check_numbers(contents.counted, contents.items)
    for shard, state in enumerate(contents.shards):
        if isinstance(state, NumbersState):
            continue  # its slices count nothing by themselves
        for number, slice_ in enumerate(state.slices):
            estimate = round(min(slice_.count(state.hashes).estimated_items, 2.0**62))
            name = f"slice {number + 1}" + (
                f" of shard {shard}" if len(contents.shards) > 1 else ""
            )
            bits = slice_.spec.blocks * BLOCK_BITS
            spread = _SIGMAS * sqrt(max(slice_.items, 1)) + 0.01 * slice_.items + 10
            if abs(estimate - slice_.items) <= spread:
                yield Finding(
                    "good", name, f"{slice_.items:,} items counted, its bits show {estimate:,}"
                )
            elif estimate < slice_.items:
                yield Finding(
                    "bad",
                    name,
                    f"{slice_.items:,} items counted, its {bits:,} bits show only {estimate:,}",
                    "Marks are missing: their pages are fetched again.",
                )
            else:
                yield Finding(
                    "note",
                    name,
                    f"{slice_.items:,} items counted, its bits show {estimate:,}",
                    "It is fuller than it counts, as after a copy in mid-crawl: more new pages are"
                    " called seen. See 'error rate now' of 'scrapy bloom info'.",
                )


def _check_numbers(counted: int, items: int) -> Finding:
    """Compare the items that the header counts with the numbers that are there.

    More are no harm: workers add while all is read.
    """
    found = f"{counted:,} items counted, {items:,} numbers found"
    if items >= counted:
        return Finding("good", "numbers", found)
    return Finding("bad", "numbers", found, "Marks are missing: their pages are fetched again.")


def _check_job(target: JobTarget) -> Iterator[Finding]:
    folder = target.folder
    snapshot = None
    try:
        snapshot = read_snapshot(folder / SNAPSHOT)
    except BloomError as error:
        yield _refused(SNAPSHOT, error)
    else:
        if snapshot:
            yield from _check_filter(Contents.of(snapshot).live(time.time()))
    yield from _check_requests(folder, snapshot)
    marker = read_marker(folder)
    if marker and not is_outdated(marker, snapshot) and not target.requests.exists():
        running = snapshot is not None and info(target).crawl == RUNNING
        yield Finding(
            "note",
            "last run",
            f"process {marker.pid} on {marker.host} "
            + ("is on" if running else "has not stopped cleanly"),
            ""
            if running
            else "The next run puts filter and queue aside, and the crawl starts over.",
        )
    for path in sorted(folder.glob(f"{SNAPSHOT}*.tmp")) + sorted(folder.glob(f"{REQUESTS}.new*")):
        yield Finding(
            "note", path.name, "left by a process that was killed", "The next run removes it."
        )


def _check_requests(folder: Path, snapshot: Snapshot | None) -> Iterator[Finding]:
    path = folder / REQUESTS
    if not path.exists():
        if has_lost_requests(folder, snapshot):
            yield Finding(
                "bad",
                REQUESTS,
                "gone, though the job kept its requests there",
                "Put it back, or delete the whole job directory to start afresh.",
            )
        return
    try:
        with StoreReader(path) as reader:
            look = reader.look()
            unreadable = reader.check_whole()
            reader.ages()
    except BloomError as error:
        yield _refused(REQUESTS, error)
        return
    if unreadable:
        yield Finding(
            "bad",
            REQUESTS,
            f"{unreadable:,} of {look.waiting:,} requests do not match their checksums",
            "Their pages are not fetched, the others are. Restore the job from a copy to have them"
            " all.",
        )
    else:
        yield Finding(
            "good",
            REQUESTS,
            f"whole: {look.waiting:,} requests wait, {look.journal:,} marks since the snapshot",
        )
    if snapshot and snapshot.generation > look.generation:
        yield Finding(
            "bad",
            REQUESTS,
            f"older than {SNAPSHOT}, which calls pages seen whose requests are not here",
            f"Put back both files of the same time, or delete {SNAPSHOT}.",
        )
    if look.exact and snapshot:  # before the first one there are no lists
        yield _check_exact(folder, look.exact, snapshot.state)
    if look.withheld:
        yield Finding("note", "let through", f"{len(look.withheld):,} pages are new once more")


def _check_exact(folder: Path, noted: str, state: FilterState) -> Finding:
    try:
        count = check_lists(folder, noted, ExactKey(state.secret, digests=state.digests))
    except BloomError as error:
        return _refused("exact list", error)
    return Finding("good", "exact list", f"whole: {count:,} fingerprints")


def _check_redis(target: RedisTarget, contents: Contents) -> Iterator[Finding]:
    with target.reader() as reader, target.upkeep() as upkeep:
        yield from _check_segments(reader, contents.lost)
        yield from _check_workers(reader)
        yield from _check_queue(reader)
        epochs = [part.header.epoch for part in reader.parts()]
        left = [key.decode() for key in upkeep.leftovers(epochs)]
        if left:
            yield _leftovers(left)
        policy = upkeep.policy()
        if policy.startswith("allkeys"):
            yield Finding(
                "bad",
                "server",
                f"may throw the filter away when its memory is full (maxmemory-policy {policy})",
                "Set maxmemory-policy to noeviction, or use a server of its own.",
            )


def _leftovers(keys: Sequence[str]) -> Finding:
    return Finding(
        "note",
        "leftovers",
        f"{len(keys):,} keys of filters that are gone, such as {keys[0]}",
        "'scrapy bloom delete --leftovers' removes them.",
    )


def _check_segments(reader: RedisReader, lost: Sequence[str]) -> Iterator[Finding]:
    losses = sum(part.read().losses for part in reader.parts())
    if lost:
        yield Finding(
            "bad",
            "segments",
            f"{len(lost):,} are missing: {', '.join(lost[:5])}",
            "The server has lost them: their pages are fetched again. It must not evict keys, and"
            " nobody else may delete them.",
        )
    else:
        yield Finding("good", "segments", "all there")
    if losses:
        yield Finding("note", "losses", f"parts were lost {losses:,} times so far")


def _check_workers(reader: RedisReader) -> Iterator[Finding]:
    workers = reader.workers()
    dead = [worker.id for worker in workers if not worker.alive]
    alive = len(workers) - len(dead)
    yield Finding("good", "workers", f"{alive} at work")
    if dead:
        yield Finding(
            "note",
            "workers",
            f"{len(dead)} registered without a lease: {', '.join(dead[:5])}",
            f"They were killed, or are frozen, which does no harm. A worker that is started now"
            f" takes them off after {pace.LEASE:.0f} s.",
        )


def _check_queue(reader: RedisReader) -> Iterator[Finding]:
    for queue in reader.queues():
        look = queue.look()
        if look is None:
            continue
        yield Finding(
            "good", "queue", f"{look.waiting:,} requests wait, {look.taken:,} are under way"
        )
        if look.missing:
            yield Finding(
                "bad",
                "queue",
                f"{look.missing:,} requests have vanished from the server",
                "It must not evict keys, nor lose them in a restart. A worker that runs puts back"
                " what it knows; crawl again to be sure of the others.",
            )
        if look.left:
            yield Finding(
                "note",
                "taken",
                f"{look.left:,} requests were taken by {len(look.dead)} workers that are gone:"
                f" {', '.join(look.dead[:5])}",
                f"A worker that runs puts them back, if it hears nothing of them for"
                f" {pace.LEASE:.0f} s.",
            )
        if look.failed:
            yield Finding(
                "note",
                "failed",
                f"{look.failed:,} requests were given up",
                "'scrapy bloom queue --failed' shows them.",
            )
