"""What must not be sent yet: requests that wait for a time, and slots that are left alone."""

import time

import pytest
from support.internals import clock_of_redis

from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.redis import worker as workers
from scrapy_bloom.redis.worker import delete
from scrapy_bloom.values import LONGEST

NOW = 1_700_000_000.0
SECOND = Pace(1.0, 0.0)
HOUR = 3600.0
NEAR = 0.2
"""Waits are counted in this process's clock, and the server's stands still meanwhile."""


@pytest.fixture(autouse=True)
def set_clock(server):
    with clock_of_redis(server.client(), NOW) as set_clock:
        yield set_clock


def names(taken):
    return [each.body.decode() for each in taken]


def hold(worker, slot, seconds):
    worker.queue.next_call.holds[slot] = time.monotonic() + seconds
    worker.exchange()


# Requests


def test_each_call_moves_a_portion_and_says_that_there_are_more(worker, set_clock):
    """Each waits from when it was enqueued, although it could not be said for 50 s."""
    worker.offer(*range(120), wait=60)
    for entry in worker.queue._buffer:  # noqa: SLF001 - no test waits for so long
        entry.due -= 50
    worker.say()
    set_clock(NOW + 10 + NEAR)
    counts = []
    while not counts or counts[-1]:
        exchange = worker.exchange(500)
        counts.append(worker.queue.worker.counts.later)
        assert (exchange.next_turn == 0) is bool(counts[-1])
    assert counts == [70, 20, 0]
    assert sorted(map(int, worker.have)) == [*range(120)]


def test_what_waits_and_which_slots_are_left_alone_can_be_read_and_deleted(crawl, set_clock):
    now = crawl.client.time()[0]  # which the reader asks
    set_clock(now + HOUR)
    worker = crawl.join()
    worker.offer("a", slot="a")
    worker.offer("b", slot="a", wait=60)
    worker.offer("c", slot="a", wait=90)
    hold(worker, b"x", 30)
    worker.say()
    set_clock(now)
    worker.exchange()
    reader = worker.queue.reader
    facts = reader.schedule(5)
    assert (facts["later"], round(facts["next_due"] - now)) == (2, 60)
    assert {slot: round(until - now) for slot, until in facts["holds"].items()} == {"x": 30}
    assert names(reader.upcoming(9)) == ["a"]
    assert delete(worker.queue.link, crawl.key, {worker.queue.worker.name}, note=False) == {}
    assert not crawl.client.keys(f"*{crawl.key}*")


# Slots


@pytest.mark.parametrize("pace", [UNPACED, Pace(40.0, 0.0)])
def test_a_slot_is_left_alone_and_others_are_not(crawl, set_clock, monkeypatch, pace):
    monkeypatch.setattr(workers, "AHEAD", 20.0)
    worker, other = crawl.join(pace), crawl.join(pace)
    worker.offer("a1", "a2", slot="a")
    worker.add("b1", slot="b")
    hold(worker, b"a", 60)
    hold(worker, b"a", 30)  # what is shorter changes nothing
    exchange = other.exchange(9)
    assert names(exchange.taken) == ["b1"]
    assert exchange.next_turn == pytest.approx(40, abs=5)
    other.offer("a3", slot="a")
    assert not other.exchange(9).taken
    set_clock(NOW + 50)  # taken ahead, and sent when it is over
    taken, now = other.exchange(9).taken, time.monotonic()
    assert names(taken) == (["a1"] if pace.delay else ["a1", "a2", "a3"])
    for each in taken:
        assert each.start - now == pytest.approx(10, abs=5)


def test_nothing_that_moves_a_turn_ends_a_hold(crawl, set_clock):
    worker = crawl.join(Pace(40.0, 0.0))
    worker.offer(*range(9), slot="a")
    (first,) = worker.exchange(9).taken
    worker.queue.put_back(first)  # its turn would be now
    hold(worker, b"a", 30)
    assert not worker.exchange(9).taken
    worker.queue.next_call.paces[b"a"] = SECOND  # it would be a second after the last
    worker.exchange()
    assert not worker.exchange(9).taken
    hold(worker, b"a", LONGEST)
    set_clock(NOW + 365 * 24 * HOUR)
    assert not worker.exchange(9).taken


@pytest.mark.parametrize("kind", ["frees", "holds"])
def test_as_many_slots_are_forgotten_as_are_added(crawl, set_clock, kind):
    """However many they are, once a second 500 were."""
    worker, most = crawl.join(Pace(0.1, 0.0)), 0
    for step in range(10):
        set_clock(NOW + step * 0.2)
        slots = [f"{step}:{n}" for n in range(400)]
        if kind == "holds":
            until = time.monotonic() + 0.1
            worker.queue.next_call.holds.update((slot.encode(), until) for slot in slots)
        else:
            for slot in slots:
                worker.offer(slot, slot=slot)
            worker.say()
        worker.exchange(500)
        most = max(most, crawl.client.zcard(crawl.base + kind))
    assert most <= 3 * 400  # at first, turns are half a second away


def test_the_answer_names_the_hosts_that_are_left_alone_when_they_change(crawl, set_clock):
    """With each answer it took the server a millisecond more, and 20 KB, if they were 500."""
    one, other = crawl.join(), crawl.join()
    hold(one, b"a", HOUR)
    hold(one, b"b", 60)
    held, now = other.exchange().held, time.monotonic()
    assert {slot: round(until - now, -1) for slot, until in held.items()} == {b"a": HOUR, b"b": 60}
    assert [*other.exchange().held] == []
    hold(one, b"a", 60)  # which changes nothing
    assert [*other.exchange().held] == []
    hold(one, b"b", 120)
    assert sorted(other.exchange().held) == [b"a", b"b"]
    set_clock(NOW + 121)
    assert [*other.exchange().held] == []
    assert [*crawl.join().exchange().held] == [b"a"]
    other.queue.worker.rename()  # as after a surprise
    assert [*other.exchange().held] == [b"a"]


def test_more_hosts_than_an_answer_has_room_for_are_named_again(crawl, set_clock):
    """The first ones are over first."""
    one, other = crawl.join(), crawl.join()
    for number in range(501):
        one.queue.next_call.holds[b"%d" % number] = time.monotonic() + 100 + number
    one.exchange()
    assert len(other.exchange().held) == 500
    set_clock(NOW + 110)
    one.beat()
    assert b"500" in other.exchange().held


@pytest.mark.parametrize("notices", ["call", "heartbeat"])
def test_a_clock_that_goes_back_lets_nobody_wait_longer(worker, set_clock, notices):
    worker.offer("waits", slot="a", wait=60)
    worker.add("held", slot="b")
    hold(worker, b"b", 60)
    for hours in (1, 2):
        set_clock(NOW - hours * HOUR)
        if notices == "heartbeat":
            worker.beat()
        else:
            assert not worker.exchange(9).taken
    set_clock(NOW - 2 * HOUR + 60 + NEAR)
    assert sorted(worker.take(9)) == ["held", "waits"]
