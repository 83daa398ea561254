"""A job directory behind the port, without an engine."""

import sqlite3
import threading
from itertools import count

import pytest
from scrapy import Request
from scrapy.squeues import PickleFifoDiskQueue, PickleLifoDiskQueue
from support.contract import fingerprints
from support.internals import database_of
from twisted.internet.defer import succeed

from scrapy_bloom.crawl.history import START
from scrapy_bloom.crawl.outcomes import Ended, Reason
from scrapy_bloom.local import backend as local_backend
from scrapy_bloom.local import log, store
from scrapy_bloom.local.failed import FailedList
from scrapy_bloom.local.job import Job
from scrapy_bloom.local.log import Log
from scrapy_bloom.local.queue import Queues
from scrapy_bloom.local.starts import Starts
from scrapy_bloom.local.store import Store


async def opened_in(in_job):
    return (await in_job.open()).backend


async def test_what_hosts_left_alone_have_put_aside_is_in_nobodys_way_after_a_failed_commit(
    in_job, monkeypatch
):
    backend = await opened_in(in_job)
    for number in range(150):
        assert backend.offer(Request(f"http://a.test/{number}"), 0.0, None, None) is False
    backend.offer(free := Request("http://b.test/"), 0.0, None, None)
    backend.hold(Request("http://a.test/"), 60)
    assert backend.take() is None  # so many have been put aside that the event loop must go on
    with monkeypatch.context() as patched:

        def commit(*_, **__):
            raise sqlite3.OperationalError("the disk is full")

        patched.setattr(Store, "commit", commit)
        assert not await backend.exchange(busy=False, in_memory=False)
    request, _ = backend.take()
    assert request.url == free.url
    assert await backend.exchange(busy=False, in_memory=False)
    assert await backend.close()


async def test_an_exchange_ends_whatever_is_added_meanwhile(in_job, monkeypatch):
    """Callbacks run while it pauses, and each may yield thousands of requests."""
    backend = await opened_in(in_job)
    numbers = count()

    def add(*_):
        for _ in range(2 * store.ROWS_AT_ONCE):
            backend.offer(Request(f"http://a.test/{next(numbers)}"), 0.0, None, None)
        return succeed(None)

    monkeypatch.setattr(local_backend, "pause", add)
    add()
    assert await backend.exchange(busy=False, in_memory=False)
    assert backend.unsaid == 0
    assert next(numbers) <= 6 * store.ROWS_AT_ONCE
    assert await backend.close()


async def test_what_takes_long_in_opening_and_closing_is_done_beside_the_event_loop(
    in_job, monkeypatch
):
    """A filter for 100,000,000 pages is read and written for seconds."""
    threads = {}
    monkeypatch.setattr(local_backend, "SMALL", -1)

    def noted(name, do):
        def call(*arguments, **options):
            threads[name] = threading.current_thread()
            return do(*arguments, **options)

        return call

    for owner, name in (
        (Job, "_check"),
        (Job, "open"),
        (Job, "begin"),
        (Job, "close"),
        (Queues, "read_waiting"),
    ):
        one = noted(f"{owner.__name__}.{name}", getattr(owner, name))
        monkeypatch.setattr(owner, name, one)
    backend = await opened_in(in_job)
    assert await backend.close()
    assert len(threads) == 5
    assert threading.current_thread() not in threads.values()


async def test_no_transaction_is_long_however_much_has_changed(in_job, monkeypatch):
    """Each stops the crawl; between two of them it goes on."""
    backend = await opened_in(in_job)
    known, fresh = fingerprints(6_000), fingerprints(6_000, "fresh")
    for page in known:
        backend.offer(Request("http://a.test/"), 0.0, page, None)
    assert await backend.exchange(busy=False, in_memory=False)
    written = []

    def counted(write):
        def call(store, **options):
            before = database_of(store).total_changes
            try:
                return write(store, **options)
            finally:
                written.append(database_of(store).total_changes - before)

        return call

    for name in "write_ahead", "commit":
        monkeypatch.setattr(Store, name, counted(getattr(Store, name)))
    assert all(backend.forget_many(known))
    for number, page in enumerate(fresh):
        backend.offer(Request(f"http://b.test/{number}"), 0.0, page, None)
    assert await backend.exchange(busy=False, in_memory=False)
    assert sum(written) > 12_000
    assert max(written) < 1_000
    monkeypatch.undo()
    assert not backend.dirty
    store = Store(in_job.folder / "bloom.sqlite", read_only=True)
    assert len(store) == 12_000
    assert [page in store.filter for page in (*known, *fresh)] == [False] * 6_000 + [True] * 6_000
    store.close()
    assert await backend.close()


