"""The law, over requests in a list that is asked and answers when a test says so."""

import logging
import time
from types import SimpleNamespace

import pytest
from scrapy import Request, Spider, signals
from scrapy.exceptions import DontCloseSpider
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from scrapy_bloom import forget, hold
from scrapy_bloom.crawl.backend import Backend, Crawl
from scrapy_bloom.crawl.frontier import MOST_UNSAID, Frontier
from scrapy_bloom.crawl.history import ORIGINAL
from scrapy_bloom.crawl.identity import Identifier
from scrapy_bloom.crawl.in_flight import InFlight
from scrapy_bloom.crawl.outcomes import APART
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.scrapy import loop as timers
from scrapy_bloom.crawl.serialize import Unstorable
from scrapy_bloom.settings import Settings


class Failing(RequestFingerprinter):
    """Raises for one page."""

    def fingerprint(self, request):
        if request.url.endswith("/broken"):
            raise ValueError("no fingerprint for this one")
        return super().fingerprint(request)


class Engine:
    """Works on what it was given until a test says that it is through with it."""

    closing = False

    def __init__(self):
        self.working = set()
        self.woken, self.pipelines = 0, ()
        self.may_have_led_to_others = self.working.__contains__
        self.watch = self.before_closing = self.sent = self.take_back = lambda *_, **__: None
        self.wrap_start = lambda _: None
        self.yielded_by = self.is_from_start = lambda _: None
        self.has = self.is_downloading = self.working.__contains__
        self.slot_of, self.take_all_back = lambda _: "slot", lambda: 0

    def wake(self):
        self.woken += 1


def always(answer):
    """Return a method that answers this, whatever it is asked."""
    return lambda *_, **__: answer


class Shelf(Backend):
    """Keeps requests in a list. What it is asked waits in `asked` if it `answers_later`."""

    kind = "shelf"
    interval = 60.0
    over = True
    later = unsaid = 0
    next_start = float("inf")
    withhold = fail = account = hold = info = always(None)
    held_until, resting, describe = always(0.0), always((0, 0.0)), always(())

    def __init__(self, *, answers_later=False):
        self.answers_later, self.asked = answers_later, []
        self.marks, self.stored, self.taken, self.released = set(), [], {}, []
        self.exchanges, self.closed, self.unstorable = 0, False, False
        self.stopped = False

    def offer(self, request, not_before, mark, max_age):  # noqa: ARG002
        if mark is not None and mark in self.marks:
            return True
        if self.unstorable:
            raise Unstorable(TypeError("a lambda"))
        if not self.answers_later:
            return self.settle(request, mark, seen=False)
        self.exchange_at = min(self.exchange_at, 1.0)
        self.asked.append((request, mark, answer := Deferred()))
        return answer

    def settle(self, request, mark, *, seen):
        if not seen:
            self.marks.add(mark)
            self.stored.append(request)
            self.exchange_at = min(self.exchange_at, 1.0)
        return seen

    def answer(self, *, seen):
        """Answer the oldest question."""
        request, mark, answer = self.asked.pop(0)
        answer.callback(self.settle(request, mark, seen=seen))

    def __contains__(self, mark):
        return mark in self.marks

    def forget_many(self, marks):
        return [mark in self.marks for mark in marks]

    def take(self):
        if not self.stored:
            return None
        request = self.stored.pop(0)
        self.taken[request.url] = request
        return request, SimpleNamespace(url=request.url, body=b"")

    def release(self, taken, ended, status="", start=b""):  # noqa: ARG002
        if taken is not None:  # else it was only in memory
            self.released.append(taken.url)

    def give_up(self, error):  # noqa: ARG002
        self.broken = True

    @property
    def dirty(self):
        return self.exchange_at == 1.0

    async def exchange(self, *, busy, in_memory):  # noqa: ARG002
        self.exchange_at = float("inf")
        self.exchanges += 1
        return True

    def stop(self):
        self.stopped = True

    async def close(self):
        self.closed = True
        return True

    def __len__(self):
        return len(self.stored)

    def pending(self):
        return bool(self.stored or self.asked)


class Calls(list):
    """What timers call when they run out, in order; and how many were ever set."""

    made = 0


