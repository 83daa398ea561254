"""The filter in Redis, which lives no longer than the requests that wait beside it."""

from __future__ import annotations

import json
import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scrapy_bloom.backends.base import Backend, Crawl, Opened
from scrapy_bloom.errors import BackendError, SettingError, StateError
from scrapy_bloom.options import (
    BACKEND,
    CAPACITY,
    ERROR_RATE,
    EXACT,
    MIN_ERROR_RATE,
    ON_BACKEND_ERROR,
    REDIS_KEY,
    REDIS_LAYOUT,
    REDIS_SHARDS,
    REDIS_TIMEOUT,
    REDIS_URL,
    WINDOW,
    OnBackendError,
    in_settings,
    refusal,
)
from scrapy_bloom.redis.options import RedisOptions
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage import scrapy_queue
from scrapy_bloom.storage.marker import REQUESTS, SNAPSHOT
from scrapy_bloom.storage.store import JobHold

if TYPE_CHECKING:
    from scrapy_bloom.redis.connection import Target
    from scrapy_bloom.redis.filter import RedisFilter
    from scrapy_bloom.redis.queue.base import Form
    from scrapy_bloom.redis.queue.shared import SharedQueue

logger = logging.getLogger(__name__)


class RedisBackend(Backend):
    """``BLOOM_BACKEND = "redis"``."""

    def open(self, settings: Settings, crawl: Crawl) -> Opened:
        """Open the filter under the crawl's key, or make it; with the queue, if one is wanted.

        :raises BloomError: as :class:`RedisFilter` and :class:`SharedQueue` do; if the job
            directory has marks of a local filter or, beside a shared queue, requests.
        """
        _check_fits(crawl, settings)
        if crawl.job_dir is None or crawl.shared_queue:
            return self._open(settings, crawl)
        hold = JobHold(crawl.job_dir, crawl.identity.spider)
        try:
            opened = self._open(settings, crawl, first_in_job=hold.is_first)
        except BaseException:
            if not crawl.starts_over:  # else the marks of the last run are still there
                hold.take_back()
            hold.release()
            raise

        def close() -> None:
            # Then the filter: one that is killed in between is emptied.
            if not (crawl.starts_over and _is_absent(opened)):  # else those marks are still there
                hold.note_clean_stop()
            try:
                opened.close()
            finally:
                hold.release()

        return replace(opened, close=close)

    def _open(self, settings: Settings, crawl: Crawl, *, first_in_job: bool = False) -> Opened:
        if settings[EXACT] and settings[REDIS_LAYOUT] != "sets":
            raise SettingError(
                f"{in_settings(EXACT)} = True: with the filter in Redis it needs"
                f" {in_settings(REDIS_LAYOUT)} = 'sets', whose numbers can have 63 bits."
            )
        with _client_library():
            from scrapy_bloom.redis.connection import Target  # noqa: PLC0415 - redis is an extra
        target = Target.of(settings[REDIS_URL], settings.redis_params)
        options = _options(settings, crawl)
        place = f"in Redis at {target.where()}, key {options.key}"

        def join() -> tuple[RedisFilter, bool]:
            shared, unclean = _join(target, options, place, settings, crawl)
            if first_in_job and not unclean and shared.marked and not shared.has_others:
                _warn_of_earlier_marks(shared, place, crawl)
            return shared, unclean

        try:
            shared, unclean = join()
        except BackendError as error:
            # With a queue in the same place nothing could be fetched.
            goes_on = options.on_error is OnBackendError.ALLOW and not crawl.shared_queue
            if not (goes_on and error.temporary):
                raise
            return _absent(join, error, place)
        opened = _opened(shared, unclean, place, crawl)
        if crawl.queue is None:
            return opened
        from scrapy_bloom.redis.foreign import ForeignKey  # noqa: PLC0415 - redis is an extra

        return replace(
            opened,
            foreign=lambda key: ForeignKey(target, key, timeout=settings[REDIS_TIMEOUT]),
            queue=_open_queue(shared, crawl.queue, crawl.identity.spider),
            unmarked=shared.unmarked,
        )


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


