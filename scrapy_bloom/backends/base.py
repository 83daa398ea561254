"""The backends by name: how each is opened for a crawl."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scrapy_bloom.core.base import Filter
from scrapy_bloom.core.local import LocalFilter
from scrapy_bloom.errors import SettingError, UncleanStopError
from scrapy_bloom.options import (
    BACKEND,
    CAPACITY,
    ERROR_RATE,
    ON_BACKEND_ERROR,
    ON_UNCLEAN,
    REDIS_CACHE,
    REDIS_KEY,
    REDIS_SHARDS,
    REDIS_TIMEOUT,
    REDIS_URL,
    REDIS_WAIT,
    OnUnclean,
    in_settings,
)
from scrapy_bloom.redis.options import RedisOptions
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.job import JobFilter
from scrapy_bloom.storage.snapshot import Identity

if TYPE_CHECKING:
    from scrapy_bloom.redis.filter import RedisFilter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Crawl:
    """What a backend is told of the crawl.

    Attributes:
        identity: whose marks the filter holds.
        digests: whether its fingerprints are SHA-1 digests.
        job_dir: where the crawl keeps its state between runs; None if it keeps none.
        shared_queue: whether its requests wait in Redis, for any worker, and not in this process.
    """

    identity: Identity
    digests: bool
    job_dir: Path | None
    shared_queue: bool


@dataclass(frozen=True)
class Opened:
    """A filter ready for use, and how it came to be.

    Attributes:
        filter: the filter.
        place: where it lives, in words.
        restored: how many fingerprints it started with.
        restored_from: where they came from; empty if there were none.
        unclean: whether the last run was killed.
        numbers: returns counts of the backend by name, for the stats.
        filled_with: what its fingerprints were made with, as in the identity; empty if unknown.
    """

    filter: Filter
    place: str
    restored: int = 0
    restored_from: str = ""
    unclean: bool = False
    numbers: Callable[[], Mapping[str, float]] = dict
    filled_with: Mapping[str, Any] = field(default_factory=dict)


def open_local(settings: Settings, crawl: Crawl) -> Opened:
    """Open a filter in memory, kept in the job directory if there is one.

    :raises BloomError: as :class:`JobFilter` does.
    """
    if crawl.job_dir is None:
        memory = LocalFilter(settings[CAPACITY], settings[ERROR_RATE], digests=crawl.digests)
        return Opened(memory, "in memory")
    job = JobFilter(
        crawl.job_dir,
        crawl.identity,
        capacity=settings[CAPACITY],
        error_rate=settings[ERROR_RATE],
        digests=crawl.digests,
        on_unclean=settings[ON_UNCLEAN],
    )
    place = f"in memory, kept in {crawl.job_dir}"
    return Opened(
        job,
        place,
        job.restored,
        job.restored_from,
        unclean=job.unclean,
        filled_with=job.filled_with,
    )


def open_redis(settings: Settings, crawl: Crawl) -> Opened:
    """Open a filter in Redis that lives no longer than the requests that wait beside it.

    :raises BloomError: as :class:`RedisFilter` does; or if `on_unclean` is ``fail`` and the last
        run on the job directory was killed.
    """
    try:
        from scrapy_bloom.redis.connection import Target  # noqa: PLC0415 - redis is an extra
        from scrapy_bloom.redis.filter import RedisFilter  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise SettingError(
            f"BLOOM_BACKEND 'redis' needs the package {error.name}: pip install"
            f" 'scrapy-bloom[redis]'."
        ) from error
    target = Target.of(settings[REDIS_URL], settings.redis_params)
    key = _redis_key(settings[REDIS_KEY], crawl.identity.spider)
    shared = RedisFilter(
        target,
        capacity=settings[CAPACITY],
        error_rate=settings[ERROR_RATE],
        digests=crawl.digests,
        fingerprinter=crawl.identity.fingerprinter,
        canonical=json.dumps(crawl.identity.canonical, sort_keys=True),
        options=RedisOptions(
            key=key,
            shards=settings[REDIS_SHARDS],
            cache=settings[REDIS_CACHE],
            on_error=settings[ON_BACKEND_ERROR],
            timeout=settings[REDIS_TIMEOUT],
            wait=settings[REDIS_WAIT],
            keep=crawl.shared_queue or crawl.job_dir is not None,
            words=in_settings,
        ),
    )
    place = f"in Redis at {target.where()}, key {key}"
    unclean = False
    if shared.restored and not crawl.shared_queue:
        unclean = _outlived(shared, place, crawl, settings[ON_UNCLEAN])
    return Opened(
        shared,
        place,
        shared.restored,
        "Redis",
        unclean,
        shared.numbers,
        json.loads(shared.canonical) if shared.restored else {},
    )


def _outlived(shared: RedisFilter, place: str, crawl: Crawl, on_unclean: OnUnclean) -> bool:
    """Empty a filter whose queue is gone; return whether the last run was killed.

    A process with a queue of its own takes that queue with it when it is killed, but the marks of
    the requests in it stay in Redis. Unless somebody else still crawls, nobody would fetch them.
    """
    if crawl.job_dir is None:
        if shared.clear():
            logger.info("Bloom filter %s: emptied, it was left by a crawl that has ended.", place)
        return False
    if not shared.wait_deserted():
        return False
    killed = f"Bloom filter {place}: the last run with {crawl.job_dir} was killed."
    if on_unclean is OnUnclean.FAIL:
        shared.close()
        raise UncleanStopError(
            f"{killed} BLOOM_ON_UNCLEAN is 'fail', so this run does not start. With 'rollback' or"
            f" 'reset' it starts with an empty filter."
        )
    shared.clear()
    logger.warning(
        "%s The filter starts empty: Scrapy's queue is older than its marks, and a filter in Redis"
        " cannot go back. No page is lost for it, some are fetched again.",
        killed,
    )
    return True


def _redis_key(pattern: str, spider: str) -> str:
    try:
        return pattern % {"spider": spider}
    except (KeyError, TypeError, ValueError):
        raise SettingError(
            f"BLOOM_REDIS_KEY = {pattern!r}: write %(spider)s where the spider's name shall be, and"
            f" %% for a percent sign."
        ) from None


def choose(settings: Settings, crawl: Crawl) -> Callable[[Settings, Crawl], Opened]:
    """Return how the filter of a crawl is opened."""
    if settings[BACKEND] != "auto":
        return BACKENDS[settings[BACKEND]]
    return BACKENDS["redis" if settings[REDIS_URL] or crawl.shared_queue else "local"]


BACKENDS: Final[dict[str, Callable[[Settings, Crawl], Opened]]] = {
    "local": open_local,
    "redis": open_redis,
}
