"""Backends behind their port, without an engine: in a job directory, in Redis.

One more is a subclass of `Place`, and a parameter of the fixture in `contract/test_backends`.
"""

import time
from types import SimpleNamespace

from scrapy import Request, Spider
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue
from scrapy.squeues import PickleFifoDiskQueue
from scrapy.utils.test import get_crawler
from twisted.internet.defer import Deferred

from scrapy_bloom.crawl.backend import Crawl
from scrapy_bloom.crawl.history import START
from scrapy_bloom.crawl.identity import Identifier
from scrapy_bloom.crawl.outcomes import Ended, Reason
from scrapy_bloom.crawl.report import Report
from scrapy_bloom.crawl.serialize import QueueKind
from scrapy_bloom.errors import StateError
from scrapy_bloom.local.backend import LocalBackend
from scrapy_bloom.local.queue import QueueClasses
from scrapy_bloom.redis.backend import RedisBackend
from scrapy_bloom.redis.upkeep import SLOWEST_POLL
from scrapy_bloom.settings import Settings
from support.internals import clock_of_redis, queue_of
from support.queues import let_die, mark_of

HOUR = 3600


def slot_of(request):
    return request.url.split("/")[2]


class Pages(Spider):
    name = "pages"

    def parse(self, response):
        pass


class Moved(Pages):
    """Its callback has a name that it had not before."""

    def parse_page(self, response):
        pass


class Run:
    """One run of a crawl, whose pages are known by their names.

    Attributes:
        have: requests that it has taken, with what the backend wants back.
    """

    def __init__(self, place, spider, *, starts):
        downloader = SimpleNamespace(slots={}, per_slot_settings={}, _delay=0.0, _jitter=0.0)
        downloader.get_slot_key = slot_of
        settings = place.settings | {"CONCURRENT_REQUESTS": 1000}
        self.crawler, self._place, self.have = get_crawler(settings_dict=settings), place, {}
        self.crawler.engine = SimpleNamespace(downloader=downloader, spider=None)
        self.crawler.spider = spider
        self.report = Report(self.crawler)
        self.engine = engine = SimpleNamespace(closing=False, busy=False, slot_of=slot_of)
        engine.has = lambda request: any(request is each for each, _ in self.have.values())
        engine.is_from_start, engine.has_started = (lambda _: starts), not starts
        engine.wake = engine.before_closing = engine.wrap_start = engine.requeue_slot = lambda *_: (
            None
        )
        settings = Settings.of(self.crawler)
        identifier = Identifier(self.crawler, settings)
        self.crawl = Crawl(
            *(self.crawler, spider, settings, self.report, self.engine, identifier, self.have)
        )

    def request(self, name, *, host="a", **options):
        return Request(f"http://{host}.test/{name}", **options)

    async def offer(self, *names, host="a", wait=0.0, filtered=True, max_age=None, **options):
        """Offer pages; return for each whether it was seen."""
        answers = []
        for name in names:
            request = self.request(name, host=host, **options)
            due = time.monotonic() + wait if wait else 0.0
            mark = mark_of(name) if filtered else None
            answers.append(self.backend.offer(request, due, mark, max_age))
        return await self.answers(answers)

    async def answers(self, answers):
        """Return answers, of which some may come later."""
        while any(isinstance(each, Deferred) and not each.called for each in answers):
            await self.exchange()
        return [await each if isinstance(each, Deferred) else each for each in answers]

    async def forget(self, *names):
        (answers,) = await self.answers([self.backend.forget_many([*map(mark_of, names)])])
        return answers

    async def exchange(self):
        assert await self.backend.exchange(busy=bool(self.have), in_memory=False)

    async def say(self):
        """Make exchanges until all is said."""
        await self.exchange()
        while self.backend.dirty:
            await self.exchange()

    async def take(self, most=9999):
        """Take what may be sent now; return the names, in order."""
        names, in_vain = [], 0
        while len(names) < most and in_vain < 9:
            found = self.backend.take()
            in_vain = 0 if found else in_vain + 1
            if found:
                names.append(found[0].url.rpartition("/")[2])
                self.have[names[-1]] = found
            else:
                await self.exchange()
                self._place.wait(SLOWEST_POLL)  # a worker that finds nothing looks less often
        return names

    def end(self, *names, how=Ended.DONE):
        """Let pages be done, which were taken."""
        for name in names:
            request, taken = self.have.pop(name)
            self.backend.release(taken, how, request.meta.get(START, b""))
        self.backend.record_finished(len(names))

    def fail(self, *names, kind="503", way=(), unparsed=False, to=None):
        """Let pages fail, which were taken, or be unparsed, perhaps as one was seen."""
        for name in names:
            request, taken = self.have.pop(name)
            start = request.meta.get(START, b"")
            reason = Reason(kind, unparsed=unparsed, to=to and mark_of(to))
            self.backend.fail(taken, reason, [*map(mark_of, way)], start)
        self.backend.record_finished(len(names))

    async def stop(self):
        """Let the crawl stop cleanly; return its account."""
        self._place.run = None
        self.backend.stop()
        await self.say()
        assert await self.backend.close()
        return self.report.account


