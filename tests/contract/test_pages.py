"""Which pages are done, without a crawl: how they end, what they wait for, and what Scrapy says."""

import time
from collections import deque
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scrapy import Request
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from support.contract import lines_of
from support.internals import answer, send
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom.crawl import in_flight, memory, redirects, waits
from scrapy_bloom.crawl import page as pages
from scrapy_bloom.crawl.ledger import Ledger
from scrapy_bloom.crawl.outcomes import Reason
from scrapy_bloom.crawl.page import BECOMES, Event, Page, State
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.scrapy import engine
from scrapy_bloom.crawl.serialize import Unstorable
from scrapy_bloom.crawl.waits import wait_for

FAILS = {Event.BROKEN, Event.UNREACHED, Event.FAILED}
FAILED = {State.BAD, State.FAILED}


# The law of how pages end, whatever happens to them, and in any order


def test_the_table_says_for_each_state_what_comes_of_each_event():
    assert [len(row) for row in BECOMES] == [len(Event)] * len(State)
    for state in State:
        assert BECOMES[state][Event.UNFINISHED] is State.UNFINISHED
        assert BECOMES[state][Event.FAILED] in (State.FAILED, State.UNFINISHED)
        for event in Event:
            after = BECOMES[state][event]
            assert state is not State.UNFINISHED or after is State.UNFINISHED  # for good
            assert state is not State.FAILED or after in (
                State.FAILED,
                State.UNFINISHED,
            )  # likewise
            if after in FAILED:  # only what fails makes a page fail
                assert state in FAILED or event in FAILS
            if state is State.BAD and after is not state:  # only the spider deals with that
                assert event in {Event.REACHED, Event.YIELDED, Event.FAILED, Event.UNFINISHED}


def test_what_waits_for_a_page_fails_with_it_if_that_is_fetched_again():
    for is_fetched_again in True, False:
        parent, page = Page(), Page()
        wait_for(parent, page)
        page.record(Event.FAILED, Reason("503"))
        assert page.end(with_waiters=is_fetched_again) == [page]
        assert parent.end() == [parent]
        assert parent.has_failed is is_fetched_again


@settings(stateful_step_count=25)
class PageMachine(RuleBasedStateMachine):
    """Pages, each with a plain list of what has happened to it, and those for which it waits."""

    def __init__(self):
        super().__init__()
        self.pages, self.happened, self.waits_for = [], {}, {}
        self.working = []  # those that the engine has, or whose requests are being judged
        self.ended = []
        self.take()

    @rule()
    def take(self):
        self.add(Page("its row"))

    def add(self, page, parents=()):
        self.pages.append(page)
        self.working.append(page)
        self.happened[page], self.waits_for[page] = [], []
        for parent in parents:
            self.waits_for[parent].append(page)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def lead_to_one_in_memory(self, data):
        parents = data.draw(st.lists(st.sampled_from(self.working), unique=True, max_size=3))
        self.add(Page(None, None, parents), parents)

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def have_a_request_judged(self, data):
        page = data.draw(st.sampled_from(self.working))
        page.wait_for_one_more()
        self.working.append(page)

    @rule(data=st.data())
    def redirect(self, data):
        """Even to a page that has ended, and in a circle."""
        page, until = (data.draw(st.sampled_from(self.pages)) for _ in range(2))
        waits = page not in self.ended and until not in self.ended and not self.leads(until, page)
        wait_for(page, until)
        if waits:
            self.waits_for[page].append(until)
        elif until in self.ended and until.state in FAILED:
            self.happened[page].append((Event.FAILED, until.reason))

    def leads(self, page, to):
        """Return whether a page waits for another one, perhaps through others."""
        return page is to or any(self.leads(each, to) for each in self.waits_for[page])

    @rule(data=st.data(), event=st.sampled_from(Event))
    def happen(self, data, event):
        """Even to what has ended: that waits for its items, and another page may fail with it."""
        page = data.draw(st.sampled_from(self.pages))
        reason = Reason(str(len(self.happened[page]))) if event in FAILS else None
        page.record(event, reason)
        self.happened[page].append((event, reason))

    @precondition(lambda self: self.working)
    @rule(data=st.data(), with_waiters=st.booleans())
    def end(self, data, with_waiters):
        page = data.draw(st.sampled_from(self.working))
        self.working.remove(page)
        ended = page.end(with_waiters=with_waiters)
        for each in ended:
            assert each not in self.ended  # each page ends once
            assert each not in self.working  # and not before the engine is finished with it
            assert not self.was(each, Event.UNFINISHED)
            for other in self.waits_for[each]:  # nor before what it waits for
                assert other in self.ended or other in ended
                if with_waiters and other in ended and other.state in FAILED:
                    assert each.state is State.FAILED  # only it can yield the other one again
        self.ended += ended

    def was(self, page, event):
        return any(happened is event for happened, _ in self.happened[page])

    @invariant()
    def all_that_could_end_has_ended(self):
        for page in self.pages:
            waits = page in self.working or page.state is State.UNFINISHED
            if not waits and all(each in self.ended for each in self.waits_for[page]):
                assert page in self.ended

    @invariant()
    def a_page_that_has_failed_for_good_is_not_done(self):
        for page, happened in self.happened.items():
            if self.was(page, Event.FAILED):
                assert page.state in (State.FAILED, State.UNFINISHED)
            assert (page.state in FAILED) == (
                page.reason is not None
            ) or page.state is State.UNFINISHED
            if not self.waits_for[page] and not any(event in FAILS for event, _ in happened):
                assert page.state not in FAILED


