"""What becomes of a crawl when the server loses a part of what it has, or goes back in time.

Every worker ends. The next one goes on with what the server has, or is refused where requests have
vanished and their marks have not. Nothing that was queued may be hidden from it.
"""

import itertools
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from support.internals import call_dead
from support.queues import Worker, Workers, drain, entry, keys_of, names, patiently
from support.waiting import until

from scrapy_bloom import BackendError, FilterLostError, StateError

keys = (f"lost:{number}" for number in itertools.count())


@pytest.fixture
def key():
    return next(keys)


class Crawl:
    """Two workers that share 30 pages: some wait, some are under way, two are done."""

    def __init__(self, workers, server, key):
        self.server, self.key = server, key
        self.one = workers.open(server.url, key)
        self.other = workers.open(server.url, key)
        self.one.offer([entry(number) for number in range(20)])
        self.other.offer([entry(number) for number in range(20, 30)])
        self.one.offer([entry("held", held=True), entry("undone", held=True)])
        undone = self.one.offer([entry("also undone", held=True)]).tickets
        self.mine = self.one.take(5)
        self.theirs = self.other.take(4)
        self.one.acknowledge([taken.ticket for taken in self.mine[:1]])
        self.other.acknowledge([taken.ticket for taken in self.theirs[:1]])
        self.one.give_back(list(undone.values()))
        self.one.fail([self.mine[1].ticket])

    @property
    def queues(self):
        return self.one, self.other


@pytest.fixture
def crawl(server, key):
    with Workers() as workers:
        yield Crawl(workers, server, key)


def error_of(queue):
    """Return what a worker is told within its next calls."""
    calls = [queue.look, lambda: queue.offer([entry("next")]), lambda: queue.take(1)]
    error = next(filter(None, map(_error_of, calls * 2)), "")
    assert error, "it has noticed nothing"
    return error


def _error_of(call):
    try:
        patiently(call)
    except FilterLostError as error:
        return str(error)
    return ""


def all_of(server, key):
    """Return everything that a crawl has in Redis."""
    client = server.client()
    return {name: client.dump(name) for name in client.scan_iter(f"{key}*")}


def refused(server, key, **options):
    """Check that a worker is refused, and that nothing was changed by that; return why."""
    before = all_of(server, key)
    with pytest.raises(StateError, match="run 'scrapy bloom delete' and start") as told:
        Worker(server.url, key, **options)
    after = all_of(server, key)
    assert {name for name in before if name.endswith(b"queue")} == {
        name for name in after if name.endswith(b"queue")
    }
    return str(told.value)


@pytest.mark.parametrize("what", ["queue", "taken", "failed", "again"])
def test_requests_vanish_and_their_marks_do_not(server, key, what):
    """The marks would hide their pages: nobody may go on with them."""
    with Workers() as workers:
        crawl = Crawl(workers, server, key)
        server.client().delete(keys_of(key)[what])
        for queue in crawl.queues:
            assert "requests, and not their marks" in (error := error_of(queue))
            assert "run 'scrapy bloom delete' and start the crawl again" in error
            assert error_of(queue) == error
    for _ in range(2):
        assert "requests of this crawl have vanished" in refused(server, key)


def test_the_state_of_the_queue_vanishes(server, key):
    with Workers() as workers:
        crawl = Crawl(workers, server, key)
        server.client().delete(keys_of(key)["state"])
        for queue in crawl.queues:
            assert "has lost the request queue" in error_of(queue)
    for _ in range(2):
        assert "found the marks of a crawl and not its request queue" in refused(server, key)
    assert not server.client().exists(keys_of(key)["state"])


def test_everything_vanishes(own_server, key):
    """The next crawl starts over, and the workers that end leave nothing in its way."""
    with Workers() as workers:
        crawl = Crawl(workers, own_server, key)
        own_server.client().flushall()
        for queue in crawl.queues:
            assert "Start it again" in error_of(queue)
    assert own_server.client().keys() == []
    with Worker(own_server.url, key) as worker:
        assert not any(worker.queue.offer([entry(number) for number in range(30)]).seen)
        assert len(drain(worker.queue)) == 30


