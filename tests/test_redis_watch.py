"""When a worker counts as dead, in a time of the test's own."""

import pytest

from scrapy_bloom.redis.pace import LEASE
from scrapy_bloom.redis.watch import Watch


class Server:
    """Its clock and ours, and the records of two workers that one looks at."""

    def __init__(self):
        self.now = 1000.0
        self.ahead = 5_000_000.0
        self.records = {b"a": b"7.000000 3", b"b": b"8.000000 1"}
        self.watch = Watch()

    def look(self, *, takes=0.001, after=0.2):
        self.now += after
        began, self.now = self.now, self.now + takes
        self.watch.look(began, self.now, self.now + self.ahead - takes / 2, self.records)

    def look_for(self, seconds):
        end = self.now + seconds
        while self.now < end:
            self.look()


@pytest.fixture
def server():
    return Server()


def test_silence_for_a_whole_lease_is_death(server):
    server.look_for(LEASE - 0.5)
    assert server.watch.silent() == {}
    server.look_for(1)
    assert server.watch.silent() == server.records
    assert not server.watch.lives
    assert not server.watch.deserted
    server.records = {}  # taken off the register
    server.look()
    assert server.watch.deserted


@pytest.mark.parametrize("record", [b"9.000000 3", b"7.000000 4", b"1.000000 3"])
def test_any_change_is_life(server, record):
    server.look_for(LEASE - 0.5)
    server.records[b"a"] = record
    server.look()
    assert server.watch.lives
    server.look_for(1)
    assert server.watch.silent() == {b"b": b"8.000000 1"}


def test_a_worker_that_comes_meanwhile_lives(server):
    server.look()
    server.records[b"c"] = b"9.000000 0"
    server.look()
    assert server.watch.lives


def test_workers_that_finish_say_so_themselves(server):
    server.records = {b"a": b"- 3"}
    server.look()
    assert server.watch.deserted
    server.records = {b"a": b"- 4", b"b": b"- 1"}
    server.look()
    assert server.watch.deserted
    assert server.watch.silent() == {}


def test_nobody_else_is_known_at_once(server):
    server.records = {}
    server.look()
    assert server.watch.deserted


@pytest.mark.parametrize("trouble", ["frozen", "not asked", "clock forward", "clock back"])
def test_time_in_which_the_server_was_not_well_does_not_count(server, trouble):
    server.look_for(LEASE - 0.5)
    if trouble == "frozen":
        server.look(takes=3.5)
    elif trouble == "not asked":
        server.look(after=3.5)
    else:
        server.ahead += 60 if trouble == "clock forward" else -60
        server.look()
    server.look_for(LEASE - 0.5)
    assert server.watch.silent() == {}
    server.look_for(1)
    assert server.watch.silent() == server.records


def test_a_clock_that_goes_too_fast_proves_no_death(server):
    for _ in range(200):
        server.ahead += 0.2
        server.look()
    assert server.watch.silent() == {}


def test_answers_without_records_keep_the_watch_going(server):
    server.look()
    for _ in range(12):
        server.now += 1
        server.watch.note(server.now, server.now, server.now + server.ahead)
    server.look()
    assert server.watch.silent() == server.records
