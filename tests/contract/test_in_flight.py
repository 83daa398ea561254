"""Which pages are done, without a crawl: which wait for a held request, and what a chain costs."""

from types import SimpleNamespace

from scrapy import Request
from scrapy.utils.test import get_crawler
from support.contract import lines_of

from scrapy_bloom.crawl import in_flight, memory, page, waits
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.page import Event, Page
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

    def __init__(self, *, shared=False, queue=None):
        report, self.engine = Report(get_crawler()), Engine()
        identifier = SimpleNamespace(
            identify=lambda request: (request.url.encode(), ()),
            before=lambda request: request.meta.get("before", ()),
        )
        self.pages = in_flight.InFlight(self.engine, report, identifier, shared=shared)
        backend = SimpleNamespace(withhold=lambda _: None, held_until=lambda _: 0.0)
        self.memory = memory.Memory(queue, self.pages, backend, report)

    def begin(self, request, taken):
        """Take a stored request."""
        self.pages.start(request, Page(taken))

    def keep(self, request, mark=None):
        """Keep a request in memory."""
        error = Unstorable(TypeError("a lambda"))
        error.mark = mark
        self.memory.keep(request, error, 0.0)

    def link_back(self, request, mark):
        self.pages.waits.note_duplicate(mark, self.pages.led_to(request), even_if_queued=False)

    def ended(self):
        """Return what was handed out for the pages that have ended."""
        return [each.taken for each in self.pages.pop_ended()]


def test_a_link_back_costs_no_more_at_the_end_of_a_long_chain_of_held_pages():
    """Each page is stored in memory only, yields the next one, and links to the one before."""
    crawl, parent, costs = Crawling(), Request("http://a.test/"), []
    crawl.begin(parent, "its row")
    for number in range(500):
        request, back = Request(f"http://a.test/{number}"), Request("http://a.test/back")
        crawl.engine.parents[request] = parent
        crawl.keep(request, b"%d" % number)
        crawl.pages.start(*crawl.memory.pop())
        crawl.engine.parents[back] = parent = request
        before, of = b"%d" % max(0, number - 1), [in_flight, memory, page, waits]
        costs.append(lines_of(of, crawl.link_back, back, before))
    assert max(costs[1:]) == min(costs[1:])
    assert len(crawl.ended()) == 501


class Hesitant(list):
    """A queue of the project's own that wants to wait, once."""

    push, waits = list.append, True

    def pop(self):
        waits, self.waits = self.waits, False
        return None if waits else super().pop()


def test_a_queue_that_wants_to_wait_holds_nothing_up():
    crawl = Crawling(queue=Hesitant())
    crawl.keep(held := Request("http://a.test/held"))
    assert crawl.memory.pop() is None
    assert crawl.memory.pop()[0] is held


def led_to(name, *before):
    """Return what redirects have made of pages."""
    return Request(f"http://a.test/{name}", meta={ORIGINAL: b"first", "before": before})


def wait_for(crawl, name, *pages):
    """Let pages wait for where redirects have led, whoever has taken that."""
    crawl.pages.waits.note_duplicate(f"http://a.test/{name}".encode(), pages, even_if_queued=True)


def end(crawl, request, page, reason=None):
    crawl.pages.start(request, page)
    if reason is not None:
        page.note(Event.FAILED, reason)
    return crawl.ended()


def test_what_leads_to_a_page_that_has_failed_fails_until_that_is_forgotten():
    """Its redirect is dropped as seen, and nobody would fetch it again."""
    crawl, other, reason = Crawling(), Page("other"), Reason("503")
    failed = crawl.pages.page_of(target := led_to("wall", b"a"), "wall")
    assert end(crawl, target, failed, reason) == ["wall"]
    wait_for(crawl, "wall", other)
    assert (other.reason, other.awaits) == (reason, 1)
    crawl.pages.waits.tell(failed)
    assert crawl.pages.waits
    crawl.pages.waits.heard()
    assert not crawl.pages.waits


def test_what_links_to_a_page_that_is_retried_does_not_fail_with_that():
    """It is listed itself: its mark stays."""
    crawl, other = Crawling(), Page("other")
    page = crawl.pages.page_of(retry := led_to("page"), "retry")
    wait_for(crawl, "page", other)
    assert end(crawl, retry, page, Reason("503")) == ["retry"]
    assert (other.reason, other.awaits) == (None, 1)


def test_what_waits_for_too_many_that_other_workers_may_take_waits_no_more(monkeypatch):
    monkeypatch.setattr(waits, "MOST", 2)
    crawl, origin, waiting = Crawling(shared=True), Page("origin"), Page("waits")
    crawl.pages.waits.expect(led_to("0", b"a"), origin)
    wait_for(crawl, "0", waiting)
    waiting.end()
    let_go = [crawl.pages.waits.expect(led_to(n, b"a"), origin) for n in range(1, 4)]
    assert let_go == [[], [waiting], []]
    assert crawl.pages.end(*let_go[1:2]) == [waiting]


def test_a_page_is_released_after_all_that_was_asked_before_it():
    """What is asked later does not matter, nor in which order it is answered."""
    book = Ledger()
    book.add(["first"])
    questions = [book.ask(), book.ask()]
    book.add(["second"])
    assert [*book.take(book.due())] == ["first"]
    last = book.ask()
    for question in questions[::-1]:
        assert book.due() is None
        book.answer(question)
    until = book.due()
    book.add(["third"])  # while items are written
    assert [*book.take(until)] == ["second"]
    assert (len(book), book.due()) == (1, None)
    book.answer(last)
    assert [*book.take(book.due())] == ["third"]
