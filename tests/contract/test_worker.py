"""One worker: what it does with its turns, what it knows without asking, and how it says things."""

from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.settings import Settings
from support.contract import fingerprints
from support.queues import plan_of

from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Downloads, Pace
from scrapy_bloom.redis import turns as module
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.member import Taken
from scrapy_bloom.redis.pacing import Pacing
from scrapy_bloom.redis.turns import Turns
from scrapy_bloom.redis.wire import Answer, Call, pack
from scrapy_bloom.values import LONGEST


class Slot:
    """A slot of Scrapy's downloader, as far as it is looked at."""

    def __init__(self, delay, jitter=0.0):
        self.delay, self.jitter, self.concurrency = delay, jitter, 1
        self.queue, self.lastseen, self.close = [], 0.0, lambda: None
        self.free_transfer_slots = lambda: self.concurrency


class Worker:
    """A worker whose engine and downloader are led by a test.

    :param delay: of all slots but those in `per_slot`.
    :param adjusts: whether there is AutoThrottle.
    """

    def __init__(self, monkeypatch, delay=1.0, *, adjusts=False, **per_slot):
        self.now, self.delay, self.slots = 1000.0, delay, {}
        self.active, self.lines, self.taken_back = set(), [], []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        downloader = SimpleNamespace(
            _delay=delay, _jitter=0.0, slots=self.slots, per_slot_settings=per_slot
        )
        crawler = SimpleNamespace(
            engine=SimpleNamespace(downloader=downloader),
            settings=Settings({"AUTOTHROTTLE_ENABLED": adjusts}),
        )
        downloads = Downloads(crawler)
        downloads._clock = lambda: self.now  # noqa: SLF001 - no other way to set it
        self.slot_of = lambda request: request.meta.get("download_slot", "a")
        engine = SimpleNamespace(
            has=self.active.__contains__, requeue_slot=self.taken_back.append, slot_of=self.slot_of
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
        """Give the next request to the engine; return it."""
        request = Request("http://a/", meta=meta)
        self.active.add(request)
        self.turns.begin(request, self.turns.pop())
        return request

    def send(self, *, late=0.0, **meta):
        """Let the next request reach the downloader; return it and its slot there.

        :param late: seconds that middlewares take.
        """
        request = self.begin(**meta)
        self.now += late
        slot = self.slots.setdefault(self.slot_of(request), Slot(self.delay))
        self.turns.reach(request)
        slot.queue.append((request, None))
        return request, slot

    def end(self, request):
        self.active.discard(request)
        self.turns.collect_finished()

    def forbid(self, count):
        """Take requests that never reach the downloader; return what is told of paces then."""
        self.take(*[0.0] * count)
        for _ in range(count):
            self.end(self.begin())
        return self.turns.pop_paces()


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
    taken, _ = worker.take(0.0, 1.0)
    slot = worker.slots["a"] = Slot(1.0, jitter=0.5)
    slot.queue += waiting
    slot.lastseen = worker.now + late - last_sent
    request, _ = worker.send(late=late)
    assert worker.now - slot.lastseen == pytest.approx(then_sent)
    assert worker.turns.is_urgent is bool(goes_back)
    worker.end(request)
    assert worker.taken_back == goes_back
    assert worker.now - slot.lastseen == pytest.approx(last_sent if goes_back else then_sent)
    is_late = late > 0.05
    assert len(worker.turns.pop_unused()) == is_late  # after robots.txt the turn is used
    assert taken.reached is not is_late  # else a worker that leaves would give it back


def test_requests_that_would_wait_until_another_one_ends_go_back_with_their_turns(worker):
    """They were sent whenever that was, and the host got two within 12 ms."""
    taken = worker.take(0.0, 0.0)
    worker.slots["a"] = Slot(1.0)
    worker.slots["a"].free_transfer_slots = lambda: 0
    requests = [worker.send()[0] for _ in taken]
    for request in requests:
        worker.end(request)
    assert worker.taken_back == ["a"]
    assert sorted(worker.turns.pop_unused(), key=taken.index) == taken
    assert worker.turns.pop_paces() == {}


def test_after_a_long_callback_requests_go_back_and_turns_last_longer_until_they_are_used(worker):
    taken, lengths = worker.take(0.0, 1.0, 2.0), []
    worker.now += 10
    assert worker.turns.pop() is None
    assert worker.turns.pop_requeued() == taken
    while not worker.turns.pop():
        assert len(lengths) < 20
        worker.take(0.0, slack=worker.turns.slack)
        lengths.append(worker.turns.slack)
        worker.now += 10
    assert 0 < lengths[0] < 1
    assert lengths == sorted(lengths)
    assert worker.turns.slack == pytest.approx(10 - 0.05)
    worker.take(0.0, slack=worker.turns.slack)
    worker.send()
    assert worker.turns.slack < 9.9


def test_a_slot_whose_turns_are_not_used_is_unpaced_until_one_is(worker):
    worker.take(*[0.0] * 8)
    for n in range(8):
        assert not worker.turns.pop_paces()
        worker.end(worker.send(download_slot=f"proxy {n}")[0])
    assert worker.turns.pop_paces() == {b"a": UNPACED}
    assert len(worker.lines) == 1
    worker.take(0.0, delay=0.0, listed=True)
    request, _ = worker.send()
    assert worker.turns.is_urgent
    assert worker.turns.pop_paces() == {b"a": Pace(1.0, 0.0)}
    worker.end(request)
    assert worker.taken_back == ["a"]  # what all workers had of it went at the pace of each
    worker.take(0.0, delay=1.0)
    worker.end(worker.send()[0])
    assert worker.taken_back == ["a"]


def test_a_host_that_gets_some_requests_is_paced_however_many_are_forbidden(worker):
    # One was taken before the server heard it.
    assert worker.forbid(8) == worker.forbid(1) == {b"a": UNPACED}
    worker.now += 2
    assert not worker.forbid(20)  # the other one has told its pace again
    assert len(worker.turns.pop_unused()) == 29
    worker.take(0.0)
    worker.end(worker.send()[0])
    assert not worker.forbid(19)
    assert len(worker.turns.pop_unused()) == 19
    assert worker.turns.pop_unused() == []


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
    assert not worker.turns.pop_paces()
    slow = Request("http://a/", meta={"download_slot": "slow"})
    assert worker.turns.slot_for(slow) == b"slow"
    assert worker.turns.pop_paces() == {b"slow": Pace(3.0, 0.0)}
    worker.turns.slot_for(slow)
    assert not worker.turns.pop_paces()  # once is enough
    worker.turns.start_over()
    worker.turns.slot_for(slow)
    assert worker.turns.pop_paces()


@pytest.mark.parametrize(
    ("default", "adjusts", "taken", "measured", "told"),
    [
        pytest.param(1.0, False, (30.0, True), 1.0, 1.0, id="no longer configured"),
        pytest.param(0.0, False, (0.0, False), 3.0, 3.0, id="forgotten with its requests"),
        pytest.param(5.0, True, (5.0, False), 2.0, 2.0, id="measured by AutoThrottle"),
        pytest.param(5.0, True, (0.4, True), 0.4, None, id="adopted from other workers"),
    ],
)
def test_a_delay_is_told_unless_the_slot_was_served_by_it(
    monkeypatch, default, adjusts, taken, measured, told
):
    worker = Worker(monkeypatch, delay=default, adjusts=adjusts)
    delay, listed = taken
    worker.take(0.0, delay=delay, listed=listed)
    request, slot = worker.send()
    assert slot.delay == (measured if told is None else default)
    slot.delay = measured
    worker.end(request)
    assert worker.turns.pop_paces() == ({} if told is None else {b"a": Pace(told, 0.0)})


def test_what_autothrottle_has_measured_counts_until_another_worker_tells(monkeypatch):
    worker = Worker(monkeypatch, delay=5.0, adjusts=True)
    worker.take(0.0, delay=5.0)
    request, slot = worker.send()
    slot.delay = 2.0
    worker.end(request)
    assert worker.turns.pop_paces() == {b"a": Pace(2.0, 0.0)}
    slot.delay = 1.5
    worker.take(0.0, delay=2.0, listed=True)  # as told
    assert slot.delay == 1.5
    worker.take(0.0, delay=1.2, listed=True)
    assert slot.delay == 1.2


def test_what_waits_here_of_a_slot_that_is_left_alone_goes_back(worker):
    first, (other,) = worker.take(0.0, 0.5), worker.take(0.0, slot=b"b")
    request = Request("http://a/")
    assert worker.turns.paused_until(request) == 0
    assert worker.turns.pause_host(request, 60) == {b"a": worker.now + 60}
    assert worker.turns.pop() is other
    assert worker.turns.pop() is None
    assert worker.turns.pop_requeued() == first
    (more,) = worker.take(1.0)  # the server did not know it yet
    assert worker.turns.pop_requeued() == [more]
    (after,) = worker.take(60.0)
    worker.now += 60
    assert worker.turns.pop() is after
    assert worker.turns.pop_requeued() == []


def test_slots_that_other_workers_left_alone_are_known_until_they_are_not(worker):
    request = Request("http://a/")
    worker.turns.heed({b"a": worker.now + 60, b"b": worker.now + 90})
    assert worker.turns.paused_until(request) == worker.now + 60
    worker.now += 60
    assert worker.turns.paused_until(request) == 0
    worker.turns.heed({b"c": worker.now + 1})
    assert set(worker.turns.pauses) == {b"b", b"c"}


def test_a_slot_may_be_left_alone_for_any_time(worker):
    one, _ = worker.take(0.0, 0.0)
    assert worker.turns.pause_host(Request("http://a/"), 0) == {b"a": worker.now}
    assert worker.turns.pop() is one
    assert worker.turns.pause_host(Request("http://a/"), float("inf")) == {
        b"a": worker.now + LONGEST
    }
    assert worker.turns.pop() is None


@pytest.mark.parametrize("key", [[], 5], ids=["not hashable", "no text"])
def test_a_request_whose_slot_is_unknown_is_filed_without_a_pace(worker, key):
    """Scrapy says what is wrong with it when it is sent."""
    assert worker.turns.slot_for(Request("http://a/", meta={"download_slot": key})) == b""
    assert worker.turns.pop_paces() == {b"": UNPACED}
    assert len(worker.lines) == 1


@pytest.mark.parametrize("passed_over", [False, True])
def test_a_worker_that_has_passed_over_a_slot_does_not_rest_and_asks_at_once(
    monkeypatch, passed_over
):
    """Once a page ends. Two workers with two slow transfers each used three quarters of them."""
    monkeypatch.setattr(module.time, "monotonic", lambda: 1000.0)
    pacing, busy = Pacing((), (), 16), [b"a"] if passed_over else []
    pacing.record_call(Call(take=16, busy=busy), Answer(next_turn=30.0))
    assert pacing.is_idle is not passed_over
    pacing.record_finished(0)
    assert not pacing.want()
    pacing.record_finished(1)
    assert bool(pacing.want()) is passed_over


# What it knows


@pytest.mark.parametrize("most", [0, 100])
def test_a_worker_knows_as_much_as_it_may_and_asks_for_the_rest(server, key, most):
    """A set that is emptied when it is full answers half as many links of a large site."""
    marks = fingerprints(150)
    with RedisFilter(Server(server.url), key, plan_of(), timeout=10.0, known=most) as seen:
        for some in marks[:100], marks[100:]:
            assert not any(seen.add_many(some))
            assert sum(map(seen.worker.knows, marks)) == most
        assert all(seen.add_many(marks))


# What a call says: whatever is in it, it can be written


def test_flags_numbers_and_entries_are_those_of_lua(server):
    text = "local it = cmsgpack.unpack(ARGV[1]); return {it.yes and 1, it.no or 2, it.at[7]}"
    said = pack({"yes": True, "no": False, "at": {7: "seven"}})
    assert server.client().eval(text, 0, said) == [1, 2, b"seven"]


def test_halves_of_characters_become_question_marks():
    """A call that cannot be written is in the way of all that follow."""
    assert pack("a\ud800") == pack("a?")
