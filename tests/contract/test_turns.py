"""What a worker does with its turns: use them, give them back, or ask for others."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.crawl.engine import Downloads
from scrapy_bloom.crawl.pace import UNPACED, Pace
from scrapy_bloom.redis import turns as module
from scrapy_bloom.redis.key import Answer, Call
from scrapy_bloom.redis.member import Taken
from scrapy_bloom.redis.pacing import Pacing
from scrapy_bloom.redis.turns import Turns


class Slot:
    """A slot of Scrapy's downloader."""

    def __init__(self, delay, jitter=0.0, concurrency=1):
        self.delay, self.jitter, self.concurrency = delay, jitter, concurrency
        self.queue, self.lastseen, self.latercall = [], 0.0, None

    def close(self):
        self.latercall = None


class Downloader:
    """Scrapy's downloader, as far as it is looked at."""

    def __init__(self, delay, **per_slot):
        self._delay, self._jitter, self.delay = delay, 0.0, delay
        self.per_slot_settings, self.slots = per_slot, {}
        self.ip_concurrency, self.domain_concurrency = 0, 8

    def get_slot_key(self, request):
        return request.meta.get("download_slot", "a")


class Worker:
    """A worker whose engine and downloader are led by a test."""

    def __init__(self, monkeypatch, delay=1.0, *, adjusts=False, by_host=True, **per_slot):
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.active, self.lines = set(), []
        self.downloader = Downloader(delay, **per_slot)
        settings = Settings({"AUTOTHROTTLE_ENABLED": adjusts})
        engine = SimpleNamespace(downloader=self.downloader)
        downloads = Downloads(SimpleNamespace(engine=engine, settings=settings))
        downloads._clock = lambda: self.now  # noqa: SLF001 - no other way to set it
        self.taken_back = []
        engine = SimpleNamespace(has=self.active.__contains__, take_back=self.taken_back.append)
        report = SimpleNamespace(once=lambda *line: self.lines.append(line))
        self.turns = Turns(engine, downloads, report, by_host=by_host)

    def take(self, *starts, slot=b"a", delay=1.0, listed=False):
        """Take requests that start so many seconds from now."""
        taken = [
            Taken(b"%d" % n, slot, 0, 0, None, b"", self.now + start, delay, 0.0, listed)
            for n, start in enumerate(starts)
        ]
        self.turns.add(taken)
        return taken

    def begin(self, **meta):
        """Give the next request to the engine; return both."""
        taken = self.turns.pop()
        request = Request("http://a/", meta=meta)
        self.active.add(request)
        self.turns.begin(request, taken)
        return request, taken

    def reach(self, request):
        """Let a request reach the downloader."""
        key = self.downloader.get_slot_key(request)
        slot = self.downloader.slots.setdefault(key, Slot(self.downloader.delay))
        self.turns.reach(request)
        slot.queue.append((request, None))
        return slot

    def end(self, request):
        self.active.discard(request)
        self.turns.end()


@pytest.fixture
def worker(monkeypatch):
    return Worker(monkeypatch)


def test_requests_wait_for_their_turns(worker):
    late, soon = worker.take(2.0, 1.0)
    assert worker.turns.pop() is None
    assert worker.turns.next_start == soon.start
    worker.now += 1.0
    assert worker.turns.pop() is soon
    assert worker.turns.pop() is None
    worker.now += 1.0
    assert worker.turns.pop() is late


def test_the_downloader_sends_at_once_what_has_waited_for_its_turn(worker):
    worker.take(0.0, 1.0)
    request, _ = worker.begin()
    slot = worker.reach(request)
    slot.queue.clear()
    slot.lastseen = worker.now
    worker.now += 1.0
    request, _ = worker.begin()
    worker.reach(request)
    assert worker.now - slot.lastseen >= slot.delay  # which is what the downloader asks
    assert not worker.turns.is_urgent


def test_just_after_robots_txt_a_request_goes_back_for_another_turn(worker):
    worker.take(0.0)
    request, _ = worker.begin()
    worker.downloader.slots["a"] = Slot(1.0)
    worker.downloader.slots["a"].lastseen = worker.now - 0.1
    slot = worker.reach(request)
    assert worker.turns.is_urgent
    assert slot.lastseen == worker.now - 0.1
    worker.turns.end()
    assert worker.taken_back == ["a"]
    assert not worker.turns.is_urgent


