"""Servers as others set them up: a Redis Cluster, Sentinels, and users with few rights."""

import itertools
import re
import socket
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from redis.crc import key_slot
from support.clusters import LocalCluster, LocalSentinel
from support.contract import fingerprints
from support.filters import everything_in
from support.proxy import SelfSigned
from support.queues import Crawler
from support.waiting import until
from testbed.localredis import LocalRedis

from scrapy_bloom.errors import BackendError, SettingError
from scrapy_bloom.redis.client import (
    CLUSTER_COMMANDS,
    COMMANDS,
    READING_COMMANDS,
    Server,
    beginning,
    eviction_policy,
)
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.wire import Ending

pytestmark = [pytest.mark.redis, pytest.mark.server]


@pytest.mark.parametrize("name", ["{a}b}", "{{a}}", "a b"])
def test_all_keys_of_a_filter_are_in_one_slot_whatever_the_braces(cluster, name):
    assert key_slot(name.encode()) == key_slot(f"{beginning(name)}queue".encode())
    with RedisFilter.from_url(cluster.url, key=name, timeout=10.0, capacity=1000) as seen:
        assert [seen.add(b"x"), seen.add(b"x")] == [False, True]


@pytest.mark.parametrize("name", ["a{}b", "a}b", "a{b", "a}b{", "{}{a}"])
def test_a_key_whose_braces_do_not_name_a_slot_is_refused(name):
    with pytest.raises(SettingError, match="braces must enclose what names the slot"):
        RedisFilter.from_url("redis://localhost", key=name)


def test_it_can_be_asked_what_it_does_when_it_is_full(cluster):
    with closing(Server(cluster.url).connect(2.0)) as whole:
        assert eviction_policy(whole) == "noeviction"


def test_closing_ends_the_connections_to_all_nodes(cluster, key):
    def connections():
        return [node.client().info("clients")["connected_clients"] for node in cluster.nodes]

    with Crawler(cluster.url, key):
        assert sum(connections()) > len(cluster.nodes)
    until(lambda: connections() == [1] * len(cluster.nodes))  # the one that asks


def test_a_node_is_killed_and_another_one_takes_its_place():
    """What the replica has been told is neither lost nor done twice."""
    with LocalCluster(replica=True) as cluster, Crawler(cluster.url, key_on_third()) as worker:
        worker.add(*range(300))
        done = worker.take(60)
        worker.done()
        worker.say()
        third, replica = (cluster.nodes[number].client() for number in (2, 3))
        reached = third.info("replication")["master_repl_offset"]
        until(lambda: replica.info("replication")["slave_repl_offset"] >= reached)
        cluster.nodes[2].kill()
        assert worker.add(*range(300, 400)) == [*range(300, 400)]
        assert replica.info("replication")["role"] == "master"
        done += worker.drain()
        assert sorted(map(int, done)) == [*range(400)]


def test_a_script_that_is_gone_is_loaded_while_another_node_is_down():
    with LocalCluster() as cluster, Crawler(cluster.url, key_on_third()) as worker:
        worker.add(*range(10))
        cluster.nodes[1].kill()
        cluster.nodes[2].client().script_flush()
        worker.offer(*range(10, 20))
        assert worker.exchange().verdicts


class Move:
    """The slot of a key moves from the third node of a cluster to the first."""

    def __init__(self, cluster, key):
        self.slot, self.to = key_slot(key.encode()), cluster.nodes[0]
        self.source, self.target = cluster.nodes[2].client(), self.to.client()
        ids = [node.execute_command("CLUSTER", "MYID") for node in (self.target, self.source)]
        self._set(self.target, "IMPORTING", ids[1])
        self._set(self.source, "MIGRATING", ids[0])
        self._id = ids[0]

    def _set(self, node, *words):
        node.execute_command("CLUSTER", "SETSLOT", self.slot, *words)

    def move(self, name):
        self.source.execute_command("MIGRATE", self.to.HOST, self.to.port, name, 0, 5000)

    def names(self):
        return self.source.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100)

    def end(self):
        for node in (self.target, self.source):
            self._set(node, "NODE", self._id)


def test_while_its_slot_moves_a_crawl_waits():
    """The client's error was one that ends a crawl: all workers ended, with the exit code 0."""
    key = key_on_third()
    with LocalCluster() as cluster, Crawler(cluster.url, key, timeout=2.0) as worker:
        worker.add(*range(100))
        done = worker.take(10)
        worker.done()
        # Else a script runs during a move, and ends half-way at a key that is not on its node.
        assert not cluster.nodes[2].client().exists(beginning(key))
        move = Move(cluster, key)
        for name in sorted(move.names(), key=key.encode().__eq__):  # the header comes last
            move.move(name)
            with pytest.raises(BackendError) as told:
                worker.beat()
            assert told.value.temporary
        move.end()
        done += worker.drain()
        assert sorted(map(int, done)) == [*range(100)]
        assert worker.queue.surprises == 0