def test_a_worker_that_has_not_noticed_yet_does_not_disturb_the_next_crawl(own_server, key):
    with Workers() as workers:
        crawl = Crawl(workers, own_server, key)
        own_server.client().flushall()
        with Worker(own_server.url, key) as worker:
            assert not any(worker.queue.offer([entry(number) for number in range(30)]).seen)
            for queue in crawl.queues:
                error_of(queue)
                queue.close()
            assert worker.queue.look()[:2] == (30, 0)
            assert len(drain(worker.queue)) == 30


def test_the_header_of_the_filter_vanishes(server, key):
    """The requests are there. Some pages may be fetched twice."""
    with Workers() as workers:
        crawl = Crawl(workers, server, key)
        server.client().delete(key)
        for queue in crawl.queues:
            assert "has lost the filter" in error_of(queue)
    assert not server.client().exists(key)
    with Worker(server.url, key) as worker:
        assert set(drain(worker.queue)) == {*map(str, range(30))} - {"0", "1", "5"}


def test_a_part_of_the_filter_vanishes(server, key):
    with Workers() as workers:
        crawl = Crawl(workers, server, key)
        (segment,) = (name for name in server.client().keys(f"{key}:*") if name.endswith(b"0.0"))
        server.client().delete(segment)
        for queue in crawl.queues:
            assert "has lost a part of the filter" in error_of(queue)
    with Worker(server.url, key) as worker:
        assert {*drain(worker.queue)} - {"next"} == {*map(str, range(30))} - {"0", "1", "5"}


def test_an_idle_worker_does_not_take_a_lost_queue_for_an_empty_one(server, key):
    with Worker(server.url, key) as worker:
        worker.queue.offer([entry("page")])
        server.client().delete(keys_of(key)["queue"])
        with pytest.raises(FilterLostError, match="1 requests"):
            worker.queue.look()


@pytest.mark.parametrize("what", [("queue",), ("state",), ("queue", "state")])
def test_what_vanishes_while_nobody_is_there(server, key, what):
    with Worker(server.url, key) as worker:
        worker.queue.offer([entry(number) for number in range(5)])
    server.client().delete(*(keys_of(key)[name] for name in what))
    for _ in range(2):
        refused(server, key)


def test_a_worker_that_is_refused_is_off_the_register(server, key):
    """Else the way out, 'scrapy bloom delete', would take it for one that runs."""
    with Worker(server.url, key) as worker:
        worker.queue.offer([entry(number) for number in range(5)])
    server.client().delete(keys_of(key)["queue"])
    refused(server, key)
    fields = server.client().hkeys(keys_of(key)["state"])
    assert [field for field in fields if field.startswith(b"l:")] == []


def test_a_queue_that_nothing_was_put_into_may_vanish(server, key):
    with Worker(server.url, key):
        pass
    server.client().delete(keys_of(key)["state"])
    with Worker(server.url, key) as worker:
        assert worker.queue.look()[:2] == (0, 0)


@pytest.mark.parametrize("shard", [0, 1, 2])
def test_one_shard_of_several_vanishes(server, key, shard):
    """What the others count as done has led to requests that are gone."""
    options = {"shards": 3, "beside": True}
    with Worker(server.url, key, **options) as worker:
        worker.queue.offer([entry(number) for number in range(60)])
        worker.queue.acknowledge([taken.ticket for taken in worker.queue.take(20)])
        client = server.client()
        tag = next(shard.place.beginning for shard in worker.filter.shards[shard : shard + 1])
        client.delete(worker.filter.shards[shard].place.key, *client.keys(f"{tag}*"))
        error_of(worker.queue)
    for _ in range(2):
        assert "this shard of the crawl has vanished" in refused(server, key, **options)


