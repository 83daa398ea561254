"""Whatever befalls network and server: each page is granted once, and none is seen that nobody was
granted."""

import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import cycle

import pytest
from support.contract import fingerprints
from support.crawling import KEPT, Follower, crawl
from support.proxy import MORE_FAULTS, Answering, Proxy
from support.queues import Crawler, left, mark_of, name_of, plan_of
from support.sites import Pages
from support.waiting import PATIENCE, until
from testbed.localredis import LocalRedis, keys

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import link, upkeep
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.wire import LARGEST

pytestmark = [pytest.mark.redis, pytest.mark.server]

FAULT_SERIES = int(os.environ.get("FAULTS", "12"))
"""Faults in each of the long series; `make kills` asks for many."""


def patience(*faults):
    """Return a timeout for these: what stalls lasts as long, what does not may take any time."""
    return 4.0 if any("stall" in fault for fault in faults) else 20.0


@pytest.fixture
def opened():
    with ExitStack() as filters:

        def opened(url, key, **options):
            plan = plan_of(capacity=10, error_rate=1e-9)
            one = RedisFilter(Server(url), key, plan, **{"known": 0, "timeout": 20.0, **options})
            return filters.enter_context(one)

        yield opened


def add_with(faults, opened, server, proxy, known):
    """Let two workers add the same pages in turns, one of them with faults.

    Return that one, and how often each page was granted: none is seen before.
    """
    key, pages, granted = next(keys), fingerprints(40), Counter()
    faulty = opened(proxy.url, key, known=known, timeout=patience(*faults.values()))
    sound = opened(server.url, key)

    def add(worker, items):
        for item, seen in zip(items, worker.add_many(items), strict=True):
            granted[item] += not seen
            assert granted[item]

    add(faulty, [b"loads the script"])
    proxy.requests, proxy.faults = 0, faults
    for start in range(0, 35, 5):
        add(sound, pages[start : start + 2])
        add(faulty, pages[start : start + 5])
        if start == 20:
            proxy.deliver()
        add(sound, pages[: start + 5])
    assert proxy.requests >= max(faults)
    until(lambda: faulty.usable)
    proxy.deliver()
    add(faulty, pages)
    add(sound, pages)
    assert len(granted) == 41
    return faulty, granted


@pytest.mark.parametrize(("fault", "known"), [*zip(MORE_FAULTS, cycle((0, 1000)))])
def test_one_fault_in_any_call_changes_no_verdict(server, opened, fault, known):
    """A call that is given up costs a second fetch at most."""
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        for call in (2, 5) if "stall" in fault else (2, 3, 5):
            faulty, granted = add_with({call: fault}, opened, server, proxy, known)
            assert set(granted.values()) == {1}
            assert faulty.link.outages == 0
        add_with({3: fault, 4: fault}, opened, server, proxy, 1000)


def test_fingerprints_granted_in_one_batch_are_not_seen_when_the_next_fails(server, opened):
    """The first 500 of these were called seen in the second try, though nobody had them."""
    pages = fingerprints(1200)
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        seen = opened(proxy.url, next(keys), on_error="close")
        seen.add(b"loads the script")
        proxy.requests, proxy.faults = 0, {2: "drop reply", 3: "drop reply"}
        with pytest.raises(BackendError):
            seen.add_many(pages)
        until(lambda: seen.usable)
        assert seen.add_many(pages) == [False] * 1200
        assert seen.add_many(pages) == [True] * 1200


def test_a_long_series_of_faults_in_a_crawl_of_two(server, key):
    """Pages wait in the queue. Each is granted once and done once, whatever happens to calls."""
    dice = random.Random("crawl")
    pages, granted, done, offered, reached = 30 * FAULT_SERIES, [], [], 0, 0
    with (
        Proxy(server.port, counted=name_of("call")) as proxy,
        Crawler(proxy.url, key, capacity=200) as faulty,
        Crawler(server.url, key, capacity=200) as sound,
    ):
        kinds = [fault for fault in MORE_FAULTS if fault != "stall"]
        calls = [2 + 3 * number + dice.randrange(3) for number in range(FAULT_SERIES)]
        proxy.faults = {call: dice.choice(kinds) for call in calls}
        while proxy.requests < 3 * FAULT_SERIES + 4:
            for worker in (faulty, sound):
                some = range(offered, offered + dice.randrange(1, 20))
                offered = some.stop if worker is sound else offered
                reached = max(reached, some.stop)
                worker.offer(*(number % pages for number in some))
                granted += worker.say()
                done += worker.take(dice.randrange(1, 20))
                worker.done()
            if dice.random() < 0.1:
                proxy.deliver()
        proxy.faults = {}
        proxy.deliver()
        granted += faulty.say() + sound.say()
        done += sound.drain()
        print(f"{FAULT_SERIES} faults, {len(granted)} pages")  # noqa: T201 - to be read
        assert sorted(granted) == sorted({*granted}) == list(range(min(reached, pages)))
        assert sorted(map(int, done)) == sorted(granted)
        faulty.say()
        assert left(server, key) == (0, 0, 0)


