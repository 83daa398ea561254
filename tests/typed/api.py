"""The public API as a user with types writes it. Never run: mypy and pyright check it."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import BaseSettings
from typing_extensions import assert_type

import scrapy_bloom
from scrapy_bloom import (
    Addon,
    BackendError,
    BloomDupeFilter,
    BloomError,
    CanonicalFingerprinter,
    FilterInfo,
    FilterLostError,
    ForgetFailed,
    JobInUseError,
    LocalFilter,
    RedisFilter,
    Scheduler,
    SettingError,
    StateError,
    __version__,
    forget,
)
from scrapy_bloom.signals import before_commit

version: str = __version__
the_same: str = scrapy_bloom.__version__


class MyAddon(Addon):
    """An add-on of one's own."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Look first."""
        if settings.getbool("FILTER"):
            super().update_settings(settings)


class MyDupeFilter(BloomDupeFilter):
    """A filter that lets robots.txt through."""

    def request_seen(self, request: Request) -> bool:
        """Return whether it was seen."""
        return not request.url.endswith("/robots.txt") and super().request_seen(request)


class Books(Spider):
    """Has login pages fetched again."""

    def parse(self, response: Response) -> None:
        """Look at a page."""
        assert response.request is not None
        forget(response.request, self.crawler)


def add_middleware(settings: BaseSettings) -> None:
    """Do by hand what the add-on does."""
    settings.set("DOWNLOADER_MIDDLEWARES", {ForgetFailed: 0})


class MyScheduler(Scheduler):
    """A scheduler that takes requests to the front page only."""

    def enqueue_request(self, request: Request) -> bool:
        """Return whether it was taken."""
        return request.url.endswith("/") and super().enqueue_request(request)


def as_scrapy_schedules(crawler: Crawler, spider: Spider, request: Request) -> None:
    """Use the scheduler as the engine does."""
    scheduler = MyScheduler.from_crawler(crawler)
    assert_type(scheduler, MyScheduler)
    scheduler.open(spider)
    assert_type(scheduler.enqueue_request(request), bool)
    assert_type(scheduler.next_request(), Request | None)
    scheduler.close("finished")


def as_a_pipeline_does(crawler: Crawler, flush: Callable[[], None]) -> None:
    """Write items out before their pages are done."""
    crawler.signals.connect(flush, signal=before_commit)


def as_scrapy_does(crawler: Crawler, spider: Spider, request: Request) -> None:
    """Use the filter as a scheduler does."""
    dupefilter = MyDupeFilter.from_crawler(crawler)
    assert_type(dupefilter, MyDupeFilter)
    assert_type(MyDupeFilter.from_spider(spider), MyDupeFilter)
    dupefilter.open()
    if assert_type(dupefilter.request_seen(request), bool):
        dupefilter.log(request, spider)
    dupefilter.close("finished")
    dupefilter.clear()


def in_memory(urls: Iterable[str]) -> FilterInfo:
    """Use a filter without Scrapy."""
    seen = LocalFilter()
    seen = LocalFilter(10_000_000, 1e-6, digests=False)
    seen = LocalFilter(capacity=1_000, error_rate=0.001)
    assert_type(seen.add(b"a"), bool)
    assert_type(seen.add_many(url.encode() for url in urls), list[bool])
    assert_type(b"a" in seen, bool)
    assert_type(seen.contains_many([b"a", b"b"]), list[bool])
    assert_type(seen.secret, bytes)
    assert_type(seen.clear(), bool)
    seen.close()
    with LocalFilter(10_000, window=30 * 86_400, clock=time.time) as windowed:
        assert_type(windowed, LocalFilter)
        assert_type(windowed.add_aged(b"list", 3600), bool)
        assert_type(windowed.forget(b"a"), bool)
        assert_type(windowed.info().generations, int | None)
        windowed.save("month.bloom")
    loaded = LocalFilter.load(Path("month.bloom"))
    assert_type(loaded, LocalFilter)
    return loaded.info()


def in_redis() -> list[bool]:
    """Use a filter that others use as well."""
    seen = RedisFilter.from_url(
        "redis://localhost",
        key="crawl:bloom",
        capacity=10_000_000,
        error_rate=1e-6,
        shards=4,
        layout="sets",
        window=30 * 86_400,
        timeout=1.5,
        on_error="wait",
    )
    assert_type(seen, RedisFilter)
    assert_type(seen.add(b"a"), bool)
    assert_type(b"a" in seen, bool)
    assert_type(seen.forget(b"a"), bool)
    assert_type(seen.forget_many([b"a"]), list[bool])
    assert_type(seen.info(), FilterInfo)
    with RedisFilter.from_url("redis://localhost", key="k") as another:
        assert_type(another, RedisFilter)
    try:
        return seen.add_many([b"a"]) + seen.contains_many([b"a"])
    finally:
        seen.close()


def mistyped() -> None:
    """Write what a type checker has to find: each comment is an error if it finds nothing."""
    RedisFilter.from_url("redis://localhost", key="k", shard=2)  # type: ignore[call-arg]
    RedisFilter.from_url("redis://localhost")  # type: ignore[call-arg]
    RedisFilter.from_url("redis://localhost", key="k", on_error="retry")  # type: ignore[arg-type]
    LocalFilter().add("text")  # type: ignore[arg-type]


def either(*, shared: bool) -> LocalFilter | RedisFilter:
    """Choose: both can do the same."""
    seen = RedisFilter.from_url("redis://localhost", key="k") if shared else LocalFilter()
    assert_type(seen.add(b"a"), bool)
    assert_type(seen.info(), FilterInfo)
    return seen


def numbers(info: FilterInfo) -> float:
    """Read what a filter tells about itself."""
    assert_type(info.items, int)
    assert_type(info.capacity, int)
    assert_type(info.slices, int)
    assert_type(info.bytes, int)
    assert_type(info.bytes_at_capacity, int)
    return info.error_rate + info.fill_ratio + info.estimated_fp_rate + info.expected_lost


class MyFingerprinter(CanonicalFingerprinter):
    """A fingerprinter that knows more than its rules."""

    def fingerprint(self, request: Request) -> bytes:
        """Return the request's bytes."""
        return super().fingerprint(request.replace(url=request.url.lower()))


def one_page(crawler: Crawler, first: Request, second: Request) -> bool:
    """Compare two requests."""
    assert_type(MyFingerprinter("safe"), MyFingerprinter)
    assert_type(MyFingerprinter.from_crawler(crawler), MyFingerprinter)
    maker = CanonicalFingerprinter(
        "usual",
        drop_params=["sid", "track_*"],
        keep_params=("page",),
        rules={"example.com": {"steps": ["www"], "drop": ["sid"]}},
    )
    maker = CanonicalFingerprinter()
    assert_type(maker.canonical_url("http://example.com"), str)
    assert_type(maker.fingerprint(first), bytes)
    return maker.fingerprint(first) == maker.fingerprint(second)


def refused(work: Callable[[], None]) -> str:
    """Tell errors apart."""
    try:
        work()
    except JobInUseError as error:
        return error.reason
    except (BackendError, FilterLostError) as error:
        return f"Redis: {error}"
    except (SettingError, StateError) as error:
        assert_type(error, "SettingError | StateError")
        return error.reason
    except BloomError as error:
        return assert_type(error.reason, str)
    try:
        work()
    except ValueError:  # a SettingError is one
        return SettingError.reason
    return ""
