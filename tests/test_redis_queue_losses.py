"""What becomes of requests when the server loses a part of what it has, or all of it."""

import itertools
import shutil
from pathlib import Path

import pytest
from support.queues import Worker, Workers, drain, entry, keys_of, names, patiently
from support.waiting import until

from scrapy_bloom import FilterLostError
from scrapy_bloom.redis.queue.base import Entry
from scrapy_bloom.redis.queue.recent import KEPT, Recent

keys = (f"lost:{number}" for number in itertools.count())


@pytest.fixture
def key():
    return next(keys)


class Crawl:
    """Two workers that share 30 pages: some wait, some are under way, two are done."""

    def __init__(self, workers, server, key, **options):
        self.server, self.key = server, key
        self.one = workers.open(server.url, key, **options)
        self.other = workers.open(server.url, key, **options)
        self.one.offer([entry(number) for number in range(20)])
        self.other.offer([entry(number) for number in range(20, 30)])
        self.one.offer([entry("held", held=True)])
        self.mine = self.one.take(4)
        self.theirs = self.other.take(4)
        self.one.acknowledge([taken.ticket for taken in self.mine[:1]])
        self.other.acknowledge([taken.ticket for taken in self.theirs[:1]])
        self.done = ["0", "4"]
        self.under_way = {"1", "2", "3", "5", "6", "7"}

    @property
    def queues(self):
        return self.one, self.other

    def noticed(self):
        """Wait until both workers have noticed a loss, without a call of theirs."""
        for queue in self.queues:
            until(lambda queue=queue: queue.numbers()["losses"])
        for queue in (*self.queues, *self.queues):  # what is owed, and what came of it
            patiently(queue.look)

    @property
    def missing(self):
        """How many requests are missing, by what each worker was told last."""
        (missing,) = {queue.numbers()["maybe_lost"] for queue in self.queues}
        return missing

    def finish(self):
        """Finish all that is left; return the names of what was done, in order."""
        for queue, taken in ((self.one, self.mine), (self.other, self.theirs)):
            left = taken[1:]
            assert all(queue.holds(one.ticket) for one in left)
            patiently(queue.acknowledge, [one.ticket for one in left])
        return [*self.done, *sorted(self.under_way), *drain(self.one)]

    def marked(self):
        """Return the pages that a worker finds marked that remembers nothing."""
        pages = [entry(number) for number in range(30)]
        with Worker(self.server.url, f"{self.key}", cache=0) as fresh:
            offered = fresh.queue.offer(pages)
            taken = fresh.queue.take(100)
            fresh.queue.acknowledge([one.ticket for one in taken])
        return {str(number) for number, seen in enumerate(offered.seen) if seen}


@pytest.fixture
def crawl(server, key):
    with Workers() as workers:
        yield Crawl(workers, server, key)


ALL = {str(number) for number in range(30)}
TAKEN_BY_ANOTHER = {"4", "5", "6", "7"}
"""What one worker has queued, and another one has under way or done: the first cannot know."""


def test_everything_is_flushed(own_server, key, caplog):
    caplog.set_level("INFO", "scrapy_bloom")
    with Workers() as workers:
        crawl = Crawl(workers, own_server, key)
        own_server.client().flushall()
        crawl.noticed()
        found = crawl.finish()
        assert set(found) == ALL
        assert {name for name in found if found.count(name) > 1} <= TAKEN_BY_ANOTHER
        until(lambda: crawl.marked() >= {"0", "4"})
        told = [record.getMessage() for record in caplog.records]
        assert any("has lost the request queue. Was it restarted" in line for line in told)
        assert crawl.missing == 0
        until(lambda: caplog.text.count("all that the server has lost was brought back") == 2)


def test_the_server_is_started_again_without_its_data(own_server, key):
    with Workers() as workers:
        crawl = Crawl(workers, own_server, key)
        own_server.kill()
        own_server.start()
        crawl.noticed()
        assert set(crawl.finish()) == ALL


def test_the_queue_is_evicted(server, key, crawl):
    """The marks are there: without force nobody would queue these pages again."""
    server.client().delete(keys_of(key)["queue"])
    crawl.noticed()
    found = crawl.finish()
    assert set(found) == ALL
    assert {name for name in found if found.count(name) > 1} == TAKEN_BY_ANOTHER
    assert {queue.numbers()["losses"] for queue in crawl.queues} == {1}
    assert crawl.missing == 0
    assert sum(queue.numbers()["offered_again"] for queue in crawl.queues) == 26


