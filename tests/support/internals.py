"""What tests can see and do only behind the public names, each with its reason.

A test reads private fields nowhere else: ruff looks.
"""

import time
from contextlib import contextmanager
from operator import attrgetter
from types import SimpleNamespace

from redis import Redis

from scrapy_bloom import fingerprinter
from scrapy_bloom.crawl.scrapy import loop
from scrapy_bloom.local import backend, log
from scrapy_bloom.local.store import Store
from scrapy_bloom.redis import link

_COMMIT = Store._commit


def repeat_the_self_check():
    """Let the next fingerprinter compare itself with the installed Scrapy again.

    It does so once in a process, and another Scrapy cannot be installed in the middle of one.
    """
    fingerprinter._trusted.cache_clear()


# Scrapy shows it to nobody, but a fork gets a copy of it.
scheduler_of = attrgetter("engine._slot.scheduler")

# The bytes of requests that are only in memory until the next exchanges of a crawl.
unwritten_in = attrgetter("engine._slot.scheduler._frontier._backend.unwritten")

# The store of a backend: nobody else shows notes and rows as they are.
store_of = attrgetter("_store")

# The connection of a store: what it writes is counted there, and a full disk begins.
database_of = attrgetter("_database")

# What a backend in Redis uses: its worker can be made to vanish.
queue_of = attrgetter("_queue")

# The filter in Redis of a duplicate filter: its calls are made to fail.
filter_in = attrgetter("_filter.filter")


def send(crawler, request):
    """Let the engine of a crawl download a request that its scheduler has returned."""
    crawler.engine._download(request)


def answer(crawler, request, result):
    """Let the engine of a crawl have what came out of the downloader for a request."""
    crawler.engine._handle_downloader_output(result, request)


def synchronous(crawler):
    """Return how SQLite writes the commits of a crawl.

    That is its mode, 1 for NORMAL and 2 for FULL, and whether it asks macOS for the disk itself.
    """
    database = database_of(store_of(scheduler_of(crawler)._frontier._backend))
    names = "synchronous", "fullfsync"
    return tuple(database.execute(f"PRAGMA {name}").fetchone()[0] for name in names)


def marks_in_memory(store):
    """Return how many marks a store keeps in memory for its next commit."""
    return sum(map(len, (store.marks._changes.marks or {}).values()))


def secret_of(filter_):
    """Return what only the key of a filter's hashes makes: who knows it can make pages seen."""
    return filter_.worker.probe(bytes(20)) if hasattr(filter_, "worker") else filter_.secret


def is_settled(crawler):
    """Return whether a crawl waits for no answer of Redis."""
    frontier = scheduler_of(crawler)._frontier
    dirty = frontier._backend.kind == "redis" and frontier._backend.dirty
    return not (frontier._ledger._questions or frontier._exchanging or dirty)


def stop_beating(one):
    """Let a worker of Redis renew its leases no more, as one does that is frozen."""
    one._stop.set()
    one._thread.join()


@contextmanager
def clock_of_redis(client, now):
    """Let scripts and clients ask a key for the time, which nobody can set on a server.

    :param now: seconds since 1970 at the beginning.
    :return: what sets the time.
    """
    key = "clock of the tests"
    read, real_time = link.script, Redis.time

    def read_with_clock(name):
        return read(name).replace("call('TIME')", f"call('HMGET', '{key}', 's', 'us')")

    def set_clock(seconds):
        client.hset(key, mapping={"s": int(seconds), "us": round(seconds % 1 * 1e6)})

    assert "call('TIME')" in read("call")
    link.script = read_with_clock
    Redis.time = lambda _: tuple(map(int, client.hmget(key, "s", "us")))
    set_clock(now)
    try:
        yield set_clock
    finally:
        link.script, Redis.time = read, real_time


def crawl_by(scheduler, crawler, start=None):
    """Let a crawl without an engine have a scheduler of scrapy-redis, and what `start()` yields."""
    crawler.engine = SimpleNamespace(_slot=SimpleNamespace(scheduler=scheduler), _start=start)


def start_of(crawler):
    """Return what the engine of a crawl reads in place of the spider's `start()`."""
    return crawler.engine._start


def push_again(scheduler):
    """Let a scheduler of scrapy-redis send what waits, as a timer does after an outage."""
    scheduler.enqueue_request.__self__._send()


def be_simulated(thread):
    """Let the package start threads of another kind, and find no time that passes in code."""
    loop.Thread = log.Thread = thread
    backend.perf_counter = time.monotonic


def after_each_commit(do):
    """Call a function, and none that was given before, after each commit of a store, with that."""

    def committed(store, **options):
        _COMMIT(store, **options)
        do(store)

    Store._commit = committed