async def test_a_long_log_is_copied_into_the_file_beside_the_event_loop(in_job, monkeypatch):
    monkeypatch.setattr(log, "LOG_BYTES", 50_000)
    backend = await opened_in(in_job)
    threads, checkpoint = set(), Log.checkpoint

    def noted(one):
        threads.add(threading.current_thread())
        checkpoint(one)

    monkeypatch.setattr(Log, "checkpoint", noted)
    for number in range(50):
        backend.offer(Request(f"http://a.test/{number}", body=bytes(10_000)), 0.0, None, None)
        assert await backend.exchange(busy=False, in_memory=False)
    assert len(threads) > 3
    assert threading.current_thread() not in threads
    assert await backend.close()


async def test_start_requests_that_still_wait_are_known_to_the_next_run(in_job):
    """Each run stored them once more. One that was done is a new one."""
    names = [*map(str, range(300))]
    for waiting in (0, 295, 295):
        run = await in_job.open(starts=True)
        account = run.backend.account()
        assert account.pages - account.done == waiting
        await run.offer(*names, filtered=False)
        assert run.backend.account().pages == 300
        run.end(*await run.take(5))
        await run.say()
        account = run.backend.account()
        assert (account.done, account.pages) == (5, 300)
        await in_job.kill()


@pytest.mark.parametrize(
    ("kind", "method"), [(Starts, "__getitem__"), (FailedList, "take"), (FailedList, "_give_way")]
)
async def test_a_read_that_fails_as_a_page_ends_changes_nothing(in_job, monkeypatch, kind, method):
    """It is tried again. A row that was deleted twice made the next run refuse the job."""
    backend = (await in_job.open(starts=True)).backend
    backend.offer(Request("http://a.test/", dont_filter=True), 0.0, None, None)
    request, taken = backend.take()

    def end():
        if method == "_give_way":
            backend.fail(taken, Reason("403", unparsed=True), (), request.meta[START])
        else:
            backend.release(taken, Ended.DONE, request.meta[START])

    def fail(*_):
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(kind, method, fail)
        patched.setattr("scrapy_bloom.local.failed.MOST_UNPARSED", 0)
        with pytest.raises(sqlite3.OperationalError):
            end()
    end()
    assert await backend.close()
    backend = await opened_in(in_job)
    assert backend.account()[:3] == ((0, 0, 0) if method == "_give_way" else (1, 0, 0))
    assert backend.account().pages == 1
    assert await backend.close()


# A site that fails for good


@pytest.mark.parametrize("order", [PickleFifoDiskQueue, PickleLifoDiskQueue])
async def test_what_has_failed_comes_behind_all_that_waits_or_is_found_until_then(in_job, order):
    """Whatever Scrapy's queue takes first, and whatever the priorities."""
    in_job.disk = order
    backend = await opened_in(in_job)
    for number in range(3):
        backend.offer(Request(f"http://a.test/bad{number}", priority=5), 0.0, None, None)
        _, taken = backend.take()
        backend.fail(taken, Reason("503"), ())
    for number in range(4):
        backend.offer(Request(f"http://a.test/{number}"), 0.0, None, None)
    assert await backend.close()
    backend = await opened_in(in_job)
    fetched = []
    while (found := backend.take()) is not None:
        page = found[0].url.rpartition("/")[2]
        fetched.append(page)
        if page in ("0", "bad0", "bad1"):  # a page has links
            backend.offer(Request(f"http://a.test/from-{page}"), 0.0, None, None)
    assert {*fetched[:5]} == {"0", "1", "2", "3", "from-0"}
    assert fetched[5:] == ["bad0", "from-bad0", "bad1", "from-bad1", "bad2"]
    assert backend.over
    assert await backend.close()
