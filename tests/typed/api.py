"""The public API as a user with types writes it. Never run: mypy and pyright check it."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings
from typing_extensions import assert_type

from scrapy_bloom import (
    Addon,
    BackendError,
    BloomDupeFilter,
    BloomError,
    CanonicalRequestFingerprinter,
    FeedExporter,
    FilterInfo,
    FilterLostError,
    JobInUseError,
    LocalFilter,
    RedisFilter,
    RetryAfterMiddleware,
    Scheduler,
    SettingError,
    StateError,
    __version__,
    forget,
    hold,
    seen,
)
from scrapy_bloom.signals import before_commit

version: str = __version__


class MyAddon(Addon):
    def update_settings(self, settings: BaseSettings) -> None:
        if settings.getbool("FILTER"):
            super().update_settings(settings)
        settings.set("DOWNLOADER_MIDDLEWARES", {RetryAfterMiddleware: 560})


class MyDupeFilter(BloomDupeFilter):
    def request_seen(self, request: Request) -> bool:
        return not request.url.endswith("/robots.txt") and super().request_seen(request)


class MyFeeds(FeedExporter):
    def item_scraped(self, item: object, spider: Spider, response: object = None) -> None:
        super().item_scraped({"item": item}, spider, response)


def in_a_crawl(
    crawler: Crawler, spider: Spider, request: Request, flush: Callable[[], None]
) -> None:
    crawler.signals.connect(flush, signal=before_commit)
    assert_type(forget(request, crawler), bool)
    assert_type(seen(request, crawler), bool | None)
    assert_type(hold(request, crawler, "5m") or hold(request, crawler, 2.5), bool)
    scheduler = Scheduler.from_crawler(crawler)
    assert_type(scheduler, Scheduler)
    scheduler.open(spider)
    assert_type(scheduler.enqueue_request(request), bool)
    assert_type(scheduler.next_request(), Request | None)
    dupefilter = MyDupeFilter.from_crawler(crawler)
    assert_type(dupefilter, MyDupeFilter)
    assert_type(MyDupeFilter.from_spider(spider), MyDupeFilter)
    dupefilter.open()
    assert_type(dupefilter.request_seen(request), bool)
    dupefilter.log(request, spider)
    dupefilter.clear()
    dupefilter.close("finished")
    assert_type(CanonicalRequestFingerprinter.from_crawler(crawler), CanonicalRequestFingerprinter)


def either(*, shared: bool) -> FilterInfo:
    """Use a filter without Scrapy: both kinds can do the same."""
    pages = RedisFilter.from_url("redis://localhost", key="k") if shared else LocalFilter()
    with pages:
        assert_type(pages.add(b"a"), bool)
        assert_type(pages.add_many([b"a"]) + pages.contains_many([b"a"]), list[bool])
        assert_type(b"a" in pages, bool)
        assert_type(pages.forget(b"a"), bool)
        assert_type(pages.forget_many([b"a"]), list[bool])
        info = pages.info()
        assert_type(info.items + info.capacity + info.slices + info.bytes_at_capacity, int)
        assert_type(info.generations, int | None)
        return info


def with_all_arguments() -> None:
    local = LocalFilter(10_000, 1e-6, window=30 * 86_400, digests=False, clock=time.time)
    assert_type(local.add_aged(b"list", 3600), bool)
    assert_type(local.clear(), bool)
    local.save("month.bloom")
    local.update(assert_type(LocalFilter.load(Path("month.bloom")), LocalFilter))
    RedisFilter.from_url(
        "redis://localhost",
        key="crawl:bloom",
        capacity=10_000_000,
        error_rate=1e-6,
        window=30 * 86_400,
        timeout=1.5,
        on_error="close",
    )
    made = CanonicalRequestFingerprinter(
        "usual",
        drop_params=["sid", "track_*"],
        keep_params=("page",),
        rules={"example.com": {"steps": ["www"], "drop": ["sid"]}},
    )
    assert_type(made.canonical_url("http://example.com"), str)
    assert_type(made.fingerprint(Request("http://example.com")), bytes)


def mistyped() -> None:
    """Write what a type checker has to find: each comment is an error if it finds nothing."""
    RedisFilter.from_url("redis://localhost", key="k", keys=2)  # type: ignore[call-arg]
    RedisFilter.from_url("redis://localhost")  # type: ignore[call-arg]
    RedisFilter.from_url("redis://localhost", key="k", on_error="retry")  # type: ignore[arg-type]
    LocalFilter().add("text")  # type: ignore[arg-type]


def told(error: BloomError) -> str:
    if isinstance(error, (BackendError, FilterLostError)):
        return f"Redis: {error}"
    if isinstance(error, (JobInUseError, SettingError, StateError)):
        assert_type(error, "JobInUseError | SettingError | StateError")
    return assert_type(error.reason, str)
