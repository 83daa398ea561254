"""The Redis filter: the contract, on a real server, and how it lies there."""

import os
from contextlib import ExitStack
from unittest.mock import DEFAULT, Mock, patch

import pytest
from support import short_leases
from support.contract import FilterContract, fingerprints
from support.internals import stop_beating
from support.queues import plan_of, shift_leases
from testbed.localredis import keys

from scrapy_bloom.errors import BackendError, FilterLostError
from scrapy_bloom.filter.sizing import BLOCK_BYTES
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS
from scrapy_bloom.redis.worker import Worker, delete


@pytest.fixture
def opened():
    """Open filters that are closed after the test."""
    with ExitStack() as filters:

        def opened(server, key=None, *, capacity=10_000, error_rate=1e-9, **options):
            sizes = {"capacity": capacity, "error_rate": error_rate, "timeout": 10.0}
            made = RedisFilter.from_url(server.url, key=key or next(keys), **sizes, **options)
            return filters.enter_context(made)

        yield opened


def without_memory(url, key, **options):
    """Open a filter that asks the server each time."""
    return RedisFilter(Server(url), key, plan_of(**options), timeout=10.0, known=0)


class TestWithAWindow(FilterContract):
    SMALL = 300
    EXAMPLES = 10

    @pytest.fixture
    def make(self, server, opened):
        usual = {"capacity": 1_000_000, "error_rate": 1e-6, "window": 3600.0}
        return lambda **sizes: opened(server, **(usual | sizes))


class TestWithoutMemory(TestWithAWindow):
    """With a memory of its own a worker answers much by itself."""

    @pytest.fixture
    def make(self, monkeypatch, server, opened):
        monkeypatch.setattr(Worker, "knows", lambda *_: False)
        return lambda **sizes: opened(server, **sizes)


def test_a_question_that_fails_half_way_grants_nothing(server, opened, key):
    """Only a mark without a verdict is owed one."""
    mine, other = (opened(server, key) for _ in "ab")
    marks = fingerprints(BATCH + 1)
    call, out = mine.worker.call, BackendError("out", temporary=True)
    half_way = Mock(wraps=call, side_effect=[DEFAULT, out])
    with patch.object(mine.worker, "call", half_way), pytest.raises(BackendError):
        mine.forget_many(marks)
    assert [other.add(marks[0]), mine.add(marks[0])] == [False, True]


def test_a_key_has_its_full_size_from_the_first_mark_on(server, opened, key):
    """A string that grows takes more memory than it needs."""
    seen = opened(server, key, capacity=3_000_000)
    seen.add_many(fingerprints(500))
    names = server.client().keys(f"{beginning(key)}{seen.worker.epoch}.0.*")
    (row,) = seen.worker.slices
    last = row.blocks % KEY_BLOCKS
    sizes = {server.client().strlen(name) for name in names}
    assert len(names) == row.keys
    assert sizes == {KEY_BLOCKS * BLOCK_BYTES + 1, last * BLOCK_BYTES + 1}


def test_delete_ends_a_frozen_worker_and_leaves_a_note_only(server, opened, key, monkeypatch):
    short_leases.shorten(monkeypatch)
    frozen, other = (opened(server, key) for _ in range(2))
    frozen.add_many(fingerprints(2000))
    assert other.delete() is False  # the other one has a lease
    stop_beating(frozen.link)
    shift_leases(server, key, -3600)
    other.close()
    worker = Link(Server(server.url), 10.0)
    assert delete(worker, key) == {}  # as the command does
    worker.close()
    assert server.client().keys(f"{key}*") == [key.encode()]
    assert 0 < server.client().ttl(key) <= 86_400
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")
    assert server.client().keys(f"{key}*") == [key.encode()]
    fresh = opened(server, key)
    assert fresh.add(b"one") is False
    assert server.client().ttl(key) == -1
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")


@pytest.mark.filterwarnings(
    "ignore:.*use of fork:DeprecationWarning"
)  # of the test runner's thread
def test_a_forked_worker_becomes_one_of_its_own(server, key):
    seen = without_memory(server.url, key)
    one, two, three = fingerprints(3)
    assert seen.add(one) is False
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes([seen.add(two), seen.add(one)]))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 9) == bytes([False, True])
    # With the child's numbers it would get the child's answers.
    assert [seen.add(three), seen.add(two)] == [False, True]
    seen.close()
    for end in (read, write):
        os.close(end)
