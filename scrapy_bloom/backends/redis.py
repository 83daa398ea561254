"""The filter in Redis, which lives no longer than the requests that wait beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.backends.base import Backend, Crawl, Opened, OpenedToRead
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
    refusal,
)
from scrapy_bloom.redis.options import RedisOptions
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.recovery import recover

if TYPE_CHECKING:
    from scrapy_bloom.redis.filter import RedisFilter

logger = logging.getLogger(__name__)


class RedisBackend(Backend):
    """``BLOOM_BACKEND = "redis"``."""

    def open(self, settings: Settings, crawl: Crawl) -> Opened:
        """Open the filter under the crawl's key, or make it.

        :raises BloomError: as :class:`RedisFilter` does; or if `on_unclean` is ``fail`` and the
            last run on the job directory was killed.
        """
        with _client_library():
            from scrapy_bloom.redis.connection import Target  # noqa: PLC0415 - redis is an extra
            from scrapy_bloom.redis.filter import RedisFilter  # noqa: PLC0415
        target = Target.of(settings[REDIS_URL], settings.redis_params)
        options = _options(settings, crawl)
        shared = RedisFilter(
            target,
            capacity=settings[CAPACITY],
            error_rate=settings[ERROR_RATE],
            digests=crawl.digests,
            fingerprinter=crawl.identity.fingerprinter,
            canonical=json.dumps(crawl.identity.canonical, sort_keys=True),
            options=options,
        )
        place = f"in Redis at {target.where()}, key {options.key}"
        unclean = False
        if shared.restored and not crawl.shared_queue:
            unclean = _outlived(shared, place, crawl, settings[ON_UNCLEAN])
        return Opened(
            shared,
            shared.close,
            place,
            shared.restored,
            "Redis",
            unclean,
            shared.numbers,
            json.loads(shared.canonical) if shared.restored else {},
        )

    def open_to_read(
        self,
        settings: Settings,
        *,
        spider: str,
        job_dir: Path | None,  # noqa: ARG002 - the filter is somewhere else
    ) -> OpenedToRead:
        """Open the filter under the spider's key.

        :raises BloomError: as :class:`RedisReader` does.
        """
        with _client_library():
            from scrapy_bloom.redis.connection import Target  # noqa: PLC0415 - redis is an extra
            from scrapy_bloom.redis.reader import RedisReader  # noqa: PLC0415
        target = Target.of(settings[REDIS_URL], settings.redis_params)
        reader = RedisReader(
            target,
            key=_key(settings[REDIS_KEY], spider),
            timeout=settings[REDIS_TIMEOUT],
            words=in_settings,
        )
        place = f"in Redis at {target.where()}, key {reader.key}"
        return OpenedToRead(reader, place, reader.fingerprinter, json.loads(reader.canonical))


@contextmanager
def _client_library() -> Iterator[None]:
    """Say how to get the client library where it cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise SettingError(
            f"{in_settings(BACKEND)} 'redis' needs the package {error.name}: pip install"
            f" 'scrapy-bloom[redis]'."
        ) from error


def _options(settings: Settings, crawl: Crawl) -> RedisOptions:
    return RedisOptions(
        key=_key(settings[REDIS_KEY], crawl.identity.spider),
        shards=settings[REDIS_SHARDS],
        cache=settings[REDIS_CACHE],
        on_error=settings[ON_BACKEND_ERROR],
        timeout=settings[REDIS_TIMEOUT],
        wait=settings[REDIS_WAIT],
        keep=crawl.shared_queue or crawl.job_dir is not None,
        words=in_settings,
    )


def _key(pattern: str, spider: str) -> str:
    try:
        return pattern % {"spider": spider}
    except (KeyError, TypeError, ValueError):
        raise refusal(
            in_settings(REDIS_KEY),
            pattern,
            "write %(spider)s where the spider's name shall be, and %% for a percent sign.",
        ) from None


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
    try:
        recover(killed, on_unclean, can_go_back=False)
    except UncleanStopError:
        shared.close()
        raise
    shared.clear()
    logger.warning(
        "%s The filter starts empty: Scrapy's queue is older than its marks, and a filter in Redis"
        " cannot go back. No page is lost for it, some are fetched again.",
        killed,
    )
    return True