@pytest.fixture
def calls(monkeypatch):
    """What is called later: by a test."""
    calls = Calls()

    def call_later(_, call):
        calls.append(call)
        calls.made += 1
        return SimpleNamespace(cancel=lambda: calls.remove(call))

    monkeypatch.setattr(timers, "call_later", call_later)
    return calls


class Crawling:
    """A crawl without a downloader, whose timers a test runs by hand."""

    def __init__(self, calls, memory=None, **backend):
        settings = {"REQUEST_FINGERPRINTER_CLASS": Failing}
        self.crawler = crawler = get_crawler(settings_dict=settings)
        self.calls, self.engine, self.backend = calls, Engine(), Shelf(**backend)
        report, self.dropped = Report(crawler), []
        identifier = Identifier(crawler, Settings.of(crawler))
        crawl = Crawl(
            *(crawler, Spider("spider"), Settings.of(crawler), report, self.engine),
            *(identifier, InFlight(self.engine, report, identifier)),
        )
        dupefilter = SimpleNamespace(log=lambda request, _: self.dropped.append(request))
        self.in_flight = crawl.in_flight
        self.frontier = Frontier(crawl, self.backend, memory, dupefilter)
        self.flush = report.flush

    def begin(self, url="https://a.test/list"):
        """Let a page be in flight; return its request."""
        self.frontier.enqueue(Request(url, dont_filter=True))
        if self.backend.asked:
            self.backend.answer(seen=False)
        request = self.frontier.next()
        self.engine.working.add(request)
        return request

    def begin_unstorable(self, request):
        """Let a request be in flight that cannot be stored; return it."""
        self.backend.unstorable = True
        self.frontier.enqueue(request)
        self.backend.unstorable = False
        in_memory = self.frontier.next()
        self.engine.working.add(in_memory)
        return in_memory

    def end(self, request):
        """Let the engine be through with a page, and the frontier look."""
        self.engine.working.remove(request)
        self.look()

    def look(self):
        """Let each timer run out that was set."""
        calls, self.calls[:] = [*self.calls], []
        for call in calls:
            call()

    def stat(self, name):
        self.flush()
        return self.crawler.stats.get_value(name, 0)


def test_twenty_links_of_a_page_set_one_timer_and_duplicates_none(calls):
    crawl = Crawling(calls)
    for _ in range(2):
        for number in range(20):
            crawl.frontier.enqueue(Request(f"https://a.test/{number}"))
    assert calls.made == 1
    assert len(crawl.backend.stored) == 20


def test_a_page_is_done_once_what_it_led_to_is_answered(calls):
    crawl = Crawling(calls, answers_later=True)
    page = crawl.begin()
    children = [Request(f"https://a.test/{number}") for number in range(2)]
    assert [*map(crawl.frontier.enqueue, children)] == [True, True]
    crawl.end(page)
    crawl.backend.answer(seen=False)
    crawl.look()
    assert crawl.backend.released == []
    crawl.backend.answer(seen=True)
    crawl.look()
    assert crawl.backend.released == [page.url]
    assert crawl.dropped == children[1:]


def test_a_page_is_done_although_an_answer_cannot_be_read(calls):
    """The project's stats or meta may raise then."""
    crawl = Crawling(calls, answers_later=True)
    page = crawl.begin()
    crawl.frontier.enqueue(Request("https://a.test/1"))
    crawl.end(page)
    _, _, answer = crawl.backend.asked.pop()
    answer.errback(ValueError("no chain"))
    crawl.look()
    assert crawl.backend.released == [page.url]


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_pages_are_done_although_forgetting_fails(calls, monkeypatch, later):
    crawl = Crawling(calls)
    answer = Deferred()

    def forget_many(_):
        if not later:
            raise OSError("the list is damaged")
        return answer

    monkeypatch.setattr(crawl.backend, "forget_many", forget_many)
    page = crawl.begin()
    crawl.frontier.forget(Request("https://a.test/other"))
    crawl.end(page)
    if later:
        assert crawl.backend.released == []
        answer.errback(OSError("the list is damaged"))
        crawl.look()
    assert crawl.backend.released == [page.url]
    assert crawl.stat("bloom/not_forgotten") == 1


