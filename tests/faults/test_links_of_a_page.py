"""Links that scrapy-redis's scheduler asks about in one call: whatever comes between, none is lost.

Workers with the real scheduler and the real filter take turns in one process. While one enqueues
the links of a page, others crawl, Redis is flushed or goes back in time, and all that goes there
may fail for a while.
"""

import os
import random
from contextlib import contextmanager

import pytest
import redis
from scrapy import Request, Spider, signals
from scrapy.utils.test import get_crawler
from support.internals import crawl_by, filter_in, seen_by, stop_beating

from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis.filter import RedisFilter

theirs = pytest.importorskip("scrapy_redis.scheduler")
pytestmark = pytest.mark.usefixtures("server")

PAGES, TURNS = 120, 400
SEEDS = int(os.environ.get("SEEDS", "2"))
"""Histories of each set; `make kills` asks for many."""


class World:
    """One crawl by three workers; `faults` says how often each kind comes."""

    def __init__(self, server, seed, faults):
        self.chance, self.faults = random.Random(seed), faults
        self.server, self.client = server, server.client()
        self.client.flushall()
        # One page leads to each, and some others have a link to it.
        parents = [self.chance.randrange(max(0, page - 8), page) for page in range(1, PAGES)]
        self.links = {page: self.chance.sample(range(PAGES), 4) for page in range(PAGES)}
        for page, parent in enumerate(parents, 1):
            self.links[parent].insert(self.chance.randrange(5), page)
        self.fetched, self.unpushed, self.shots = set(), [], []
        self.failing = self.depth = 0  # what else fails in this outage; steps in a step
        self.workers = [Worker(self) for _ in range(3)]
        self.start()

    def run(self):
        """Crawl; return the pages that were lost."""
        for turn in range(TURNS):
            if turn % 5 == 0 and not self.unpushed:
                self.shots = [*self.shots[-9:], self.shot()]
            self.chance.choice(self.workers).step()
        self.faults, self.failing = {}, 0
        for worker in self.workers:  # which withdraws with it what it could not before
            worker.crawl([0])
        for _ in range(100 * TURNS):
            if not (self.client.exists("worker:requests") or self.unpushed):
                break
            # What could not be pushed is a link of another page, too.
            again, self.unpushed = self.unpushed, []
            self.chance.choice(self.workers).crawl(again)
            self.chance.choice(self.workers).step()
        else:
            raise AssertionError("it does not end")
        self.close()
        return set(range(PAGES)) - self.fetched

    def close(self):
        for worker in self.workers:
            worker.scheduler.close("finished")
            worker.filter.close("finished")

    def start(self):
        next(worker for worker in self.workers if not worker.busy).crawl([0])

    def shot(self):
        names = self.client.keys()
        return {name: self.client.dump(name) for name in names}, set(self.fetched)

    def interrupt(self):
        """Let something happen between two of a worker's pushes."""
        if self.faults and self.depth < 3 and self.chance.random() < 0.08:
            kinds = [*self.faults]
            kind = self.chance.choices(kinds, [self.faults[name] for name in kinds])[0]
            getattr(self, kind)()

    def flush(self):
        self.client.flushall()
        self.fetched.clear()
        self.unpushed.clear()
        self.shots.clear()
        self.start()

    def back(self):
        if self.shots:
            kept, fetched = self.chance.choice(self.shots)
            self.client.flushall()
            for name, value in kept.items():
                self.client.restore(name, 0, value)
            self.fetched = set(fetched)

    def outage(self):
        self.failing = self.chance.randrange(2, 25)

    def others(self):
        for _ in range(self.chance.randrange(6)):
            self.chance.choice(self.workers).step()

    def fails(self):
        self.failing -= self.failing > 0
        return self.failing > 0


class Worker:
    """A process that crawls: all of it but the engine."""

    def __init__(self, world):
        self.world, self.busy = world, False
        settings = {"BLOOM_REDIS_URL": world.server.url, "BLOOM_CAPACITY": 1000}
        self.crawler = crawler = get_crawler(Spider, settings)
        crawler.spider = spider = Spider.from_crawler(crawler, name="worker")
        self.filter = BloomDupeFilter.from_spider(spider)
        self.scheduler = theirs.Scheduler(world.client, persist=True, dupefilter=self.filter)
        self.scheduler.queue_cls = "scrapy_redis.queue.FifoQueue"
        self.scheduler.open(spider)
        crawl_by(self.scheduler, crawler)
        self.push, self.scheduler.queue.push = self.scheduler.queue.push, self.flaky_push
        crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
        shared = filter_in(self.filter)
        stop_beating(shared.link)
        self.call, shared.link.run = shared.link.run, self.flaky_call

    def step(self):
        """Fetch a page."""
        world = self.world
        if self.busy or world.fails():
            return
        request = self.scheduler.next_request()
        if request is not None:
            page = int(request.url.rpartition("/")[2])
            world.fetched.add(page)
            self.crawl(world.links[page])

    def crawl(self, pages):
        """Offer requests as the engine does: all in one turn."""
        self.busy, self.world.depth = True, self.world.depth + 1
        for page in pages:
            assert self.offer(page)
        self.scheduler.has_pending_requests()
        self.busy, self.world.depth = False, self.world.depth - 1

    def offer(self, page):
        return self.scheduler.enqueue_request(Request(f"http://localhost/{page}"))

    def flaky_push(self, request):
        self.world.interrupt()
        if self.world.fails():
            self.world.unpushed.append(int(request.url.rpartition("/")[2]))
            raise redis.ConnectionError("lost")
        self.push(request)

    def flaky_call(self, *arguments, **options):
        if self.world.fails():
            raise BackendError("lost", temporary=True)
        answer = self.call(*arguments, **options)
        if self.world.fails():
            raise BackendError("lost", temporary=True)
        return answer


SETS = {
    "flushes": {"flush": 1, "others": 5},
    "roll-backs": {"back": 2, "others": 5},
    "outages": {"outage": 3, "others": 5},
    "flushes and outages": {"flush": 1, "outage": 3, "others": 5},
}


@pytest.mark.parametrize("faults", SETS.values(), ids=SETS)
def test_no_link_of_a_page_is_lost_between_its_question_and_its_push(server, faults):
    for seed in range(SEEDS):
        assert not World(server, seed, faults).run(), f"seed {seed}"


def test_links_are_lost_if_answers_outlive_their_turn(server, monkeypatch):
    asked = RedisFilter.asked

    @contextmanager
    def remembered(self, fingerprints):
        seen = {*seen_by(self)}
        with asked(self, fingerprints):
            seen_by(self).update(seen)
            yield
            seen = {*seen_by(self), *fingerprints}
        seen_by(self).update(seen)

    monkeypatch.setattr(RedisFilter, "asked", remembered)
    assert any(World(server, seed, SETS["flushes"]).run() for seed in range(8))


def test_what_waits_is_enqueued_before_the_scheduler_closes_and_duplicates_are_reported(server):
    world = World(server, 0, {})
    worker, dropped = world.workers[1], []
    worker.crawler.signals.connect(
        lambda request: dropped.append(request.url), signals.request_dropped, weak=False
    )
    assert all(map(worker.offer, (0, 1, 2, 1)))
    assert not dropped  # their turn is not over
    world.close()
    assert dropped == ["http://localhost/0", "http://localhost/1"]
    assert server.client().llen("worker:requests") == 3