def test_what_is_taken_is_evicted(server, key, crawl):
    server.client().delete(keys_of(key)["taken"])
    crawl.noticed()
    assert crawl.missing == 0
    assert crawl.one.look().elsewhere == 3
    assert crawl.other.look().elsewhere == 4  # one of them is held
    found = crawl.finish()
    assert sorted(found, key=int) == sorted(ALL, key=int)
    assert sum(queue.numbers()["offered_again"] for queue in crawl.queues) == 0


def test_the_state_is_evicted(server, key, crawl):
    """Requests and marks are there: nothing is done twice."""
    server.client().delete(keys_of(key)["state"])
    crawl.noticed()
    assert crawl.one.look()[:2] == (22, 3)
    found = crawl.finish()
    assert sorted(found, key=int) == sorted(ALL, key=int)
    assert crawl.missing == 0


def test_the_header_of_the_filter_is_evicted(server, key, crawl):
    """Pages may be queued twice, and none is lost."""
    server.client().delete(key)
    until(lambda: server.client().exists(key))
    patiently(crawl.one.look)
    assert set(crawl.finish()) == ALL
    until(lambda: crawl.marked() >= {"0", "4"})
    assert crawl.missing == 0


def test_the_list_of_failed_ones_is_evicted(server, key, crawl, caplog):
    crawl.one.fail([crawl.mine.pop().ticket])
    assert len(crawl.one.failed()) == 1
    server.client().delete(keys_of(key)["failed"])
    crawl.noticed()
    assert crawl.missing == 1
    until(lambda: "up to 1 requests that the server has lost" in caplog.text)


def test_undone_marks_are_evicted(server, key, crawl):
    held = crawl.one.offer([entry("undone", held=True)]).tickets
    crawl.one.give_back(list(held.values()))
    server.client().delete(keys_of(key)["again"])
    crawl.noticed()
    assert crawl.missing == 1


def test_a_loss_ends_the_crawl_under_close(server, key):
    with Workers() as workers:
        crawl = Crawl(workers, server, key, on_error="close")
        server.client().delete(keys_of(key)["queue"])
        with pytest.raises(FilterLostError, match=r"lost a part of the request queue.*on_error"):
            until(lambda: crawl.one.look() and False)
        patiently(crawl.one.look)  # said once
        until(lambda: crawl.other.numbers()["losses"])
        with pytest.raises(FilterLostError):
            crawl.other.take(1)
        assert set(crawl.finish()) == ALL


_UP_TO_5 = "up to 5 requests that the server has lost were not brought back"


def test_a_queue_that_vanished_while_nobody_was_there_is_said(server, key, caplog):
    with Worker(server.url, key) as worker:
        worker.queue.offer([entry(number) for number in range(5)])
    server.client().delete(keys_of(key)["queue"])
    with Worker(server.url, key) as worker:
        worker.queue.look()
        assert worker.queue.numbers()["maybe_lost"] == 5
    assert caplog.text.count(_UP_TO_5) == 1
    with Worker(server.url, key) as worker:  # who said it may have been killed before, or not heard
        assert worker.queue.numbers()["maybe_lost"] == 5
        assert worker.queue.numbers()["losses"] == 0
    assert caplog.text.count(_UP_TO_5) == 2


def test_a_state_that_vanished_while_nobody_was_there_is_said(server, key, caplog):
    """Nothing else tells that requests were there. Those who noticed it may be killed, too."""
    with Worker(server.url, key) as worker:
        worker.queue.offer([entry(number) for number in range(5)])
    server.client().delete(keys_of(key)["queue"], keys_of(key)["state"])
    with Worker(server.url, key, on_error="close") as worker:
        assert worker.queue.numbers()["losses"] == 1
        with pytest.raises(FilterLostError, match=r"has vanished.*It is an error because on_error"):
            worker.queue.look()
        worker.queue.look()  # said once
    with Worker(server.url, key, on_error="close") as worker:
        assert worker.queue.offer([entry(number) for number in range(6)]).seen == [True] * 5 + [
            False
        ]
    assert caplog.text.count("the state of the request queue beside the filter has vanished") == 2


def test_a_state_that_vanished_is_not_said_where_it_is_known(server, key, caplog):
    """Because a worker was there, or nothing was queued."""
    with Worker(server.url, key):
        server.client().delete(keys_of(key)["state"])
    with Worker(server.url, key) as worker:
        worker.queue.offer([entry("a")])
        server.client().delete(keys_of(key)["state"])
        with Worker(server.url, key):  # it may have come before the other one noticed
            patiently(worker.queue.look)
        caplog.clear()
        with Worker(server.url, key):
            pass
    assert "beside the filter has vanished" not in caplog.text


