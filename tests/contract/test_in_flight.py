"""Which pages are done, without a crawl: which wait for a held request, and what a chain costs."""

from types import SimpleNamespace

from scrapy import Request
from scrapy.utils.test import get_crawler
from support.lines import lines_of

from scrapy_bloom.crawl import in_flight, memory, visit
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
        self.yielded_by = self.parents.get
        self.watch = self.sent = lambda *_: None


class Crawling:
    """Pages in flight, and requests that are only in memory."""

    def __init__(self):
        report, self.engine = Report(get_crawler()), Engine()
        identifier = SimpleNamespace(identify=lambda r: (r.url.encode(), ()), before=lambda _: ())
        self.pages = in_flight.InFlight(self.engine, report, identifier)
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
