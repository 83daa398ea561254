"""The queue in Redis: what goes in comes out once, in its order, and the filter agrees with it."""

import itertools

import pytest
from support.queues import Worker, Workers, entry, failed, keys_of, names

from scrapy_bloom import BackendError, RedisReader, StateError
from scrapy_bloom.backends.base import Crawl
from scrapy_bloom.backends.redis import RedisBackend
from scrapy_bloom.redis.queue.base import Entry, Form
from scrapy_bloom.redis.queue.shared import SharedQueue
from scrapy_bloom.settings import Settings
from scrapy_bloom.storage.snapshot import Identity

keys = (f"queue:{number}" for number in itertools.count())


@pytest.fixture
def key():
    return next(keys)


@pytest.fixture
def opened(server, key):
    with Workers() as workers:
        yield lambda **options: workers.open(server.url, key, **options)


class TestName:
    def test_a_worker_has_one_name_in_the_filter_and_in_the_queue(self, server, key):
        with Worker(server.url, key) as worker, RedisReader.from_url(server.url, key=key) as reader:
            ((known,), (look,)) = reader.workers(), [queue.look() for queue in reader.queues()]
            assert look.alive == [f"{known.id}.1"]
            second = SharedQueue(worker.filter)
            assert len(reader.queues()[0].look().alive) == 2
            second.close()


@pytest.mark.parametrize("shards", [1, 3])
def test_what_is_left_is_known_at_the_end(server, key, shards):
    with Worker(server.url, key, shards=shards) as worker:
        worker.queue.offer([entry(number) for number in range(20)])
        taken = worker.queue.take(8)
        worker.queue.acknowledge([taken[0].ticket])
        worker.queue.close()
        assert worker.queue.state()[:2] == (19, 0)


class TestOrder:
    def test_the_oldest_comes_first(self, opened):
        queue = opened()
        queue.offer([entry(number) for number in range(5)])
        queue.offer([entry(number) for number in range(5, 8)])
        assert names(queue.take(3)) == ["0", "1", "2"]
        assert names(queue.take(9)) == ["3", "4", "5", "6", "7"]
        assert queue.take(9) == []

    def test_the_newest_comes_first(self, opened):
        queue = opened(order="lifo")
        queue.offer([entry(number) for number in range(5)])
        queue.offer([entry(number) for number in range(5, 8)])
        assert names(queue.take(3)) == ["7", "6", "5"]
        queue.offer([entry(8)])
        assert names(queue.take(9)) == ["8", "4", "3", "2", "1", "0"]

    @pytest.mark.parametrize("order", ["fifo", "lifo"])
    def test_the_higher_priority_comes_first(self, opened, order):
        queue = opened(order=order)
        priorities = [0, -1, 2**60, 5, -(2**60), 5]
        queue.offer([entry(number, priority) for number, priority in enumerate(priorities)])
        taken = queue.take(9)
        same = ["3", "5"] if order == "fifo" else ["5", "3"]
        assert names(taken) == ["2", *same, "0", "1", "4"]
        assert [one.priority for one in taken[1:-1]] == [5, 5, 0, -1]

    @pytest.mark.parametrize("order", ["fifo", "lifo"])
    def test_what_is_given_back_goes_to_its_old_place(self, opened, order):
        queue = opened(order=order)
        queue.offer([entry(number) for number in range(5)])
        before = queue.take(3)
        queue.give_back([before[1].ticket])
        assert names(queue.take(1)) == names(before[1:2])


def test_many_are_taken_in_parts(opened):
    queue = opened()
    queue.offer([entry(number) for number in range(1200)])
    sizes = []
    while taken := queue.take(10_000):
        sizes.append(len(taken))
    assert sizes == [500, 500, 200]


