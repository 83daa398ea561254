"""What is read of Scrapy's engine, without a crawl."""

from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from support.internals import answer, send
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.crawl.scrapy.engine import BACK, Engine


@pytest.fixture
def crawler():
    """A crawler whose engine does nothing."""
    crawler = get_crawler()
    names = "handle_spider_error", "_process_spidermw_output", "_scrape", "call_spider_async"
    scraper = SimpleNamespace(**dict.fromkeys(names))
    crawler.engine = SimpleNamespace(
        _slot=SimpleNamespace(inprogress=set()),
        _download=lambda request: request,
        _handle_downloader_output=lambda *_: None,
        downloader=SimpleNamespace(slots={}),
        scraper=scraper,
    )
    return crawler


class Picky(Request):
    """A request of a project, of a class that Scrapy cannot copy."""

    def replace(self, **_):
        raise TypeError("one argument is missing")


def float_priority(url):
    """Return a request as a middleware leaves it: Scrapy refuses such a one in a constructor."""
    request = Request(url)
    request.priority = 2.5
    return request


@pytest.mark.parametrize("odd", [Picky, float_priority])
def test_what_cannot_be_copied_is_not_taken_back(crawler, odd):
    """It was in no queue any more and never answered, so the crawl did not end."""
    requests = [odd("http://a.test/"), Request("http://a.test/b", meta={"own": 1})]
    waiting = deque((request, Deferred()) for request in requests)
    crawler.engine.downloader.slots["a"] = SimpleNamespace(queue=waiting)
    answered = waiting[1][1]
    Engine(crawler).take_back("a", more=2)
    assert [request for request, _ in waiting] == requests[:1]
    assert answered.result.meta == {"own": 1, BACK: True, "more": 2}
    assert answered.result.url == requests[1].url


@pytest.mark.parametrize(
    ("result", "led"),
    [
        (Response("http://a.test/"), True),
        (Failure(ValueError()), True),
        (Request("http://a.test/"), False),
    ],
)
def test_a_page_may_have_led_to_others_once_the_spider_has_its_answer(crawler, result, led):
    engine, request = Engine(crawler), Request("http://a.test/")
    engine.watch(Mock())
    engine.sent(request)
    send(crawler, request)
    assert not engine.may_have_led_to_others(request)
    answer(crawler, request, result)
    assert engine.may_have_led_to_others(request) is led
