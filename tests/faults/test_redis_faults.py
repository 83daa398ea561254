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
from support.proxy import MORE_FAULTS, Answering, Proxy
from support.queues import Crawler, left, name_of, plan_of
from support.waiting import PATIENCE, until
from testbed.localredis import LocalRedis, keys

from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import link
from scrapy_bloom.redis.client import Server, beginning
from scrapy_bloom.redis.filter import RedisFilter

pytestmark = [pytest.mark.redis, pytest.mark.server]

FAULT_SERIES = int(os.environ.get("FAULTS", "12"))
"""Faults in each of the long series; `make kills` asks for many."""


@pytest.fixture
def opened():
    filters = []

    def opened(url, key, *, on_error="auto", known=0, timeout=2.0, window=None):
        plan = plan_of(capacity=10, error_rate=1e-9, window=window)
        one = RedisFilter(
            *(Server(url), key, plan), on_error=on_error, timeout=timeout, known=known
        )
        filters.append(one)
        return one

    yield opened
    for one in filters:
        one.close()


def add_with(faults, opened, server, proxy, known):
    """Let two workers add the same pages in turns, one of them with faults.

    Return that one, and how often each page was granted: none is seen before.
    """
    key, pages, granted = next(keys), fingerprints(40), Counter()
    faulty, sound = opened(proxy.url, key, known=known), opened(server.url, key)

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
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        for call in (2, 5) if "stall" in fault else (2, 3, 5):
            faulty, granted = add_with({call: fault}, opened, server, proxy, known)
            assert set(granted.values()) == {1}
            assert faulty.link.outages == 0


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_a_call_that_is_given_up_costs_a_second_fetch_at_most(server, opened, fault):
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        add_with({3: fault, 4: fault}, opened, server, proxy, 1000)


def test_fingerprints_granted_in_one_batch_are_not_seen_when_the_next_fails(server, opened):
    """The first 500 of these were called seen in the second try, though nobody had them."""
    pages = fingerprints(1200)
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        seen = opened(proxy.url, next(keys), on_error="close", timeout=20.0)
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
                if worker is sound:
                    offered = some.stop
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


def test_a_forgotten_fingerprint_is_granted_to_one_worker_again(server, key):
    """All workers ask for the same fingerprints in step, before and after one forgets them all."""
    known, in_step, granted = fingerprints(400), threading.Barrier(4, timeout=PATIENCE), Counter()
    plan = plan_of(capacity=100, error_rate=1e-9)

    def add_all(seen):
        for start in range(0, 400, 20):
            part = known[start : start + 20]
            in_step.wait()
            verdicts = seen.add_many(part)
            yield from (
                page for page, was_there in zip(part, verdicts, strict=True) if not was_there
            )

    def work(_):
        with (
            ExitStack() as stack,
            RedisFilter(Server(server.url), key, plan, timeout=10.0) as seen,
        ):
            stack.callback(in_step.abort)  # if it fails, the others do not wait for it
            new = [*add_all(seen)]
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
        for new in workers.map(work, range(4)):
            granted.update(new)
    assert granted == dict.fromkeys(known, 2)


@pytest.mark.parametrize("fault", MORE_FAULTS)
def test_a_fault_takes_nothing_out_twice(server, opened, key, fault):
    """If a repeated call did, it would undo what somebody was granted since."""
    one = fingerprints(1)[0]
    with Proxy(server.port, counted=name_of("mark")) as proxy:
        faulty, other = opened(proxy.url, key, timeout=3.0), opened(server.url, key)
        faulty.add(one)
        proxy.requests, proxy.faults = 0, {1: fault}
        assert faulty.forget(one)
        assert proxy.requests
        assert other.add(one) is False
        proxy.deliver()
        assert other.add(one) is True
        assert faulty.add(one) is True


def test_nothing_can_be_forgotten_in_an_outage(server, opened, key):
    one = fingerprints(1)[0]
    with Proxy(server.port) as proxy:
        seen = opened(proxy.url, key)
        with proxy.down():
            assert seen.add(one) is False
            with pytest.raises(BackendError):
                seen.forget(one)
        until(lambda: seen.usable)
        seen.forget(one)  # what was let through may have been marked since
        assert seen.add(one) is False


# Outages


