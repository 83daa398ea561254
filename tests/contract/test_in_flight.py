"""Which pages are done, without a crawl: what a chain of held requests costs."""

import sys

from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom.crawl import in_flight
from scrapy_bloom.crawl.report import Report


class Engine:
    """Knows which request led to which, and works on none of them."""

    def __init__(self):
        self.parents = {}
        self.has = self.is_from_start = lambda _: False
        self.yielded_by = self.parents.get
        self.watch = self.sent = lambda *_: None


def lines_of(function, *arguments):
    """Return how many lines of our module a call executes: on any machine as many."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == in_flight.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(before)
    return count


def test_a_link_back_costs_no_more_at_the_end_of_a_long_chain_of_held_pages():
    """Each page is stored in memory only, yields the next one, and links to the one before."""
    engine = Engine()
    pages = in_flight.InFlight(engine, Report(get_crawler()))
    page, costs = Request("http://a.test/"), []
    pages.start(page, "its row")
    for number in range(500):
        request, back = Request(f"http://a.test/{number}"), Request("http://a.test/back")
        engine.parents[request] = engine.parents[back] = page
        pages.keep(request, TypeError("a lambda"), (b"%d" % number,))
        pages.start_kept(request)
        page = request
        engine.parents[back] = page
        costs.append(lines_of(pages.note_duplicate, back, b"%d" % max(0, number - 1)))
    assert max(costs[1:]) == min(costs[1:])
    assert len(pages.pop_done()) == 501