def test_what_is_sent_late_waits_for_a_whole_delay_in_the_downloader(worker):
    """It was not sent before, and a process that is always late would send nothing."""
    worker.take(0.0, 1.0)
    worker.now += 10
    request, _ = worker.begin()
    slot = worker.reach(request)
    assert slot.lastseen == worker.now
    worker.turns.end()
    assert not worker.taken_back


def test_what_waits_in_a_slot_keeps_its_pace(worker):
    worker.take(0.0)
    request, _ = worker.begin()
    slot = worker.downloader.slots["a"] = Slot(1.0)
    slot.queue.append(("robots.txt", None))
    slot.lastseen = worker.now
    worker.reach(request)
    assert slot.lastseen == worker.now
    assert not worker.turns.is_urgent


def test_after_a_long_callback_one_request_of_a_slot_is_sent_and_others_go_back(worker):
    first, second, third = worker.take(0.0, 1.0, 2.0)
    worker.now += 10
    assert worker.turns.pop() is second
    assert worker.turns.take_late() == [first]
    worker.turns.begin(Request("http://a/"), second)
    assert worker.turns.pop() is None
    assert worker.turns.take_late() == [third]


def test_a_request_that_is_never_sent_gives_its_turn_back(worker):
    worker.take(0.0, 0.0)
    (cached, first), (sent, _) = worker.begin(), worker.begin()
    worker.reach(sent)
    worker.end(cached)
    worker.end(sent)
    assert worker.turns.take_unused() == [first]
    assert worker.turns.take_unused() == []
    assert not worker.turns.take_paces()


def test_a_slot_whose_turns_are_not_used_is_unpaced_until_one_is(worker):
    worker.take(*[0.0] * 8)
    for n in range(8):
        request, _ = worker.begin(download_slot=f"proxy {n}")
        assert not worker.turns.take_paces()
        worker.reach(request)
        worker.end(request)
    assert worker.turns.take_paces() == {b"a": UNPACED}
    assert len(worker.lines) == 1
    worker.take(0.0, delay=0.0, listed=True)
    request, _ = worker.begin()
    worker.reach(request)
    assert worker.turns.is_urgent
    assert worker.turns.take_paces() == {b"a": Pace(1.0, 0.0)}
    worker.end(request)
    assert worker.taken_back == ["a"]  # what all workers had of it went at the pace of each
    worker.take(0.0, delay=1.0)
    request, _ = worker.begin()
    worker.reach(request)
    worker.end(request)
    assert worker.taken_back == ["a"]


def test_a_slot_that_another_worker_uses_is_unpaced_once(worker):
    def forbid(count):
        worker.take(*[0.0] * count)
        for _ in range(count):
            forbidden, _ = worker.begin()
            worker.end(forbidden)
        return worker.turns.take_paces()

    assert forbid(8) == forbid(1) == {b"a": UNPACED}  # which was taken before the server heard it
    worker.now += 2
    assert not forbid(20)  # the other one has told its pace again


def test_a_host_that_gets_some_requests_is_paced_however_many_are_forbidden(worker):
    worker.take(*[0.0] * 20)
    sent, _ = worker.begin()
    worker.reach(sent)
    worker.end(sent)
    for _ in range(19):
        forbidden, _ = worker.begin()
        worker.end(forbidden)
    assert len(worker.turns.take_unused()) == 19
    assert not worker.turns.take_paces()


def test_slots_with_as_many_requests_as_are_sent_at_once_are_busy(worker):
    worker.take(0.0)
    request, _ = worker.begin()
    worker.reach(request)
    assert worker.turns.busy == [b"a"]
    worker.end(request)
    assert worker.turns.busy == []


def test_a_slot_in_which_requests_wait_gets_no_more_until_they_are_sent(worker):
    worker.take(0.0)
    request, _ = worker.begin()
    slot = worker.reach(request)
    slot.concurrency = 8
    assert worker.turns.busy == [b"a"]
    slot.queue.clear()
    assert worker.turns.busy == []


