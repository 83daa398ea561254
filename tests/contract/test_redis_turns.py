"""When requests are sent: all workers keep one pace for each slot, and none stands still."""

import time
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.queues import shift_leases
from support.waiting import until
from support.windows import START

from scrapy_bloom.crawl.scrapy.downloads import UNPACED, Pace
from scrapy_bloom.redis import worker as workers
from scrapy_bloom.redis.member import Entry, Taken
from scrapy_bloom.redis.worker import MOST_DEATHS, delete
from scrapy_bloom.values import LONGEST

SECOND = Pace(1.0, 0.0)
HOUR = 3600.0
HERE = 1000.0


@pytest.fixture
def still(set_clock, monkeypatch):
    """Return what sets the clock of the server: otherwise all clocks stand still."""
    monkeypatch.setattr(time, "monotonic", lambda: HERE)
    return set_clock


@pytest.fixture
def far(still, crawl, monkeypatch):  # noqa: ARG001
    """A crawl whose workers take requests a minute ahead, while all clocks stand still."""
    monkeypatch.setattr(workers, "AHEAD", 60.0)
    return crawl


def about(seconds):
    return pytest.approx(seconds, abs=1e-5)


def pause(worker, slot, seconds):
    worker.queue.next_call.pauses[slot] = time.monotonic() + seconds
    worker.exchange()


def names(taken):
    return [each.body.decode() for each in taken]


def gaps(taken):
    """Return the seconds between the starts of requests."""
    return [later - sooner for sooner, later in pairwise(sorted(each.start for each in taken))]


# Order and pace


def test_a_slot_is_served_by_time_and_its_requests_by_priority(far):
    worker = far.join(SECOND)
    worker.offer("a1", "a2", slot="a")
    worker.offer("b1", slot="b")
    worker.add("a0", slot="a", priority=5)
    reader = worker.queue.reader
    assert reader.schedule(1)["hosts"] == 2
    listed = names(reader.upcoming(9))
    assert sorted(listed[:2]) == ["a0", "b1"]
    assert listed[2:] == ["a1", "a2"]
    assert names(reader.upcoming(2)) == listed[:2]
    taken = worker.exchange(10).taken
    assert names(taken) == listed
    worker.offer("a3", slot="a")
    taken += worker.exchange(10).taken
    assert gaps(taken[2:]) == [about(1.0)] * 2


def test_slots_without_a_delay_are_served_in_turn(worker):
    for host in "abc":
        worker.offer(*(f"{host}{n}" for n in range(4)), slot=host)
    first = worker.take(3)
    assert sorted(name[0] for name in first) == ["a", "b", "c"]
    assert len(worker.take(100)) == 9


def test_jitter_is_that_of_the_slot(far):
    worker = far.join(Pace(1.0, 0.5))
    worker.offer(*range(40), slot="a")
    found = gaps(worker.exchange(40).taken)
    assert len(found) == 39
    assert min(found) >= 0.5 - 1e-5
    assert max(found) <= 1.5 + 1e-5
    assert max(found) - min(found) > 0.2


def test_the_longest_of_different_defaults_counts_while_its_worker_lives(far):
    slow, fast = far.join(Pace(5.0, 0.0)), far.join(UNPACED)
    slow.say()
    fast.add(*range(6), slot="a")
    fast.say()
    assert gaps(fast.exchange(3).taken) == [about(5.0)] * 2
    slow.queue.close()
    far.sweep(by=fast)
    fast.offer(*"xyz", slot="b")
    taken = [each for each in fast.exchange(9).taken if each.slot == b"b"]
    assert gaps(taken) == [about(0.0)] * 2


def test_a_told_pace_holds_for_all_and_moves_the_next_turn(far):
    one, two = far.join(SECOND), far.join(SECOND)
    one.offer(*range(6), slot="a")
    one.exchange(1)
    one.queue.next_call.paces[b"a"] = Pace(10.0, 0.0)
    one.exchange()
    taken = two.exchange(2).taken
    assert [(each.delay, each.listed) for each in taken] == [(10.0, True)] * 2
    assert gaps([one.have["0"], *taken]) == [about(10.0)] * 2
    two.queue.next_call.paces[b"a"] = SECOND  # as the default: nothing is kept of it
    two.exchange()
    assert not one.exchange(1).taken[0].listed
    two.queue.next_call.paces[b"a"] = Pace(20.0, 0.0)
    shift_leases(far.server, far.key, -3600, two.queue.worker.name)
    far.sweep(by=one)
    assert two.exchange().void
    assert two.exchange(1).taken[0].delay == 20.0


