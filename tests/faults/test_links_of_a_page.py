"""Links that are marked and pushed in one call: whatever comes before and after, none is lost.

Workers with scrapy-redis's real scheduler and our filter take turns in one process. While one
enqueues the links of a page, others crawl, Redis is flushed or goes back in time, and all that goes
there may fail for a while.
"""

import asyncio
import json
import os
import random

import pytest
from scrapy import Request, Spider, signals
from scrapy.utils.test import get_crawler
from support.internals import crawl_by, filter_in, push_again, start_of, stop_beating
from support.proxy import Proxy
from twisted.internet.defer import Deferred

import scrapy_bloom
from scrapy_bloom import BloomDupeFilter
from scrapy_bloom.errors import BackendError
from scrapy_bloom.redis.filter import RedisFilter
from scrapy_bloom.redis.worker import delete

theirs = pytest.importorskip("scrapy_redis.scheduler")
queues = pytest.importorskip("scrapy_redis.queue")
pytestmark = pytest.mark.usefixtures("server")

PAGES, TURNS = 120, 400
SEEDS = int(os.environ.get("SEEDS", "2"))
"""Histories of each set; `make kills` asks for many."""
KEY = "scrapybot:worker:bloom"


class World:
    """One crawl by three workers; `faults` says how often each kind comes."""

    def __init__(self, server, seed=0, faults=None, workers=3):
        self.chance, self.faults = random.Random(seed), faults or {}
        self.server, self.client = server, server.client()
        self.client.flushall()
        # One page leads to each, and some others have a link to it.
        parents = [self.chance.randrange(max(0, page - 8), page) for page in range(1, PAGES)]
        self.links = {page: self.chance.sample(range(PAGES), 4) for page in range(PAGES)}
        for page, parent in enumerate(parents, 1):
            self.links[parent].insert(self.chance.randrange(5), page)
        self.fetched, self.shots = set(), []
        self.failing = self.depth = 0  # what else fails in this outage; steps in a step
        self.workers = [Worker(self) for _ in range(workers)]
        if workers:
            self.start()

    def run(self):
        """Crawl; return the pages that were lost."""
        for turn in range(TURNS):
            if turn % 5 == 0:
                self.shots = [*self.shots[-9:], self.shot()]
            self.chance.choice(self.workers).step()
        self.faults, self.failing = {}, 0
        for worker in self.workers:
            worker.crawl([])
        for _ in range(100 * TURNS):
            if not self.client.exists("worker:requests"):
                break
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
        """Let something happen before or after a worker's call."""
        if self.faults and self.depth < 3 and self.chance.random() < 0.08:
            kinds = [*self.faults]
            kind = self.chance.choices(kinds, [self.faults[name] for name in kinds])[0]
            getattr(self, kind)()

    def flush(self):
        self.client.flushall()
        self.fetched.clear()
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

    def __init__(
        self,
        world,
        *,
        queue="FifoQueue",
        scheduler=theirs.Scheduler,
        filter_=BloomDupeFilter,
        serializer=None,
        start=None,
        **settings,
    ):
        self.world, self.busy = world, False
        ours = {"BLOOM_REDIS_URL": world.server.url, "BLOOM_REDIS_TIMEOUT": 10}
        self.crawler = crawler = get_crawler(Spider, {"BLOOM_CAPACITY": 1000, **ours, **settings})
        crawler.spider = spider = Spider.from_crawler(crawler, name="worker")
        self.filter = filter_.from_spider(spider)
        options = {"dupefilter": self.filter, "serializer": serializer}
        self.scheduler = scheduler(world.client, persist=True, **options)
        self.scheduler.queue_cls = getattr(queues, queue) if isinstance(queue, str) else queue
        self.scheduler.open(spider)
        crawl_by(self.scheduler, crawler, start)
        crawler.signals.send_catch_log(signals.spider_opened, spider=spider)
        shared = filter_in(self.filter)
        stop_beating(shared.link)
        self.call, shared.link.run = shared.link.run, self.flaky_call

    def step(self):
        """Fetch a page."""
        world = self.world
        if self.busy or world.fails():
            return
        self.crawl([])
        request = self.scheduler.next_request()
        if request is not None:
            page = int(request.url.rpartition("/")[2])
            world.fetched.add(page)
            self.crawl(world.links[page])

    def crawl(self, pages):
        """Offer requests as the engine does: all in one turn, after what could not be sent."""
        self.busy, self.world.depth = True, self.world.depth + 1
        push_again(self.scheduler)
        for page in pages:
            assert self.offer(page)
        self.scheduler.has_pending_requests()
        self.busy, self.world.depth = False, self.world.depth - 1

    def offer(self, page, **options):
        return self.scheduler.enqueue_request(Request(f"http://localhost/{page}", **options))

    def count(self, *stats):
        return [self.crawler.stats.get_value(stat, 0) for stat in stats]

    def flaky_call(self, name, *arguments, **options):
        self.world.interrupt()
        if self.world.fails():
            raise BackendError("lost", temporary=True)
        answer = self.call(name, *arguments, **options)
        self.world.interrupt()
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
def test_no_link_of_a_page_is_lost(server, faults):
    for seed in range(SEEDS):
        assert not World(server, seed, faults).run(), f"seed {seed}"


