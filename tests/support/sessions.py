"""A filter without a crawl, as it is beside another scheduler."""

from types import SimpleNamespace

from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl.report import Report
from scrapy_bloom.local.plain import PlainFilter
from support.jobs import SPIDER


def open_session(settings=None):
    """Return the session of a filter, which closes that, too; and its crawler."""
    crawler = get_crawler(settings_dict=settings)
    filter_ = PlainFilter(crawler, SPIDER, Report(crawler), unclean=False)
    session = filter_.session
    check, session.check, session.close = session.check, filter_.check, filter_.close
    filter_.session = SimpleNamespace(check=check)
    return session, crawler


def page(name, **more):
    return Request(f"https://example.com/{name}", **more)


def check_all(session, requests):
    return [session.check(request) for request in requests]