def test_a_request_that_cannot_be_stored_is_judged_all_the_same(calls):
    crawl = Crawling(calls)
    child = Request("https://a.test/child")
    crawl.backend.unstorable = True
    crawl.frontier.enqueue(child)
    assert (crawl.stat("bloom/new"), crawl.stat("bloom/errors")) == (1, 0)
    assert (len(crawl.frontier), crawl.stat("scheduler/enqueued/memory")) == (1, 1)
    assert crawl.frontier.next().url == child.url


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_duplicate_of_a_request_in_memory_keeps_the_page_that_yielded_it(calls, later):
    crawl = Crawling(calls)
    held = crawl.begin_unstorable(child := Request("https://a.test/child"))
    page = crawl.begin()
    crawl.backend.answers_later = later
    if not later:
        crawl.backend.marks.add(Failing().fingerprint(child))
    crawl.frontier.enqueue(child.copy())
    if later:
        crawl.backend.answer(seen=True)
    crawl.end(page)
    assert crawl.backend.released == []
    crawl.end(held)
    assert crawl.backend.released == [page.url]


def test_what_has_failed_in_memory_fails_what_links_there_for_an_hour_and_is_eligible_then(
    calls, monkeypatch
):
    crawl, now, failed, forgotten = Crawling(calls), time.monotonic(), [], []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(crawl.backend, "fail", lambda taken, *_: failed.append(taken.url))
    monkeypatch.setattr(crawl.backend, "forget_many", forgotten.extend)
    held = crawl.begin_unstorable(child := Request("https://a.test/child"))
    mark = Failing().fingerprint(child)
    crawl.in_flight.raised(Failure(ValueError()), held)
    crawl.end(held)
    for seconds in 0, APART:
        assert forgotten == []
        now += seconds
        page = crawl.begin()
        crawl.backend.marks.add(mark)
        crawl.frontier.enqueue(child.copy())
        crawl.end(page)
    assert failed == [page.url] * 2
    assert forgotten == [mark]


def test_what_is_in_memory_fails_if_it_links_to_what_has_failed_there(calls, monkeypatch):
    """If it were done, no later run would fetch it, and nothing else may link there."""
    crawl, now, forgotten = Crawling(calls), time.monotonic(), []
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(crawl.backend, "forget_many", forgotten.extend)
    held = crawl.begin_unstorable(child := Request("https://a.test/child"))
    crawl.in_flight.raised(Failure(ValueError()), held)
    crawl.end(held)
    other = crawl.begin_unstorable(Request("https://a.test/other"))
    crawl.backend.marks.add(mark := Failing().fingerprint(child))
    crawl.frontier.enqueue(child.copy())
    crawl.end(other)
    now += APART
    crawl.end(crawl.begin())
    assert forgotten == [mark, Failing().fingerprint(other)]


async def test_a_backend_that_has_given_up_is_told_nothing_more_and_keeps_no_spider_open(calls):
    crawl = Crawling(calls)
    crawl.begin()
    crawl.frontier.enqueue(Request("https://a.test/waits"))
    idle = crawl.crawler.signals.send_catch_log
    ((_, answer),) = idle(signals.spider_idle, dont_log=DontCloseSpider)
    assert isinstance(answer.value, DontCloseSpider)
    crawl.backend.broken = True
    assert [answer for _, answer in idle(signals.spider_idle, dont_log=DontCloseSpider)] == [None]
    crawl.look()
    before = crawl.backend.exchanges
    crawl.frontier.enqueue(Request("https://a.test/more"))
    assert calls == []
    assert await crawl.frontier.close()
    assert (crawl.backend.exchanges, crawl.backend.closed) == (before, True)


def test_an_error_that_nobody_expects_is_logged_once_and_the_exchange_made_again(
    calls, monkeypatch, caplog
):
    crawl = Crawling(calls)
    page = crawl.begin()

    async def exchange(**_):
        crawl.backend.exchange_at = float("inf")
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(crawl.backend, "exchange", exchange)
        crawl.end(page)
        crawl.look()
    assert caplog.text.count("Unexpected error: a bug") == 1
    assert caplog.records[-1].levelno == logging.ERROR
    crawl.look()
    assert crawl.backend.exchanges == 1


