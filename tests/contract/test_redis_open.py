"""Coming to a server: each thing that can be wrong has its own words, and nothing is changed."""

import os
from contextlib import contextmanager
from itertools import product

import pytest
from scrapy.utils.test import get_crawler
from support.contract import fingerprints
from support.filters import everything_in
from support.proxy import Answering
from support.queues import plan_of
from support.waiting import until
from testbed.localredis import LocalRedis, free_port

from scrapy_bloom import BackendError, RedisFilter, SettingError, StateError
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.header import FORMAT
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.project import key_of, project_of
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.settings import Settings

pytestmark = [pytest.mark.redis, pytest.mark.server]


def open_filter(url, key, **options):
    usual = {"capacity": 1000, "error_rate": 1e-6, "timeout": 10.0, "on_error": "close"}
    return RedisFilter.from_url(url, key=key, **(usual | options))


PASSWORD = "s3cr3t/@:#"
QUOTED = "s3cr3t%2F%40%3A%23"


def test_what_the_acl_forbids_is_named_in_the_error(caplog):
    with LocalRedis() as server:
        rights = f"on >{PASSWORD} ~crawl* +@all".split()
        admin = server.client()
        admin.execute_command("ACL", "SETUSER", "worker", *rights)
        admin.execute_command("ACL", "SETUSER", "reader", *rights, "-@write")
        admin.execute_command("ACL", "SETUSER", "default", "off")
        url = f"redis://{{}}:{{}}@127.0.0.1:{server.port}/0"
        with open_filter(url.format("worker", QUOTED), "crawl:1") as seen:
            assert [seen.add(os.urandom(20)) for _ in range(2)] == [False, False]
        for user, password, words in (
            ("worker", "wr0ng-s3cr3t", "invalid username-password pair"),
            ("reader", QUOTED, "the ACL must allow"),
        ):
            with pytest.raises(BackendError, match=words) as raised:
                open_filter(url.format(user, password), "crawl:2")
            assert "s3cr3t" not in f"{raised.value!r} {raised.value.__cause__} {caplog.text}"
            assert ".." not in str(raised.value)
    assert not caplog.text  # nothing is tried again


BROKEN = [
    "redis://me:s3cr3t@host:p0rt/0",
    "redis://me:s3/cr3t@host:6379/0",
    "redis://me:p@s3cr3t/1#2@host:6379/0",
    "redis://me:p@s3cr3t/1@host:6379/0",
    "redis://me:p@s3cr3t?2@host:6379/0",
    "redis://host/s3cr3t",
    "http://me:s3cr3t@host",
    "s3cr3t",
    "redis://me:s3cr3t@[host",
]
WITH = "redis://me:s3cr3t@host?{}=1", "unix:///a.sock?{}=1&db=1", "sentinel://host/name?{}"
OURS = "decode_responses", "socket_timeout", "protocol"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        *((url, "not shown, as it may contain a password") for url in BROKEN),
        *((url.format(each), f"URL sets {each}, which scrapy") for url in WITH for each in OURS),
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url, words):
    with pytest.raises(SettingError, match=words) as raised:
        Server(url)
    assert "cr3t" not in f"{raised.value!r} {raised.value.__cause__}"
    assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_a_url_that_only_looks_broken_is_taken():
    for url in (
        "unix:///run/user@1000/a#b.sock",
        "rediss://host/0?ssl_ca_certs=/etc/me@home.pem",
        "redis://host/0/",
        "redis://",
    ):
        assert Server(url).url == url


# A server that may soon be usable


@pytest.mark.parametrize(
    ("reply", "answered"),
    [
        (b"-LOADING Redis is loading the dataset in memory\r\n", True),
        (b"-ERR max number of clients reached\r\n", True),
        (b"-MASTERDOWN Link with MASTER is down\r\n", True),
        (b"-CLUSTERDOWN Hash slot not served\r\n", True),
        (b"HTTP/1.1 400 Bad Request\r\n", False),
    ],
)
def test_a_server_that_is_loading_is_a_temporary_error_and_has_answered(reply, answered):
    with Answering(reply) as port, pytest.raises(BackendError) as told:
        open_filter(f"redis://127.0.0.1:{port}/1", "key")
    assert (told.value.temporary, told.value.answered) == (True, answered), told.value


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:{}", "redis://nowhere.invalid:{}", "sentinel://127.0.0.1:{}/service"],
)
@pytest.mark.parametrize("policy", ["auto", "close"])
def test_an_address_where_nothing_answers_may_be_wrong(url, policy):
    port = free_port()
    with pytest.raises(BackendError, match=rf"127\.0\.0\.1|nowhere\.invalid.*{port}") as told:
        open_filter(url.format(port), "key", on_error=policy)
    assert (told.value.temporary, told.value.answered) == (True, False)


def test_a_target_is_shown_without_its_password():
    one = Server("redis://me:s3cr3t@host:7000/3")
    two = Server.of("", {"host": "host", "port": 7000, "db": 3, "password": "s3cr3t"})
    three = Server.of("", {"url": "rediss://me:s3cr3t@host:7000/3?x=s3cr3t", "socket_timeout": 5})
    for target in (one, two, three):
        assert target.address() == "host:7000/3"
        assert "s3cr3t" not in repr(target)
    assert Server.of("", {}).address() == "localhost:6379/0"
    assert Server.of("", {"unix_socket_path": "/x"}).address() == "unix:/x"
    assert Server.of("", {"host": "far", "ssl": True}).url == "rediss://far:6379"
    assert Server.of("redis://host", {"url": "redis://other"}).options == {}
    with pytest.raises(SettingError, match="REDIS_PARAMS"):
        Server.of("", {"pasword": "s3cr3t"}).connect(1)