def test_links_are_lost_if_what_a_worker_knows_is_dropped_without_a_call(server, monkeypatch):
    push = RedisFilter.push
    monkeypatch.setattr(
        RedisFilter, "push", lambda self, call: push(self, call) if call.entries else []
    )
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


@pytest.fixture
def world(server):
    return World(server, workers=0)


def links():
    """Return requests of all kinds; two of them are duplicates."""
    some = [Request(f"http://localhost/{page}", priority=page % 3) for page in range(9)]
    some += [Request("http://localhost/1", priority=7), Request("http://localhost/2#a")]
    some[3].priority, some[4].priority = float("-inf"), 1.5
    return [*some, Request("http://localhost/3", dont_filter=True, meta={"text": "\u20ac"})]


class Words:
    """A serializer whose requests are text."""

    loads = staticmethod(json.loads)

    @staticmethod
    def dumps(request):
        kept = {"url": request["url"], "meta": request["meta"]}
        return json.dumps(kept, ensure_ascii=False)


@pytest.mark.parametrize("serializer", [None, Words])
@pytest.mark.parametrize("queue", ["FifoQueue", "LifoQueue", "PriorityQueue"])
def test_what_is_pushed_in_one_call_is_what_scrapy_redis_pushes(world, queue, serializer):
    worker, client = Worker(world, queue=queue, serializer=serializer), world.client
    worker.scheduler.stats, keys = worker.crawler.stats, ("worker:requests", "expected")
    kept = worker.scheduler.queue
    one_by_one = type(kept)(client, kept.spider, "expected", serializer=serializer)
    for number, request in enumerate(links()):
        if number not in (9, 10):
            one_by_one.push(request)
    calls = filter_in(worker.filter).link.round_trips
    for request in links():
        assert worker.scheduler.enqueue_request(request)
    worker.scheduler.has_pending_requests()
    assert filter_in(worker.filter).link.round_trips == calls + 1
    if queue == "PriorityQueue":
        pushed, expected = (client.zrange(key, 0, -1, withscores=True) for key in keys)
    else:
        pushed, expected = (client.lrange(key, 0, -1) for key in keys)
    assert pushed == expected != []
    assert worker.count("scheduler/enqueued/redis", "dupefilter/filtered") == [10, 2]


