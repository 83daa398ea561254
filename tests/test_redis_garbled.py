"""Replies that no client can read: a fault like others."""

import logging

import pytest
from support.contract import fingerprints
from support.proxy import Proxy
from support.waiting import until

from scrapy_bloom import BackendError, RedisFilter
from scrapy_bloom.redis import scripts


def leases(server, key):
    fields = server.client().hgetall(key)
    return {name: end for name, end in fields.items() if name.startswith(b"l:")}


@pytest.mark.parametrize(
    "reply", [b":no number\r\n", b"*1\r\n$2\r\nok\r\n", b"*2\r\n$2\r\nok\r\n$1\r\nx\r\n"]
)
def test_the_heartbeat_goes_on_after_a_reply_that_cannot_be_read(server, key, reply):
    class Shaped(Proxy):
        GARBLED = reply

    RedisFilter.from_url(server.url, key=key).close()  # the server has the scripts
    with (
        Shaped(server.port, counted=scripts.RENEW.sha.encode()) as proxy,
        RedisFilter.from_url(proxy.url, key=key) as seen,
    ):
        proxy.faults = dict.fromkeys(range(1, 4), "garble reply")
        until(lambda: proxy.requests > 3)
        before = leases(server, key)
        until(lambda: leases(server, key) != before)
        assert seen.add(b"x") is False


def test_checks_that_cannot_be_read_end_as_an_outage(server, key, caplog):
    with (
        Proxy(server.port) as proxy,
        RedisFilter.from_url(proxy.url, key=key, on_error="close", timeout=10.0) as seen,
    ):
        assert seen.add(b"x") is False
        proxy.faults = dict.fromkeys(range(proxy.requests + 1, 100_000), "garble reply")
        with pytest.raises(BackendError, match="cannot be understood"):
            seen.add_many(fingerprints(5))
        with pytest.raises(BackendError, match="cannot be understood"):
            seen.contains_many(fingerprints(5))
        proxy.faults = {}
        until(lambda: seen.usable)
        assert seen.add_many(fingerprints(5)) == [False] * 5
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


REPLIES = (
    b":7\r\n",
    b"$-1\r\n",
    b"*1\r\n:7\r\n",
    b"*0\r\n",
    b"$0\r\n\r\n",
    b"$2\r\nok\r\n",
    b"$8\r\nok x y z\r\n",
    b"$11\r\nok 0 0 1111\r\n",
)


@pytest.mark.parametrize("reply", REPLIES)
def test_a_server_that_answers_nonsense_from_the_start_is_refused(server, key, reply):
    class Shaped(Proxy):
        GARBLED = reply

    with Shaped(server.port, counted=b"EVAL") as proxy:
        proxy.faults = dict.fromkeys(range(1, 100_000), "garble reply")
        with pytest.raises(BackendError, match="cannot be understood"):
            RedisFilter.from_url(proxy.url, key=key, timeout=10.0)


@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_of_another_shape_is_no_verdict(server, key, reply):
    class Shaped(Proxy):
        GARBLED = reply

    with (
        Shaped(server.port) as proxy,
        RedisFilter.from_url(proxy.url, key=key, timeout=10.0) as seen,
    ):
        assert seen.add(b"x") is False
        proxy.faults = dict.fromkeys(range(proxy.requests + 1, 100_000), "garble reply")
        assert seen.add_many(fingerprints(5)) == [False] * 5
        assert seen.contains_many([b"x", b"y"]) == [True, False]
        assert seen.counters.outages == 1
        proxy.faults = {}
        until(lambda: seen.usable)
        assert seen.add_many(fingerprints(5)) == [True] * 5
        assert seen.counters.losses == 0
