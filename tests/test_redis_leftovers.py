"""What is left in Redis of a filter that is gone: nothing."""

import pytest
from support.contract import fingerprints
from support.layouts import name_of_clear
from support.localredis import keys
from support.proxy import Proxy

from scrapy_bloom import RedisFilter


@pytest.mark.parametrize("grown_by", ["the worker", "another one"])
def test_a_header_that_is_lost_after_growth_leaves_no_segments(server, grown_by, layout):
    key = next(keys)
    seen = RedisFilter.from_url(server.url, key=key, capacity=100, layout=layout)
    other = RedisFilter.from_url(server.url, key=key, capacity=100, layout=layout)
    grower = seen if grown_by == "the worker" else other
    grower.add_many(fingerprints(3000))
    assert grower.info().slices == 6
    client = server.client()
    old = client.keys(f"{key}:*")
    assert len(old) >= 6
    client.delete(key)
    assert seen.add(b"next") is False
    assert not set(old) & set(client.keys(f"{key}:*"))
    for worker in (seen, other):
        worker.close()


@pytest.mark.parametrize("gone", ["cleared", "lost"])
def test_large_segments_are_deleted_a_few_at_once(own_server, gone):
    """Redis takes a millisecond to free one of them, and answers nobody meanwhile."""
    key, client = next(keys), own_server.client()
    with (
        Proxy(own_server.port, counted=name_of_clear()) as proxy,
        RedisFilter.from_url(proxy.url, key=key, capacity="20M", timeout=10) as seen,
    ):
        seen.add_many(fingerprints(2000))
        large = client.keys(f"{key}:*")
        assert len(large) > 16
        client.config_resetstat()
        if gone == "cleared":
            assert seen.clear()
            assert proxy.requests == -(-len(large) // 8)
        else:
            client.delete(key)
            assert seen.add(b"next") is False
            assert client.info("commandstats")["cmdstat_unlink"]["calls"] >= len(large) // 8
        assert not set(large) & set(client.keys(f"{key}:*"))