class Snapshot:
    """A server's data at some time, to go back to."""

    def __init__(self, server):
        self._server = server
        client = server.client()
        client.save()
        self._file = Path(client.config_get("dir")["dir"]) / "dump.rdb"
        self._copy = self._file.with_suffix(".copy")
        shutil.copy(self._file, self._copy)

    def restore(self):
        self._server.kill()
        shutil.copy(self._copy, self._file)
        self._server.start()


@pytest.mark.parametrize("steps", range(7))
def test_the_server_goes_back_to_an_older_state(own_server, key, steps):
    """After each of the steps, as after a crash, or as a replica that lags and is promoted.

    Whoever has called it since ends, and does no harm. The next worker, whose spider starts as they
    did, is given all that the older state does not know as done.
    """
    pages = [entry(number) for number in range(10)]
    with Workers() as workers:
        one, other = (workers.open(own_server.url, key) for _ in range(2))
        done, has = [], []

        def take(queue):
            taken = queue.take(2, [ticket for owner, ticket, _ in has if owner is queue])
            done.extend(name for owner, _, name in has if owner is queue)
            has[:] = [kept for kept in has if kept[0] is not queue]
            has.extend((queue, one.ticket, *names([one])) for one in taken)

        acts = [
            (one, lambda: one.offer(pages[:6])),
            (one, lambda: take(one)),
            (other, lambda: other.offer(pages[4:])),
            (other, lambda: take(other)),
            (one, lambda: one.offer([entry("plain", filtered=False)])),
            (one, lambda: take(one)),
            (one, lambda: one.offer([entry("last")])),
        ]
        for _, act in acts[:steps]:
            act()
        snapshot, done_then = Snapshot(own_server), set(done)
        for _, act in acts[steps:]:
            act()
        snapshot.restore()
        behind = {queue for queue, _ in acts[steps:]}
        for queue in (one, other):
            if queue in behind:
                assert "has gone back to an older state" in error_of(queue)
            else:
                tickets = [ticket for owner, ticket, _ in has if owner is queue]
                done_then |= {name for owner, _, name in has if owner is queue}
                patiently(queue.acknowledge, tickets)
    with Worker(own_server.url, key) as worker:
        worker.queue.offer([*pages, entry("last")])
        assert {*drain(worker.queue)} | done_then >= {*map(str, range(10)), "last"}


def test_a_worker_that_was_taken_for_dead_in_an_older_state_ends(own_server, key):
    """What it has offered since is not there: that others have put back what it had is not all."""
    with Workers() as workers:
        one, other = (workers.open(own_server.url, key) for _ in range(2))
        one.offer([entry("early")])
        snapshot = Snapshot(own_server)
        one.offer([entry("late")])
        snapshot.restore()
        patiently(other.look)
        call_dead(other, one, [0])
        patiently(other.requeue_dead)
        assert "has gone back to an older state" in error_of(one)


def test_several_shards_start_over_from_an_older_state(own_server, key):
    """What a newer shard counts as done may have led to requests of the older one."""
    with Worker(own_server.url, key, shards=2) as worker:
        worker.queue.offer([entry(number) for number in range(20)])
        snapshot = Snapshot(own_server)
        worker.queue.offer([entry(number) for number in range(20, 40)])
        snapshot.restore()
        assert "run 'scrapy bloom delete' and start the crawl again" in error_of(worker.queue)


def test_a_loss_is_raised_before_anything_else_is_told(server, key):
    """What is acknowledged after a loss stays with the worker, and goes back."""
    with Workers() as workers:
        one, other = (workers.open(server.url, key) for _ in range(2))
        one.offer([entry("page"), entry("other")])
        taken = one.take(1)
        server.client().delete(key)
        with suppress(BackendError), pytest.raises(FilterLostError):
            until(lambda: one.offer([entry("next")]) and False)
        with pytest.raises(FilterLostError):
            one.acknowledge([each.ticket for each in taken])
        one.close()
        assert sorted(drain(other)) == ["other", "page"]
