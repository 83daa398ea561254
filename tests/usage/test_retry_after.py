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
    """A middleware, and what it has held."""

    def __init__(self, monkeypatch, longest=600):
        self.now, self.held = 1000.0, []
        monkeypatch.setattr(retry_after.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(
            retry_after, "slot_of", lambda _, request: request.meta.get("download_slot", "a")
        )
        self.crawler = get_crawler(settings_dict={"BLOOM_RETRY_AFTER": longest})
        self.middleware = RetryAfterMiddleware.from_crawler(self.crawler)
        self.crawler.signals.connect(self.hold, signal=hold_slot)

    def hold(self, request, seconds):
        self.held.append((request.meta.get("download_slot", "a"), seconds))
        return True

    def send(self, slot="a"):
        """Let a request pass; return it."""
        request = Request(URL, meta={"download_slot": slot})
        assert self.middleware.process_request(request) is None
        return request

    def answer(self, status=503, wish=None, *, slot="a", to=None, **fields):
        """Answer a request, by default one that is sent now; return the delay of its retry."""
        request = to or self.send(slot)
        headers = {} if wish is None else {"Retry-After": wish}
        response = Response(URL, status=status, **{"headers": headers, **fields})
        assert self.middleware.process_response(request, response) is response
        return request.meta.get("bloom_delay")


@pytest.fixture
def site(monkeypatch):
    return Site(monkeypatch)


def date_in(seconds):
    return formatdate(time.time() + seconds, usegmt=True)


# What is asked for


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
    assert site.answer(status, wish, flags=["cached"]) is None
    assert site.answer(status, wish) == granted
    assert site.held == ([("a", granted)] if granted else [])


def test_a_wish_may_be_a_date():
    assert read_wish(date_in(-90).encode()) < 0
    assert read_wish(b"Tue, 99 Foo 2026 25:00:00 GMT") == 0
    assert read_wish(b"9" * 500) == float("inf")
    for date in (None, b"soon"):  # then by the clock of this machine
        assert read_wish(date_in(90).encode(), date) == pytest.approx(90, abs=60)


@pytest.mark.parametrize("ahead", [-3600, 600])
def test_a_date_is_read_by_the_clock_of_the_host(site, ahead):
    now = time.time() + ahead
    date, until = (formatdate(when, usegmt=True) for when in (now, now + 90))
    assert site.answer(503, headers={"Date": date, "Retry-After": until}) == 90


def test_no_pause_is_longer_than_the_longest(monkeypatch):
    site, year = Site(monkeypatch, longest=4), 365 * 86400
    for slot, status, wish in (
        *(("a", 429, None), ("a", 429, None)),
        *(("b", 503, str(year)), ("b", 503, date_in(year))),
    ):
        assert site.answer(status, wish, slot=slot) == 4
        site.now += 4


@pytest.mark.parametrize("longest", [0, "0", "never"])
def test_retry_after_can_be_switched_off(monkeypatch, longest):
    with pytest.raises(NotConfigured):
        Site(monkeypatch, longest)


# For how long, in all


@pytest.mark.parametrize(
    ("status", "wish", "granted"),
    [
        *((503, "600", [600] * 3), (503, "60", [60] * 30)),
        (429, None, [10, 20, 40, 80, 160, 320, 600, 600]),
    ],
)
def test_a_host_has_one_budget_until_it_answers_well(site, caplog, status, wish, granted):
    """A short wish is granted more often; after a pause each 429 without one asks for twice it."""
    caplog.set_level("INFO")
    caplog.clear()
    for seconds in granted:
        assert site.answer(status, wish) == seconds
        for _ in range(7):  # at the same moment: one pause
            site.now += 0.01
            site.answer(status, wish)
        site.now += seconds
    site.answer(200, flags=["cached"])
    assert site.answer(status, wish) is None
    assert len(caplog.messages) == site.crawler.stats.get_value("bloom/queue/holds") == len(granted)
    said = f"a answered {status}{' with Retry-After' * bool(wish)}: pausing requests to it for "
    assert all(text.startswith(said) for text in caplog.messages)
    assert site.answer(status, wish, slot="b") == granted[0]
    site.answer(404)
    assert site.answer(status, wish) == granted[0]


def test_what_was_in_flight_when_a_pause_began_neither_doubles_nor_ends_it(site):
    good, *others = (site.send() for _ in range(17))
    for request in others:
        assert site.answer(429, to=request) == 10
        site.now += 0.01
    late = site.send()  # by another worker, say, before it knew
    site.now += 20
    assert site.answer(429, to=late) == 10
    site.answer(200, to=good)
    site.now += 10
    assert site.answer(429) == 20


def test_few_hosts_are_remembered(site, monkeypatch):
    monkeypatch.setattr(retry_after, "_MOST_HOSTS", 3)
    for name in "abcde":
        site.answer(503, "600", slot=name)
    assert len(site.middleware._hosts) == 3  # noqa: SLF001 - memory is seen nowhere else


# Which slot


@pytest.mark.parametrize(("slot", "held"), [("first.test", None), ("chosen", "chosen")])
def test_after_a_redirect_the_host_that_asks_is_left_alone(site, slot, held):
    """Scrapy leaves the slot of the first host in the meta."""
    request = Request(URL, meta={"download_slot": slot, "redirect_urls": ["http://first.test/"]})
    assert site.answer(503, "9", to=request) == 9
    assert request.meta.get("download_slot") == held
    assert site.held == [(held or "a", 9)]


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


# What becomes of the request


def test_without_a_frontier_that_can_wait_nothing_changes(site, caplog):
    caplog.set_level("INFO")
    site.crawler.signals.disconnect(site.hold, signal=hold_slot)
    caplog.clear()
    assert site.answer(503, "120") is None
    assert caplog.messages == []


def test_the_delay_of_what_is_not_retried_is_removed_before_the_callback(site):
    request = site.send()
    site.answer(503, "9", to=request)
    assert request.copy().meta["bloom_delay"] == 9  # as a retry is made
    site.crawler.signals.send_catch_log(
        signals.response_received, request=request, response=None, spider=None
    )
    assert "bloom_delay" not in request.meta


@pytest.mark.parametrize("answers", [[], [False], [True, False]])
def test_a_callback_is_told_whether_a_host_is_left_alone(answers, caplog):
    crawler, request, asked = get_crawler(), Request(URL), []
    handlers = [lambda seconds, held=held: asked.append(seconds) or held for held in answers]
    for handler in handlers:
        crawler.signals.connect(handler, signal=hold_slot)
    assert hold(request, crawler, timedelta(minutes=5)) is (True in answers)
    assert asked == [300.0] * len(answers)
    said = "<GET http://a.test/> was not paused: this crawl has no open scrapy_bloom.Scheduler"
    assert (said in caplog.text) is (True not in answers)
    with pytest.raises(SettingError, match="seconds = 'soon': must be a time"):
        hold(request, crawler, "soon")
