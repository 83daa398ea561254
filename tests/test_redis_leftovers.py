"""What is left in Redis of a filter that is gone: nothing."""

import pytest
from support.contract import fingerprints
from support.localredis import keys

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