def test_a_forgotten_fingerprint_is_granted_to_one_worker_again(server, opened, key):
    """All workers ask for the same fingerprints in step, before and after one forgets them all."""
    known, in_step, granted = fingerprints(400), threading.Barrier(4, timeout=PATIENCE), Counter()

    def add_all(seen):
        new = []
        for start in range(0, 400, 20):
            part = known[start : start + 20]
            in_step.wait()
            verdicts = zip(part, seen.add_many(part), strict=True)
            new += [page for page, was_there in verdicts if not was_there]
        return new

    def work(seen):
        with ExitStack() as stack:
            stack.callback(in_step.abort)  # if it fails, the others do not wait for it
            new = add_all(seen)
            if in_step.wait() == 0:
                assert all(seen.forget_many(known))
            in_step.wait()
            # What a worker knows by itself is seen until it hears of that, with its next call.
            seen.add_many([os.urandom(20) for _ in range(20)])
            assert not any(seen.contains_many(known))
            new += add_all(seen)
            stack.pop_all()
        return new

    with ThreadPoolExecutor(4) as workers:
        for new in workers.map(work, [opened(server.url, key) for _ in range(4)]):
            granted.update(new)
    assert granted == dict.fromkeys(known, 2)


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_a_fault_takes_nothing_out_twice(server, opened, key, fault):
    """If a repeated call did, it would undo what somebody was granted since."""
    one = fingerprints(1)[0]
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        faulty, other = opened(proxy.url, key, timeout=patience(fault)), opened(server.url, key)
        faulty.add(one)
        proxy.requests, proxy.faults = 0, {1: fault}
        assert faulty.forget(one)
        assert proxy.requests
        assert other.add(one) is False
        proxy.deliver()
        assert other.add(one) is True
        assert faulty.add(one) is True


def test_an_outage_lets_through_what_the_worker_does_not_know(opened, key, caplog):
    """And nothing can be forgotten meanwhile."""
    before, during, after = (fingerprints(50, tag) for tag in ("before", "during", "after"))
    with LocalRedis(persist=True) as server:
        seen = opened(server.url, key, known=1000)
        seen.add_many(before)
        server.kill()
        assert seen.add_many([*before, *during]) == [True] * 50 + [False] * 50
        assert seen.numbers()["unknown"] == 50
        assert caplog.text.count("Retrying.") == 1
        with pytest.raises(BackendError):
            seen.forget(during[0])
        server.start()
        until(lambda: seen.usable)
        assert seen.add_many([*before, *after]) == [True] * 50 + [False] * 50
        assert opened(server.url, key).contains_many([*before, *after]) == [True] * 100
        assert (seen.link.outages, seen.numbers()["losses"]) == (1, 0)
        seen.forget(during[0])  # it may have been marked since
        assert seen.add(during[0]) is False


@pytest.mark.parametrize("lost", ["*", ""], ids=["all", "header"])
def test_a_loss_is_noticed_at_once_and_nothing_is_known_any_more(
    own_server, opened, key, lost, caplog
):
    one, two = (opened(own_server.url, key, known=1000) for _ in range(2))
    ones, twos = fingerprints(100, "one"), fingerprints(100, "two")
    one.add_many(ones)
    two.add_many(twos)
    client = own_server.client()
    client.delete(*client.keys(key + lost))
    assert one.add(b"next") is False
    assert two.add(b"another") is False
    assert one.numbers()["losses"] == two.numbers()["losses"] == 1
    assert caplog.text.count("continues with what the server has") == 2
    assert one.add_many(ones) == [False] * 100
    assert two.add_many([*ones, *twos]) == [True] * 100 + [False] * 100


