"""Requests in Redis that may be large: only their heads move, and no body outlives its request."""

from support.queues import all_are_well, left

from scrapy_bloom.redis.client import beginning
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.wire import Call

LARGE = 1_000_000


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
    rows = Reader(worker.queue.link, key).failed()
    worker.queue.worker.call(Call(restored=dict.fromkeys(row.key for row in rows)))
    assert left(server, key) == (0, 0, 0)
    assert not worker.exchange().void
