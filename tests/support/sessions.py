"""A filter without a crawl, as it is beside another scheduler."""

from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl.report import Report
from scrapy_bloom.dupefilter import Checks
from scrapy_bloom.local.plain import PlainFilter
from support.jobs import SPIDER


def open_session(settings=None):
    """Return what checks the requests of a crawl, which closes its filter, too; and its crawler."""
    crawler = get_crawler(settings_dict=settings)
    report = Report(crawler)
    filter_ = PlainFilter(crawler, SPIDER, report, unclean=False)
    checks = Checks(crawler, filter_.identifier, report, filter_.filter, shared=False)
    checks.close = filter_.close
    return checks, crawler


def page(name, **more):
    return Request(f"https://example.com/{name}", **more)


def check_all(session, requests):
    return [session.check(request) for request in requests]