def test_a_url_may_name_a_unix_socket(tmp_path, key):
    path = tmp_path / "redis.sock"
    with LocalRedis("--unixsocket", str(path)), open_filter(f"unix://{path}", key) as seen:
        assert [seen.add(b"x"), seen.add(b"x")] == [False, True]


def test_a_replica_is_refused_as_read_only(key):
    with LocalRedis() as primary, LocalRedis() as replica:
        replica.client().replicaof(primary.HOST, primary.port)
        until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        with open_filter(primary.url, key) as seen:
            seen.add(b"x")
            until(lambda: replica.client().exists(key))
            with pytest.raises(BackendError, match=r"(?i)read ?only"):
                open_filter(replica.url, key)


@contextmanager
def refused(server, words):
    """Expect that what is there is refused, and left as it is."""
    before = everything_in(server)
    with pytest.raises(StateError, match=words):
        yield
    assert everything_in(server) == before


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("SET {key} foreign", "string"),
        ("SADD {key} foreign", "set"),
        ("HSET {key} foreign 1", "hash"),
        *((f"SET {{base}}{name} foreign", "string") for name in ("queue", "taken", "failed")),
    ],
)
def test_keys_of_another_program_are_left_alone(server, key, command, kind):
    server.client().execute_command(*command.format(key=key, base=beginning(key)).split())
    with refused(server, rf"{key}: found a {kind} under .* is not ours. Nothing was changed"):
        open_filter(server.url, key)


@pytest.mark.parametrize(
    ("of", "other", "words"),
    [
        ({}, {"error_rate": 1e-4}, "error_rate 1e-06, not 0.0001"),
        ({}, {"fingerprinter": "mine.F"}, "fingerprinter 'theirs.F', not 'mine.F'"),
        ({}, {"digests": False}, "digests True, not False"),
        ({}, {"window": 60}, "window 0.0, not 60.0"),
        ({}, {"order": "fifo"}, "order '', not 'fifo'. It may be .* of a crawl with scrapy-redis"),
        ({"project": "sr", "order": "fifo"}, {}, "'sr', not ''.*by another SCHEDULER, 'scrapy_bl"),
    ],
)
def test_a_filter_of_other_parameters_is_refused_with_the_cause(server, key, of, other, words):
    usual = {"capacity": 1000, "error_rate": 1e-6, "fingerprinter": "theirs.F"}
    RedisFilter(Server(server.url), key, plan_of(**(usual | of)), timeout=10.0).close()
    with refused(server, words):
        RedisFilter(Server(server.url), key, plan_of(**(usual | other)), timeout=10.0)


def test_a_filter_of_another_capacity_is_used_as_it_is(server, key):
    known = fingerprints(3000)
    with open_filter(server.url, key) as one, open_filter(server.url, key, capacity=5000) as two:
        assert two.info().capacity == 1000
        assert not any(one.add_many(known))
        assert all(two.add_many(known))


HEADER = "program", "plan", "slices", "window", "first", "seq", "waiting", "forgotten"
WRONG = ("plan", "{}"), ("slices", "x"), ("window", "9.0"), ("first", "x"), ("seq", "-1")


@pytest.mark.parametrize(
    ("field", "value"), [*product(HEADER, (b"\xff", None)), ("epoch", b"\xff"), *WRONG]
)
def test_a_forged_or_torn_header_is_refused(server, key, field, value):
    open_filter(server.url, key).close()
    if value is None:
        server.client().hdel(key, field)
    else:
        server.client().hset(key, field, value)
    with refused(server, f"{key}: .*Nothing was changed"):
        open_filter(server.url, key)


@pytest.mark.parametrize("number", [f"{int(FORMAT) - 1}", "99", ""])
def test_another_format_is_refused_by_its_number_before_anything_else_is_read(server, key, number):
    open_filter(server.url, key).close()
    client = server.client()
    client.hset(key, mapping={"format": number, "plan": "x"})
    client.hdel(key, "epoch", "slices")
    client.set(beginning(key) + "queue", "another type in that format")
    words = f"{key}: found 'scrapy-bloom {number}', expected 'scrapy-bloom {FORMAT.decode()}'"
    words += (
        r"\. Nothing was changed\. Use the version of scrapy-bloom that wrote it, or another key"
    )
    words += r" \(BLOOM_REDIS_KEY\)\.$"  # and not: delete it
    with refused(server, words):
        open_filter(server.url, key)
    reader = Link(Server(server.url), 10.0)
    with refused(server, words):
        Reader(reader, key).existing()
    reader.close()


@pytest.mark.parametrize("field", ["slices", "window", "w", "waiting"])
def test_a_header_that_is_damaged_in_mid_crawl_makes_nothing_seen(server, key, field):
    with RedisFilter(Server(server.url), key, plan_of(), timeout=10.0, known=0) as seen:
        seen.add_many(fingerprints(10))
        name = f"w:{seen.worker.name}" if field == "w" else field
        server.client().hset(key, name, "x")
        assert seen.add_many(fingerprints(10, "new")) == [False] * 10


def test_a_key_is_that_of_a_project_and_a_spider_or_refused():
    projects = [project_of(get_crawler(None, {"BOT_NAME": name})) for name in ("books", "shop")]
    keys = [key_of(Settings({}), spider="s", project=project) for project in projects]
    assert keys == ["books:s:bloom", "shop:s:bloom"]
    for pattern in "%(spdier)s", "%(spider)", "%", "":
        with pytest.raises(SettingError, match="BLOOM_REDIS_KEY"):
            key_of(Settings({"BLOOM_REDIS_KEY": pattern}), spider="s", project="p")
