"""Which pages are done, without a crawl: which wait for a held request, and what a chain costs."""

from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler
from support.lines import lines_of
from twisted.python.failure import Failure

from scrapy_bloom.crawl import in_flight, memory, redirects, visit
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.serialize import Unstorable


class Engine:
    """Knows which request led to which, and works on none of them."""

    def __init__(self):
        self.parents, self.answered = {}, set()
        self.may_have_led_to_others = self.answered.__contains__
        self.has = self.is_from_start = lambda _: False
        self.closing = False
        self.yielded_by = self.parents.get
        self.watch = self.sent = lambda *_: None


class Crawling:
    """Pages in flight, and requests that are only in memory."""

    def __init__(self, *, shared=False):
        report, self.engine = Report(get_crawler()), Engine()
        identifier = SimpleNamespace(
            identify=lambda request: (request.url.encode(), ()),
            before=lambda request: request.meta.get("before", ()),
        )
        self.pages = in_flight.InFlight(self.engine, report, identifier, shared=shared)
        backend = SimpleNamespace(withhold=lambda _: None, held_until=lambda _: 0.0)
        self.memory = memory.Memory(None, self.pages, backend, report)

    def begin(self, request, taken):
        """Take a stored request."""
        self.pages.start(request, visit.Visit(taken))

    def keep(self, request, *marks):
        """Keep a request in memory."""
        error = Unstorable(TypeError("a lambda"))
        error.marks = marks
        self.memory.keep(request, error, 0.0)

    def link_back(self, request, mark):
        self.memory.note_duplicate(mark, self.pages.led_to(request))

    def ended(self):
        """Return what was handed out for the pages that have ended."""
        return [visit.taken for visit in self.pages.pop_ended()]


def test_a_link_back_costs_no_more_at_the_end_of_a_long_chain_of_held_pages():
    """Each page is stored in memory only, yields the next one, and links to the one before."""
    crawl, page, costs = Crawling(), Request("http://a.test/"), []
    crawl.begin(page, "its row")
    for number in range(500):
        request, back = Request(f"http://a.test/{number}"), Request("http://a.test/back")
        crawl.engine.parents[request] = page
        crawl.keep(request, b"%d" % number)
        crawl.pages.start(*crawl.memory.pop())
        crawl.engine.parents[back] = page = request
        before, of = b"%d" % max(0, number - 1), [in_flight, memory, visit]
        costs.append(lines_of(of, crawl.link_back, back, before))
    assert max(costs[1:]) == min(costs[1:])
    assert len(crawl.ended()) == 501


def test_a_held_request_of_an_unknown_page_keeps_only_pages_that_the_spider_has():
    """Those without an answer, or with a retry in their place, were fetched twice after a kill."""
    crawl = Crawling()
    requests = [Request(f"http://a.test/{number}") for number in range(3)]
    for number, request in enumerate(requests):
        crawl.begin(request, number)
    crawl.engine.answered.add(requests[1])
    crawl.keep(Request("http://a.test/held"))
    assert crawl.ended() == [0, 2]
    crawl.pages.start(*crawl.memory.pop())
    assert crawl.ended() == [None, 1]


@pytest.mark.parametrize("dealt", [True, False])
def test_a_failed_page_that_awaits_a_verdict_is_counted_once(dealt):
    """Else what the errback of the next one yields would not be asked about."""
    crawl, page = Crawling(), Request("http://a.test/")
    crawl.begin(page, "its row")
    crawl.pages.answered(Failure(OSError("refused")), page)
    crawl.engine.parents[link := Request("http://a.test/link")] = page
    origin = crawl.pages.origin_of(link)
    crawl.pages.await_verdict(origin)
    assert (crawl.ended(), crawl.pages.undecided) == ([], 2)
    if dealt:
        crawl.pages.note_stored(origin, link)
    crawl.pages.decided(origin)
    assert (crawl.ended(), crawl.pages.undecided) == (["its row"], 0)
    assert origin.reason is None if dealt else origin.reason


def test_what_leads_to_a_page_that_has_failed_fails_until_that_is_forgotten():
    """Its redirect is dropped as seen, and nobody would fetch it again."""
    crawl, other = Crawling(), visit.Visit("other")
    target = Request("http://a.test/wall", meta={ORIGINAL: b"first"})
    crawl.pages.start(target, failed := crawl.pages.visit_of(target, "wall"))
    failed.reason = reason = Reason("503")
    assert crawl.ended() == ["wall"]
    crawl.pages.targets.get(b"http://a.test/wall", in_flight=True).hold_up(other)
    assert (other.reason, other.waits_for) == (reason, 1)
    crawl.pages.targets.release([failed])
    assert not crawl.pages.targets.visits


def led_to(name, *before):
    """Return what redirects have made of pages."""
    return Request(f"http://a.test/{name}", meta={ORIGINAL: b"first", "before": before})


def end(crawl, request, visit):
    crawl.pages.start(request, visit)
    return crawl.ended()


def test_what_waits_for_a_page_waits_for_its_retry_and_fails_with_that():
    crawl, waits = Crawling(), visit.Visit("waits")
    wall = led_to("wall", b"a")
    first = crawl.pages.visit_of(wall, "first")
    assert first.hold_up(waits)
    crawl.pages.targets.expect(retry := wall.copy(), first)
    assert end(crawl, wall, first) == ["first"]
    second = crawl.pages.visit_of(retry, "second")
    second.reason = reason = Reason("503")
    waits.end()
    assert end(crawl, retry, second) == ["second", "waits"]
    assert waits.reason == reason


def test_what_waits_for_a_page_that_another_worker_took_waits_for_what_that_was_made_of():
    crawl, origin, waits = Crawling(shared=True), visit.Visit("origin"), visit.Visit("waits")
    targets = crawl.pages.targets
    targets.expect(led_to("wall", b"a"), origin)
    assert targets.get(b"http://a.test/wall", in_flight=True) is None
    assert targets.get(b"http://a.test/wall", in_flight=False).hold_up(waits)
    waits.end()
    error = led_to("error", b"a", b"http://a.test/wall")
    assert end(crawl, error, crawl.pages.visit_of(error, "error")) == ["error", "waits"]


def test_what_waits_for_too_many_that_other_workers_may_take_waits_no_more(monkeypatch):
    monkeypatch.setattr(redirects, "MOST", 2)
    crawl, origin, waits = Crawling(shared=True), visit.Visit("origin"), visit.Visit("waits")
    crawl.pages.note_stored(origin, led_to("0"))
    assert crawl.pages.targets.get(b"http://a.test/0", in_flight=False).hold_up(waits)
    waits.end()
    for number in range(1, 4):
        crawl.pages.note_stored(origin, led_to(number))
    assert crawl.ended() == ["waits"]
    assert len(crawl.pages.targets.visits) == 2