def test_an_outage_lets_through_what_the_worker_does_not_know(opened, key, caplog):
    before, during, after = (fingerprints(50, tag) for tag in ("before", "during", "after"))
    with LocalRedis(persist=True) as server:
        seen = opened(server.url, key, known=100_000)  # none takes the place of another
        seen.add_many(before)
        server.kill()
        assert seen.add_many([*before, *during]) == [True] * 50 + [False] * 50
        assert seen.numbers()["unknown"] == 50
        assert caplog.text.count("Retrying.") == 1
        server.start()
        until(lambda: seen.usable)
        assert seen.add_many([*before, *after]) == [True] * 50 + [False] * 50
        assert opened(server.url, key).contains_many([*before, *after]) == [True] * 100
        assert (seen.link.outages, seen.numbers()["losses"]) == (1, 0)


# Losses: the worker continues with what the server has


@pytest.mark.parametrize("keys", ["*", "{}"], ids=["all", "header"])
def test_a_loss_is_noticed_at_once_and_nothing_is_known_any_more(
    own_server, opened, key, keys, caplog
):
    one, two = (opened(own_server.url, key, known=1000) for _ in range(2))
    ones, twos = fingerprints(100, "one"), fingerprints(100, "two")
    one.add_many(ones)
    two.add_many(twos)
    client = own_server.client()
    client.delete(*client.keys(keys.format(key)))
    assert one.add(b"next") is False
    assert two.add(b"another") is False
    assert one.numbers()["losses"] == two.numbers()["losses"] == 1
    assert caplog.text.count("continues with what the server has") == 2
    assert one.add_many(ones) == [False] * 100
    assert two.add_many([*ones, *twos]) == [True] * 100 + [False] * 100


def test_a_lost_list_of_forgotten_pages_hides_none_of_them(own_server, opened, key):
    seen = opened(own_server.url, key)
    known = fingerprints(10)
    seen.add_many(known)
    seen.forget_many(known[:5])
    (name,) = own_server.client().keys(f"{beginning(key)}*.again")
    own_server.client().delete(name)
    assert seen.add_many(known[:5]) == [False] * 5
    assert seen.numbers()["losses"] == 1


def test_a_foreign_value_in_place_of_the_header_is_an_outage_and_is_left(server, opened, key):
    seen = opened(server.url, key)
    seen.add(b"x")
    server.client().delete(key)
    server.client().set(key, "foreign")
    assert seen.add_many([b"x", b"y"]) == [False, False]
    assert server.client().get(key) == b"foreign"
    server.client().delete(key)
    until(lambda: seen.usable)
    assert seen.add(b"z") is False
    until(lambda: not seen.add(os.urandom(9)) and seen.add(b"z"))


# Failover


def test_foreign_bits_end_a_call_half_way_and_hide_nothing(server, opened, key):
    seen = opened(server.url, key)
    seen.add(b"x")
    client = server.client()
    (name,) = client.keys(f"{beginning(key)}*.0.*")
    client.delete(name)
    client.rpush(name, "foreign")
    assert seen.add(b"x") is False
    until(lambda: seen.usable and seen.add(b"y") is True)
    assert seen.add(b"x") is False
    assert client.lrange(name, 0, -1) in ([b"foreign"], [])


@pytest.mark.parametrize("behind", [False, True])
def test_a_failover_forgets_what_the_replica_had_not_received(opened, key, behind):
    early, late = fingerprints(100, "early"), fingerprints(100, "late")
    with LocalRedis() as primary, LocalRedis() as replica, Proxy(primary.port) as proxy:
        replica.client().replicaof(primary.HOST, primary.port)
        until(lambda: replica.client().info("replication")["master_link_status"] == "up")
        seen = opened(proxy.url, key, known=1000)
        seen.add_many(early)
        assert primary.client().wait(1, 5000) == 1
        if behind:
            replica.client().replicaof("NO", "ONE")
        seen.add_many(late)
        if not behind:
            assert primary.client().wait(1, 5000) == 1
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
            worker.offer(*range(10))
            worker.say()
            assert old.client().wait(1, 5000) == 1
            new.client().replicaof("NO", "ONE")
            old.client().replicaof(new.HOST, new.port)
            proxy.upstream = new.port
            worker.offer(*range(10, 20))
            assert worker.say() == [*range(10, 20)]
            assert sorted(map(int, worker.drain())) == [*range(20)]


# Errors that a server gives once a worker has worked


@pytest.mark.parametrize(
    ("reply", "passes"),
    [
        ("NOSCRIPT No matching script. Please use EVAL.", True),
        ("UNBLOCKED client unblocked via CLIENT UNBLOCK", True),
        ("ERR Error running script: Script killed by user with SCRIPT KILL.", True),
        ("ERR upstream failure", True),
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
        worker.queue.worker.beat()
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
                worker.queue.worker.beat()
            assert told.value.temporary is passes
        admin.execute_command("ACL", "SETUSER", "worker", ">old")
        worker.queue.worker.beat()
