"""A filter without a crawl, as it is beside another scheduler."""

from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl.report import Report
from scrapy_bloom.local.plain import PlainFilter
from support.jobs import SPIDER


def open_session(settings=None):
    """Return what checks the requests of a crawl, which closes its filter, too; and its crawler."""
    crawler = get_crawler(settings_dict=settings)
    filter_ = PlainFilter(crawler, SPIDER, Report(crawler), unclean=False)
    filter_.checks.close = filter_.close
    return filter_.checks, crawler


def page(name, **more):
    return Request(f"https://example.com/{name}", **more)


def check_all(session, requests):
    return [session.check(request) for request in requests]
