"""Which pages are done, without a crawl: which wait for a held request, and what a chain costs."""

from scrapy import Request
from scrapy.utils.test import get_crawler
from support.lines import lines_of

from scrapy_bloom.crawl import in_flight
from scrapy_bloom.crawl.report import Report


class Engine:
    """Knows which request led to which, and works on none of them."""

    def __init__(self):
        self.parents, self.answered = {}, set()
        self.may_have_led_to_others = self.answered.__contains__
        self.has = self.is_from_start = lambda _: False
        self.yielded_by = self.parents.get
        self.watch = self.sent = lambda *_: None


def test_a_link_back_costs_no_more_at_the_end_of_a_long_chain_of_held_pages():
    """Each page is stored in memory only, yields the next one, and links to the one before."""
    engine = Engine()
    pages = in_flight.InFlight(engine, Report(get_crawler()), None)
    page, costs = Request("http://a.test/"), []
    pages.start(page, "its row")
    for number in range(500):
        request, back = Request(f"http://a.test/{number}"), Request("http://a.test/back")
        engine.parents[request] = engine.parents[back] = page
        pages.keep(request, TypeError("a lambda"), (b"%d" % number,))
        pages.start_kept(request)
        page = request
        engine.parents[back] = page
        costs.append(lines_of([in_flight], pages.note_duplicate, back, b"%d" % max(0, number - 1)))
    assert max(costs[1:]) == min(costs[1:])
    assert len(pages.pop_done()) == 501


def test_a_held_request_of_an_unknown_page_keeps_only_pages_that_the_spider_has():
    """Those without an answer, or with a retry in their place, were fetched twice after a kill."""
    engine = Engine()
    pages = in_flight.InFlight(engine, Report(get_crawler()), None)
    requests = [Request(f"http://a.test/{number}") for number in range(3)]
    for number, request in enumerate(requests):
        pages.start(request, number)
    engine.answered.add(requests[1])
    held = pages.keep(Request("http://a.test/held"), TypeError("a lambda"))
    assert [visit.taken for visit in pages.pop_done()] == [0, 2]
    pages.start_kept(held)
    assert [visit.taken for visit in pages.pop_done()] == [None, 1]