def test_a_worker_that_comes_in_the_middle_of_a_loss_counts_the_same(server, key, caplog):
    """It may be the only one that lives long enough to say it."""
    with Workers() as workers:
        with Worker(server.url, key) as gone:
            gone.queue.offer([entry(number) for number in range(5)])
        before = workers.open(server.url, key)
        before.offer([entry("recent")])
        client = server.client()
        client.delete(*client.keys(f"{key}*"))
        with Worker(server.url, key) as late:
            for queue in (before, late.queue) * 2:  # the first one tells what there was
                patiently(queue.look)
            assert [queue.numbers()["maybe_lost"] for queue in (before, late.queue)] == [5, 5]
            caplog.clear()
        assert _UP_TO_5 in caplog.text


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


@pytest.mark.parametrize("what", ["everything", "queue"])
def test_what_nobody_brings_back_is_counted(server, key, caplog, what):
    """Its pusher is gone. What came back is not counted, nor what comes twice."""
    with Workers() as workers:
        with Worker(server.url, key) as gone:
            gone.queue.offer([entry(number, priority=-1) for number in range(20)])
        one, other = (workers.open(server.url, key) for _ in range(2))
        one.offer([entry(number) for number in range(20, 30)])
        mine = one.take(4)
        other.take(5)
        one.acknowledge([taken.ticket for taken in mine[:2]])
        client = server.client()
        lost = client.keys(f"{key}*") if what == "everything" else [keys_of(key)["queue"]]
        client.delete(*lost)
        for queue in (one, other):
            until(lambda queue=queue: queue.numbers()["losses"])
        for queue in (one, other, one, other):
            patiently(queue.look)
        assert [queue.numbers()["maybe_lost"] for queue in (one, other)] == [20, 20]
        assert one.state()[:2] == (6, 5)
        until(lambda: caplog.text.count("up to 20 requests that the server has lost") == 2)


@pytest.mark.parametrize("steps", range(6))
def test_the_server_goes_back_to_an_older_state(own_server, key, steps):
    """After each of the steps, as after a crash, or as a replica that lags and is promoted."""
    snapshots = []
    with Workers() as workers:
        one, other = (workers.open(own_server.url, key) for _ in range(2))
        done, has = [], []

        def take(queue):
            taken = queue.take(2, [ticket for owner, ticket, _ in has if owner is queue])
            done.extend(name for owner, _, name in has if owner is queue)
            has[:] = [kept for kept in has if kept[0] is not queue]
            has.extend((queue, one.ticket, *names([one])) for one in taken)

        acts = [
            lambda: one.offer([entry(number) for number in range(6)]),
            lambda: take(one),
            lambda: other.offer([entry(number) for number in range(4, 10)]),
            lambda: take(other),
            lambda: take(one),
            lambda: one.offer([entry("plain", filtered=False)]),
        ]
        for act in acts:
            snapshots.append(Snapshot(own_server)) if len(snapshots) == steps else None
            act()
            if len(snapshots) < steps:
                snapshots.append(None)
        snapshots[steps].restore()
        for queue in (one, other):
            patiently(queue.look)
            patiently(queue.offer, [entry("next")])  # tells what offers were lost
            patiently(queue.look)
        for queue in (one, other):
            patiently(queue.acknowledge, [ticket for owner, ticket, _ in has if owner is queue])
        done += [name for _, _, name in has]
        done += drain(one)
        assert set(done) == {*map(str, range(10)), "plain", "next"}


def test_what_is_remembered_of_the_last_seconds_has_its_bounds():
    now = 100.0
    recent = Recent(lambda: now)
    entries = [entry(number) for number in range(20_010)]
    for one in entries:
        recent.add(one)
    assert recent.drain() == entries[10:]
    assert recent.drain() == []
    recent.add(entries[0])
    now += KEPT - 1
    recent.add(entries[1])
    recent.add(entries[1])
    recent.add(entries[2])
    recent.discard(entries[2], 0)
    assert recent.taken_from_others() == 0
    for age in (0, 1, KEPT + 1):
        recent.discard(entries[3], age)
    assert recent.taken_from_others() == 2
    now += KEPT - 0.5
    assert recent.taken_from_others() == 1
    now -= KEPT - 2.5
    assert recent.drain() == [entries[1], entries[1]]
    for number in range(3):
        recent.add(Entry(bytes(20 << 20), number, b"big"))
    assert [one.priority for one in recent.drain()] == [2]
    recent.add(Entry(bytes(40 << 20), 0, b"too big"))
    assert recent.drain() == []