@pytest.mark.parametrize(
    ("name", "value"), [("*.again", None), ("", "foreign"), ("*.0.0", "foreign")]
)
def test_no_page_is_hidden_by_what_is_lost_or_foreign(own_server, opened, key, name, value):
    """A foreign value in place of the header is an outage, and is left."""
    seen, known = opened(own_server.url, key), fingerprints(10)
    seen.add_many(known)
    seen.forget_many(known[:5])
    client = own_server.client()
    found, *_ = client.keys(f"{beginning(key)}{name}" if name else key)
    client.delete(found)
    if value:
        client.rpush(found, value)
    assert seen.add_many(known[:5]) == [False] * 5
    if not name:
        assert client.lrange(found, 0, -1) == [b"foreign"]
        client.delete(found)
    until(lambda: seen.usable and not seen.add(os.urandom(9)) and seen.add(b"y"))
    if value is None:
        assert seen.numbers()["losses"] == 1
    elif name:
        assert client.lrange(found, 0, -1) in ([b"foreign"], [])


@pytest.mark.parametrize("behind", [False, True])
def test_a_failover_forgets_what_the_replica_had_not_received(opened, key, behind):
    early, late = fingerprints(100, "early"), fingerprints(100, "late")
    with LocalRedis() as primary, LocalRedis() as replica, Proxy(primary.port) as proxy:
        replica.client().replicaof(primary.HOST, primary.port)
        until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        seen = opened(proxy.url, key, known=1000)
        seen.add_many(early)
        assert primary.client().wait(1, 1000 * PATIENCE) == 1
        if behind:
            replica.client().replicaof("NO", "ONE")
        seen.add_many(late)
        if not behind:
            assert primary.client().wait(1, 1000 * PATIENCE) == 1
            replica.client().replicaof("NO", "ONE")
        primary.kill()
        proxy.upstream = replica.port
        proxy.cut()
        until(lambda: seen.usable and not seen.add(os.urandom(20)) and seen.usable)
        assert seen.add_many([*early, *late]) == [True] * 100 + [not behind] * 100
        assert seen.numbers()["losses"] == behind


def test_a_worker_leaves_a_demoted_primary_for_the_one_that_its_address_leads_to(key):
    """A name or a balancer leads to the new one, and old connections stay with the old one."""
    with LocalRedis() as old, LocalRedis() as new, Proxy(old.port) as proxy:
        new.client().replicaof(old.HOST, old.port)
        until(lambda: new.client().info("replication")["master_link_status"] == "up")
        with Crawler(proxy.url, key) as worker:
            worker.add(*range(10))
            assert old.client().wait(1, 1000 * PATIENCE) == 1
            new.client().replicaof("NO", "ONE")
            old.client().replicaof(new.HOST, new.port)
            proxy.upstream = new.port
            assert worker.add(*range(10, 20)) == [*range(10, 20)]
            assert sorted(map(int, worker.drain())) == [*range(20)]


