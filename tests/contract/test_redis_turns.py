"""Turns: all workers keep one pace for each download slot, and no loss makes a slot stand still."""

import time
from itertools import pairwise
from operator import attrgetter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.internals import clock_of_redis
from support.queues import all_are_well, left, shift_leases
from support.waiting import until

from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.redis import worker as workers
from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.worker import MOST_DEATHS

SECOND = Pace(1.0, 0.0)
NOW = 1_700_000_000.0


@pytest.fixture
def far(server, monkeypatch):
    """Let workers take requests a minute ahead, while all clocks stand still."""
    monkeypatch.setattr(workers, "AHEAD", 60.0)
    monkeypatch.setattr("scrapy_bloom.redis.member.time", SimpleNamespace(monotonic=lambda: 1000.0))
    with clock_of_redis(server.client(), NOW):
        yield


def names(taken):
    return [each.body.decode() for each in taken]


def gaps(taken):
    """Return the seconds between the starts of requests."""
    return [later - sooner for sooner, later in pairwise(sorted(each.start for each in taken))]


def turns_of(server, key, which="turns"):
    return dict(server.client().zrange(beginning(key) + which, 0, -1, withscores=True))


# Order and pace


@pytest.mark.usefixtures("far")
def test_a_slot_is_served_by_time_and_its_requests_by_priority(join):
    worker = join(SECOND)
    worker.offer("a1", "a2", slot="a")
    worker.offer("b1", slot="b")
    worker.offer("a0", slot="a", priority=5)
    taken = worker.exchange(10).taken
    assert sorted(names(taken[:2])) == ["a0", "b1"]
    assert names(taken[2:]) == ["a1", "a2"]
    assert taken[3].start - taken[2].start == pytest.approx(1.0, abs=1e-5)


def test_slots_without_a_delay_are_served_in_turn(join):
    worker = join(UNPACED)
    for host in "abc":
        worker.offer(*(f"{host}{n}" for n in range(4)), slot=host)
    first = worker.take(3)
    assert sorted(name[0] for name in first) == ["a", "b", "c"]
    assert len(worker.take(100)) == 9


def test_the_slowest_pace_holds_for_all_however_often_a_faster_worker_calls(join):
    slow, fast = join(Pace(60.0, 0.0)), join(UNPACED)
    slow.say()
    fast.offer("a", "b", slot="host")
    fast.say()
    fast.say()
    assert len(fast.take(2)) == 1
    assert fast.take(2) == []


@pytest.mark.usefixtures("far")
def test_jitter_is_that_of_the_slot(join):
    worker = join(Pace(1.0, 0.5))
    worker.offer(*range(40), slot="a")
    taken = worker.exchange(40).taken
    found = gaps(taken)
    assert len(found) == 39
    assert min(found) >= 0.5 - 1e-5
    assert max(found) <= 1.5 + 1e-5
    assert max(found) - min(found) > 0.2


@pytest.mark.usefixtures("far")
def test_the_longest_of_different_defaults_counts_while_its_worker_lives(server, join, key):
    slow, fast = join(Pace(5.0, 0.0)), join(SECOND)
    slow.say()
    fast.offer(*range(6), slot="a")
    assert gaps(fast.exchange(3).taken) == [pytest.approx(5.0, abs=1e-5)] * 2
    slow.queue.close()
    all_are_well(server, key)
    fast.queue.worker.beat()
    fast.offer(*"xyz", slot="b")
    taken = [each for each in fast.exchange(9).taken if each.slot == b"b"]
    assert gaps(taken) == [pytest.approx(1.0, abs=1e-5)] * 2


@pytest.mark.usefixtures("far")
def test_a_told_pace_holds_for_all_and_moves_the_next_turn(join):
    one, two = join(SECOND), join(SECOND)
    one.offer(*range(6), slot="a")
    one.exchange(1)
    one.queue.next_call.paces[b"a"] = Pace(10.0, 0.0)
    one.exchange()
    taken = two.exchange(2).taken
    assert [each.delay for each in taken] == [10.0, 10.0]
    assert all(each.listed for each in taken)
    assert gaps([one.have["0"], *taken]) == [pytest.approx(10.0, abs=1e-5)] * 2
    two.queue.next_call.paces[b"a"] = SECOND  # as the default: nothing is kept of it
    two.exchange()
    assert not one.exchange(1).taken[0].listed


def test_a_worker_that_was_taken_for_dead_tells_paces_again(server, join, key):
    one, two = join(SECOND), join(SECOND)
    one.offer(*range(2), slot="a")
    one.say()
    two.say()
    two.queue.next_call.paces[b"a"] = Pace(10.0, 0.0)
    shift_leases(server, key, -3600, two.queue.worker.name)
    all_are_well(server, key)
    one.queue.worker.beat()
    assert two.exchange().void
    assert two.exchange(1).taken[0].delay == 10.0


