"""What a worker does with its turns: use them, give them back, or ask for others."""

from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.settings import Settings

from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Downloads, Pace
from scrapy_bloom.redis import turns as module
from scrapy_bloom.redis.member import Taken
from scrapy_bloom.redis.pacing import Pacing
from scrapy_bloom.redis.turns import Turns
from scrapy_bloom.redis.wire import Answer, Call
from scrapy_bloom.values import LONGEST


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

    def __init__(self, monkeypatch, delay=1.0, *, adjusts=False, **per_slot):
        self.now = 1000.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.active, self.lines = set(), []
        self.downloader = Downloader(delay, **per_slot)
        settings = Settings({"AUTOTHROTTLE_ENABLED": adjusts})
        engine = SimpleNamespace(downloader=self.downloader)
        downloads = Downloads(SimpleNamespace(engine=engine, settings=settings))
        downloads._clock = lambda: self.now  # noqa: SLF001 - no other way to set it
        self.taken_back = []
        engine = SimpleNamespace(
            has=self.active.__contains__,
            take_back=self.taken_back.append,
            slot_of=self.downloader.get_slot_key,
        )
        report = SimpleNamespace(once=lambda *line: self.lines.append(line))
        self.turns = Turns(engine, downloads, report)

    def take(self, *starts, slot=b"a", delay=1.0, listed=False, slack=0.0):
        """Take requests that start so many seconds from now."""
        taken = [
            Taken(b"%d" % n, slot, 0, 0, None, b"", self.now + start, delay, 0.0, listed, slack)
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

    def send(self, *, late=0.0, **meta):
        """Let the next request reach the downloader; return it and its slot there.

        Args:
            late: seconds that middlewares take.
        """
        request, _ = self.begin(**meta)
        self.now += late
        key = self.downloader.get_slot_key(request)
        slot = self.downloader.slots.setdefault(key, Slot(self.downloader.delay))
        self.turns.reach(request)
        slot.queue.append((request, None))
        return request, slot

    def end(self, request):
        self.active.discard(request)
        self.turns.end()

    def forbid(self, count):
        """Take requests that never reach the downloader; return what is told of paces then."""
        self.take(*[0.0] * count)
        for _ in range(count):
            self.end(self.begin()[0])
        return self.turns.take_paces()


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


@pytest.mark.parametrize(
    ("late", "last_sent", "waiting", "then_sent", "goes_back"),
    [
        pytest.param(0, 0.7, [], 1.5, [], id="it has waited for its turn"),
        pytest.param(0, 0.48, [], 1.5, [], id="the last one was as late as it may be"),
        pytest.param(0, 0.47, [], 0.0, ["a"], id="just after robots.txt it needs another turn"),
        pytest.param(0, 0.1, ["robots.txt"], 0.1, [], id="behind others it keeps the slot's pace"),
        pytest.param(0.04, 0.7, [], 1.5, [], id="as late as it may be"),
        pytest.param(0.06, 0.7, [], 0.0, ["a"], id="later, it needs another turn"),
    ],
)
def test_the_downloader_does_not_delay_a_request_again(
    worker, late, last_sent, waiting, then_sent, goes_back
):
    worker.take(0.0, 1.0)
    slot = worker.downloader.slots["a"] = Slot(1.0, jitter=0.5)
    slot.queue += waiting
    slot.lastseen = worker.now + late - last_sent
    request, _ = worker.send(late=late)
    assert worker.now - slot.lastseen == pytest.approx(then_sent)
    assert worker.turns.is_urgent is bool(goes_back)
    worker.end(request)
    assert worker.taken_back == goes_back
    assert worker.now - slot.lastseen == pytest.approx(last_sent if goes_back else then_sent)
    is_late = late > 0.05
    assert len(worker.turns.take_unused()) == is_late  # after robots.txt the turn is used


def test_after_a_long_callback_requests_go_back_and_the_next_turn_lasts_a_little_longer(worker):
    taken = worker.take(0.0, 1.0, 2.0)
    worker.now += 10
    assert worker.turns.pop() is None
    assert worker.turns.take_returning() == taken
    assert 0 < worker.turns.slack < 1
    worker.take(0.0, slack=(before := worker.turns.slack))
    worker.send()
    assert worker.turns.slack < before


def test_a_process_that_is_always_late_gets_turns_that_last_as_long(worker):
    lengths = []
    while not worker.turns.pop():
        assert len(lengths) < 20
        worker.take(0.0, slack=worker.turns.slack)
        lengths.append(worker.turns.slack)
        worker.now += 10
    assert lengths == sorted(lengths)
    assert worker.turns.slack == pytest.approx(10 - 0.05)


def test_a_slot_whose_turns_are_not_used_is_unpaced_until_one_is(worker):
    worker.take(*[0.0] * 8)
    for n in range(8):
        assert not worker.turns.take_paces()
        worker.end(worker.send(download_slot=f"proxy {n}")[0])
    assert worker.turns.take_paces() == {b"a": UNPACED}
    assert len(worker.lines) == 1
    worker.take(0.0, delay=0.0, listed=True)
    request, _ = worker.send()
    assert worker.turns.is_urgent
    assert worker.turns.take_paces() == {b"a": Pace(1.0, 0.0)}
    worker.end(request)
    assert worker.taken_back == ["a"]  # what all workers had of it went at the pace of each
    worker.take(0.0, delay=1.0)
    worker.end(worker.send()[0])
    assert worker.taken_back == ["a"]


def test_a_slot_that_another_worker_uses_is_unpaced_once(worker):
    # One was taken before the server heard it.
    assert worker.forbid(8) == worker.forbid(1) == {b"a": UNPACED}
    worker.now += 2
    assert not worker.forbid(20)  # the other one has told its pace again


def test_a_host_that_gets_some_requests_is_paced_however_many_are_forbidden(worker):
    worker.take(0.0)
    worker.end(worker.send()[0])
    assert not worker.forbid(19)
    assert len(worker.turns.take_unused()) == 19
    assert worker.turns.take_unused() == []


def test_slots_in_which_requests_wait_or_enough_are_sent_are_busy(worker):
    worker.take(0.0)
    request, slot = worker.send()
    slot.queue.clear()
    assert worker.turns.busy == [b"a"]
    slot.concurrency = 8
    assert worker.turns.busy == []
    slot.queue.append(request)
    assert worker.turns.busy == [b"a"]
    worker.end(request)
    assert worker.turns.busy == []


def test_the_configured_pace_of_a_slot_is_told_once(monkeypatch):
    worker = Worker(monkeypatch, delay=0.0, slow={"delay": 3.0})
    assert worker.turns.slot_for(Request("http://a/")) == b"a"
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
    worker.end(worker.send()[0])
    assert worker.turns.take_paces() == {b"a": Pace(1.0, 0.0)}


def test_a_pace_that_the_server_has_forgotten_is_told_again(monkeypatch):
    """It keeps them only for slots with requests."""
    worker = Worker(monkeypatch, delay=0.0, a={"delay": 3.0})
    worker.take(0.0, delay=0.0)
    request, slot = worker.send()
    slot.delay = 3.0
    worker.end(request)
    assert worker.turns.take_paces() == {b"a": Pace(3.0, 0.0)}


@pytest.mark.parametrize("seconds", [0, float("inf")])
def test_a_slot_may_be_left_alone_for_any_time(worker, seconds):
    (held,) = worker.turns.hold(Request("http://a/"), seconds).items()
    assert held[0] == b"a"
    assert held[1] == worker.now + min(seconds, LONGEST)


def test_autothrottle_is_shared(monkeypatch):
    worker = Worker(monkeypatch, delay=5.0, adjusts=True)
    worker.take(0.0, delay=5.0)
    request, slot = worker.send()
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
    request, slot = worker.send()
    assert slot.delay == 0.4
    worker.end(request)
    assert not worker.turns.take_paces()


def test_what_waits_here_of_a_slot_that_is_left_alone_goes_back(worker):
    first, _ = worker.take(0.0, 0.5), worker.take(0.0, slot=b"b")
    assert worker.turns.hold(Request("http://a/"), 60) == {b"a": worker.now + 60}
    assert worker.turns.pop().slot == b"b"
    assert worker.turns.pop() is None
    assert worker.turns.take_returning() == first
    (more,) = worker.take(1.0)  # the server did not know it yet
    assert worker.turns.take_returning() == [more]
    (after,) = worker.take(60.0)
    worker.now += 60
    assert worker.turns.pop() is after
    assert worker.turns.take_returning() == []


def test_a_slot_that_is_left_alone_for_no_time_is_served(worker):
    (taken,) = worker.take(0.0)
    assert worker.turns.hold(Request("http://a/"), 0) == {b"a": worker.now}
    assert worker.turns.pop() is taken


def test_slots_that_other_workers_left_alone_are_known_until_they_are_not(monkeypatch):
    worker = Worker(monkeypatch)
    request = Request("http://a/")
    assert worker.turns.held_until(request) == 0
    worker.turns.heed({b"a": worker.now + 60, b"b": worker.now + 90})
    assert worker.turns.held_until(request) == worker.now + 60
    worker.now += 60
    assert worker.turns.held_until(request) == 0
    worker.turns.heed({b"c": worker.now + 1})
    assert set(worker.turns.holds) == {b"b", b"c"}


@pytest.mark.parametrize("key", [[], 5], ids=["not hashable", "no text"])
def test_a_request_whose_slot_is_unknown_is_filed_without_a_pace(worker, key):
    """Scrapy says what is wrong with it when it is sent."""
    assert worker.turns.slot_for(Request("http://a/", meta={"download_slot": key})) == b""
    assert worker.turns.take_paces() == {b"": UNPACED}
    assert len(worker.lines) == 1


@pytest.mark.parametrize("passed_over", [False, True])
def test_a_worker_rests_only_if_no_slot_was_passed_over(passed_over):
    """The log said that nothing could be fetched for half a minute, and the next page came."""
    pacing = Pacing((), (), 16)
    busy = [b"a"] if passed_over else []
    pacing.note_called(Call(take=16, busy=busy), Answer(next_turn=30.0))
    assert pacing.rests is not passed_over
