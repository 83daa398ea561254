"""The queue spread over shards, and over a real cluster whose nodes die or give slots away."""

import itertools

import pytest
from redis.crc import key_slot
from support.localcluster import LocalCluster
from support.queue_lockstep import crawl_in_lockstep
from support.queues import Worker, drain, entry, keys_of, names, patiently
from support.waiting import until

from scrapy_bloom import BackendError
from scrapy_bloom.redis.sharding import shard_key

keys = (f"spread:{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        yield cluster


@pytest.fixture
def key():
    return next(keys)


def pages(*bounds):
    return [entry(number) for number in range(*bounds)]


class TestTwoShards:
    def test_each_has_its_own_queue_and_both_are_emptied(self, server, key):
        with Worker(server.url, key, shards=2) as one, Worker(server.url, key, shards=2) as other:
            assert not any(one.queue.offer(pages(100)).seen)
            client = server.client()
            sizes = [client.zcard(keys_of(shard_key(key, number))["queue"]) for number in (0, 1)]
            assert sum(sizes) == 100
            assert min(sizes) > 20
            assert other.queue.look()[:2] == (100, 0)
            assert all(other.queue.offer(pages(100)).seen)
            taken = one.queue.take(10)
            assert len(taken) == 10
            assert other.queue.look()[:2] == (90, 10)
            more = one.queue.take(10, [taken.ticket for taken in taken])
            assert {taken.ticket.shard for taken in [*taken, *more]} == {0, 1}
            assert len(one.queue.take(100)) == 80
            assert one.queue.take(1) == []

    def test_priorities_hold_within_each(self, server, key):
        with Worker(server.url, key, shards=2) as worker:
            worker.queue.offer([entry(number, number % 7) for number in range(70)])
            taken = [worker.queue.take(1)[0] for _ in range(70)]
            for shard in (0, 1):
                priorities = [one.priority for one in taken if one.ticket.shard == shard]
                assert priorities == sorted(priorities, reverse=True)

    def test_what_is_held_and_given_back(self, server, key):
        with Worker(server.url, key, shards=2) as one, Worker(server.url, key, shards=2) as other:
            held = [entry(f"held {number}", held=True) for number in range(20)]
            offered = one.queue.offer([*pages(10), *held])
            assert list(offered.tickets) == list(range(10, 30))
            assert other.queue.look()[:2] == (10, 20)
            one.queue.give_back(list(offered.tickets.values())[:5])
            one.queue.acknowledge(list(offered.tickets.values())[5:])
            assert other.queue.look()[:2] == (10, 0)
            assert other.queue.offer(held).seen == [False] * 5 + [True] * 15


def test_a_crawl_on_a_cluster(cluster, key):
    with Worker(cluster.url, key, shards=6) as one, Worker(cluster.url, key, shards=6) as other:
        assert not any(one.queue.offer(pages(1000)).seen)
        assert all(other.queue.offer(pages(500, 1000)).seen)
        for node in cluster.nodes:
            assert [name for name in node.client().keys("*:queue") if key.encode() in name]
        first = other.queue.take(300)
        other.queue.acknowledge([taken.ticket for taken in first])
        assert sorted(map(int, [*names(first), *drain(one.queue)])) == list(range(1000))
        assert other.queue.look()[:2] == (0, 0)


def test_eight_workers_in_lockstep_on_a_cluster(cluster, key):
    granted, done = crawl_in_lockstep(cluster.url, key, workers=8, pages=600, shards=3)
    assert set(granted.values()) == {1}
    assert len(granted) == 600
    assert done == granted


def test_a_node_is_killed_and_another_one_takes_its_place(key):
    """The others go on meanwhile, and nothing is lost."""
    with LocalCluster(replica=True) as cluster:
        options = {"shards": 6, "timeout": 4.0}
        with Worker(cluster.url, key, **options) as one, Worker(cluster.url, key, **options) as two:
            one.queue.offer(pages(300))
            has = two.queue.take(60)
            two.queue.acknowledge([taken.ticket for taken in has[:10]])
            done, has = names(has[:10]), has[10:]
            cluster.nodes[2].kill()
            with pytest.raises(BackendError):
                one.queue.offer(pages(300, 400))
            assert two.queue.take(5)  # of shards on other nodes
            assert patiently(one.queue.offer, pages(300, 400)).seen == [False] * 100
            assert cluster.nodes[3].client().info("replication")["role"] == "master"
            patiently(two.queue.look)
            assert all(two.queue.holds(taken.ticket) for taken in has)
            patiently(two.queue.acknowledge, [taken.ticket for taken in has])
            done += names(has)
            patiently(two.queue.close)
            done += drain(one.queue)
            assert set(map(int, done)) == set(range(400))
            # What the node had not told its replica yet is done again, at most.
            assert len(done) - 400 <= 60


def test_a_slot_moves_to_another_node(cluster):
    key = "{moving}:crawl"
    slot = key_slot(key.encode())
    source = cluster.nodes[slot * 3 // 16384]
    target = cluster.nodes[(slot * 3 // 16384 + 1) % 3]
    with Worker(cluster.url, key, timeout=4.0) as one, Worker(cluster.url, key) as other:
        one.queue.offer([*pages(50), entry("held", held=True)])
        taken = one.queue.take(10)
        outcome = []

        def between():
            """The keys are on two nodes: the server refuses every call, and changes nothing."""
            for act in (lambda: one.queue.offer(pages(40, 60)), lambda: one.queue.take(5)):
                with pytest.raises(BackendError) as told:
                    act()
                outcome.append(told.value)

        cluster.move(slot, source, target, between)
        assert len(outcome) == 2
        assert patiently(one.queue.offer, pages(40, 60)).seen == [True] * 10 + [False] * 10
        assert all(one.queue.holds(one_.ticket) for one_ in taken)
        patiently(one.queue.acknowledge, [one_.ticket for one_ in taken])
        until(lambda: patiently(other.queue.look)[:2] == (50, 1))
        assert sorted(map(int, [*names(taken), *drain(other.queue)])) == list(range(60))