def test_what_was_forgotten_is_pushed_again_and_so_is_what_is_too_old(world):
    one, two = Worker(world), Worker(world)

    def pushed_by(worker, *pages, **meta):
        before = world.client.llen("worker:requests")
        for page in pages:
            worker.offer(page, meta=meta)
        worker.scheduler.has_pending_requests()
        return world.client.llen("worker:requests") - before

    assert [pushed_by(each, 1) for each in (one, one, two)] == [1, 0, 0]
    scrapy_bloom.forget(Request("http://localhost/1"), two.crawler)
    assert pushed_by(one, 1, 2) == 2  # it has learnt that with the call for the other one
    assert pushed_by(two, 1, 2) == 0
    assert [pushed_by(two, 1, bloom_max_age="1h") for _ in range(2)] == [1, 0]


def test_a_filter_that_was_deleted_ends_the_crawl_and_what_waits_is_pushed(world, caplog):
    worker = Worker(world)
    delete(filter_in(worker.filter).link, KEY, [filter_in(worker.filter).worker.name])
    worker.offer(1)
    assert worker.scheduler.has_pending_requests()
    assert "it was deleted while this worker used it" in caplog.text
    assert "in separate calls" not in caplog.text


def test_a_connection_that_breaks_as_the_queue_is_looked_for_changes_nothing(
    world, caplog, monkeypatch
):
    caplog.set_level("INFO")
    ask, errors = world.client.hget, [ConnectionError(), ConnectionError()]

    def hget(*key_and_field):
        if errors:
            raise errors.pop()
        return ask(*key_and_field)

    monkeypatch.setattr(world.client, "hget", hget)
    Worker(world)
    assert errors == []
    assert "in separate calls" not in caplog.text


def test_what_cannot_be_encoded_is_not_marked_and_all_else_is_pushed(world, caplog):
    worker = Worker(world, queue="PriorityQueue")
    worker.offer(1)
    worker.offer(2, meta={"unpicklable": lambda: None})
    worker.offer(3, priority=10**400)
    worker.offer(4)
    assert worker.scheduler.has_pending_requests()
    assert caplog.text.count("could not be enqueued") == 2
    for page in (1, 2, 3, 4):
        worker.offer(page)
    worker.scheduler.has_pending_requests()
    assert world.client.zcard("worker:requests") == 4


@pytest.mark.parametrize(
    ("count", "size", "calls"), [(501, 0, 2), (5, 25_000, 3), (2, 1_200_000, 2)]
)
def test_a_call_has_500_requests_and_64_kilobytes_at_most(world, count, size, calls):
    worker = Worker(world, serializer=Words)
    before = filter_in(worker.filter).link.round_trips
    for page in range(count):
        worker.offer(page, meta={"text": "x" * size})
    worker.scheduler.has_pending_requests()
    assert filter_in(worker.filter).link.round_trips == before + calls
    assert world.client.llen("worker:requests") == count


def test_a_request_that_takes_longer_than_a_small_call_may_is_pushed(world):
    with Proxy(world.server.port) as proxy:
        worker = Worker(world, BLOOM_REDIS_URL=proxy.url, BLOOM_REDIS_TIMEOUT=3)
        proxy.rate = 150_000  # bytes in a second
        for page, size in ((1, 10), (2, 400_000), (3, 10)):
            worker.offer(page, meta={"text": "x" * size})
        worker.scheduler.has_pending_requests()
        assert world.client.llen("worker:requests") == 3


class Subclass(theirs.Scheduler):
    def enqueue_request(self, request):
        return super().enqueue_request(request)


class Deeper(queues.FifoQueue):
    def push(self, request):
        super().push(request)


class Asking(BloomDupeFilter):
    def request_seen(self, request):
        return super().request_seen(request)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"scheduler": Subclass}, "overrides a method"),
        ({"queue": Deeper}, "overrides a method"),
        ({"filter_": Asking}, "overrides a method"),
        ({"BLOOM_REDIS_URL": "/3"}, "another server or database"),
    ],
)
def test_whoever_changes_a_step_is_asked_for_each_request(world, changed, why, caplog):
    caplog.set_level("INFO")
    if "BLOOM_REDIS_URL" in changed:
        changed = {"BLOOM_REDIS_URL": world.server.url.replace("/0", "/3")}
    worker = Worker(world, **changed)
    assert "Marks and requests go to Redis in separate calls: " in caplog.text
    assert why in caplog.text
    assert [worker.offer(page) for page in (1, 2, 1)] == [True, True, False]
    assert world.client.llen("worker:requests") == 2
    world.client.flushall()
    world.server.client(db=3).flushall()
    assert worker.offer(1)  # what it knew counts no more


