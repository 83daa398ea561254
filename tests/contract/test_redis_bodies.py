"""Requests in Redis that may be large: only their heads move, and no body outlives its request."""

import pytest
from support.internals import stop_beating
from support.lease_times import all_are_well, shift_leases
from support.queues import left

from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.member import Entry, id_in
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.wire import DONE, Call

LARGE = 1_000_000
START = b"a start request."


def ids_of(server, key):
    """Return the ids of all requests, and those of all bodies."""
    client, base = server.client(), beginning(key)
    rows = [*client.zrange(base + "queue", 0, -1), *client.zrange(base + "later", 0, -1)]
    rows += [*client.hvals(base + "taken"), *client.hvals(base + "failed")]
    rows += client.hvals(base + "unparsed")
    return sorted(map(id_in, rows)), sorted(client.hkeys(base + "bodies"))


def restore(worker, key, *, put_back):
    """Put all failed requests back, or let them count as done."""
    rows = Reader(worker.queue.link, key).failed()
    restored = {row.key: row.request if put_back else None for row in rows}
    worker.queue.worker.call(Call(restored=restored))


def test_no_script_moves_a_body_but_to_hand_it_out(server, join, key):
    """All others wait while a script runs: it reads many requests, and may not read large ones."""
    worker = join()
    names = [str(number) + LARGE * "x" for number in range(5)]
    worker.offer(*names)
    worker.offer("later" + LARGE * "x", wait=900)
    worker.say()
    assert worker.take(2) == names[:1]  # and no more, as there is room for one
    worker.fail(names[0])
    worker.say()
    assert worker.take(1) == names[1:2]
    assert left(server, key) == (4, 1, 1)
    client, base = server.client(), beginning(key)
    for name in ("queue", "later", "taken", "failed"):
        assert client.memory_usage(base + name, samples=0) < LARGE / 1000, name
    assert sum(map(len, client.hvals(base + "bodies"))) > 6 * LARGE


def test_a_call_takes_as_many_as_it_has_room_for_and_the_first_in_any_case(join):
    worker = join()
    sizes = [2 * LARGE, LARGE // 2, LARGE // 3, LARGE // 3, 10]
    worker.offer(*(str(number) + size * "x" for number, size in enumerate(sizes)))
    worker.say()
    assert [len(worker.take(5)) for _ in range(4)] == [1, 2, 2, 0]


@pytest.mark.parametrize(
    "way", ["done", "failed", "unparsed", "put back", "dropped", "died with", "unreadable"]
)
def test_a_body_is_there_as_long_as_its_request(server, join, key, way):
    worker, other = join(), join()
    worker.offer(*"abc")
    worker.take(2)
    if way == "unreadable":
        worker.queue.refuse(worker.have.pop("a"))
    elif way == "died with":
        stop_beating(worker.queue.link)
        shift_leases(server, key, -3600, worker.queue.worker.name)
        all_are_well(server, key)
        other.exchange()
        assert left(server, key) == (3, 0, 0)
    elif way == "done":
        worker.done()
    else:
        worker.fail("a", unparsed=way == "unparsed")
        worker.say()
        if way in ("put back", "dropped"):
            restore(worker, key, put_back=way == "put back")
    other.say()
    requests, bodies = ids_of(server, key)
    assert requests == bodies
    worker.done()
    worker.say()
    other.drain()
    restore(other, key, put_back=False)
    assert ids_of(server, key) == ([], [])


@pytest.mark.parametrize("listed", [False, True])
def test_a_start_request_that_comes_again_has_one_body(server, join, key, listed):
    """One that has failed keeps its own, and one that fails or ends takes its place."""
    worker = join()
    for name in "ab":
        worker.offer(name, filtered=False)
        worker.take(1)
    worker.fail("a", start=START)
    worker.say()
    if listed:
        worker.fail("b", start=START)
    else:
        worker.queue.end(worker.have.pop("b"), DONE._replace(start=START))
    worker.say()
    requests, bodies = ids_of(server, key)
    assert requests == bodies
    assert len(bodies) == listed
    worker.queue.offer(Entry("p", None, b"a", start=START))
    assert worker.take(1) == ["b" if listed else "a"]


def test_a_worker_that_reports_what_another_has_leaves_its_body(server, join, key):
    one, two = join(), join()
    one.offer("a")
    one.say()
    two.take(1)
    one.queue.worker.call(Call(ended={DONE: [two.have["a"].id]}))
    assert left(server, key) == (0, 1, 0)
    requests, bodies = ids_of(server, key)
    assert requests == bodies


def test_without_bodies_all_starts_over_once_and_ends(server, join, key):
    worker = join()
    worker.offer(*"abcd")
    worker.take(2)
    worker.fail("a")
    worker.say()
    server.client().delete(beginning(key) + "bodies")
    assert worker.exchange().start_over
    assert Reader(worker.queue.link, key).existing().counts.waiting == 2
    worker.offer(*"abcd")  # as start() does
    all_are_well(server, key)
    assert sorted(worker.drain()) == [*"abcd"]
    assert left(server, key) == (0, 0, 1)  # all that is known of it is that it has failed
    restore(worker, key, put_back=False)
    assert left(server, key) == (0, 0, 0)
    assert not worker.exchange().void