class TestFilter:
    def test_seen_means_queued(self, opened):
        one, other = opened(), opened()
        assert one.offer([entry("a"), entry("b"), entry("a")]).seen == [False, False, True]
        assert other.offer([entry("b"), entry("c")]).seen == [True, False]
        assert names(one.take(9)) == ["a", "b", "c"]

    def test_what_is_not_filtered_is_queued_each_time(self, opened):
        queue = opened()
        same = [entry("a", filtered=False)] * 3
        assert queue.offer([*same, entry("a")]).seen == [False] * 4
        assert queue.offer(same).seen == [False] * 3
        assert names(queue.take(9)) == ["a"] * 7

    def test_a_batch_that_outgrows_the_filter(self, opened):
        queue = opened(capacity=100)
        mixed = [entry(number, filtered=number % 3 != 0) for number in range(1700)]
        assert not any(queue.offer(mixed).seen)
        taken = []
        while some := queue.take(100, [one.ticket for one in taken[-100:]]):
            taken += some
        assert sorted(map(int, names(taken))) == list(range(1700))
        assert opened().offer(mixed).seen == [number % 3 != 0 for number in range(1700)]

    @pytest.mark.parametrize("fingerprint", [b"", b"\0", b"\0 \n" * 100, bytes(range(256)) * 300])
    def test_any_fingerprint_and_body(self, opened, fingerprint):
        queue = opened()
        body = bytes(range(256)) * 1000
        assert queue.offer([Entry(body, 7, fingerprint)]).seen == [False]
        (taken,) = queue.take(2)
        assert (taken.body, taken.priority, taken.fingerprint) == (body, 7, fingerprint)
        assert queue.offer([Entry(body, 7, fingerprint)]).seen == [True]

    def test_the_worker_knows_what_it_has_offered(self, opened):
        queue = opened()
        assert not queue.knows(b"a")
        queue.offer([entry("a")])
        assert queue.knows(b"a")


class TestHeld:
    def test_it_is_marked_and_not_queued(self, opened):
        queue, other = opened(), opened()
        offered = queue.offer([entry("a"), entry("b", held=True), entry("a", held=True)])
        assert offered.seen == [False, False, True]
        assert list(offered.tickets) == [1]
        assert queue.state().waiting == 1
        assert other.offer([entry("b")]).seen == [True]
        assert other.look().elsewhere == 1
        assert queue.holds(offered.tickets[1])
        queue.acknowledge(offered.tickets.values())
        assert other.look().elsewhere == 0
        assert other.offer([entry("b")]).seen == [True]

    def test_what_is_given_back_is_new_once_more(self, opened):
        queue, other = opened(), opened()
        queue.give_back(queue.offer([entry("b", held=True)]).tickets.values())
        assert other.offer([entry("b"), entry("b")]).seen == [False, True]
        assert names(other.take(2)) == ["b"]
        assert queue.look().elsewhere == 1

    def test_it_needs_a_fingerprint(self, opened):
        with pytest.raises(ValueError, match="fingerprint"):
            opened().offer([Entry(b"", 0, None)])


class TestState:
    def test_it_tells_what_waits_and_what_others_have(self, opened):
        one, other = opened(), opened()
        one.offer([entry(number) for number in range(10)])
        tickets = [taken.ticket for taken in one.take(4)]
        assert one.look()[:2] == (6, 0)
        assert other.look()[:2] == (6, 4)
        one.acknowledge(tickets[:1])
        assert other.look()[:2] == (6, 3)
        other.take(9, [])
        assert one.look()[:2] == (0, 6)

    def test_its_version_changes_with_each_step_and_with_no_look(self, opened):
        one, other = opened(), opened()
        versions = [other.look().version]

        def step():
            versions.append(other.look().version)
            assert one.look().version == other.look().version == versions[-1]

        one.offer([entry("a"), entry("b")])
        step()
        tickets = [taken.ticket for taken in one.take(2)]
        step()
        one.acknowledge(tickets[:1])
        step()
        one.give_back(tickets[1:])
        step()
        assert len(set(versions)) == 5
        assert one.offer([entry("a")]).seen == [True]
        assert other.look().version == versions[-1]

    def test_leaving_puts_everything_back(self, server, key, opened):
        other = opened()
        with Workers() as workers:
            queue = workers.open(server.url, key)
            queue.offer([entry(number) for number in range(10)])
            queue.offer([entry("held", held=True)])
            done = [taken.ticket for taken in queue.take(4)][:1]
            queue.acknowledge(done)
        assert other.look()[:2] == (9, 0)
        assert names(other.take(10)) == [str(number) for number in range(1, 10)]
        assert other.offer([entry("held")]).seen == [False]
        state = server.client().hgetall(keys_of(key)["state"])
        assert len([name for name in state if name[:2] in (b"l:", b"n:", b"o:")]) == 3

    def test_tickets_of_others_and_twice_are_passed_over(self, opened):
        one, other = opened(), opened()
        one.offer([entry("a"), entry("b")])
        (taken,) = one.take(1)
        other.acknowledge([taken.ticket])
        other.give_back([taken.ticket])
        assert other.look()[:2] == (1, 1)
        one.acknowledge([taken.ticket, taken.ticket])
        one.give_back([taken.ticket])
        assert not one.holds(taken.ticket)
        assert one.look()[:2] == (1, 0)


