"""Which wishes of hosts to be left alone are granted, and what becomes of the request."""

import time
from datetime import timedelta
from email.utils import formatdate

import pytest
from scrapy import Request, signals
from scrapy.exceptions import NotConfigured
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_bloom import RetryAfterMiddleware, SettingError, hold, retry_after
from scrapy_bloom.retry_after import read_wish
from scrapy_bloom.signals import hold_slot

pytestmark = pytest.mark.each_scrapy

URL = "http://a.test/"


class Site:
    """A middleware, and what it has held.

    :param heard: whether a frontier listens.
    """

    def __init__(self, monkeypatch, *, heard=True, longest=600):
        self.now, self.held = 1000.0, []
        monkeypatch.setattr(retry_after.time, "monotonic", lambda: self.now)
        self.slots = {}
        monkeypatch.setattr(
            retry_after, "slot_of", lambda _, request: request.meta.get("download_slot", "a")
        )
        self.crawler = get_crawler(settings_dict={"BLOOM_RETRY_AFTER": longest})
        self.middleware = RetryAfterMiddleware.from_crawler(self.crawler)
        if heard:
            self.crawler.signals.connect(self.hold, signal=hold_slot)

    def hold(self, request, seconds):
        self.held.append((request.meta.get("download_slot", "a"), seconds))
        return True

    def send(self, *, slot="a"):
        """Let a request pass; return it."""
        request = Request(URL, meta={"download_slot": slot})
        assert self.middleware.process_request(request) is None
        return request

    def answer(self, status=503, wish=None, *, slot="a", to=None, **fields):
        """Answer a request; return the delay of its retry, None if it has none.

        :param to: the request, by default one that is sent now.
        """
        request = to or self.send(slot=slot)
        headers = {} if wish is None else {"Retry-After": wish}
        response = Response(URL, status=status, **{"headers": headers, **fields})
        assert self.middleware.process_response(request, response) is response
        return request.meta.get("bloom_delay")


@pytest.fixture
def site(monkeypatch):
    return Site(monkeypatch)


def test_after_a_redirect_the_host_that_asks_is_left_alone(site):
    """Scrapy leaves the slot of the first host in the meta."""
    for slot in "first.test", "chosen":
        meta = {"download_slot": slot, "redirect_urls": ["http://first.test/"]}
        request = Request(URL, meta=meta)
        response = Response(URL, status=503, headers={"Retry-After": "9"})
        site.middleware.process_response(request, response)
        assert request.meta.get("download_slot") == (None if slot == "first.test" else slot)
    assert site.held == [("a", 9), ("chosen", 9)]


@pytest.mark.parametrize(
    ("status", "wish", "granted"),
    [
        *((status, "120", 120) for status in (429, 503)),
        *((503, wish, None) for wish in (None, "0", "soon", "", "-5")),
        *((429, wish, 10) for wish in (None, "0", "soon", "", "-5")),
        *((status, "9", None) for status in (200, 500)),
    ],
)
def test_only_a_wish_with_429_or_503_is_granted(site, status, wish, granted):
    assert site.answer(status, wish) == granted
    assert site.held == ([("a", granted)] if granted else [])


def test_a_wish_may_be_a_date():
    assert read_wish(formatdate(time.time() + 90, usegmt=True).encode()) == pytest.approx(90, abs=5)
    assert read_wish(formatdate(time.time() - 90, usegmt=True).encode()) < 0
    assert read_wish(b"Tue, 99 Foo 2026 25:00:00 GMT") == 0
    assert read_wish(b"9" * 500) == float("inf")
    until = formatdate(time.time() + 90, usegmt=True).encode()
    assert read_wish(until, b"soon") == pytest.approx(90, abs=5)  # by the clock of this machine


@pytest.mark.parametrize("ahead", [-3600, 600])
def test_a_date_is_read_by_the_clock_of_the_host(site, ahead):
    now = time.time() + ahead
    date, until = (formatdate(when, usegmt=True) for when in (now, now + 90))
    assert site.answer(503, until, headers={"Date": date, "Retry-After": until}) == 90


def test_a_long_wish_is_cut(site):
    year = 365 * 86400
    assert site.answer(503, str(year)) == 600
    site.now += 601
    assert site.answer(503, formatdate(time.time() + year, usegmt=True)) == 600
    assert site.held == [("a", 600), ("a", 600)]


def test_an_answer_out_of_a_cache_does_not_count(site):
    assert site.answer(503, "120", flags=["cached"]) is None
    assert site.held == []
    for _ in range(3):
        site.answer(503, "600")
        site.now += 601
    site.answer(200, flags=["cached"])
    assert site.answer(503, "600") is None  # its budget is still spent


def test_a_host_has_one_budget_until_it_answers_well(site, caplog):
    caplog.set_level("INFO")
    caplog.clear()
    for _ in range(3):
        assert site.answer(503, "600") == 600
        for _ in range(7):  # at the same moment: one hold
            site.now += 0.01
            site.answer(503, "600")
        site.now += 600
    assert site.answer(503, "600") is None
    assert len(caplog.messages) == site.crawler.stats.get_value("bloom/queue/holds") == 3
    assert caplog.messages[0].startswith(
        "a answered 503 with Retry-After: pausing requests to it for 10m"
    )
    assert site.answer(503, "600", slot="b") == 600
    site.answer(404)
    assert site.answer(503, "600") == 600