@pytest.mark.parametrize("times", [2, 3])
def test_a_page_that_cannot_be_released_is_tried_again_and_the_third_error_ends_the_crawl(
    calls, monkeypatch, times
):
    """Else it would be taken for ever, and the crawl never end."""
    crawl = Crawling(calls)
    page, release, errors = crawl.begin(), crawl.backend.release, []

    def fail(*arguments):
        if len(errors) < times:
            errors.append(arguments)
            raise KeyError("a bug")
        release(*arguments)

    monkeypatch.setattr(crawl.backend, "interval", 0.0)
    monkeypatch.setattr(crawl.backend, "release", fail)
    crawl.end(page)
    while calls:
        crawl.look()
        if crawl.backend.released:
            break
    assert len(errors) == times
    assert crawl.backend.broken == (times == 3)
    assert crawl.backend.released == ([] if times == 3 else [page.url])


class Hesitant(list):
    """A queue of the project's own that wants to wait, once."""

    push, waits = list.append, True

    def pop(self):
        waits, self.waits = self.waits, False
        return None if waits else super().pop()


def test_a_queue_that_wants_to_wait_holds_nothing_up(calls):
    crawl = Crawling(calls, Hesitant())
    crawl.frontier.enqueue(Request("https://a.test/stored"))
    crawl.backend.unstorable = True
    crawl.frontier.enqueue(held := Request("https://a.test/held"))
    assert crawl.frontier.next().url == "https://a.test/stored"
    assert crawl.frontier.next() is held


def test_while_too_much_is_only_in_memory_what_cannot_be_stored_is_sent_alone(calls, monkeypatch):
    crawl = Crawling(calls)
    crawl.frontier.enqueue(Request("https://a.test/stored"))
    monkeypatch.setattr(crawl.backend, "unsaid", MOST_UNSAID + 1)
    held = Request("https://a.test/held")
    crawl.backend.unstorable = True
    crawl.frontier.enqueue(held)
    assert [crawl.frontier.next() for _ in range(2)] == [held, None]
    crawl.backend.unsaid = MOST_UNSAID
    assert crawl.frontier.next().url == "https://a.test/stored"


async def test_nothing_is_forgotten_after_the_last_exchange_and_it_is_said(calls, caplog):
    """As in ``closed()`` of a spider: Scrapy calls it when the scheduler is closed."""
    crawl = Crawling(calls)
    crawl.frontier.enqueue(page := Request("https://a.test/"))
    assert forget(page, crawl.crawler)
    await crawl.frontier.close()
    assert not forget(page, crawl.crawler)
    assert not hold(page, crawl.crawler, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2


def test_a_redirect_to_a_page_that_failed_fails_until_the_backend_has_heard_of_it(
    calls, monkeypatch
):
    """Until then it is dropped as seen, although nobody fetches that page for it."""
    crawl, failed = Crawling(calls), []
    wall = Request("https://a.test/wall", meta={ORIGINAL: b"first"})
    crawl.frontier.enqueue(wall)
    crawl.engine.working.add(crawl.frontier.next())
    page, exchange = crawl.begin(), crawl.backend.exchange
    crawl.engine.yielded_by = lambda _: page

    async def redirect_and_exchange(**state):
        if page in crawl.engine.working:
            crawl.frontier.enqueue(wall.copy())
            crawl.engine.working.remove(page)
        return await exchange(**state)

    monkeypatch.setattr(crawl.backend, "exchange", redirect_and_exchange)
    monkeypatch.setattr(crawl.backend, "fail", lambda taken, *_: failed.append(taken.url))
    crawl.in_flight.raised(Failure(ValueError()), wall)
    crawl.end(wall)
    crawl.look()
    assert failed == [wall.url, page.url]
    assert not crawl.in_flight.waits


def test_what_has_not_begun_goes_back_as_soon_as_the_spider_closes(calls, caplog):
    """Other workers fetch it meanwhile."""
    caplog.set_level(logging.INFO)
    crawl = Crawling(calls)
    page, waiting = (crawl.begin(f"https://a.test/{number}") for number in range(2))
    crawl.look()
    assert not crawl.backend.stopped
    crawl.engine.closing = True
    crawl.engine.take_all_back = lambda: [crawl.engine.working.remove(waiting)].count(None)
    crawl.frontier.enqueue(Request("https://a.test/2"))
    crawl.look()
    assert crawl.backend.stopped
    assert crawl.engine.working == {page}
    [said] = [text for text in caplog.messages if text.startswith("Closing: ")]
    assert "finishing 1 page in flight." in said
