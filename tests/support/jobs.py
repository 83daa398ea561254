"""Job directories for tests: one way to open them, and ways to hurt what is in them."""

import pickle
import time

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from testbed.localredis import keys

from scrapy_bloom import BloomDupeFilter, CanonicalRequestFingerprinter
from scrapy_bloom.crawl.failed import FailedPage
from scrapy_bloom.crawl.outcomes import APART, Reason
from scrapy_bloom.local.job import Identity, Job
from scrapy_bloom.local.later import LATER, record_pause, waiting_body
from scrapy_bloom.local.metadata import FILTER, REQUESTS
from scrapy_bloom.redis.client import Server
from scrapy_bloom.redis.link import Link
from scrapy_bloom.redis.member import Entry
from scrapy_bloom.redis.packing import Packing
from scrapy_bloom.redis.plan import Plan
from scrapy_bloom.redis.wire import Call, NewFailedRow
from scrapy_bloom.redis.worker import Worker
from scrapy_bloom.settings import Settings

SPIDER = "books"
mark_of = CanonicalRequestFingerprinter().fingerprint
NAME = "bloom.sqlite"


def identity_of(spider=SPIDER):
    """Return what the marks of a spider's crawl belong to, with the default settings."""
    made = CanonicalRequestFingerprinter.from_crawler(get_crawler())
    return Identity(spider, made.wrapped, made.rules.record())


def open_job(folder, *, spider=SPIDER, requests=False, **settings):
    """Open a job as a crawl does.

    :param requests: whether it is one of `scrapy_bloom.Scheduler`.
    """
    job = Job(folder, identity_of(spider), REQUESTS if requests else FILTER)
    with job.opening():
        job.open(Settings(settings), digests=True)
        job.begin()
    return job


def stored_job(folder, known, **options):
    """Make a job of a plain filter that has stopped cleanly."""
    kept_job(folder, known=known, requests=False, **options)


def kept_job(
    folder, *, known=(), urls=(), bodies=(), waits=(), pauses=(), requests=True, **options
):
    """Make a job of `scrapy_bloom.Scheduler` that has stopped cleanly; return its folder.

    :param bodies: requests as they are stored, which come after those of the URLs.
    :param waits: pairs of a URL and for how long its request waits.
    :param pauses: pairs of a download slot and for how long it is paused.
    """
    job = open_job(folder, requests=requests, **options)
    for fingerprint in known:
        job.store.filter.add(fingerprint)
    for body in [*(stored(Request(url)) for url in urls), *bodies]:
        job.store.push(job.store.queue("0", None), body)
    for url, seconds in waits:
        body = waiting_body(time.time() + seconds, 0, stored(Request(url)))
        job.store.push(job.store.queue(LATER, None), body)
    for slot, seconds in pauses:
        record_pause(job.store, slot, time.time() + seconds)
    assert job.close()
    return folder


def list_failed(store, request, kind="503", message="", tries=1, date=None):
    """List a request in a job as it is after so many runs in which it has failed."""
    body, last = stored(request), date or time.time()
    row = store.push(store.queue("0", None), body)
    for run in range(1 - tries, 1):
        failed = FailedPage.of(body, Reason(kind, message), last + run * APART)
        body = failed.body
    store.fail(row, failed)


class SharedCrawl:
    """A crawl in Redis with one worker, which a test leads."""

    def __init__(self, server, order="lifo"):
        key = next(keys)
        self.target = f"{server.url}#{key}"
        self._link = Link(Server(server.url), 10.0)
        plan = Plan(1000, 1e-6, project="shop", spider=SPIDER, order=order)
        self.worker = Worker(self._link, key, plan)

    def offer(self, *requests, due=0.0):
        """Add requests, in the slot of one host."""
        entries = []
        for each in requests:
            mark = None if each.dont_filter else mark_of(each)
            letter = "p" if mark is None else "f"
            entries.append(Entry(letter, mark, packed(each), slot=b"books.test", due=due))
        self.worker.call(Call(entries))

    def take(self, count):
        taken = []
        while len(taken) < count:
            taken += self.worker.call(Call(take=count - len(taken))).taken
        return taken

    def fail(self, taken, reason):
        failed = FailedPage.of(taken.body, reason, time.time(), self.worker.name, **IN_REDIS)
        taken.body = failed.body
        self.worker.call(Call(failures=[NewFailedRow(taken.id, b"", failed, taken)]))

    def close(self):
        self.worker.leave()
        self._link.close()


def stored(request):
    return pickle.dumps(request.to_dict(), protocol=4)


PACKING = Packing()
IN_REDIS = {"read": PACKING.fields, "write": PACKING.write}


def packed(request):
    """Return a request as it is stored in Redis."""
    return PACKING.write(request.to_dict())


# A filter without a crawl, as it is beside another scheduler


class Books(Spider):
    name = SPIDER


class Session:
    """A filter as a crawl has it, between its opening and its close."""

    def __init__(self, settings=None):
        self.crawler = get_crawler(Books, settings)

    def __enter__(self):
        self.filter = BloomDupeFilter.from_crawler(self.crawler)
        self.filter.open()
        return self

    def __exit__(self, *_):
        self.filter.close("finished")

    def seen(self, *pages):
        """Return for each of some URLs or requests whether it was seen, one after the other."""
        requests = (Request(page) if isinstance(page, str) else page for page in pages)
        return [self.filter.request_seen(request) for request in requests]


def page(name, **more):
    return Request(f"https://example.com/{name}", **more)