def key_on_third():
    names = (f"crawl{number}" for number in itertools.count())
    return next(name for name in names if key_slot(name.encode()) > 11_000)


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
        assert worker.add("a") == ["a"]
        assert primary.client(password="secret", db=3).exists(key)


@pytest.mark.parametrize("more", ["", "?sentinel_password=wrong"])
def test_a_password_that_the_sentinels_refuse_is_asked_for(sentinel, key, more):
    with pytest.raises(BackendError, match=r"add \?sentinel_password=") as told:
        Crawler(url_of(sentinel, more), key)
    assert not told.value.temporary
    assert "wrong" not in str(told.value)


def test_a_url_with_an_unknown_option_or_without_a_service_is_refused(sentinel, key):
    with pytest.raises(SettingError, match=r"unexpected keyword argument 'colour'.*Check its URL"):
        Crawler(url_of(sentinel, "?sentinel_password=sent&colour=red"), key)
    with pytest.raises(SettingError, match="must name the service"):
        Server("sentinel://127.0.0.1:26379")


def test_sentinels_that_hang_leave_time_for_the_one_that_does_not(sentinel, key):
    with ExitStack() as hung:
        silent = [hung.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        hosts = [*(f"127.0.0.1:{each.getsockname()[1]}" for each in silent), sentinel]
        url = url_of(",".join(hosts), "?sentinel_password=sent")
        with Crawler(url, key, timeout=12.0) as worker:
            assert worker.add("a") == ["a"]


def test_a_port_that_speaks_no_tls_is_named(primary, key):
    """The advice was to raise the timeout."""
    with pytest.raises(BackendError, match="Does it speak TLS") as told:
        Crawler(f"rediss://127.0.0.1:{primary.port}", key, timeout=4.0)
    assert "BLOOM_REDIS_TIMEOUT" not in str(told.value)


@pytest.mark.parametrize(
    ("scheme", "words", "passes"), [("rediss", "ssl_ca_certs", False), ("redis", "rediss://", True)]
)
def test_a_certificate_that_is_refused_and_tls_that_is_wanted_are_named(
    tmp_path, scheme, words, passes
):
    """Both were said to be a wrong address."""
    with SelfSigned(tmp_path / "own.pem") as port, pytest.raises(BackendError, match=words) as told:
        Crawler(f"{scheme}://127.0.0.1:{port}", "key", timeout=4.0)
    assert told.value.temporary is passes


# A user with few rights: what is documented is enough, and a refusal changes nothing

DOCS = Path(__file__).parents[2] / "docs" / "reference"


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
        one.add(*range(20))
        while len(two.have) < 4:
            two.take(6)
        back, unreadable, done, failed, *_ = two.have.values()
        two.queue.requeue(back)
        two.queue.refuse(unreadable)
        two.queue.end(done, Ending())
        two.fail(failed.body.decode())
        two.say()
        one.beat()
    with Crawler(url, f"{key}:q", **options) as one:
        assert len(one.drain()) == 19


def test_the_documented_commands_are_enough(server):
    allow(server.client(), COMMANDS)
    url = as_worker(server.url)
    use(url.replace("/0", "/3"), "crawl")
    use(url, "crawl:window", window=60)


def test_the_documented_commands_are_enough_to_look_at_a_crawl(server, bloom):
    """Fewer are documented for a user who only looks."""
    looking = (DOCS / "commands.md").read_text("utf-8").partition("Inspecting needs")[2]
    looking = re.findall("`([a-z_|]+)`", looking.partition("The verb `info`")[0])
    with Crawler(server.url, "crawl:shown") as one:
        one.offer(*range(20))
        one.offer("later", wait=900)
        one.take(1)
        target = f"{as_worker(server.url)}#crawl:shown"
        for commands, verb in (
            *((looking, f"{verb} {{}}") for verb in ("queue", "why", "top --once --interval 0.1")),
            *(([*COMMANDS, *READING_COMMANDS], verb) for verb in ("info {}", "queue {} --failed")),
        ):
            allow(server.client(), commands)
            url = "http://a.test/" if "why" in verb else ""
            code, lines, errors = bloom(f"{verb.format(target)} {url}")
            assert (code < 2, len(lines) > 0, errors) == (True, True, []), verb
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
    text = (DOCS / "redis.md").read_text("utf-8")
    line = re.search(r"ACL SETUSER .*?\n```", text, re.DOTALL)[0]
    assert set(re.findall(r"\+(\S+)", line)) == {*(*COMMANDS, *READING_COMMANDS, *CLUSTER_COMMANDS)}