@pytest.mark.parametrize("by_host", [True, False])
def test_slots_are_hosts_if_they_have_a_delay_or_take_turns(monkeypatch, by_host):
    worker = Worker(monkeypatch, delay=0.0, by_host=by_host, slow={"delay": 3.0})
    assert worker.turns.slot_for(Request("http://a/")) == (b"a" if by_host else b"")
    assert not worker.turns.take_paces()
    slow = Request("http://a/", meta={"download_slot": "slow"})
    assert worker.turns.slot_for(slow) == b"slow"
    assert worker.turns.take_paces() == {b"slow": Pace(3.0, 0.0)}
    worker.turns.slot_for(slow)
    assert not worker.turns.take_paces()  # once is enough
    worker.turns.start_over()
    worker.turns.slot_for(slow)
    assert worker.turns.take_paces()


def test_a_delay_that_is_no_longer_configured_is_taken_back(worker):
    worker.take(0.0, delay=30.0, listed=True)
    request, _ = worker.begin()
    worker.reach(request)
    worker.end(request)
    assert worker.turns.take_paces() == {b"a": Pace(1.0, 0.0)}


def test_autothrottle_is_shared(monkeypatch):
    worker = Worker(monkeypatch, delay=5.0, adjusts=True)
    worker.take(0.0, delay=5.0)
    request, _ = worker.begin()
    slot = worker.reach(request)
    slot.delay = 2.0  # AutoThrottle has measured
    worker.end(request)
    assert worker.turns.take_paces() == {b"a": Pace(2.0, 0.0)}
    worker.take(0.0, delay=2.0, listed=True)  # as told
    slot.delay = 1.5
    assert slot.delay == 1.5
    worker.take(0.0, delay=1.2, listed=True)  # another worker has told that
    assert slot.delay == 1.2


def test_a_worker_that_is_new_to_a_host_begins_with_the_delay_of_others(monkeypatch):
    worker = Worker(monkeypatch, delay=5.0, adjusts=True)
    worker.take(0.0, delay=0.4, listed=True)
    request, _ = worker.begin()
    assert worker.reach(request).delay == 0.4
    worker.end(request)
    assert not worker.turns.take_paces()


def test_what_waits_here_of_a_slot_that_is_left_alone_goes_back(worker):
    first, _ = worker.take(0.0, 0.5), worker.take(0.0, slot=b"b")
    assert worker.turns.hold(Request("http://a/"), 60) == {b"a": worker.now + 60}
    assert worker.turns.pop().slot == b"b"
    assert worker.turns.pop() is None
    assert worker.turns.take_late() == first
    (more,) = worker.take(1.0)  # the server did not know it yet
    assert worker.turns.take_late() == [more]
    (after,) = worker.take(60.0)
    worker.now += 60
    assert worker.turns.pop() is after
    assert worker.turns.take_late() == []


def test_of_hosts_that_share_a_slot_those_that_are_left_alone_are_known(monkeypatch):
    worker = Worker(monkeypatch, delay=0.0, by_host=False)
    request = Request("http://a/")
    assert worker.turns.held_until(request) == 0
    worker.turns.heed({b"a": worker.now + 60, b"b": worker.now + 90})
    (taken,) = worker.take(0.0, slot=b"", delay=0.0)
    assert worker.turns.pop() is taken
    assert worker.turns.held_until(request) == worker.now + 60
    worker.now += 60
    assert worker.turns.held_until(request) == 0
    worker.turns.heed({b"c": worker.now + 1})
    assert set(worker.turns.holds) == {b"b", b"c"}


@pytest.mark.parametrize("passed_over", [False, True])
def test_a_worker_rests_only_if_no_slot_was_passed_over(passed_over):
    """The log said that nothing could be fetched for half a minute, and the next page came."""
    pacing = Pacing((), (), 16)
    busy = [b"a"] if passed_over else []
    pacing.note_called(Call(take=16, busy=busy), Answer(next_turn=30.0), 8)
    assert pacing.rests is not passed_over