def _check_fits(crawl: Crawl, settings: Settings) -> None:
    """Refuse a crawl that has marks or requests elsewhere, or would go on without Redis."""
    if crawl.job_dir and (crawl.queue or not crawl.shared_queue):
        _check_no_local_marks(crawl.job_dir)
    if crawl.queue is None:
        return
    if crawl.job_dir:
        _check_no_local_requests(crawl.job_dir)
    if settings[ON_BACKEND_ERROR] is OnBackendError.ALLOW:
        raise refusal(
            in_settings(ON_BACKEND_ERROR),
            "allow",
            "with SCHEDULER = 'scrapy_bloom.Scheduler' the requests are in Redis as well, and no"
            " page can be fetched without it. Give 'auto', 'wait' or 'close'.",
        )


def _open_queue(shared: RedisFilter, form: Form, spider: str) -> SharedQueue:
    """Open the queue beside a filter, which is closed if that fails."""
    from scrapy_bloom.redis.queue.shared import SharedQueue  # noqa: PLC0415 - redis is an extra

    try:
        return SharedQueue(
            shared,
            order=form.order,
            codec=form.codec,
            spider=spider,
        )
    except BaseException:
        shared.close()
        raise


def _join(
    target: Target, options: RedisOptions, place: str, settings: Settings, crawl: Crawl
) -> tuple[RedisFilter, bool]:
    """Become a worker of the filter; return it, and whether the last run was killed."""
    from scrapy_bloom.redis.filter import RedisFilter  # noqa: PLC0415 - redis is an extra

    shared = RedisFilter(
        target,
        capacity=settings[CAPACITY],
        error_rate=MIN_ERROR_RATE if settings[EXACT] else settings[ERROR_RATE],
        digests=crawl.digests,
        fingerprinter=crawl.identity.fingerprinter,
        canonical=json.dumps(crawl.identity.canonical, sort_keys=True),
        window=settings[WINDOW],
        options=options,
    )
    try:
        # What a window has ended comes back if the server's clock is set back.
        own = not shared.was_empty and (crawl.starts_over or not crawl.shared_queue)
        return shared, own and _outlived(shared, place, crawl)
    except BaseException:
        shared.close()
        raise


def _opened(shared: RedisFilter, unclean: bool, place: str, crawl: Crawl) -> Opened:  # noqa: FBT001
    return Opened(
        shared,
        shared.close,
        place,
        shared.restored,
        "Redis",
        unclean,
        shared.numbers,
        json.loads(shared.canonical) if shared.marked else {},
        marked=shared.marked,
        delete=shared.delete,
        closes_slowly=lambda: crawl.queue is not None,  # beside the event loop, as all its calls
    )


def _absent(
    join: Callable[[], tuple[RedisFilter, bool]], error: BackendError, place: str
) -> Opened:
    """Return what stands for the filter until the server answers."""
    from scrapy_bloom.redis.absent import AbsentFilter  # noqa: PLC0415 - redis is an extra

    absent = AbsentFilter(lambda: join()[0], error)
    return Opened(
        absent,
        absent.close,
        place,
        numbers=absent.numbers,
        delete=absent.delete,
    )


def _is_absent(opened: Opened) -> bool:
    """Return whether the server has not answered yet since the start."""
    from scrapy_bloom.redis.absent import AbsentFilter  # noqa: PLC0415 - redis is an extra

    return isinstance(opened.filter, AbsentFilter) and not opened.filter.is_open


def _options(settings: Settings, crawl: Crawl) -> RedisOptions:
    return RedisOptions(
        key=key_of(settings[REDIS_KEY], crawl.identity.spider),
        shards=settings[REDIS_SHARDS],
        layout=settings[REDIS_LAYOUT],
        on_error=settings[ON_BACKEND_ERROR],
        timeout=settings[REDIS_TIMEOUT],
        keep=crawl.shared_queue or crawl.job_dir is not None,
        shared_queue=crawl.shared_queue,
        beside=crawl.queue is not None,
        stopped=_forced_stop(),
        words=in_settings,
    )