@pytest.mark.usefixtures("far")
def test_what_has_no_requests_keeps_its_pace(join):
    worker = join(SECOND)
    worker.offer("a", slot="a")
    first = worker.exchange(9).taken
    worker.offer("b", slot="a")
    second = worker.exchange(9).taken
    assert gaps([*first, *second]) == [pytest.approx(1.0, abs=1e-5)]


def test_busy_slots_come_last_and_with_a_delay_not_at_all(join):
    worker = join(SECOND)
    worker.queue.next_call.paces[b"free"] = UNPACED
    worker.offer("a", slot="paced")
    worker.offer("b", slot="free")
    worker.offer("c", slot="other")
    taken = worker.exchange(9, busy=[b"paced", b"free"]).taken
    assert names(taken) == ["c", "b"]


# Turns that are not used


def test_a_worker_may_have_enough_of_any_number_of_slots(join):
    """At some 8,000 Lua could not hand them on, and all marks were dropped."""
    worker, slots = join(UNPACED), [f"host {n}" for n in range(8100)]
    for slot in slots:
        worker.offer(slot, slot=slot)
    worker.say()
    assert len(worker.exchange(9, busy=[slot.encode() for slot in slots]).taken) == 9


@pytest.mark.usefixtures("far")
def test_an_unused_turn_is_given_back_unless_a_later_one_is_set(join):
    worker = join(SECOND)
    worker.offer(*range(6), slot="a")
    first, second = worker.exchange(2).taken
    worker.queue.give_back_turn(first)  # the second one's is set
    worker.exchange()
    (third,) = worker.exchange(1).taken
    assert third.start - second.start == pytest.approx(1.0, abs=1e-5)
    worker.queue.give_back_turn(third)
    worker.queue.end(third)
    (fourth,) = worker.exchange(1).taken
    assert fourth.start == pytest.approx(third.start, abs=1e-5)


@pytest.mark.usefixtures("far")
def test_what_is_put_back_gives_its_turn_back(join):
    worker = join(SECOND)
    worker.offer(*range(3), slot="a")
    taken = worker.exchange(3).taken
    for each in reversed(taken):
        worker.queue.put_back(each)
    worker.exchange()
    again = worker.exchange(3).taken
    assert names(again) == names(taken)
    assert again[0].start == taken[0].start
    assert gaps(again) == [pytest.approx(1.0, abs=1e-5)] * 2


@pytest.mark.usefixtures("far")
def test_a_turn_lasts_as_long_as_its_worker_may_be_late(join):
    late, punctual = join(SECOND), join(SECOND)
    late.offer("a", "b", slot="a")
    late.offer("c", "d", slot="b")
    late.queue.next_call.paces[b"b"] = UNPACED
    late.say()
    call = late.queue.prepare(2, default=SECOND, slack=5.0)
    taken = late.queue.carry_out(call).taken
    assert [each.slack for each in taken] == [5.0, 5.0]
    taken += punctual.exchange(4).taken
    found = {slot: gaps(each for each in taken if each.slot == slot) for slot in (b"a", b"b")}
    assert found == {b"a": [pytest.approx(6.0, abs=1e-5)], b"b": [pytest.approx(0.0, abs=1e-5)]}


# What is kept of slots


def test_of_slots_that_have_ended_no_pace_is_kept(server, join, key):
    """AutoThrottle tells it with the last page, and nothing removed it."""
    worker, slots = join(Pace(0.001, 0.0)), [f"host {n}" for n in range(200)]
    for slot in slots:
        worker.offer(slot, slot=slot)
    worker.take(200)
    until(lambda: not (worker.exchange(), turns_of(server, key, "frees"))[1])
    worker.queue.next_call.paces.update((slot.encode(), SECOND) for slot in slots)
    worker.done()
    worker.exchange()
    assert server.client().hlen(beginning(key) + "delays") == 0


def test_what_is_kept_of_dead_workers_is_bounded(server, join, key):
    """Each sweep read the records of a day: with a kill a second these were 86,400."""
    worker, client = join(UNPACED), server.client()
    now = client.time()[0]
    records = {f"w:{n}": f"7 dead {now - n}" for n in range(1000)}
    client.hset(key, mapping=records)
    sweep(server, worker, key)
    assert {*records} & {name.decode() for name in client.hkeys(key)} == {*[*records][:200]}


def sweep(server, worker, key):
    """Let a heartbeat find that a sweep is due."""
    all_are_well(server, key)
    worker.queue.worker.beat()


# Losses


def test_turns_that_are_lost_again_while_they_are_rebuilt_are_rebuilt_from_the_start(
    server, join, key
):
    worker = join(UNPACED)
    for host in range(1200):
        worker.offer(host, slot=f"host {host}")
    worker.say()
    client, name = server.client(), beginning(key) + "turns"
    client.delete(name)
    worker.exchange()
    assert 0 < len(turns_of(server, key)) < 1200  # a portion with each call
    client.delete(name)
    for _ in range(5):
        worker.exchange()
    assert len(turns_of(server, key)) == 1200


