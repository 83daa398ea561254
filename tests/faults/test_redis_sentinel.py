"""A server that Sentinels name."""

import socket
from contextlib import ExitStack

import pytest
from support.clusters import LocalSentinel
from support.queues import Crawler
from testbed.localredis import LocalRedis

from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.redis.client import Server

pytestmark = [pytest.mark.redis, pytest.mark.server]


@pytest.fixture(scope="module")
def primary():
    with LocalRedis("--requirepass", "secret") as primary:
        yield primary


@pytest.fixture(scope="module")
def sentinel(primary):
    with LocalSentinel(primary, password="secret", own="sent") as sentinel:
        yield f"127.0.0.1:{sentinel.port}"


def url_of(hosts, more=""):
    return f"sentinel://:secret@{hosts}/crawl{more}"


@pytest.mark.parametrize("more", ["?sentinel_password=sent&db=3", "/3?sentinel_password=sent"])
def test_server_and_sentinels_have_passwords_of_their_own(primary, sentinel, key, more):
    """Only the server had one, and what the query says was ignored."""
    with Crawler(url_of(sentinel, more), key) as worker:
        worker.offer("a")
        assert worker.say() == ["a"]
        assert primary.client(password="secret", db=3).exists(key)


@pytest.mark.parametrize("more", ["", "?sentinel_password=wrong"])
def test_a_password_that_the_sentinels_refuse_is_asked_for(sentinel, key, more):
    with pytest.raises(BackendError, match=r"add \?sentinel_password=") as told:
        Crawler(url_of(sentinel, more), key)
    assert not told.value.temporary
    assert "wrong" not in str(told.value)


def test_an_option_that_nobody_knows_is_refused(sentinel, key):
    with pytest.raises(SettingError, match=r"unexpected keyword argument 'colour'.*Check its URL"):
        Crawler(url_of(sentinel, "?sentinel_password=sent&colour=red"), key)


def test_without_a_service_a_url_is_refused():
    with pytest.raises(SettingError, match="must name the service"):
        Server("sentinel://127.0.0.1:26379")


def test_sentinels_that_hang_leave_time_for_the_one_that_does_not(sentinel, key):
    with ExitStack() as hung:
        ports = [
            hung.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for _ in range(4)
        ]
        hosts = ",".join([*(f"127.0.0.1:{port}" for port in ports), sentinel])
        url = url_of(hosts, "?sentinel_password=sent")
        with Crawler(url, key, timeout=4.0) as worker:
            worker.offer("a")
            assert worker.say() == ["a"]


def test_a_port_that_speaks_no_tls_is_named(primary, key):
    """The advice was to raise the timeout."""
    with pytest.raises(BackendError, match="Does it speak TLS") as told:
        Crawler(f"rediss://127.0.0.1:{primary.port}", key, timeout=4.0)
    assert "BLOOM_REDIS_TIMEOUT" not in str(told.value)
