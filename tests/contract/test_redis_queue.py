"""The queue in Redis: what goes in comes out once, in its order, whoever dies meanwhile."""

from types import SimpleNamespace

import pytest
from support import short_leases
from support.internals import clock_of_redis, stop_beating
from support.proxy import Proxy
from support.queues import Crawler, all_are_well, left, let_die, mark_of, name_of, shift_leases
from support.waiting import until

from scrapy_bloom.crawl.failed import Failed
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis import upkeep
from scrapy_bloom.redis.hang import Hang
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.reader import Reader
from scrapy_bloom.redis.wire import Failing
from scrapy_bloom.redis.worker import MOST_DEATHS


def requests(worker, key, which):
    """Return the names of the requests that wait or were put aside."""
    reader = Reader(worker.queue.link, key)
    if which == "failed":
        return [each.request.body.decode() for each in reader.failed()]
    return [each.body.decode() for each in reader.upcoming(99)]


# Marks and requests


# Requests that nobody can read, and those that kill their workers


def test_a_request_that_kills_its_workers_is_put_aside_alone(server, join, key):
    """Those that die have its neighbours, too, and a worker takes one risky request at a time."""
    rescuer = join()
    rescuer.offer(*"abcdef")
    rescuer.say()
    deaths, done = 0, []
    while "a" not in requests(rescuer, key, "failed"):
        victim = Crawler(server.url, key)
        had = victim.take(6)
        if "a" not in had:
            done += had
            victim.done()
            victim.say()
        else:
            deaths += 1
            let_die(server, key, victim.queue)
        rescuer.queue.worker.beat()
        if "a" in had:
            stop_beating(victim.queue.link)
        else:
            victim.queue.close()
        assert deaths <= MOST_DEATHS
    assert deaths == MOST_DEATHS
    assert sorted(done + rescuer.drain()) == list("bcdef")
    assert requests(rescuer, key, "failed") == ["a"]


def test_a_worker_that_was_taken_for_dead_does_not_take_the_crawl_for_finished(server, join, key):
    """It knows nothing then, also not that nothing is left."""
    one, two = join(), join()
    two.say()
    one.offer("a")
    one.say()
    let_die(server, key, two.queue)
    one.queue.worker.beat()
    assert two.exchange().void
    assert not two.queue.is_over()


def test_while_redis_is_out_after_a_surprise_there_is_an_exchange_to_make(server, key):
    """Closing the crawl made it over and over, without end and without a pause."""
    with (
        Proxy(server.port, counted=name_of("open")) as proxy,
        Crawler(server.url, key) as other,
        Crawler(proxy.url, key) as worker,
    ):
        worker.say()
        let_die(server, key, worker.queue)
        other.queue.worker.beat()
        proxy.faults = dict.fromkeys(range(1, 99), "reset")
        for _ in range(2):
            with pytest.raises(BackendError):
                worker.exchange()
            assert worker.queue.has_work
            assert worker.queue.prepare(0) is not None
        proxy.faults = {}
        worker.say()
        assert worker.queue.surprises == 1
        assert not worker.queue.has_work


# Workers that stand still


def test_a_page_that_blocks_its_workers_for_longer_each_time_is_put_aside(server, join, key):
    """Each gives up its lease, also if it is not dead."""
    rescuer = join()
    rescuer.offer("a")
    rescuer.say()
    for _ in range(MOST_DEATHS):
        with Crawler(server.url, key) as victim:
            assert victim.take(1) == ["a"]
            victim.queue.worker.resign(None)
            assert not victim.queue.has_lease
            all_are_well(server, key)
            rescuer.queue.worker.beat()
            assert victim.exchange().void
    assert left(server, key) == (0, 0, 0)
    (failed,) = Reader(rescuer.queue.link, key).failed()
    assert failed.failed.kind == "workers were blocked by it"


def test_a_page_that_is_known_to_block_its_worker_fails_and_the_others_come_back(server, join, key):
    """Where its redirects led is forgotten."""
    rescuer, victim = join(), join()
    victim.offer(*"abc")
    victim.take(3)
    page = victim.have["a"]
    why = Failed("blocked", "", 1.7e9, 1, "", unparsed=False, way=(), body=page.body)
    victim.queue.worker.resign(Failing(page.id, b"", why, page, (mark_of("c"),)))
    all_are_well(server, key)
    rescuer.queue.worker.beat()
    rescuer.offer(*"ac")
    assert rescuer.say(4) == ["c"]
    assert {name: taken.deaths for name, taken in rescuer.have.items()} == {"b": 0, "c": 0}
    assert left(server, key)[2] == 1


