"""A filter without a crawl, as it is beside another scheduler."""

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter
from support.jobs import SPIDER


class Books(Spider):
    name = SPIDER


class Session:
    """A filter as a crawl has it, between its opening and its close."""

    def __init__(self, settings=None):
        self.crawler = get_crawler(Books, settings)

    def __enter__(self):
        self.filter = BloomDupeFilter.from_crawler(self.crawler)
        self.filter.open()
        return self

    def __exit__(self, *_):
        self.filter.close("finished")

    def seen(self, *pages):
        """Return for each of some URLs or requests whether it was seen, one after the other."""
        requests = (Request(page) if isinstance(page, str) else page for page in pages)
        return [self.filter.request_seen(request) for request in requests]


def page(name, **more):
    return Request(f"https://example.com/{name}", **more)