@pytest.mark.parametrize(
    ("status", "wish", "granted"),
    [(503, "60", [60] * 30), (429, None, [10, 20, 40, 80, 160, 320, 600, 600])],
)
def test_a_host_is_paused_until_its_budget_is_spent(site, status, wish, granted):
    """A short wish is granted more often; after a pause each 429 without one asks for twice it."""
    for seconds in granted:
        assert site.answer(status, wish) == seconds
        site.now += seconds
    assert site.answer(status, wish) is None
    site.answer(200)
    assert site.answer(status, wish) == granted[0]


def test_what_was_in_flight_when_a_pause_began_does_not_double_it(site):
    in_flight = [site.send() for _ in range(16)]
    for request in in_flight:
        assert site.answer(429, to=request) == 10
        site.now += 0.01
    late = site.send()  # by another worker, say, before it knew
    site.now += 20
    assert site.answer(429, to=late) == 10
    site.now += 10
    assert site.answer(429) == 20


def test_what_was_in_flight_when_a_pause_began_does_not_end_it(site):
    in_flight = site.send()
    site.now += 1
    assert site.answer(429) == 10
    site.answer(200, to=in_flight)
    site.now += 10
    assert site.answer(429) == 20


def test_no_pause_is_longer_than_the_longest(monkeypatch):
    site = Site(monkeypatch, longest=4)
    assert site.answer(429) == 4
    site.now += 4
    assert site.answer(429) == 4


def test_a_slot_that_is_set_behind_the_middleware_is_left_alone_with_that_of_the_queue(
    site, caplog
):
    """Requests of the queue and of the downloader are kept back: else the line would be untrue."""
    caplog.set_level("INFO")
    request = site.send()
    request.meta["download_slot"] = "shop"
    assert site.answer(503, "7", to=request) == 7
    assert site.held == [("a", 7), ("shop", 7)]
    assert caplog.messages == ["a answered 503 with Retry-After: pausing requests to it for 7s."]
    site.now += 7
    request = site.send()
    request.meta["download_slot"] = "shop"
    site.answer(200, to=request)
    assert site.middleware._hosts == {}  # noqa: SLF001 - memory is seen nowhere else


def test_of_a_proxy_with_a_slot_of_its_own_only_that_is_left_alone(site):
    """The host was paused for all proxies because one of them had asked too often."""
    request = site.send()
    request.meta.update(download_slot="proxy 7", proxy="http://proxy7.test")
    assert site.answer(429, to=request) == 10
    assert site.held == [("proxy 7", 10)]


def test_without_a_frontier_that_can_wait_nothing_changes(monkeypatch, caplog):
    caplog.set_level("INFO")
    site = Site(monkeypatch, heard=False)
    caplog.clear()
    assert site.answer(503, "120") is None
    assert caplog.messages == []


def test_the_delay_of_what_is_not_retried_is_removed_before_the_callback(site):
    request = Request(URL, meta={"download_slot": "a"})
    response = Response(URL, status=503, headers={"Retry-After": "9"})
    site.middleware.process_response(request, response)
    assert request.copy().meta["bloom_delay"] == 9  # as a retry is made
    site.crawler.signals.send_catch_log(
        signals.response_received, request=request, response=response, spider=None
    )
    assert "bloom_delay" not in request.meta


def test_few_hosts_are_remembered(site, monkeypatch):
    monkeypatch.setattr(retry_after, "_MOST_HOSTS", 3)
    for name in "abcde":
        site.answer(503, "600", slot=name)
    assert len(site.middleware._hosts) == 3  # noqa: SLF001 - memory is seen nowhere else


@pytest.mark.parametrize("longest", [0, "0", "never"])
def test_retry_after_can_be_switched_off(longest):
    with pytest.raises(NotConfigured):
        RetryAfterMiddleware.from_crawler(get_crawler(settings_dict={"BLOOM_RETRY_AFTER": longest}))


@pytest.mark.parametrize("answers", [[], [False], [True, False]])
def test_a_callback_is_told_whether_a_host_is_left_alone(answers, caplog):
    crawler, request, asked = get_crawler(), Request("http://a.test/"), []
    handlers = [lambda seconds, held=held: asked.append(seconds) or held for held in answers]
    for handler in handlers:
        crawler.signals.connect(handler, signal=hold_slot)
    assert hold(request, crawler, timedelta(minutes=5)) is (True in answers)
    assert asked == [300.0] * len(answers)
    said = "<GET http://a.test/> is not left alone: this crawl has no open scrapy_bloom.Scheduler"
    assert (said in caplog.text) is (True not in answers)
    with pytest.raises(SettingError, match="seconds = 'soon': must be a time"):
        hold(request, crawler, "soon")