class Place:
    """Where a crawl is kept: it is opened, stopped and killed there, and time passes.

    Attributes:
        run: the one that is open.
    """

    settings, run = {}, None

    def __init__(self, request):
        self.passed, self.real = 0.0, (time.monotonic, time.time)
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr(time, "monotonic", lambda: self.real[0]() + self.passed)
        patch.setattr(time, "time", lambda: self.real[1]() + self.passed)

    def wait(self, seconds):
        self.passed += seconds

    async def open(self, spider=Pages, *, starts=False):
        """Begin a run.

        :param starts: whether its requests are those of `start()`, which is not through yet.
        """
        self.run = Run(self, spider(), starts=starts)
        self.run.backend = await self.backend(self.run.crawl)
        return self.run

    async def kill(self):
        """End the run, and lose what was not said."""
        run, self.run = self.run, None
        run.backend.give_up(StateError("killed"))
        assert not await run.backend.close()

    async def close(self):
        if self.run is not None:
            await self.kill()


class JobDirectory(Place):
    queue, disk = ScrapyPriorityQueue, PickleFifoDiskQueue

    def __init__(self, request):
        super().__init__(request)
        self.folder = request.getfixturevalue("job")

    async def backend(self, crawl):
        classes = QueueClasses(self.queue, QueueKind.of("", self.disk), None)
        return await LocalBackend.open(crawl, self.folder, classes, unclean=False)

    @property
    def size(self):
        return (self.folder / "bloom.sqlite").stat().st_size


class BySlot(JobDirectory):
    """Each slot has a queue of its own, in which requests stay while it is paused."""

    queue = DownloaderAwarePriorityQueue


class InRedis(Place):
    killed = False

    def __init__(self, request):
        super().__init__(request)
        self.server, self.key = map(request.getfixturevalue, ("server", "key"))
        self.settings = {"BLOOM_REDIS_URL": self.server.url, "BLOOM_REDIS_KEY": self.key}
        self.client = self.server.client()
        self._clock = clock_of_redis(self.client, time.time())
        self._set_clock = self._clock.__enter__()

    def wait(self, seconds):
        super().wait(seconds)
        self._set_clock(time.time())

    async def backend(self, crawl):
        backend = await RedisBackend.open(crawl, QueueKind.of("", PickleFifoDiskQueue))
        if self.killed:
            queue_of(backend).worker.beat()
        return backend

    async def kill(self):
        """Let a worker vanish; the next one finds out."""
        queue, self.run, self.killed = queue_of(self.run.backend), None, True
        let_die(self.server, self.key, queue)
        queue.link.close()

    async def close(self):
        await super().close()
        self._clock.__exit__(None, None, None)

    @property
    def size(self):
        names = self.client.keys(f"{self.key}*")
        return sum(self.client.memory_usage(name, 0) for name in names)