@pytest.mark.parametrize(
    ("reply", "passes"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", True),
        ("UNBLOCKED client unblocked via CLIENT UNBLOCK", True),
        ("ERR Error running script: Script killed by user with SCRIPT KILL.", True),
        ("ERR upstream failure", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", True),
        ("WRONGPASS invalid username-password pair or user is disabled.", True),
        ("NOAUTH Authentication required.", True),
        ("NOPERM this user has no permissions to run the 'evalsha' command", False),
        ("ERR unknown command 'EVALSHA', with args beginning with: ", False),
        ("ERR @user_script: 9: Unknown Redis command called from Lua script", False),
        ("ERR Error compiling script (new function): user_script:1: '=' expected", False),
        ("ERR user_script:50: Script attempted to access nonexistent global variable", False),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", False),
    ],
)
def test_once_a_worker_has_worked_only_some_errors_end_it(server, key, reply, passes):
    with Proxy(server.port) as proxy, Crawler(proxy.url, key) as worker:
        with Answering(f"-{reply}\r\n".encode()) as port:
            upstream, proxy.upstream = proxy.upstream, port
            proxy.cut()
            with pytest.raises(BackendError) as told:
                worker.exchange()
        assert told.value.temporary is passes
        proxy.upstream = upstream
        proxy.cut()
        worker.beat()
        worker.exchange()


def test_a_password_that_is_refused_for_long_ends_a_worker(own_server, key, monkeypatch):
    """Passwords are changed: for a while the server and the worker have different ones."""
    admin = own_server.client()
    admin.execute_command("ACL", "SETUSER", "worker", "on", ">old", "~*", "+@all")
    with Crawler(own_server.url.replace("//", "//worker:old@"), key) as worker:
        admin.execute_command("ACL", "SETUSER", "worker", "resetpass", ">new")
        admin.execute_command("CLIENT", "KILL", "USER", "worker")
        for seconds, passes in ((600, True), (0, False)):
            monkeypatch.setattr(link, "_PASSWORDS", seconds)
            with pytest.raises(BackendError, match="user and password") as told:
                worker.beat()
            assert told.value.temporary is passes
        admin.execute_command("ACL", "SETUSER", "worker", ">old")
        worker.beat()


def test_a_server_that_falls_silent_blocks_one_check(server, opened, key, monkeypatch):
    with Proxy(server.port) as proxy:
        seen = opened(proxy.url, key, known=1000, timeout=patience("stall"))
        assert seen.add_many(fingerprints(20)) == [False] * 20
        proxy.faults = dict.fromkeys(range(proxy.requests + 1, 10_000), "stall")
        run, waited = seen.link.run, []

        def counted(*arguments, **options):
            if seen.usable or options.get("probe"):
                waited.append(threading.current_thread())
            return run(*arguments, **options)

        monkeypatch.setattr(seen.link, "run", counted)
        assert seen.add_many(fingerprints(20, "b")) == [False] * 20
        assert seen.link.outages == 1
        assert all(item in seen for item in fingerprints(20))
        assert [seen.add(item) for item in fingerprints(50, "c")] == [False] * 50
        assert waited.count(threading.current_thread()) == 1


@pytest.mark.long
def test_a_large_request_comes_over_a_slow_link_and_the_lease_is_kept(server, key, monkeypatch):
    """Others took the worker for dead, or it took itself for dead, by when the call was sent."""
    monkeypatch.setattr(upkeep, "LEASE", 8.0)
    with (
        Proxy(server.port) as link,
        Crawler(link.url, key, timeout=6.0, calls=upkeep.CALL) as worker,  # as long as in a crawl
    ):
        with Crawler(server.url, key):  # it looks for the dead with each heartbeat
            link.rate = 200_000
            worker.queue.offer(Entry("f", mark_of(0), bytes(4_000_000), source=0))
            assert worker.exchange().verdicts[0][1] is False
            assert worker.queue.has_lease
            assert worker.queue.surprises == worker.queue.link.outages == 0
        link.rate = 4_000_000
        worker.say(1)
        assert len(worker.have) == 1


def test_a_failed_request_and_a_new_one_that_are_large_do_not_share_a_call(server, key):
    """Each may take the time of a call."""
    with Crawler(server.url, key) as worker:
        for number in range(3):
            worker.queue.offer(Entry("f", mark_of(number), bytes(LARGEST), source=number))
            if number == 1:
                worker.exchange()
                worker.exchange()
                worker.exchange(1)
                worker.fail(*worker.have)
        assert not worker.exchange().verdicts
        assert len(worker.exchange().verdicts) == 1


async def test_no_crawl_stands_still_over_a_slow_link(server, key, caplog):
    """What could never be sent waits in memory, and is said."""

    class Heavy(Follower):
        def request(self, response, href):
            size = LARGEST + 1 if href == "/heavy" else 2_000
            return response.follow(href, meta={"heavy": "x" * size})

    leaves = {f"/{number}": [] for number in range(300)} | {"/heavy": []}
    with Proxy(server.port) as link, Pages({"/": [*leaves], **leaves}) as site:
        link.rate = 400_000
        own = KEPT | {"BLOOM_REDIS_URL": link.url, "BLOOM_REDIS_KEY": key}
        own["CLOSESPIDER_TIMEOUT"] = 400  # if it stands still
        crawler = await crawl(Heavy, own, url=site.url + "/")
        assert len({*crawler.spider.parsed}) == 302
    assert crawler.stats.get_value("finish_reason") == "finished"
    assert caplog.text.count("and the most are 8,000,000. It waits in memory") == 1
