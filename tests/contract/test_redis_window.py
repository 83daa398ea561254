"""A filter in Redis that forgets: by the clock of the server, for all workers alike."""

from contextlib import ExitStack

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from support.internals import clock_of_redis
from support.queues import plan_of
from support.waiting import until
from support.windows import START, WINDOW, WindowMachine
from testbed.localredis import keys

from scrapy_bloom.filter.sizing import MOST_GENERATIONS
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.filter import RedisFilter

QUICK = settings(deadline=None, max_examples=8, stateful_step_count=30)


@pytest.fixture
def clock(server):
    """What sets the time of the server, and the time that it has first."""
    with clock_of_redis(server.client(), START) as set_clock:
        yield set_clock


def open_filter(server, key, *, known=0, **options):
    plan = plan_of(**({"capacity": 10_000, "error_rate": 1e-9, "window": WINDOW} | options))
    return RedisFilter(Server(server.url), key, plan, timeout=10.0, known=known)


@pytest.fixture
def join(server):
    """Open a filter with a window as one more worker."""
    with ExitStack() as filters:
        yield lambda key, **options: filters.enter_context(open_filter(server, key, **options))


class RedisMachine(WindowMachine):
    """Two workers of one filter in Redis, by the clock of the server. Subclasses give both."""

    def open(self):
        self.key = next(keys)
        self.workers = [self.join(), self.join()]
        self.turn = 0

    def join(self):
        self.set_clock(self.clock.now)
        return open_filter(self.server, self.key, capacity=20)

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


def test_two_workers_see_what_the_model_allows(server, clock):
    machine = type("Machine", (RedisMachine,), {"server": server})
    machine.set_clock = staticmethod(clock)
    case = machine.TestCase
    case.settings = QUICK
    case("runTest").debug()


def test_an_expired_generation_is_deleted_whole(server, key, join, clock):
    client, seen = server.client(), join(key, capacity=3_000_000)
    seen.add(b"page")
    seen.add_aged(b"list", 10)
    seen.forget(b"page")
    ends = {name.rpartition(b".")[2] for name in client.keys(f"{key}*.0.*")}
    assert {b"again", b"ages", b"0", b"1", b"2", b"3", b"4"} <= ends
    clock(START + 10 * WINDOW)
    seen.add(b"page")
    seen.worker.keep_alive()
    assert not client.keys(f"{key}*.0.*")


def test_a_worker_forgets_what_it_remembers_itself_in_time(join):
    """By its own clock, which goes as the server's does."""
    seen = join(next(keys), known=1000, window=60)
    assert not seen.add(b"page")
    shared = seen.worker
    calls = seen.link.round_trips
    assert seen.add(b"page")
    assert seen.link.round_trips == calls, "it is remembered here"
    short = join(next(keys), known=1000, window=1)
    assert not short.add(b"page")
    assert short.worker.knows(b"page")
    until(lambda: not short.worker.knows(b"page"))
    assert shared.knows(b"page")