def test_what_is_put_aside_can_be_looked_at(server, key):
    with Worker(server.url, key) as worker, Worker(server.url, key) as other:
        queue = worker.queue
        queue.offer([entry(number, 3) for number in range(5)])
        queue.fail([one.ticket for one in queue.take(3)])
        assert queue.look()[:2] == (2, 0)
        found = failed(other)
        assert sorted(one.body for one in found) == [b"body of 0", b"body of 1", b"body of 2"]
        assert {(one.priority, one.deliveries) for one in found} == {(3, 0)}
        assert queue.offer([entry(0)]).seen == [True]


class TestOpening:
    def test_another_order_or_serializer_is_refused(self, server, key, opened):
        opened(order="lifo").offer([entry("a")])
        before = server.client().dump(keys_of(key)["queue"])
        told = r"queue:state: found .* 'lifo pickle', expected 'fifo pickle'.*SCHEDULER_DISK_QUEUE"
        with pytest.raises(StateError, match=told):
            opened(order="fifo")
        with pytest.raises(StateError, match="expected 'lifo marshal'"):
            opened(order="lifo", codec="marshal")
        assert server.client().dump(keys_of(key)["queue"]) == before

    def test_the_requests_of_another_spider_are_refused(self, server, key):
        """It would run its own callbacks on their pages. An older state does not name a spider."""
        settings = Settings({"BLOOM_REDIS_URL": server.url, "BLOOM_REDIS_KEY": key})
        client, state = server.client(), keys_of(key)["state"]

        def run(spider):
            form = Form("lifo", "pickle")
            crawl = Crawl(
                Identity(spider, "f"), digests=False, job_dir=None, shared_queue=True, queue=form
            )
            opened = RedisBackend().open(settings, crawl)
            opened.queue.offer([entry("a")])
            opened.queue.close()
            opened.close()

        run("tree")
        before = {name: client.dump(name) for name in keys_of(key).values()}
        told = (
            rf"{state}: found the requests of spider 'tree', expected those of spider 'other'.*"
            r"Start 'tree', or give this filter another BLOOM_REDIS_KEY\. Nothing was changed\."
        )
        with pytest.raises(StateError, match=told):
            run("other")
        assert {name: client.dump(name) for name in keys_of(key).values()} == before
        run("tree")
        client.hdel(state, "spider")
        run("other")
        with pytest.raises(StateError, match="of spider 'other', expected those of spider 'tree'"):
            run("tree")

    @pytest.mark.parametrize("name", ["queue", "state", "taken", "failed", "again"])
    def test_something_else_in_its_place_is_refused(self, server, key, opened, name):
        client = server.client()
        client.set(keys_of(key)[name], "mine")
        with pytest.raises(StateError, match=rf"found a string under '{keys_of(key)[name]}'"):
            opened()
        assert client.get(keys_of(key)[name]) == b"mine"

    def test_the_hash_of_another_program_is_refused(self, server, key, opened):
        server.client().hset(keys_of(key)["state"], "a", "b")
        with pytest.raises(StateError, match="a hash that scrapy-bloom did not write"):
            opened()

    def test_another_format_is_refused(self, server, key, opened):
        opened()
        server.client().hset(keys_of(key)["state"], "format", "2")
        with pytest.raises(StateError, match="of format '2', expected '1'"):
            opened()

    def test_the_queue_stays_when_all_have_left(self, server, key):
        with Workers() as workers:
            workers.open(server.url, key).offer([entry("a"), entry("b")])
        with Workers() as workers:
            queue = workers.open(server.url, key)
            assert queue.look()[:2] == (2, 0)
            assert queue.offer([entry("a")]).seen == [True]
            assert names(queue.take(3)) == ["a", "b"]


def test_something_else_that_comes_into_its_place_is_an_outage(server, key, opened):
    queue = opened()
    queue.offer([entry("a")])
    client = server.client()
    client.rename(keys_of(key)["queue"], f"{key}:kept")
    client.set(keys_of(key)["queue"], "mine")
    with pytest.raises(BackendError, match="something else than our bits"):
        queue.offer([entry("b")])
    client.delete(keys_of(key)["queue"])
    client.rename(f"{key}:kept", keys_of(key)["queue"])
    while True:
        try:
            assert queue.offer([entry("b")]).seen == [False]
            break
        except BackendError:
            continue
    assert names(queue.take(3)) == ["a", "b"]