def test_busy_slots_come_last_and_with_a_delay_not_at_all(crawl):
    worker = crawl.join(SECOND)
    worker.queue.next_call.paces[b"free"] = UNPACED
    for name, slot in ("a", "paced"), ("b", "free"), ("c", "other"):
        worker.offer(name, slot=slot)
    assert names(worker.exchange(9, busy=[b"paced", b"free"]).taken) == ["c", "b"]


def test_a_worker_may_have_enough_of_any_number_of_slots(worker):
    """At some 8,000 Lua could not hand them on, and all marks were dropped."""
    slots = [f"host {n}" for n in range(8100)]
    for slot in slots:
        worker.offer(slot, slot=slot)
    worker.say()
    assert len(worker.exchange(9, busy=[slot.encode() for slot in slots]).taken) == 9


# When turns are


def test_an_unused_turn_is_given_back_unless_a_later_one_is_set(far):
    worker = far.join(SECOND)
    worker.offer(*range(6), slot="a")
    first, second = worker.exchange(2).taken
    worker.queue.give_back_turn(first)  # the second one's is set
    worker.exchange()
    (third,) = worker.exchange(1).taken
    assert third.start - second.start == about(1.0)
    worker.queue.give_back_turn(third)
    worker.queue.end(third)
    (fourth,) = worker.exchange(1).taken
    assert fourth.start == about(third.start)
    worker.queue.requeue(fourth)  # with its turn, as do those before it
    worker.queue.requeue(second)
    worker.exchange()
    again = worker.exchange(2).taken
    assert names(again) == names([second, fourth])
    assert [each.start for each in again] == [second.start, about(fourth.start)]


def test_a_worker_that_leaves_gives_back_the_turns_that_it_has_not_used(far):
    """The host would get the next request at once."""
    leaves, stays = far.join(SECOND), far.join(SECOND)
    leaves.offer(*range(4), slot="a")
    sent, *_ = leaves.exchange(3).taken
    sent.reached = True
    leaves.queue.close()
    assert stays.exchange(1).taken[0].start - sent.start == about(1.0)


def test_a_turn_lasts_as_long_as_its_worker_may_be_late(far):
    late, punctual = far.join(SECOND), far.join(SECOND)
    late.offer("a", "b", slot="a")
    late.offer("c", "d", slot="b")
    late.queue.next_call.paces[b"b"] = UNPACED
    late.say()
    taken = late.exchange(2, slack=5.0).taken
    assert [each.slack for each in taken] == [5.0, 5.0]
    taken += punctual.exchange(4).taken
    found = {slot: gaps(each for each in taken if each.slot == slot) for slot in (b"a", b"b")}
    assert found == {b"a": [about(6.0)], b"b": [about(0.0)]}


def test_no_turn_of_a_slot_with_a_delay_comes_before_its_answer(crawl):
    """It would be over by then, and the one after it too soon. So workers time their answers."""
    worker = crawl.join(SECOND)
    worker.add("a", slot="a")
    call = worker.queue.prepare(1, default=SECOND)
    call.lead, before = 0.3, time.monotonic()
    (taken,) = worker.queue.carry_out(call).taken
    assert before + 0.3 <= taken.start <= time.monotonic() + 0.3
    for _ in range(51):
        worker.exchange()
    low = worker.queue.prepare(0, look=True).lead
    for _ in range(11):
        late = worker.queue.prepare(0, look=True)
        answer, sent = worker.queue.carry_out(late), time.monotonic()
        until(lambda: time.monotonic() > sent + low + 0.05)  # noqa: B023
        worker.queue.settle(late, answer)
    assert worker.queue.prepare(1).lead > low


