"""One run of a crawl that comes again every few days, as a program; and the site that it crawls.

It takes a :class:`Run` as JSON, and writes ``{"cpu": …}``, its processor time in seconds. Time is
what the run says: what asks for the time of day finds it, also in the scripts of our filter.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

DAY: Final = 86_400
WINDOW: Final = 30 * DAY
START: Final = 1_800_000_000
KEY: Final = "revisits"
ON_A_LIST: Final = 50

OURS: Final = "scrapy-bloom, job directory"
OURS_REDIS: Final = "scrapy-bloom, Redis"
SORTED: Final = "sorted set in Redis"
DELTAFETCH: Final = "scrapy-deltafetch"
CRAWL_ONCE: Final = "scrapy-crawl-once"
NAMES: Final = (OURS, OURS_REDIS, SORTED, DELTAFETCH, CRAWL_ONCE)


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        name: one of :data:`NAMES`.
        url: of the site.
        now: seconds since 1970.
        folder: where it keeps what it remembers, if that is in files.
        redis: the URL of the server.
        pages: about how many pages there are.
    """

    name: str
    url: str
    now: float
    folder: str
    redis: str
    pages: int


class Archive:
    """The pages of a site that grows, for ``support.sites.Pages``.

    A front page leads to lists, and these to all articles that there are, 50 on each. Every article
    leads to three others.

    :param articles: how many there are at first.

    Attributes:
        articles: how many there are now.
        fetched: for each article the times at which it was fetched.
        now: the time.
    """

    def __init__(self, articles: int) -> None:
        self.articles = articles
        self.now = float(START)
        self.fetched: dict[int, list[float]] = {}
        self.lists = Counter[str]()

    def get(self, path: str) -> Callable[..., list[str]] | None:
        """Return what serves a page."""
        kind, _, number = path.strip("/").partition("/")
        if kind == "article":
            return lambda *_: self._article(int(number))
        return lambda *_: self._list(path, int(number or 0))

    def _list(self, path: str, number: int) -> list[str]:
        self.lists[path] += 1
        if path == "/":
            return [f"/list/{each}" for each in range(-(-self.articles // ON_A_LIST))]
        first = number * ON_A_LIST
        return [f"/article/{each}" for each in range(first, min(first + ON_A_LIST, self.articles))]

    def _article(self, number: int) -> list[str]:
        self.fetched.setdefault(number, []).append(self.now)
        return [f"/article/{(number * 7 + more) % self.articles}" for more in (1, 2, 3)]


def settings_of(run: Run) -> dict[str, Any]:
    """Return what a project sets to fetch an article again after 30 days, as far as that goes."""
    ours = {
        "ADDONS": {"scrapy_bloom.Addon": 500},
        "SCHEDULER": "scrapy_bloom.Scheduler",
        "BLOOM_WINDOW": "30d",
        "BLOOM_CAPACITY": run.pages,
    }
    own: dict[str, Callable[[], dict[str, Any]]] = {
        OURS: lambda: {**ours, "JOBDIR": run.folder},
        OURS_REDIS: lambda: {**ours, "BLOOM_REDIS_URL": run.redis, "BLOOM_REDIS_KEY": KEY},
        SORTED: lambda: {"DUPEFILTER_CLASS": SortedSet, "REDIS_URL": run.redis},
        DELTAFETCH: lambda: {
            "SPIDER_MIDDLEWARES": {adapted("scrapy_deltafetch.DeltaFetch"): 100},
            "DELTAFETCH_ENABLED": True,
            "DELTAFETCH_DIR": run.folder,
        },
        CRAWL_ONCE: lambda: {
            "SPIDER_MIDDLEWARES": {adapted("scrapy_crawl_once.CrawlOnceMiddleware"): 100},
            "DOWNLOADER_MIDDLEWARES": {"scrapy_crawl_once.CrawlOnceMiddleware": 50},
            "CRAWL_ONCE_PATH": run.folder,
        },
    }
    common = {
        "LOG_LEVEL": "ERROR",
        "TELNETCONSOLE_ENABLED": False,
        "DOWNLOAD_SLOTS": {"127.0.0.1": {"concurrency": 16, "delay": 0}},
    }
    return common | own[run.name]()


class SortedSet:
    """A duplicate filter in Redis: a sorted set of fingerprints, with the times of the pages."""

    def __init__(self, crawler: Crawler) -> None:
        import redis

        assert crawler.request_fingerprinter is not None
        self._fingerprint = crawler.request_fingerprinter.fingerprint
        self._client: Any = redis.Redis.from_url(str(crawler.settings["REDIS_URL"]))

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Make it, as Scrapy does."""
        return cls(crawler)

    def request_seen(self, request: Request) -> bool:
        """Return whether the page of a request was let through in the last 30 days; if not, do."""
        now = time.time()
        with self._client.pipeline() as calls:
            calls.zremrangebyscore(KEY, "-inf", now - WINDOW)
            calls.zadd(KEY, {self._fingerprint(request): now}, nx=True)
            return not calls.execute()[1]

    def open(self) -> None:
        """Do nothing."""

    def close(self, reason: str) -> None:  # noqa: ARG002 - Scrapy's signature
        """Close the connection."""
        self._client.close()

    def log(self, request: Request, spider: object) -> None:
        """Do nothing."""


def reader() -> type[Any]:
    """Return the spider. It reads lists in each run, and yields an item for each article."""
    from scrapy import Request, Spider

    class Reader(Spider):
        name = "reader"
        url = ""

        async def start(self) -> Any:
            yield Request(self.url + "/", dont_filter=True)

        def parse(self, response: Any) -> Iterator[Any]:
            if "/article/" in response.url:
                yield {"url": response.url}
            for href in response.css("a::attr(href)").getall():
                is_list = href.startswith("/list/")
                meta = {} if is_list else {"crawl_once": True}
                yield response.follow(href, meta=meta, dont_filter=is_list)

    return Reader


def adapted(path: str) -> type[Any]:
    """Return a spider middleware that reads asynchronous output, as Scrapy demands by now."""
    from scrapy.utils.misc import load_object

    kind: type[Any] = load_object(path)

    async def process_spider_output_async(
        self: Any, response: Any, result: Any, spider: Any = None
    ) -> Any:
        found = [one async for one in result]
        for one in self.process_spider_output(response, found, spider):
            yield one

    own = {process_spider_output_async.__name__: process_spider_output_async}
    return type(kind.__name__, (kind,), own)


def lend_what_is_gone() -> None:
    """Give scrapy-crawl-once the function that it imports and that Scrapy has no more."""
    request: Any = import_module("scrapy.utils.request")

    def request_fingerprint(asked: Request) -> str:
        return str(request.fingerprint(asked).hex())

    if not hasattr(request, "request_fingerprint"):
        request.request_fingerprint = request_fingerprint


def run_here(run: Run) -> float:
    """Crawl once in this process; return its processor time."""
    begin = time.perf_counter()
    time.time = lambda: run.now + time.perf_counter() - begin
    from scrapy.crawler import AsyncCrawlerProcess

    if run.name == CRAWL_ONCE:
        lend_what_is_gone()
    with ExitStack() as stack:
        if run.name == OURS_REDIS:
            import redis

            internals: Any = import_module("support.internals")  # not typed
            client = stack.enter_context(redis.Redis.from_url(run.redis))
            stack.enter_context(internals.clock_of_redis(client, run.now))
        process = AsyncCrawlerProcess(settings_of(run))
        process.crawl(reader(), url=run.url)
        process.start()
    return time.process_time()


def as_argument(run: Run) -> str:
    """Return a run as the program takes it."""
    return json.dumps(asdict(run))


if __name__ == "__main__":
    print(json.dumps({"cpu": run_here(Run(**json.loads(sys.argv[1])))}))