WHY = {"type": "it is a zset, not a list", "command": "allow +lpush", "key": "and its queue's key"}


@pytest.mark.parametrize("problem", WHY)
def test_a_queue_that_cannot_be_pushed_to_costs_no_mark(world, problem, caplog):
    client, url = world.client, world.server.url.replace("redis://", "redis://worker:pass@")
    # Before Redis 7 a server cannot be asked for a right: then all marks go, once.
    is_asked = problem != "command" or int(client.info("server")["redis_version"][0]) >= 7
    client.execute_command(*["ACL", "SETUSER", "worker", "reset", "on", ">pass", "~*", "+@all"])
    worker = Worker(world, BLOOM_REDIS_URL=url)
    worker.offer(1)
    assert worker.scheduler.next_request() is not None
    epoch = client.hget(KEY, "epoch")
    if problem == "type":
        client.zadd("worker:requests", {"of another class": 1})
    else:
        less = ["-lpush"] if problem == "command" else ["resetkeys", f"~{KEY}*"]
        client.execute_command("ACL", "SETUSER", "worker", *less)
    for page in (1, 2):
        worker.offer(page)
    push_again(worker.scheduler)
    [told] = [
        text for text in caplog.messages if "now on marks and requests go to Redis in" in text
    ]
    assert (WHY[problem] if is_asked else "All marks were dropped") in told
    assert (client.hget(KEY, "epoch") == epoch) is is_asked
    assert not worker.offer(1)


def test_what_cannot_be_sent_waits_and_nothing_is_handed_out(world):
    worker = Worker(world)
    scheduler = worker.scheduler
    worker.offer(0)
    assert scheduler.has_pending_requests()
    world.failing = 10**9
    assert all(worker.offer(page) for page in range(600))
    for _ in range(2):
        assert scheduler.has_pending_requests()
        assert scheduler.next_request() is None
    world.failing = 0
    push_again(scheduler)
    assert world.client.llen("worker:requests") == 600
    assert scheduler.next_request() is not None
    assert worker.count("dupefilter/filtered") == [1]


async def test_start_waits_while_much_cannot_be_sent(world):
    async def start():
        for page in range(10**6):
            yield page

    worker = Worker(world, start=start())
    world.failing, yielded = 10**9, start_of(worker.crawler)
    for _ in range(501):
        worker.offer(await anext(yielded))
    later = asyncio.ensure_future(anext(yielded))
    for _ in range(9):
        await asyncio.sleep(0)
    assert not later.done()
    world.failing = 0
    push_again(worker.scheduler)
    assert await Deferred.fromFuture(later) == 501


@pytest.mark.parametrize("failing", [3, 10**9])
async def test_a_spider_that_closes_sends_what_waits(world, failing, caplog):
    worker = Worker(world, BLOOM_REDIS_TIMEOUT=10 if failing == 3 else 1)
    world.failing = failing
    for page in range(3):
        worker.offer(page)
    await worker.scheduler.close("finished")
    is_lost = failing > 3
    assert ("the spider has closed before 3 requests could be sent" in caplog.text) is is_lost
    assert world.client.llen("worker:requests") == (0 if is_lost else 3)


def test_under_the_policy_close_an_outage_ends_the_crawl(world, caplog):
    worker = Worker(world, BLOOM_ON_BACKEND_ERROR="close")
    world.failing = 10**9
    worker.offer(1)
    worker.scheduler.has_pending_requests()
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == ["lost"]
    world.failing = 0
    worker.scheduler.close("bloom_backend")
    assert world.client.llen("worker:requests") == 1
