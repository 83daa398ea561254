"""The duplicate filters of a plain Scrapy crawl, as settings, and what opens one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from scrapy import Request, Spider
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler

Settings = Mapping[str, Any]

BLOOM: Final = {"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}

SCRAPY: Final = "Scrapy's own"
DEFAULT: Final = "scrapy-bloom, safe"

FILTERS: Final[dict[str, Settings]] = {
    SCRAPY: {},
    "scrapy-bloom, scrapy": {**BLOOM, "BLOOM_CANONICAL": "scrapy"},
    DEFAULT: {**BLOOM, "BLOOM_CANONICAL": "safe"},
    "scrapy-bloom, usual": {**BLOOM, "BLOOM_CANONICAL": "usual"},
}

PACKAGES: Final = ("Scrapy", "w3lib")


class Pages(Spider):
    """A spider to belong to."""

    name = "pages"


@contextmanager
def opened(settings: Settings) -> Iterator[Callable[[Request], bool]]:
    """Open the filter that the settings name; give its `request_seen`."""
    crawler = get_crawler(Pages, dict(settings))
    dupefilter = build_from_crawler(load_object(crawler.settings["DUPEFILTER_CLASS"]), crawler)
    dupefilter.open()
    yield dupefilter.request_seen
    dupefilter.close("finished")


def shop_links(count: int) -> list[str]:
    """Return links as a shop has them: a query on each third, one in four a repeat."""
    pages = [
        f"https://www.example.com/books/{i % 97}/title-{i}.html" for i in range(count * 3 // 4)
    ]
    pages[::3] = [f"{page}?sort=price&page={i % 7}" for i, page in enumerate(pages[::3])]
    again = [page.replace("sort=price&", "") for page in pages[: count - len(pages)]]
    return (pages + again)[:count]
