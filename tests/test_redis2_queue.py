"""What a queue does with requests that nobody can read, that are large, or whose worker is gone."""

from __future__ import annotations

import pytest
from support.localredis import keys

from scrapy_bloom.errors import StateError
from scrapy_bloom.redis.client import Target, beginning
from scrapy_bloom.redis.filter import plans
from scrapy_bloom.redis.plan import BATCH
from scrapy_bloom.redis.queue import Queue
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.shard import MOST_BYTES, Call, Entry
from scrapy_bloom.redis.worker import MOST_TRIES, Worker


@pytest.fixture
def opened(server):
    queues = []

    def opened(key, **options):
        made_for = plans(**({"order": "fifo", "project": "p", "spider": "s"} | options))
        queue = Queue(Worker(Target(server.url), 10.0), key, made_for)
        queue.open()
        queues.append(queue)
        return queue

    yield opened
    for queue in queues:
        queue.close()


def exchange(queue, want=0):
    """Make one exchange that succeeds; return what came of it."""
    made = queue.prepare(want, look=True)
    queue.carry_out(made)
    settled = queue.settle(made)
    assert settled.error is None
    return settled


def offer(queue, number, body=b"", priority=0):
    queue.offer(Entry("f", b"%20d" % number, body or b"%d" % number, priority))


def test_what_a_worker_cannot_read_goes_behind_all_others_and_aside_after_many_tries(opened, key):
    queue = opened(key)
    for number in range(3):
        offer(queue, number, priority=9 - number)
    order = []
    for _ in range(MOST_TRIES + 2):
        settled = exchange(queue, 1)
        for ticket, taken in settled.taken:
            order.append(int(taken.body))
            if taken.body == b"0":
                queue.give_up(ticket)
            else:
                queue.done(ticket)
        exchange(queue)
    assert order == [0, 1, 2] + [0] * (MOST_TRIES - 1)
    assert [report.failed for report in queue.reports()] == [1]
    assert [one.body for one in Reader(queue.worker, key).requests("failed")] == [b"0"]
    queue.shards[0].call(Call(retry=5))
    assert [one.body for one in Reader(queue.worker, key).requests("queue")] == [b"0"]
    assert [taken.tries for _, taken in exchange(queue, 1).taken] == [0]


def test_batches_are_bounded_by_number_and_by_bytes(opened, key):
    queue = opened(key)
    for number in range(2 * BATCH):
        offer(queue, number)
    assert len(exchange(queue).verdicts) == BATCH
    exchange(queue)
    for number in range(20):
        offer(queue, 10_000 + number, b"x" * (MOST_BYTES // 4))
    assert len(exchange(queue).verdicts) == 3
    offer(queue, 20_000, b"x" * (2 * MOST_BYTES))
    while queue.offering:
        assert len(exchange(queue).verdicts) >= 1


def test_a_worker_that_missed_its_lease_leaves_a_tombstone_and_alarms_nobody(
    opened, key, server, caplog
):
    frozen, other = opened(key), opened(key)
    for number in range(4):
        offer(frozen, number)
    settled = exchange(frozen, 2)
    assert len(settled.taken) == 2
    offer(frozen, 5)
    name = frozen.shards[0]._lives[1]
    server.client().hset(key, f"w:{name}", "1 1.000")
    server.client().hset(key, "well", "1.0 %.3f" % (server.client().time()[0] - 2))
    other.shards[0].beat()
    assert other.worker.counters.requeued == 2
    assert b"dead" in server.client().hget(key, f"w:{name}")
    woken = exchange(frozen, 2)
    assert woken.void == [0]
    assert not woken.begin_again
    assert not any(frozen.counts(ticket) for ticket, _ in settled.taken)
    exchange(frozen)
    assert "starts over" not in caplog.text
    assert server.client().zcard(beginning(key) + "queue") == 5


def test_another_project_is_refused(opened, key):
    offer(queue := opened(key), 1)
    exchange(queue)
    with pytest.raises(StateError, match="project 'p', not 'other'"):
        opened(key, project="other")


def test_it_is_over_when_no_worker_has_anything(opened):
    key = next(keys)
    one, two = opened(key), opened(key)
    offer(one, 1)
    ((ticket, _),) = exchange(one, 1).taken
    exchange(two)
    assert not two.is_over()
    one.done(ticket)
    exchange(one)
    exchange(two)
    assert one.is_over()
    assert two.is_over()
