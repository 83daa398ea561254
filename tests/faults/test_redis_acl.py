"""What a user of the server must be allowed, and that a refusal changes nothing."""

import re
from pathlib import Path

import pytest
from support.contract import fingerprints
from support.filters import everything_in
from support.queues import Crawler

from scrapy_bloom import BackendError, RedisFilter
from scrapy_bloom.redis.client import CLUSTER_COMMANDS, COMMANDS, READING_COMMANDS
from scrapy_bloom.redis.wire import Ending

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "redis.md"


def allow(admin, commands):
    user = "ACL", "SETUSER", "worker", "reset", "on", ">pass", "~crawl*"
    admin.execute_command(*user, *(f"+{command}" for command in commands))


def as_worker(url):
    return url.replace("redis://", "redis://worker:pass@")


def use(url, key, **options):
    """Do all that one can do with a filter and with a queue."""
    known = fingerprints(600)
    options = {"capacity": 100, **options}
    filtered = {"key": key, "timeout": 10, "on_error": "close", **options}
    with (
        RedisFilter.from_url(url, **filtered) as seen,
        RedisFilter.from_url(url, **filtered) as other,
    ):
        assert seen.add_many(known) == [False] * 600
        assert other.add_many(known) == [True] * 600
        assert other.contains_many(known) == [True] * 600
        assert seen.forget(known[0])
        assert seen.add(known[0]) is False
        assert [seen.add_aged(b"list", 60) for _ in range(2)] == [False, True]
        assert seen.info().items == 601
        assert seen.clear() is False
        other.close()
        assert seen.clear()
        seen.worker.beat()
        assert seen.delete()
        assert seen.link.outages == other.link.outages == 0
    with Crawler(url, f"{key}:q", **options) as one, Crawler(url, f"{key}:q", **options) as two:
        one.offer(*range(20))
        one.say()
        while len(two.have) < 4:
            two.take(6)
        back, unreadable, done, failed, *_ = two.have.values()
        two.queue.put_back(back)
        two.queue.refuse(unreadable)
        two.queue.end(done, Ending())
        two.fail(failed.body.decode())
        two.say()
        one.queue.worker.beat()
    with Crawler(url, f"{key}:q", **options) as one:
        assert len(one.drain()) == 19


def test_the_documented_commands_are_enough(server):
    allow(server.client(), COMMANDS)
    url = as_worker(server.url)
    use(url.replace("/0", "/3"), "crawl")
    use(url, "crawl:window", window=60)


def test_the_documented_commands_are_enough_to_look_at_a_crawl(server, bloom):
    allow(server.client(), [*COMMANDS, *READING_COMMANDS])
    with Crawler(server.url, "crawl:shown") as one:
        one.offer(*range(20))
        one.say()
    target = f"{as_worker(server.url)}#crawl:shown"
    for line in ("info {}", "queue {}", "queue {} --failed", "why {} http://a.test/"):
        code, lines, errors = bloom(line.format(target))
        assert (code < 2, len(lines) > 0, errors) == (True, True, []), line
    allow(server.client(), COMMANDS)
    code, _, [error] = bloom(f"info {target}")
    assert code == 2
    assert "for 'scrapy bloom' also +zcount +zrange +zscan;" in error


def test_the_documented_commands_are_enough_in_a_cluster(cluster):
    for node in cluster.nodes:
        allow(node.client(), [*COMMANDS, *CLUSTER_COMMANDS])
    use(as_worker(cluster.url), "crawl", window=60)


def test_without_a_documented_command_a_filter_is_refused_and_leaves_nothing(server):
    admin = server.client()
    admin.flushall()
    for command in sorted({*COMMANDS} - {"info", "select"}):
        admin.script_flush()
        allow(admin, [one for one in COMMANDS if one != command])
        words = rf"must allow \+.*\+{re.escape(command)}[ ;]"
        with pytest.raises(BackendError, match=words) as told:
            RedisFilter.from_url(as_worker(server.url), key="crawl")
        assert not told.value.temporary
        assert not everything_in(server)


def test_every_command_of_the_acl_is_documented():
    text = DOCS.read_text("utf-8")
    line = re.search(r"ACL SETUSER .*?\n```", text, re.DOTALL)[0]
    assert set(re.findall(r"\+(\S+)", line)) == {*(*COMMANDS, *READING_COMMANDS, *CLUSTER_COMMANDS)}
