"""Stores of requests for tests: how they are made and filled, with numbers for requests."""

import pickle

from scrapy import Request
from scrapy.squeues import PickleLifoDiskQueue

from scrapy_bloom.frontier import file, opening
from scrapy_bloom.frontier.buckets import Bodies, BucketMaker, Lifo
from scrapy_bloom.frontier.local import CLEAN
from scrapy_bloom.frontier.requests import QueueKind, frame
from scrapy_bloom.frontier.store import Store

from .jobs import open_job, stored_job

NAME = "requests.sqlite"


class Texts(Bodies):
    """Takes numbers for requests, and lists what was taken."""

    def __init__(self):
        self.taken = {}

    def encode(self, request):
        return b"%d" % request

    def take(self, row, body):
        self.taken[int(body)] = row
        return int(body)

    def slot(self, request):  # noqa: ARG002 - a number
        return "slot"


def open_store(folder):
    path = folder / NAME
    if not path.exists() and not path.is_symlink():
        file.create(path, lambda _: None)
    return Store(path)


def fill(store, count, path="0"):
    queue = BucketMaker(store, "/job", Lifo, Texts()).from_crawler(None, f"/job/{path}")
    for number in range(count):
        queue.push(number)
    store.commit()
    return queue


class _Framed(Texts):
    """Takes URLs for requests, and writes them as a crawl does."""

    def encode(self, url):
        return frame(pickle.dumps(Request(url).to_dict(), protocol=4))

    def slot(self, url):  # noqa: ARG002 - all in one
        return None


def kept_job(folder, *, stored=(), journal=(), withheld=(), urls=()):
    """Make a job of `scrapy_bloom.Scheduler` that was closed; return its folder.

    Its snapshot has the marks `stored`, its journal has `journal`.
    """
    stored_job(folder, stored)
    job = open_job(folder)
    kind = QueueKind.of("", PickleLifoDiskQueue)
    store, _ = opening.open_store(job, kind, None, every_commit=False)
    queue = BucketMaker(store, "/job", kind.order, _Framed()).from_crawler(None, "/job/0")
    for url in urls:
        queue.push(url)
    store.mark(journal)
    store.withhold(withheld)
    store.note(CLEAN, 1)
    store.commit()
    store.close()
    job.release()
    return folder


def marks_of(store):
    """Return the fingerprints in the journal of a store, oldest first."""
    return [fingerprint for row in store.marks() for fingerprint in row.fingerprints]


class Restored:
    """Takes what is replayed, and lists it."""

    since = None

    def __init__(self):
        self.known = []

    def restore(self, fingerprints, since=None):
        assert since is None
        self.known += fingerprints
        return True

    def restore_ages(self, ages):
        assert not ages
