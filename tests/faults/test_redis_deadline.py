"""How long one check may hold up a crawl, whatever takes long."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest
from support.contract import fingerprints
from support.proxy import Proxy
from support.queues import Crawler, mark_of

from scrapy_bloom import RedisFilter
from scrapy_bloom.redis import connection
from scrapy_bloom.redis.member import Entry

TIMEOUT = 2.0
SLACK = 30.0  # of a machine that does other things as well: what hangs takes ten minutes


@pytest.fixture
def dead_names(monkeypatch):
    """Return what makes every look-up of a name hang, until the test is over."""
    over = threading.Event()

    def hang(*_args, **_options):
        over.wait(600)
        raise socket.gaierror("nobody answers")

    yield lambda: monkeypatch.setattr(socket, "getaddrinfo", hang)
    over.set()


@contextmanager
def in_time(seconds=TIMEOUT):
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds + SLACK


def test_a_host_name_that_no_longer_resolves_blocks_no_check(server, key, dead_names, caplog):
    with Proxy(server.port) as proxy:
        seen = RedisFilter.from_url(f"redis://localhost:{proxy.port}", key=key, timeout=TIMEOUT)
        assert seen.add(b"x") is False
        dead_names()
        proxy.cut()
        with in_time():
            assert seen.add(b"y") is False
        with in_time(0):  # or each of them would wait
            assert [seen.add(b"x"), seen.add(b"y")] == [True, True]
            assert [seen.add(item) for item in fingerprints(50)] == [False] * 50
        with in_time(2 * TIMEOUT):
            seen.close()
    assert caplog.text.count("Retrying.") == 1


def test_a_reply_that_drips_blocks_no_check(server, key):
    with Proxy(server.port) as proxy:
        seen = RedisFilter.from_url(proxy.url, key=key, timeout=TIMEOUT)
        assert seen.add_many(fingerprints(20)) == [False] * 20
        proxy.rate = 2.5 / TIMEOUT
        with in_time():
            assert seen.add_many(fingerprints(20, "b")) == [False] * 20
        assert seen.link.outages == 1
        with in_time(0):  # or each of them would wait
            assert all(item in seen for item in fingerprints(20))
        with in_time(4 * TIMEOUT):
            seen.close()


def test_a_call_on_a_connection_starts_no_thread(server, key, monkeypatch):
    """One would cost more than the call."""
    seen = RedisFilter.from_url(server.url, key=key, timeout=10.0)
    seen.add(b"connects")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
        assert seen.add_many(fingerprints(20)) == [False] * 20
    seen.close()


class SlowLink(Proxy):
    """4 MB go over it in a second, to and fro."""

    rate = 4e6

    def fault(self, request):
        self.delay = len(request) / self.rate
        return super().fault(request)


def test_large_requests_come_over_a_slow_link(server, key):
    """In one call they did not come through in its time: the crawl stood still, and was closed."""
    with SlowLink(server.port) as link, Crawler(link.url, key, timeout=2.0) as worker:
        offer(worker, [b"%d" % number + bytes(100_000) for number in range(199)])
        new = []
        for _ in range(60):  # a third of that will do
            verdicts = worker.exchange().verdicts
            new += [entry.source for entry, seen in verdicts if not seen]
            if not worker.queue.has_work:
                break
        assert sorted(new) == [*range(199)]


def test_large_requests_are_taken_over_a_slow_link(server, key):
    """All at once they did not arrive in time, and the stored answer was repeated for ever."""
    bodies = [*(bytes(100_000) + b"%d" % number for number in range(100)), bytes(3_000_000)]
    with Crawler(server.url, key) as other, SlowLink(server.port) as link:
        offer(other, bodies)
        other.say()
        with Crawler(link.url, key, timeout=2.0) as worker:
            for _ in range(30):
                worker.exchange(100)
                if len(worker.have) == len(bodies):
                    break
            assert {taken.body for taken in worker.have.values()} == {*bodies}


@pytest.mark.parametrize("bodies", [[bytes(4_000_000)], [bytes(2_000)] * 500], ids=["one", "many"])
def test_a_call_that_takes_longer_than_the_timeout_comes_over_a_slow_link(server, key, bodies):
    """It cannot shrink, so it stood still for ever."""
    with SlowLink(server.port) as link, Crawler(link.url, key, timeout=0.5) as worker:
        link.rate = len(bodies) * len(bodies[0])
        offer(worker, bodies)
        assert len(worker.say()) == len(bodies)
        if len(bodies) == 1:
            worker.say(1)
            assert len(worker.have) == 1


def test_with_each_try_a_call_gets_more_time(server, key, monkeypatch):
    """Workers that share a slow link would all stand still."""
    monkeypatch.setattr(connection, "_SLOWEST", 20_000_000)
    with SlowLink(server.port) as link, Crawler(link.url, key, timeout=0.5) as worker:
        offer(worker, [bytes(2_000_000)])
        assert worker.say() == [0]


def offer(worker, bodies):
    for number, body in enumerate(bodies):
        worker.queue.offer(Entry("f", mark_of(number), body, source=number))