TestPages = PageMachine.TestCase


# What they wait for


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

    def __init__(self, *, queue=None):
        report, self.engine = Report(get_crawler()), Engine()
        identifier = SimpleNamespace(
            identify=lambda request: request.url.encode(),
            before=lambda request: request.meta.get("before", ()),
        )
        self.pages = in_flight.InFlight(self.engine, report, identifier)
        backend = SimpleNamespace(withhold=lambda _: None, paused_until=lambda _: 0.0)
        self.memory = memory.Memory(queue, self.pages, backend, report)

    def add(self, request, mark=None):
        """Keep a request in memory."""
        error = Unstorable(TypeError("a lambda"), request, repr)
        error.mark = mark
        self.memory.add(request, error, 0.0)

    def link_back(self, request, mark):
        self.pages.unstored.record_duplicate(mark, self.pages.led_to(request))

    def ended(self):
        """Return what was handed out for the pages that have ended."""
        return [each.taken for each in self.pages.pop_ended()]


def test_a_link_back_costs_no_more_at_the_end_of_a_long_chain_of_held_pages():
    """Each page is stored in memory only, yields the next one, and links to the one before."""
    crawl, parent, costs = Crawling(), Request("http://a.test/"), []
    crawl.pages.start(parent, Page("its row"))
    for number in range(500):
        request, back = Request(f"http://a.test/{number}"), Request("http://a.test/back")
        crawl.engine.parents[request] = parent
        crawl.add(request, b"%d" % number)
        crawl.pages.start(*crawl.memory.pop())
        crawl.engine.parents[back] = parent = request
        before, of = b"%d" % max(0, number - 1), [in_flight, memory, pages, waits]
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
    crawl.add(held := Request("http://a.test/held"))
    assert crawl.memory.pop() is None
    assert crawl.memory.pop()[0] is held


def test_a_page_is_released_after_all_that_was_asked_before_it():
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


def test_links_are_kept_for_few_redirects_in_few_bytes_and_the_first_of_each(monkeypatch):
    monkeypatch.setattr(redirects, "MOST", 3)
    monkeypatch.setattr(redirects, "MOST_BYTES", 2500)
    links, large = redirects.FirstLinks(), {"body": b"x" * 2000}
    for mark in b"a", b"b", b"c", b"d":
        links.expect(mark)
        for url in b"1", b"2":
            links.add(mark, Request(f"http://a.test/{mark + url}"))
    assert links.pop([b"a", b"none"]) == []
    assert [link.url[-3:] for link in links.pop([b"b", b"b"])] == ["b1'"]
    links.expect(b"e")
    links.add(b"e", Request("http://a.test/e", meta={"cannot be stored": lambda: None}, **large))
    links.expect(b"f")
    links.add(b"f", Request("http://a.test/f", **large), time.monotonic() + 9000)
    [link] = links.pop([b"c", b"d", b"e", b"f"])
    assert (link.url[-1:], 8000 < link.meta["bloom_delay"] <= 9000) == ("f", True)


def test_a_link_that_cannot_be_copied_is_not_kept():
    class Strange(Request):
        def __init__(self, *, number):
            super().__init__(f"http://a.test/{number}")

    links = redirects.FirstLinks()
    links.expect(b"a")
    links.add(b"a", Strange(number=1))
    assert links.pop([b"a"]) == []


# What Scrapy's engine says


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


def test_what_cannot_be_copied_is_not_taken_back(crawler):
    """It was in no queue any more and never answered, so the crawl did not end."""
    requests = [Request("http://a.test/"), Request("http://a.test/b", meta={"own": 1})]
    requests[0].priority = 2.5  # as a middleware leaves it: Scrapy refuses it in a constructor
    waiting = deque((request, Deferred()) for request in requests)
    crawler.engine.downloader.slots["a"] = SimpleNamespace(queue=waiting)
    answered = waiting[1][1]
    engine.Engine(crawler).requeue_slot("a", more=2)
    assert [request for request, _ in waiting] == requests[:1]
    assert answered.result.meta == {"own": 1, engine.BACK: True, "more": 2}
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
    ours, request = engine.Engine(crawler), Request("http://a.test/")
    ours.watch(Mock())
    ours.sent(request)
    send(crawler, request)
    assert not ours.may_have_led_to_others(request)
    answer(crawler, request, result)
    assert ours.may_have_led_to_others(request) is led
