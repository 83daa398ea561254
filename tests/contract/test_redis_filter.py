"""The Redis filter: the contract, on a real server, how it lies there, and how it forgets."""

import os
from contextlib import ExitStack
from unittest.mock import DEFAULT, Mock, patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from support import short_leases
from support.contract import FilterContract, fingerprints
from support.internals import stop_beating
from support.queues import shift_leases
from support.waiting import until
from support.windows import START, WINDOW, WindowMachine
from testbed.localredis import keys

from scrapy_bloom.errors import BackendError, FilterLostError
from scrapy_bloom.filter.sizing import BLOCK_BYTES, MOST_GENERATIONS
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.plan import BATCH, KEY_BLOCKS
from scrapy_bloom.redis.upkeep import LEASE
from scrapy_bloom.redis.wire import Call
from scrapy_bloom.redis.worker import Worker, delete


@pytest.fixture
def opened(server):
    """Open filters that are closed after the test."""
    with ExitStack() as filters:

        def opened(key=None, **options):
            usual = {"capacity": 10_000, "error_rate": 1e-9, "timeout": 10.0}
            made = RedisFilter.from_url(server.url, key=key or next(keys), **(usual | options))
            return filters.enter_context(made)

        yield opened


@pytest.fixture
def no_memory(monkeypatch):
    """Let filters ask the server each time: with a memory of its own one answers much itself."""
    monkeypatch.setattr(Worker, "knows", lambda *_: False)


class TestWithAWindow(FilterContract):
    SMALL = 300
    EXAMPLES = 10

    @pytest.fixture
    def make(self, opened):
        usual = {"capacity": 1_000_000, "error_rate": 1e-6, "window": 3600.0}
        return lambda **sizes: opened(**(usual | sizes))


class TestWithoutMemory(TestWithAWindow):
    @pytest.fixture
    def make(self, no_memory, opened):  # noqa: ARG002
        return opened


def test_a_question_that_fails_half_way_grants_nothing(opened, key):
    """Only a mark without a verdict is owed one."""
    mine, other = (opened(key) for _ in "ab")
    marks = fingerprints(BATCH + 1)
    call, out = mine.worker.call, BackendError("out", temporary=True)
    half_way = Mock(wraps=call, side_effect=[DEFAULT, out])
    with patch.object(mine.worker, "call", half_way), pytest.raises(BackendError):
        mine.forget_many(marks)
    assert [other.add(marks[0]), mine.add(marks[0])] == [False, True]


def test_a_repeated_call_renews_the_lease(server, opened, key, set_clock):
    seen, call = opened(key), Call([Entry("m", bytes(20))])
    run = seen.link.run

    def run_in_vain(*arguments, **options):
        run(*arguments, **options)
        raise BackendError("lost", temporary=True)

    with patch.object(seen.link, "run", run_in_vain), pytest.raises(BackendError):
        seen.worker.call(call)
    set_clock(START + 20)
    seen.worker.call(call)
    number, ends, _ = server.client().hget(key, f"w:{seen.worker.name}").split()
    assert (int(number), float(ends)) == (1, START + 20 + LEASE)


def test_a_key_has_its_full_size_from_the_first_mark_on(server, opened, key):
    """A string that grows takes more memory than it needs."""
    seen = opened(key, capacity=3_000_000)
    seen.add_many(fingerprints(500))
    names = server.client().keys(f"{beginning(key)}{seen.worker.epoch}.0.*")
    (row,) = seen.worker.slices
    last = row.blocks % KEY_BLOCKS
    sizes = {server.client().strlen(name) for name in names}
    assert len(names) == row.keys
    assert sizes == {KEY_BLOCKS * BLOCK_BYTES + 1, last * BLOCK_BYTES + 1}


def test_delete_ends_a_frozen_worker_and_leaves_a_note_only(server, opened, key, monkeypatch):
    short_leases.shorten(monkeypatch)
    client = server.client()
    frozen, other = (opened(key) for _ in range(2))
    frozen.add_many(fingerprints(2000))
    assert other.delete() is False  # the other one has a lease
    stop_beating(frozen.link)
    shift_leases(server, key, -3600)
    other.close()
    worker = Link(Server(server.url), 10.0)
    assert delete(worker, key) == {}  # as the command does
    worker.close()
    assert 0 < client.ttl(key) <= 86_400
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")
    assert client.keys(f"{key}*") == [key.encode()]
    assert opened(key).add(b"one") is False
    assert client.ttl(key) == -1
    with pytest.raises(FilterLostError, match="deleted while"):
        frozen.add(b"new")


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # the test runner's thread
@pytest.mark.usefixtures("no_memory")
def test_a_forked_worker_becomes_one_of_its_own(opened):
    seen = opened()
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
    for end in (read, write):
        os.close(end)


class RedisMachine(WindowMachine):
    """Two workers of one filter in Redis, by the clock of the server. Subclasses give both."""

    def open(self):
        self.key = next(keys)
        self.workers = [self.join(), self.join()]
        self.turn = 0

    def join(self):
        self.set_clock(self.clock.now)
        return self.opened(self.key, capacity=20, window=WINDOW)

    @property
    def filter(self):
        """The workers take turns, and find the server at the time that it is."""
        self.set_clock(self.clock.now)
        self.turn = 1 - self.turn
        return self.workers[self.turn]

    @invariant()
    def there_are_few_generations(self):
        info = self.filter.info()
        assert info.generations <= MOST_GENERATIONS + 1  # one may wait to be dropped by a call
        assert info.estimated_fp_rate <= info.error_rate

    @rule(number=st.integers(0, 1))
    def stop_and_start(self, number):
        self.workers[number].close()
        self.workers[number] = self.join()

    def teardown(self):
        for worker in self.workers:
            worker.close()


@pytest.mark.usefixtures("no_memory")
def test_two_workers_see_what_the_model_allows(opened, set_clock):
    given = {"opened": staticmethod(opened), "set_clock": staticmethod(set_clock)}
    case = type("Machine", (RedisMachine,), given).TestCase
    case.settings = settings(deadline=None, max_examples=8, stateful_step_count=30)
    case("runTest").debug()


def test_an_expired_generation_is_deleted_whole(server, key, opened, set_clock):
    client, seen = server.client(), opened(key, capacity=3_000_000, window=WINDOW)
    seen.add(b"page")
    seen.add_aged(b"list", 10)
    seen.forget(b"page")
    ends = {name.rpartition(b".")[2] for name in client.keys(f"{key}*.0.*")}
    assert {b"again", b"ages", b"0", b"1", b"2", b"3", b"4"} <= ends
    set_clock(START + 10 * WINDOW)
    seen.add(b"page")
    until(lambda: not (seen.worker.keep_alive(), client.keys(f"{key}*.0.*"))[1])


def test_a_worker_forgets_what_it_remembers_itself_in_time(opened):
    long, short = opened(window=3600), opened(window=1)
    for seen in long, short:
        assert not seen.add(b"page")
    calls = long.link.round_trips
    assert long.add(b"page")
    assert long.link.round_trips == calls, "it is remembered here"
    until(lambda: not short.worker.knows(b"page"))
    assert long.worker.knows(b"page")
