"""What tests can see and do only behind the public names, each with its reason.

A test reads private fields nowhere else: tests/test_house.py looks.
"""

import sqlite3
from contextlib import contextmanager
from functools import partial

from scrapy_bloom import BackendError
from scrapy_bloom.canonical import fingerprint
from scrapy_bloom.local.store import Store
from scrapy_bloom.redis import scripts


def repeat_the_self_check():
    """Let the next fingerprinter compare itself with the installed Scrapy again.

    It does so once in a process, and another Scrapy cannot be installed in the middle of one.
    """
    fingerprint._trusted.cache_clear()


def scheduler_of(crawler):
    """Return the scheduler of a crawl; Scrapy shows it to nobody, but a fork gets a copy of it."""
    return crawler.engine._slot.scheduler


def take_for_dead(shard, other):
    """Let a worker of a shared queue find another one dead, which takes as long as a lease."""
    now = other._register.now
    record = shard._link.place.client.hget(shard.place.key, f"l:{now.worker}")
    shard._register.silent = lambda: {now.worker.encode(): record} if record else {}
    try:
        shard.undo_dead()
        return {name: (back, failed) for name, back, failed in shard.requeue_dead([])}
    finally:
        del shard._register.silent


def call_dead(queue, other, shards):
    """Let a shared queue find a worker dead in some shards, which takes as long as a lease."""
    other._heartbeat.stop()
    for number, shard in enumerate(queue._shards):
        worker = other._shards[number]._register.now.worker
        lease = shard._link.place.client.hget(shard.place.key, f"l:{worker}")
        dead = [(worker.encode(), lease)] if number in shards else []
        shard._register.silent = partial(dict, dead)


def fail_to_leave(queue, number):
    """Let a worker find the server of one shard away when it leaves."""
    queue._shards[number]._register.undo = _away


def _away(*_):
    raise BackendError("away")


def leave(shard):
    """Let a worker leave a shared queue that has one shard; return whether that worked."""
    return shard.leave() and shard.part()


def registered_as(shard):
    """Return the name under which a worker is registered at a shared queue."""
    return shard._register.now.worker


def rows_in_memory(bucket):
    """Return how many rows a queue over a store keeps in memory."""
    return len(bucket._hot)


def synchronous(crawler):
    """Return the mode in which SQLite writes the commits of a crawl: 1 is NORMAL, 2 is FULL."""
    database = scheduler_of(crawler)._frontier._store._database
    return database.execute("PRAGMA synchronous").fetchone()[0]


@contextmanager
def statements_fail(store, after):
    """Have one statement of a store's database interrupted, after so many steps of SQLite.

    Not the last one: a COMMIT asks the handler once more when it is done, and fails although it has
    written everything. No error of a disk does that.
    """
    steps = iter(range(after + 1))
    statements = [""]
    store._database.set_trace_callback(statements.append)
    store._database.set_progress_handler(
        lambda: next(steps, None) == after and statements[-1] != "COMMIT", 1
    )
    try:
        yield
    finally:
        store._database.set_progress_handler(None, 0)
        store._database.set_trace_callback(None)


def fail_after_writing(monkeypatch, fails):
    """Have commits of a store fail with a full disk when `fails()` says so."""
    original = Store._write_trims

    def write(store):
        original(store)
        if fails():
            raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Store, "_write_trims", write)


@contextmanager
def clock_of_redis(client, now):
    """Let the scripts of filters ask a key for the time, which nobody can set on a server.

    :param now: seconds since 1970 at the beginning.
    :return: what sets the time.
    """
    key = "clock of the tests"
    cached = [one for one in vars(scripts).values() if hasattr(one, "cache_clear")]
    read, asks_server = scripts._read, scripts.NOW

    def read_with_clock(name, layout=""):
        asked = f"redis.call('HMGET', '{key}', 's', 'us')"
        return read(name, layout).replace("redis.call('TIME')", asked)

    def set_clock(seconds):
        client.hset(key, mapping={"s": int(seconds), "us": round(seconds % 1 * 1e6)})

    scripts._read = read_with_clock
    scripts.NOW = scripts.Script(read_with_clock("now"))
    for one in cached:
        one.cache_clear()
    set_clock(now)
    try:
        yield set_clock
    finally:
        scripts._read = read
        scripts.NOW = asks_server
        for one in cached:
            one.cache_clear()


def forget_own_dates(shared):
    """Let a worker of a filter in Redis ask for the age of each page, as one does that came new."""
    for shard in shared.shards:
        shard._let_through.clear()
