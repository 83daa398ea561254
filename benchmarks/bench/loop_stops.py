"""For how long the event loop of a crawl stops, by how many pages its job directory knows."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from bench.part import Row

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from scrapy_bloom.crawl.backend import Crawl
    from scrapy_bloom.filter.bloom import LocalFilter
    from scrapy_bloom.local.backend import LocalBackend

BEAT: Final = 0.0005
COMMITS: Final = 200
NEW: Final = 200
FORGOTTEN: Final = 1000
"""Pages, between two commits."""


def ours(pages: int) -> Row:
    """Open a job that was killed, crawl on in it through a pass and growth, and close it."""
    logging.getLogger("scrapy_bloom").setLevel(logging.ERROR)  # growth
    asyncio.run(_ours(1_000))  # it imports what is used
    return asyncio.run(_ours(pages))


async def _ours(pages: int) -> Row:
    from scrapy.pqueues import ScrapyPriorityQueue
    from scrapy.squeues import PickleLifoDiskQueue

    from scrapy_bloom.crawl.serialize import QueueKind
    from scrapy_bloom.local.backend import LocalBackend
    from scrapy_bloom.local.queue import QueueClasses

    classes = QueueClasses(ScrapyPriorityQueue, QueueKind.of("", PickleLifoDiskQueue), None)
    row: Row = {"pages": pages}
    with TemporaryDirectory() as folder, _beating(row) as phase:
        _kill_a_job(Path(folder), pages)
        await phase("open")
        opening = LocalBackend.open(_crawl(pages), Path(folder), classes, unclean=False)
        backend: LocalBackend = await _awaited(opening)
        await phase("crawl")
        await _crawl_on(backend)
        await phase("close")
        await _awaited(backend.close())
        await phase("")
    return row


@contextmanager
def _beating(row: Row) -> Iterator[Any]:
    """Yield what begins a phase; note how long the loop's longest stop in each was.

    That is the processor time of its thread, which other processes do not make longer.
    """
    now = ""

    async def beat() -> None:
        while True:
            phase, began = now, time.thread_time()
            await asyncio.sleep(BEAT)
            if phase and phase == now:
                row[phase] = max(row.get(phase, 0.0), time.thread_time() - began)

    async def begin(phase: str) -> None:
        nonlocal now
        await asyncio.sleep(10 * BEAT)
        now = phase
        await asyncio.sleep(10 * BEAT)

    beating = asyncio.ensure_future(beat())
    try:
        yield begin
    finally:
        beating.cancel()


async def _awaited(coroutine: Coroutine[Any, Any, Any]) -> Any:
    from twisted.internet.defer import Deferred

    return await Deferred.fromCoroutine(coroutine).asFuture(asyncio.get_running_loop())


def _kill_a_job(folder: Path, pages: int) -> None:
    """Leave a job as a kill would: its blocks have random bits, and its journal is long."""
    from scrapy_bloom.filter.bloom import LocalFilter
    from scrapy_bloom.local.job import Identity, owner_metadata
    from scrapy_bloom.local.metadata import REQUESTS
    from scrapy_bloom.local.store import NAME, Store

    filter_ = LocalFilter(capacity=pages)
    _fill(filter_, pages - COMMITS * NEW // 2)  # it grows while the crawl goes on
    store = Store(folder / NAME, filter_)
    store.meta |= owner_metadata(Identity("", "", {}), REQUESTS)
    store.commit()
    store.marks.begin_pass()
    while store.marks.passing:
        store.commit()
    journal = os.urandom(20 * max(1000, pages // 20))
    marks = [journal[at : at + 20] for at in range(0, len(journal), 20)]
    store.filter.changes.marks = {filter_.slices[0].id: marks}  # type: ignore[union-attr]
    store.commit()
    store.abandon()


def _fill(filter_: LocalFilter, items: int) -> None:
    from bitarray import bitarray

    slice_ = filter_.slices[0]
    for index in range(len(slice_.blocks)):
        slice_.blocks[index] = bitarray(os.urandom(256) * 32, endian="big")
    slice_.dirty.setall(1)
    slice_.items = items


def _crawl(pages: int) -> Crawl:
    from scrapy import Spider
    from scrapy.utils.test import get_crawler

    from scrapy_bloom.crawl.backend import Crawl
    from scrapy_bloom.crawl.identity import Identifier
    from scrapy_bloom.crawl.report import Report
    from scrapy_bloom.settings import Settings

    crawler: Any = get_crawler(Spider, {"BLOOM_CAPACITY": pages, "TWISTED_REACTOR_ENABLED": False})
    settings = Settings.of(crawler)
    engine: Any = SimpleNamespace(slot_of=lambda _: "", is_from_start=lambda _: False)
    identifier, in_flight = Identifier(crawler, settings), None
    spider, report = Spider("spider"), Report(crawler)
    return Crawl(crawler, spider, settings, report, engine, identifier, in_flight)  # type: ignore[arg-type]


async def _crawl_on(backend: LocalBackend) -> None:
    """Mark pages until the filter grows, while a pass goes on; then forget them."""
    from scrapy import Request

    known = []
    for number in range(COMMITS):
        for part in range(NEW // 10):
            for place in range(10):
                known.append(mark := os.urandom(20))
                request = Request(f"https://www.example.com/{number}/{part}/{place}")
                backend.offer(request, 0.0, mark, None)
            await asyncio.sleep(0)
        await _awaited(backend.exchange(busy=True, in_memory=False))
    for at in range(0, len(known), FORGOTTEN):
        backend.forget_many(known[at : at + FORGOTTEN])
        await asyncio.sleep(2 * BEAT)  # else a beat may miss the end of a stop
        await _awaited(backend.exchange(busy=True, in_memory=False))
        await asyncio.sleep(2 * BEAT)


def scrapys(pages: int) -> Row:
    """Open Scrapy's own filter with so many pages."""
    from scrapy.dupefilters import RFPDupeFilter

    with TemporaryDirectory() as folder:
        seen = Path(folder, "requests.seen")
        with seen.open("w") as file:
            for _ in range(pages // 10_000):
                file.writelines(f"{os.urandom(20).hex()}\n" for _ in range(10_000))
        began = time.thread_time()
        filter_ = RFPDupeFilter(folder)
        took = time.thread_time() - began
        filter_.close("")
    return {"pages": pages, "open": took}
