"""Workers of a shared queue, opened for a test."""

from __future__ import annotations

from contextlib import ExitStack
from unittest.mock import patch

from scrapy_bloom import BackendError, RedisFilter, RedisOptions
from scrapy_bloom.redis.connection import Target
from scrapy_bloom.redis.queue import shared
from scrapy_bloom.redis.queue.base import Entry
from scrapy_bloom.redis.queue.reader import QueueReader
from scrapy_bloom.redis.queue.shared import SharedQueue
from support.waiting import until


class Worker:
    """A filter and its queue as one worker has them; as a context manager it closes both."""

    def __init__(self, url, key, *, order="fifo", codec="pickle", max_deliveries=5, **options):
        sizes = {"capacity": options.pop("capacity", 10_000), "error_rate": 1e-9}
        chosen = {"shared_queue": True, "timeout": 4.0} | options
        self.filter = RedisFilter(Target(url), **sizes, options=RedisOptions(key=key, **chosen))
        try:
            with patch.object(shared, "MAX_DELIVERIES", max_deliveries):
                self.queue = SharedQueue(self.filter, order=order, codec=codec)
        except BaseException:
            self.filter.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.queue.close()
        self.filter.close()


class Workers(ExitStack):
    """Opens workers that are closed together."""

    def open(self, url, key, **options):
        """Return the queue of a new worker."""
        return self.enter_context(Worker(url, key, **options)).queue


def patiently(act, *arguments):
    """Do something again and again while the server cannot be used; return what it returns."""

    def try_it():
        try:
            return (act(*arguments),)
        except BackendError:
            return None

    return until(try_it)[0]


def drain(queue, most=100):
    """Take and acknowledge everything; return the names, in order."""
    found, done = [], []
    while taken := patiently(queue.take, most, done):
        found += names(taken)
        done = [one.ticket for one in taken]
    patiently(queue.acknowledge, done)
    return found


def entry(name, priority=0, *, filtered=True, held=False):
    """Return an entry whose fingerprint and body can be told from its name."""
    text = str(name).encode()
    return Entry(b"" if held else b"body of " + text, priority, text if filtered else None)


def names(taken):
    """Return the names of the entries that were taken."""
    return [one.body.removeprefix(b"body of ").decode() for one in taken]


def keys_of(key):
    """Return the names of the queue's keys in a filter of one shard."""
    tag = key if "{" in key else f"{key}:{{{key}}}"
    return {
        "queue": f"{tag}:queue",
        "state": f"{tag}:queue:state",
        "taken": f"{tag}:taken",
        "failed": f"{tag}:failed",
        "again": f"{tag}:again",
    }


def failed(worker, most=1000):
    """Return the requests that nobody takes any more."""
    return [one for shard in worker.filter.shards for one in QueueReader(shard.place).failed(most)]
