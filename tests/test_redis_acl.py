"""What a user of the server must be allowed, and that a refusal changes nothing."""

import re
from pathlib import Path

import pytest
from support.contract import fingerprints
from support.localcluster import LocalCluster
from support.queues import Worker, drain, entry, failed

from scrapy_bloom import BackendError, RedisFilter, RedisReader
from scrapy_bloom.redis import connection
from scrapy_bloom.redis.connection import CLUSTER_COMMANDS, QUEUE_COMMANDS
from scrapy_bloom.redis.layout import layout_of
from scrapy_bloom.registry import LAYOUTS

DOCS = Path(__file__).parents[1] / "docs" / "reference" / "redis.md"


def needed(layout):
    """Return the commands that a user needs."""
    return (*connection.COMMANDS, *layout_of(layout).commands)


def allow(admin, commands, keys="crawl*"):
    admin.execute_command(
        *("ACL", "SETUSER", "worker", "reset", "on", ">pass", f"~{keys}"),
        *(f"+{command}" for command in commands),
    )


def as_worker(url):
    return url.replace("redis://", "redis://worker:pass@")


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster() as cluster:
        yield cluster


def use(url, key, layout, **options):
    """Do all that one can do with a filter."""
    known = fingerprints(300)
    options = {"key": key, "layout": layout, "capacity": 100, "cache": 0, "timeout": 10, **options}
    with (
        RedisFilter.from_url(url, **options) as seen,
        RedisFilter.from_url(url, **options) as other,
    ):
        assert seen.add_many(known) == [False] * 300
        assert other.add_many(known) == [True] * 300
        assert seen.contains_many(known) == [True] * 300
        for _ in range(1000):  # among them a look for lost segments
            seen.add(known[0])
        assert seen.forget(known[0])
        assert known[0] not in other
        assert seen.add(known[0]) is False
        assert seen.info().items == 300
        assert seen.clear() is False
        assert seen.add(b"x") is False
        with RedisReader.from_url(url, key=key) as reader:
            assert reader.info().items == 301
            assert reader.workers()
        assert (seen.counters.outages, other.counters.outages) == (0, 0)
        return lambda: RedisFilter.from_url(url, **options)


@pytest.mark.parametrize("database", [0, 3])
def test_the_documented_commands_are_enough(server, database, layout):
    allow(server.client(), needed(layout))
    url = as_worker(server.url).replace("/0", f"/{database}")
    key = f"crawl:{layout}:{database}"
    again = use(url, key, layout)
    client = server.client(db=database)
    with again() as seen:
        client.delete(key)
        assert seen.add(b"y") is False
        assert seen.counters.losses == 1
    with again() as seen:
        assert seen.clear()
    again().close()


def test_they_are_enough_in_a_cluster(cluster, layout):
    for node in cluster.nodes:
        allow(node.client(), [*needed(layout), *CLUSTER_COMMANDS])
    use(as_worker(cluster.url), f"crawl:{layout}", layout, shards=3, window=60)


def everything(server):
    client = server.client()
    return {name: client.dump(name) for name in client.scan_iter()}


@pytest.mark.parametrize(
    ("layout", "command"),
    [
        (layout, command)
        for layout in LAYOUTS
        for command in sorted({*needed(layout)} - {"info", "select"})
    ],
)
def test_without_one_of_them_a_filter_is_refused_and_nothing_is_left(server, layout, command):
    admin = server.client()
    admin.flushall()
    admin.script_flush()
    allow(admin, [one for one in needed(layout) if one != command])
    url = as_worker(server.url)
    words = rf"does not let this user .*\+{re.escape(command)}[ ;]"
    with pytest.raises(BackendError, match=words):
        RedisFilter.from_url(url, key="crawl", layout=layout)
    assert not everything(server)
    with RedisFilter.from_url(server.url, key="crawl", layout=layout) as seen:
        seen.add(b"x")
    before = everything(server)
    admin.script_flush()
    with pytest.raises(BackendError, match="does not let this user"):
        RedisFilter.from_url(url, key="crawl", layout=layout)
    assert everything(server) == before


def test_another_database_needs_select(server):
    allow(server.client(), [one for one in needed("bitmap") if one != "select"])
    with pytest.raises(BackendError, match=r"does not let this user .*\+select"):
        RedisFilter.from_url(as_worker(server.url).replace("/0", "/3"), key="crawl")


