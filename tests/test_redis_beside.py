"""A crawl is refused where requests wait beside its filter that it would not fetch."""

import pytest
from support.localcluster import LocalCluster
from support.localredis import LocalRedis
from support.queues import Worker, entry, keys_of

from scrapy_bloom import RedisFilter, RedisOptions, StateError
from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.sharding import shard_key


@pytest.fixture(scope="module", params=["server", "cluster"])
def place(request):
    with LocalRedis() if request.param == "server" else LocalCluster() as place:
        yield place


def client_of(place):
    return Target(place.url).connect(5.0)


def join(place, key, *, beside, **options):
    options = {"key": key, "beside": beside, "shared_queue": True, **options}
    return RedisFilter(
        Target(place.url), capacity=10_000, error_rate=1e-9, options=RedisOptions(**options)
    )


def leave(place, key, count, **options):
    """Leave requests in a queue, spread over its shards."""
    with Worker(place.url, key, **options) as worker:
        worker.queue.offer([entry(number) for number in range(count)])


@pytest.mark.parametrize("shards", [1, 3])
def test_requests_that_wait_refuse_a_crawl_with_another_queue(place, key, shards, layout):
    options = {"shards": shards, "layout": layout}
    leave(place, key, 30, **options)
    with pytest.raises(StateError, match=f"key {key}: found 30 requests.*set that SCHEDULER again"):
        join(place, key, beside=False, **options)
    for beside in (True, None):
        with join(place, key, beside=beside, **options) as seen:
            assert seen.restored == 30
            assert seen.unmarked == 0


def test_requests_that_a_worker_has_in_its_hands_count_as_well(place, key):
    leave(place, key, 3)
    with Worker(place.url, key) as worker:
        assert len(worker.queue.take(3)) == 3
        with pytest.raises(StateError, match="found 3 requests"):
            join(place, key, beside=False)


def test_a_queue_that_is_empty_refuses_nobody(place, key):
    leave(place, key, 3)
    with Worker(place.url, key) as worker:
        worker.queue.acknowledge([one.ticket for one in worker.queue.take(3)])
        join(place, key, beside=False).close()
    join(place, key, beside=False).close()


@pytest.mark.parametrize("shards", [1, 3])
def test_requests_without_a_filter_are_counted(place, key, shards):
    leave(place, key, 30, shards=shards)
    for number in range(shards):
        client_of(place).delete(shard_key(key, number))
    with join(place, key, beside=True, shards=shards) as seen:
        assert seen.unmarked == 30
    with join(place, key, beside=True, shards=shards) as seen:  # the first one has made the filter
        assert seen.unmarked == 0


def test_keys_of_others_are_no_queue(place, key):
    client, named = client_of(place), keys_of(key)
    client.zadd(named["queue"], {b"some": 1})
    join(place, key, beside=False).close()
    client.hset(named["state"], "program", "another")
    join(place, key, beside=False).close()
    client.delete(named["state"])
    client.set(named["state"], "text")
    join(place, key, beside=False).close()


def test_a_filter_is_not_emptied_where_others_have_left_requests_meanwhile(place, key):
    with join(place, key, beside=False) as seen:
        leave(place, key, 3)
        assert seen.delete() is False
        assert seen.clear() is False
        with Worker(place.url, key) as worker:
            worker.queue.acknowledge([one.ticket for one in worker.queue.take(3)])
        assert seen.delete() is True