def test_turns_are_where_the_server_sets_them_however_late_an_answer_is(
    set_clock, crawl, monkeypatch
):
    """They were moved, unseen: at a delay of two seconds a host got two requests in half a one."""
    monkeypatch.setattr(workers, "AHEAD", 60.0)
    here = SimpleNamespace(now=1000.0, monotonic=lambda: here.now)
    for name in ("wire", "worker"):
        monkeypatch.setattr(f"scrapy_bloom.redis.{name}.time", here)
    worker = crawl.join(SECOND)
    worker.add(*range(9), slot="a")
    run = worker.queue.link.run

    def take(there, back, ahead=0.0):
        """Take a request with a call and an answer that take so long."""

        def travel(*arguments, **options):
            here.now += there
            set_clock(START + ahead + here.now)
            answer = run(*arguments, **options)
            here.now += back
            return answer

        monkeypatch.setattr(worker.queue.link, "run", travel)
        call = worker.queue.prepare(1, default=SECOND)
        call.lead, before = 0.3, here.now
        answer = worker.queue.carry_out(call)
        worker.queue.settle(call, answer)
        (taken,) = answer.taken
        return taken, before

    legs = (0.01, 0.01), (0.01, 0.3), (0.3, 0.01), (0.2, 0.2), (0.01, 0.01)
    taken = [take(*each)[0] for each in legs]
    assert gaps(taken) == [pytest.approx(1.0, abs=0.011)] * 4
    for ahead in HOUR, HOUR - 0.9:  # somebody sets the server's clock
        here.now += 60
        last, before = take(0.01, 0.01, ahead)
        assert last.start == pytest.approx(before + 0.31, abs=0.011)


def test_the_next_turn_is_told(crawl):
    worker = crawl.join(Pace(1000.0, 0.0))
    assert worker.exchange(1).next_turn == float("inf")
    worker.offer("a", "b", slot="a")
    assert worker.exchange(1).next_turn == 0  # there may be more
    assert 500 < worker.exchange(1).next_turn <= 1000


# Slots that end, are lost or stand still


def test_of_slots_that_have_ended_no_pace_is_kept(crawl):
    """AutoThrottle tells it with the last page, and nothing removed it."""
    worker, slots = crawl.join(Pace(0.001, 0.0)), [f"host {n}" for n in range(200)]
    for slot in slots:
        worker.offer(slot, slot=slot)
    worker.take(200)
    until(lambda: not (worker.exchange(), crawl.client.zcard(crawl.base + "frees"))[1])
    worker.queue.next_call.paces.update((slot.encode(), SECOND) for slot in slots)
    worker.done()
    worker.exchange()
    assert crawl.client.hlen(crawl.base + "delays") == 0


def test_turns_that_are_lost_again_while_they_are_rebuilt_are_rebuilt_from_the_start(crawl, worker):
    client, turns = crawl.client, crawl.base + "turns"
    for host in range(1200):
        worker.offer(host, slot=f"host {host}")
    worker.say()
    client.delete(turns)
    worker.exchange()
    assert 0 < client.zcard(turns) < 1200  # a portion with each call
    client.delete(turns)
    for _ in range(5):
        worker.exchange()
    assert client.zcard(turns) == 1200


def test_a_slot_with_nothing_but_risky_requests_does_not_block_others(crawl, worker):
    client, queue = crawl.client, crawl.base + "queue"
    worker.queue.next_call.paces[b"c"] = SECOND
    worker.offer("a", "b", slot="a")
    worker.add("c", "d", slot="c")  # so that there are turns while it waits for the second one
    for member in client.zrange(queue, 0, 1):
        client.zrem(queue, member)
        client.zadd(queue, {member[:-1] + bytes([MOST_DEATHS - 1]): 0})
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


# Requests that wait for a time


def test_each_call_moves_a_portion_and_says_that_there_are_more(still, worker):
    """Each waits from when it was enqueued, although it could not be said for 50 s."""
    worker.offer(*range(120), wait=60)
    for entry in worker.queue._buffer:  # noqa: SLF001 - no test waits for so long
        entry.due -= 50
    worker.say()
    still(START + 10)
    counts = []
    while not counts or counts[-1]:
        exchange = worker.exchange(500)
        counts.append(worker.queue.worker.counts.later)
        assert (exchange.next_turn == 0) is bool(counts[-1])
    assert counts == [70, 20, 0]
    assert sorted(map(int, worker.have)) == [*range(120)]


def test_what_waits_and_which_slots_are_left_alone_can_be_read_and_deleted(still, crawl):
    now = crawl.client.time()[0]  # which the reader asks
    still(now + HOUR)
    worker = crawl.join()
    worker.offer("a", slot="a")
    worker.offer("b", slot="a", wait=60)
    worker.offer("c", slot="a", wait=90)
    pause(worker, b"x", 30)
    worker.say()
    still(now)
    worker.exchange()
    reader = worker.queue.reader
    facts = reader.schedule(5)
    assert (facts["later"], facts["next_due"] - now) == (2, about(60))
    assert facts["paused"] == {"x": about(now + 30)}
    assert names(reader.upcoming(9)) == ["a"]
    assert delete(worker.queue.link, crawl.key, {worker.queue.worker.name}, block=False) == {}
    assert not crawl.client.keys(f"*{crawl.key}*")