@pytest.mark.parametrize(("share", "keeps"), [(0.9, True), (1.1, False)])
def test_a_blocked_event_loop_costs_the_lease_after_a_time(
    server, join, key, monkeypatch, caplog, share, keeps
):
    """Callbacks of 40 and 50 s are no reason. While pipelines close, nobody asks."""
    short_leases.shorten(monkeypatch)
    worker, asked = join(), []
    worker.offer("a")
    worker.take(1)

    def blocked():
        asked.append(1)
        return share * upkeep.BLOCKED

    nobody = SimpleNamespace(running=lambda _: None)
    hang = Hang(worker.queue.link, worker.queue.worker, nobody, None)
    hang.pulse = SimpleNamespace(blocked=blocked, stack=list)
    until(lambda: len(asked) > 3)
    hang.pulse = None
    assert (b"blocked" not in b"".join(server.client().hvals(key))) is keeps
    assert caplog.text.count("gives up its lease") == (not keeps)
    assert worker.exchange().void is not keeps


def test_a_callback_may_hold_the_gil_for_13_s(server, join, key):
    """Such a page was fetched ten times, and then put aside."""
    one, two = join(), join()
    one.offer("a")
    one.say()
    assert two.take(1) == ["a"]
    stop_beating(two.queue.link)
    shift_leases(server, key, -13, two.queue.worker.name)
    all_are_well(server, key)
    one.queue.worker.beat()
    assert one.take(1) == []
    two.done()
    two.say()
    assert left(server, key)[1] == 0


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_clock_that_is_moved_or_a_server_that_stood_still_makes_nobody_dead(
    server, join, key, seconds
):
    """All get another lease then."""
    with clock_of_redis(server.client(), 1e9) as set_clock:
        one, two = join(), join()
        for worker in (one, two):
            stop_beating(worker.queue.link)
        one.offer(*range(4))
        one.take(2)
        two.say()
        for later in range(3):
            set_clock(1e9 + seconds + later)
            two.queue.worker.beat()
        assert not one.exchange().void
        assert left(server, key) == (2, 2, 0)
        assert two.queue.worker.requeued == 0
        ((_, _, held_for),) = two.queue.reader.holders()
        assert 0 <= held_for < 2 * 3600


def test_a_clock_that_was_rounded_is_not_one_that_was_moved(server, key):
    """Two heartbeats within half a millisecond let the sweep wait for a whole lease again."""
    client = server.client()
    with clock_of_redis(client, 1000.0004) as set_clock, Crawler(server.url, key) as worker:
        stop_beating(worker.queue.link)

        def beaten(last, now):
            times = {"heard_since": "1.000", "heard": last, "swept": last, "skew": 0}
            client.hset(key, mapping=times)
            set_clock(now)
            worker.queue.worker.beat()
            return client.hget(key, "heard_since")

        assert beaten("1000.001", 1000.0004) == b"1.000"
        assert beaten("1000.000", 1001.5) == b"1.000"
        assert beaten("1002.000", 1000.5) == b"1000.500"


def test_a_worker_that_is_cut_off_knows_that_its_lease_may_be_over(server, key, monkeypatch):

    with Proxy(server.port) as proxy, Crawler(proxy.url, key) as one:
        one.offer(1)
        one.say()
        assert one.queue.has_lease
        with proxy.down():
            stop_beating(one.queue.link)
            monkeypatch.setattr(upkeep, "LEASE", 0.01)
            until(lambda: not one.queue.has_lease)
        monkeypatch.undo()
        one.say()
        assert one.queue.has_lease


def test_what_a_heartbeat_learns_makes_a_call(server, join, key):
    """A worker with requests in hand and nothing to say stood still for ever."""
    one, two = join(), join()
    one.offer("a")
    two.take(1)
    let_die(server, key, two.queue)
    one.queue.worker.beat()
    assert two.queue.prepare(0) is None
    two.queue.worker.beat()
    assert not two.queue.has_lease
    assert two.queue.prepare(0) is not None
    assert two.exchange().void
    assert two.queue.has_lease
    assert two.queue.prepare(0) is None


# What vanishes, and what is in the way


def test_a_page_that_is_asked_for_and_then_forgotten_in_one_call_is_not_known(join):
    """Its next request would be dropped, though its page is eligible again."""
    worker = join()
    worker.offer("a", "b")
    worker.queue.offer(Entry("x", mark_of("a"), source="a"))
    worker.say()
    assert [worker.queue.worker.knows(mark_of(page)) for page in "ab"] == [False, True]
