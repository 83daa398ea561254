"""A filter that an earlier version has left in Redis opens in this one.

The file was written at format 1 by the commit before the package moved into its rooms: one worker
added 60 fingerprints and closed, a second one added 40 and was killed. It holds the fields of the
header as they are, and the segments packed by zlib, in base64.
"""

import json
import zlib
from base64 import b64decode
from pathlib import Path

import pytest
from support.contract import fingerprints
from support.localredis import LocalRedis

from scrapy_bloom import RedisFilter, RedisOptions, RedisReader
from scrapy_bloom.redis.connection import Target

KEY = "books:bloom"
KEPT = Path(__file__).parent / "data" / "redis_filter_version_1.json"


@pytest.fixture
def server():
    with LocalRedis() as server:
        client = server.client()
        for command, key, value in json.loads(KEPT.read_text()):
            if command == "HSET":
                fields = {field: text.encode("latin-1") for field, text in value.items()}
                client.hset(key, mapping=fields)
            else:
                client.set(key, zlib.decompress(b64decode(value)))
        yield server


def open_kept(server):
    return RedisFilter(
        Target(server.url),
        capacity=10,
        fingerprinter="scrapy.utils.request.RequestFingerprinter",
        options=RedisOptions(key=KEY, cache=0),
    )


def test_it_opens_with_all_its_marks_and_no_other(server):
    seen = open_kept(server)
    assert seen.restored == 100
    info = seen.info()
    assert (info.items, info.slices, info.capacity) == (100, 5, 160)
    assert all(seen.contains_many(fingerprints(100)))
    assert not any(seen.contains_many(fingerprints(1000, "new")))
    seen.close()


def test_it_goes_on_and_stays_what_it_was(server):
    before = server.client().hgetall(KEY)
    seen = open_kept(server)
    assert seen.add_many(fingerprints(200)) == [True] * 100 + [False] * 100
    seen.close()
    after = server.client().hgetall(KEY)
    same = (
        b"epoch",
        b"secret",
        b"signature",
        b"format",
        b"program",
        b"fingerprinter",
        b"canonical",
    )
    assert [after[field] for field in same] == [before[field] for field in same]
    assert after[b"slices"].startswith(before[b"slices"] + b" ")
    assert after[b"losses"] == b"0"
    again = open_kept(server)
    assert again.restored == 200
    assert all(again.contains_many(fingerprints(200)))
    again.close()


def test_the_worker_that_was_killed_is_known_for_dead(server):
    with RedisReader.from_url(server.url, key=KEY) as reader:
        assert [(w.id, w.alive) for w in reader.workers()] == [
            ("host:3081:15aafd9a412b6dbd", False)
        ]