# Slots that are left alone


@pytest.mark.parametrize("pace", [UNPACED, Pace(40.0, 0.0)])
def test_a_slot_is_left_alone_and_others_are_not(still, crawl, monkeypatch, pace):
    monkeypatch.setattr(workers, "AHEAD", 20.0)
    worker, other = crawl.join(pace), crawl.join(pace)
    worker.offer("a1", "a2", slot="a")
    worker.add("b1", slot="b")
    pause(worker, b"a", 60)
    pause(worker, b"a", 30)  # what is shorter changes nothing
    exchange = other.exchange(9)
    assert names(exchange.taken) == ["b1"]
    assert exchange.next_turn == about(40)
    other.offer("a3", slot="a")
    assert not other.exchange(9).taken
    still(START + 50)  # taken ahead, and sent when it is over
    taken = other.exchange(9).taken
    assert names(taken) == (["a1"] if pace.delay else ["a1", "a2", "a3"])
    assert [each.start for each in taken] == [about(HERE + 10)] * len(taken)


def test_nothing_that_moves_a_turn_ends_a_pause(still, crawl):
    worker = crawl.join(Pace(40.0, 0.0))
    worker.offer(*range(9), slot="a")
    (first,) = worker.exchange(9).taken
    worker.queue.requeue(first)  # its turn would be now
    pause(worker, b"a", 30)
    assert not worker.exchange(9).taken
    worker.queue.next_call.paces[b"a"] = SECOND  # it would be a second after the last
    worker.exchange()
    assert not worker.exchange(9).taken
    pause(worker, b"a", LONGEST)
    still(START + 365 * 24 * HOUR)
    assert not worker.exchange(9).taken


@pytest.mark.parametrize("kind", ["frees", "paused"])
def test_as_many_slots_are_forgotten_as_are_added(still, crawl, kind):
    """However many they are, once a second 500 were."""
    worker, most = crawl.join(Pace(0.1, 0.0)), 0
    for step in range(10):
        still(START + step * 0.2)
        slots = [f"{step}:{n}" for n in range(400)]
        if kind == "paused":
            until = time.monotonic() + 0.1
            worker.queue.next_call.pauses.update((slot.encode(), until) for slot in slots)
        else:
            for slot in slots:
                worker.offer(slot, slot=slot)
            worker.say()
        worker.exchange(500)
        most = max(most, crawl.client.zcard(crawl.base + kind))
    assert most <= 3 * 400  # at first, turns are half a second away


def test_the_answer_names_the_hosts_that_are_left_alone_when_they_change(still, crawl):
    """With each answer it took the server a millisecond more, and 20 KB, if they were 500."""
    one, other = crawl.join(), crawl.join()
    pause(one, b"a", HOUR)
    pause(one, b"b", 60)
    assert other.exchange().pauses == {b"a": about(HERE + HOUR), b"b": about(HERE + 60)}
    assert [*other.exchange().pauses] == []
    pause(one, b"a", 60)  # which changes nothing
    assert [*other.exchange().pauses] == []
    pause(one, b"b", 120)
    assert sorted(other.exchange().pauses) == [b"a", b"b"]
    still(START + 121)
    assert [*other.exchange().pauses] == []
    assert [*crawl.join().exchange().pauses] == [b"a"]
    other.queue.worker.rename()  # as after a surprise
    assert [*other.exchange().pauses] == [b"a"]
    for number in range(501):  # more than an answer has room for
        one.queue.next_call.pauses[b"%d" % number] = time.monotonic() + 100 + number
    one.exchange()
    assert len(other.exchange().pauses) == 500
    still(START + 121 + 110)  # the first ones are over first, and the rest is named again
    one.beat()
    assert b"500" in other.exchange().pauses


@pytest.mark.parametrize("notices", ["call", "heartbeat"])
def test_a_clock_that_goes_back_lets_nobody_wait_longer(still, worker, notices):
    worker.offer("waits", slot="a", wait=60)
    worker.add("held", slot="b")
    pause(worker, b"b", 60)
    for hours in (1, 2):
        still(START - hours * HOUR)
        if notices == "heartbeat":
            worker.beat()
        else:
            assert not worker.exchange(9).taken
    still(START - 2 * HOUR + 60)
    assert sorted(worker.take(9)) == ["held", "waits"]