def test_keys_that_are_not_allowed_are_refused_and_nothing_is_left(server):
    server.client().flushall()
    allow(server.client(), needed("bitmap"))
    with pytest.raises(BackendError, match="does not let this user"):
        RedisFilter.from_url(as_worker(server.url), key="else")
    allow(server.client(), needed("bitmap"), keys="crawl")  # the header's alone
    with pytest.raises(BackendError, match="does not let this user"):
        RedisFilter.from_url(as_worker(server.url), key="crawl")
    assert not everything(server)


@pytest.mark.parametrize("command", [*CLUSTER_COMMANDS, "info"])
def test_without_one_of_them_a_cluster_is_refused_by_its_name(cluster, command):
    for node in cluster.nodes:
        allow(
            node.client(), [one for one in (*needed("bitmap"), *CLUSTER_COMMANDS) if one != command]
        )
    words = rf"does not let this user .*\+{re.escape(command)}"
    with pytest.raises(BackendError, match=words):
        RedisFilter.from_url(as_worker(cluster.url), key="crawl:9", shards=3, timeout=10)
    for node in cluster.nodes:
        assert not node.client().keys("crawl:9*")


def use_queue(url, key):
    """Do all that one can do with a queue beside a filter."""
    with Worker(url, key) as one, Worker(url, key) as other:
        one.queue.offer([*(entry(number) for number in range(20)), entry("held", held=True)])
        held = one.queue.offer([entry("given back", held=True)]).tickets
        one.queue.give_back(list(held.values()))
        assert other.queue.offer([entry("given back"), entry(0)]).seen == [False, True]
        taken = other.queue.take(4)
        other.queue.fail([taken[0].ticket])
        other.queue.give_back([taken[1].ticket])
        assert failed(one)
        assert other.queue.look()[:2] == (18, 1)
        other.queue.close()  # puts back what it has
        assert sorted(drain(one.queue)) == sorted([*map(str, range(1, 20)), "given back"])
        assert (one.filter.counters.outages, other.filter.counters.outages) == (0, 0)


def test_the_documented_commands_are_enough_for_a_queue(server):
    allow(server.client(), [*needed("bitmap"), *QUEUE_COMMANDS])
    use_queue(as_worker(server.url), "crawl:queue")


@pytest.mark.parametrize("command", QUEUE_COMMANDS)
def test_without_one_of_them_a_queue_is_refused_and_nothing_is_left(server, command):
    server.client().flushall()
    allow(server.client(), [one for one in (*needed("bitmap"), *QUEUE_COMMANDS) if one != command])
    with pytest.raises(BackendError, match=rf"does not let this user .*\+{command}[ .]"):
        Worker(as_worker(server.url), "crawl")
    assert set(everything(server)) == {b"crawl"}  # the filter's header


def test_the_commands_are_documented():
    text = DOCS.read_text("utf-8")
    line = re.search(r"ACL SETUSER .*?\n```", text, re.DOTALL)[0]
    of_layouts = {command for layout in LAYOUTS for command in needed(layout)}
    documented = of_layouts | {*CLUSTER_COMMANDS, *QUEUE_COMMANDS}
    assert set(re.findall(r"\+(\S+)", line)) == documented
    for layout in map(layout_of, LAYOUTS):
        for command in layout.commands:
            assert re.search(rf"`{layout.name}`[^.]*`{re.escape(command)}`", text)


def used(paths):
    """Return the commands in scripts that are used, and not only tried."""
    return {
        command.lower()
        for path in paths
        for command in re.findall(r"call\('([A-Z_]+)'", path.read_text("utf-8"))
        if not path.stem.endswith("_trial")
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_none_of_them_is_superfluous(layout):
    others = {f"_{name}" for name in LAYOUTS if name != layout}
    folder = Path(connection.__file__).parent / "lua"
    scripts = {path for path in folder.glob("*.lua") if path.stem not in others}
    parts = {"_queue", "_leases", "offer"}
    queue = {path for path in scripts if path.stem.startswith("queue_") or path.stem in parts}
    scripts -= {
        path for path in scripts if path.stem in ("install", "numbers", "retire")
    }  # of no worker
    asked = {"info", "select", "eval", "evalsha", "hkeys"}  # by the client, outside of scripts
    asked |= {"bitmap": {"bitcount"}, "sets": {"scard", "object|encoding"}}[layout]
    assert used(scripts - queue) | asked == {*needed(layout)}
    assert used(queue) - {*connection.COMMANDS} == {*QUEUE_COMMANDS}