def test_what_dead_workers_had_comes_back_in_portions(server, join, key):
    rescuer, victim = join(UNPACED), join(UNPACED)
    rescuer.offer(*range(1000), slot="a")
    rescuer.say()
    for _ in range(4):
        victim.exchange(250)
    shift_leases(server, key, -3600, victim.queue.worker.name)
    counts = []
    while left(server, key)[1]:
        all_are_well(server, key)
        rescuer.queue.worker.beat()
        counts.append(left(server, key)[1])
    assert len(counts) > 1
    assert left(server, key) == (1000, 0, 0)


def test_the_next_turn_is_told(join):
    worker = join(Pace(10.0, 0.0))
    assert worker.exchange(1).next_turn == float("inf")
    worker.offer("a", "b", slot="a")
    assert worker.exchange(1).next_turn == 0  # there may be more
    assert 5 < worker.exchange(1).next_turn <= 10.0


def test_a_slot_with_nothing_but_risky_requests_does_not_block_others(server, join, key):
    worker = join(UNPACED)
    worker.queue.next_call.paces[b"c"] = SECOND
    worker.offer("a", "b", slot="a")
    worker.offer("c", "d", slot="c")  # so that there are turns while it waits for the second one
    worker.say()
    client, base = server.client(), beginning(key)
    for member in client.zrange(base + "queue", 0, -1):
        if member[2:3] == b"a":
            client.zrem(base + "queue", member)
            client.zadd(base + "queue", {member[:-1] + bytes([MOST_DEATHS - 1]): 0})
    hauls = []
    for _ in range(4):
        hauls.append([each.slot for each in worker.exchange(9).taken])
        worker.done()
    assert hauls.count([b"a"]) == 2  # each risky one alone
    assert [b"c"] in hauls


@given(slot=st.binary(max_size=1000), body=st.binary(max_size=50), priority=st.integers())
def test_heads_sort_by_slot_and_priority(slot, body, priority):
    head, stored = Entry("f", b"mark", body, priority, slot=slot).queued
    taken = Taken.read_parts(head + bytes(13), stored)
    assert (taken.slot, taken.body, taken.fingerprint) == (slot, body, b"mark")
    assert taken.priority == max(-(2**53), min(2**53, priority))
    higher, _ = Entry("f", b"mark", body, priority + 1, slot=slot).queued
    assert higher <= head


def test_no_turn_of_a_slot_with_a_delay_comes_before_its_answer(join):
    """It would be over by then, and the one after it would come too soon."""
    worker = join(SECOND)
    worker.offer("a", slot="a")
    worker.say()
    call = worker.queue.prepare(1, default=SECOND)
    call.lead, before = 0.3, time.monotonic()
    (taken,) = worker.queue.carry_out(call).taken
    assert before + 0.3 <= taken.start <= time.monotonic() + 0.3


def test_a_worker_knows_how_long_answers_take(join):
    worker = join(SECOND)
    for _ in range(51):
        call = worker.queue.prepare(0, look=True)
        worker.queue.settle(call, worker.queue.carry_out(call))
    low = call.lead
    for _ in range(11):
        late = worker.queue.prepare(0, look=True)
        answer, sent = worker.queue.carry_out(late), time.monotonic()
        until(lambda: time.monotonic() > sent + low + 0.05)  # noqa: B023
        worker.queue.settle(late, answer)
    assert worker.queue.prepare(1).lead > low


# Reading


@pytest.mark.usefixtures("far")
def test_upcoming_requests_are_listed_in_the_order_in_which_they_go(join, key):
    worker = join(Pace(10.0, 0.0))
    worker.offer("a1", "a2", "a3", slot="a")
    worker.offer("b1", "b2", slot="b")
    worker.queue.next_call.paces[b"b"] = Pace(15.0, 0.0)
    worker.say()
    reader = Reader(worker.queue.link, key)
    first = names(reader.upcoming(2))
    assert sorted(first) == ["a1", "b1"]
    assert reader.schedule(1)["hosts"] == 2
    assert sorted(worker.take(2)) == sorted(first)
    listed = names(reader.upcoming(3))
    assert listed == ["a2", "b2", "a3"]
    taken = sorted(worker.exchange(3).taken, key=attrgetter("start"))
    assert names(taken) == listed


def test_what_a_scan_left_out_comes_back_with_the_next_one(server, join, key):
    """A scan of a hash does not survive a restart of the server in its middle."""
    rescuer, victim = join(UNPACED), join(UNPACED)
    rescuer.offer(*range(3), slot="a")
    rescuer.say()
    victim.exchange(3)
    name = victim.queue.worker.name
    server.client().hdel(key, f"w:{name}", f"a:{name}", "sweep")
    all_are_well(server, key)
    rescuer.queue.worker.beat()
    assert left(server, key) == (3, 0, 0)
