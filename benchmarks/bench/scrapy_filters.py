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