def _forced_stop() -> Callable[[], bool]:
    """Return what tells whether the process was told twice to stop, as by two Ctrl-C.

    Scrapy ignores further signals then, and stops when the reactor gets its turn: that must not
    have to wait for Redis.
    """

    def ignores() -> bool:
        signals = signal.SIGINT, signal.SIGTERM
        return all(signal.getsignal(number) == signal.SIG_IGN for number in signals)

    if ignores():  # that is how the process was started
        return lambda: False
    return ignores


def server_of(settings: Settings) -> Target:
    """Return the server that the settings name.

    :raises SettingError: if the client library is missing, or the settings cannot be used.
    """
    with _client_library():
        from scrapy_bloom.redis.connection import Target  # noqa: PLC0415 - redis is an extra
    return Target.of(settings[REDIS_URL], settings.redis_params)


def key_of(pattern: str, spider: str) -> str:
    """Return the key of a spider's filter.

    :param pattern: as ``BLOOM_REDIS_KEY``.
    :raises SettingError: if it cannot be read.
    """
    try:
        return pattern % {"spider": spider}
    except (KeyError, TypeError, ValueError):
        raise refusal(
            in_settings(REDIS_KEY),
            pattern,
            "write %(spider)s in the place of the spider's name, and %% for a percent sign.",
        ) from None


def _outlived(shared: RedisFilter, place: str, crawl: Crawl) -> bool:
    """Empty a filter whose queue is gone; return whether the last run was killed.

    If a process with its own queue is killed, the queue is lost, but the marks of its requests stay
    in Redis. Unless another worker still crawls, nobody would fetch those pages.
    """
    if crawl.job_dir is None:
        if shared.clear():
            logger.info("Bloom filter %s: emptied, it was left by a crawl that has ended.", place)
        return False
    if not crawl.starts_over and not shared.wait_deserted():
        return False
    why = f"{crawl.job_dir} starts over" if crawl.starts_over else "a run with it was killed"
    if shared.clear():
        logger.warning(
            "Bloom filter %s: emptied, since %s. Pages are fetched again.",
            place,
            why,
        )
    else:
        logger.warning(
            "Bloom filter %s: %s, and other workers use the filter, so it stays. Pages whose"
            " requests were lost are not fetched.",
            place,
            why,
        )
    return True


def _warn_of_earlier_marks(shared: RedisFilter, place: str, crawl: Crawl) -> None:
    """Say that pages count as seen whose requests may wait where this crawl does not look."""
    logger.warning(
        "Bloom filter %s: %d pages count as seen, and %s has no note of an earlier run. Pages of"
        " them whose requests wait in another job directory are not fetched by this crawl. To"
        " fetch them use that JOBDIR, or start over after `scrapy bloom delete`.",
        place,
        shared.restored,
        crawl.job_dir,
    )


def _check_no_local_requests(folder: Path) -> None:
    """Refuse a job whose requests are in files: workers would not find them."""
    stored = folder / REQUESTS
    if stored.exists():
        way = "set BLOOM_BACKEND = 'local'"
    elif scrapy_queue.is_to_be_read(folder):
        stored = folder / scrapy_queue.NAME
        way = "take our SCHEDULER away"
    else:
        return
    raise StateError(
        f"{stored}: found requests of this job's earlier runs, expected none, because with the"
        f" filter in Redis they wait there, too. They were left as they are. To go on with them"
        f" {way}; to start afresh, choose another JOBDIR."
    )


def _check_no_local_marks(folder: Path) -> None:
    """Refuse a job whose marks are in a file: a Bloom filter cannot be read out, to be moved."""
    stored = folder / SNAPSHOT
    if stored.exists():
        raise StateError(
            f"{stored}: found the marks of this job's earlier runs, expected none, because a filter"
            f" in Redis cannot take them over. They were left as they are. To go on with them set"
            f" {BACKEND.setting} = 'local'; to fetch their pages again, delete the file; to start"
            f" afresh, choose another JOBDIR."
        )
