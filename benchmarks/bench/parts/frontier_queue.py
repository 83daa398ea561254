"""The queue alone, from ten thousand to ten million pending requests: time, memory, opening."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, Final

from scrapy import Request

from bench.apart import apart
from bench.colours import colour_of, style_of
from bench.fingerprints import resident
from bench.harness import in_turn, spread
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.schedulers import ABOUT, OURS, PACKAGES, QUIET, SCHEDULERS, SCRAPY, SQLITE
from bench.scrapy_filters import BLOOM, Settings

URL: Final = "https://www.example.com/books/{:010d}/title.html?page=1"
LARGE, MOST_SQLITE, MOST_TAKEN = 10_000_000, 1_000_000, 1_000_000
BLOCK, FEW = 2000, 20
"""Requests that are pushed before as many are popped; fewer for the SQLite queue, which syncs."""

NEW = 100_000_000
"""Numbers of new requests begin here, and at the next multiple in the next repeat."""

PAGE, TOGETHER = 20, 16
"""Requests that come from one page, and requests that are under way."""

IN_MEMORY: Final[dict[str, Settings]] = {OURS: SCHEDULERS[OURS], SCRAPY: BLOOM}
"""Without a job directory, with the same filter; ours is to be Scrapy's own then."""

Work = Callable[[Any], Awaitable[Row]]


def run(scale: Scale) -> Rows:
    """Fill the queue of each scheduler, then use it in turn."""
    rows: list[Row] = []
    taken: list[Row] = []
    for pending in scale.of((10_000, 1_000_000, LARGE), (1000, 10_000)):
        names = [name for name in SCHEDULERS if name != SQLITE or pending <= MOST_SQLITE]
        found: dict[str, list[Row]] = {name: [] for name in names}
        with TemporaryDirectory() as temporary:
            folders = {name: Path(temporary, str(place)) for place, name in enumerate(names)}
            fill(folders, pending)
            if pending <= MOST_TAKEN:
                taken.append(take_over(folders[SCRAPY]))
            for number in range(scale.of(5, 1)):
                for name in in_turn(names, number):
                    size = (scale.of(10, 2), BLOCK) if name != SQLITE else (1, FEW)
                    used = apart(use, name, folders[name], number, *size)
                    assert used["pending"] == pending, used
                    found[name].append(used)
            sizes = {name: sum_of_files(folders[name]) for name in names}
        base = spread("cpu", [each["cpu"] for each in found[SCRAPY]])["cpu"]
        for name, uses in found.items():
            row: Row = {"pending": pending, "name": name, "disk": sizes[name]}
            for key in ("cpu", "wall", "filter_cpu", "open", "close"):
                row |= spread(key, [each[key] for each in uses])
            row["memory"] = median(each["memory"] for each in uses)
            rows.append(row | {"ratio": row["cpu"] / base})
    return {"queue": rows, "taken": taken, "memory": in_memory(scale)}


def in_memory(scale: Scale) -> list[Row]:
    """Use each scheduler without a job directory, in turn."""
    found: dict[str, list[Row]] = {name: [] for name in IN_MEMORY}
    for number in range(scale.of(9, 1)):
        for name in in_turn(list(IN_MEMORY), number):
            size = (scale.of(10, 2), BLOCK)
            found[name].append(apart(use_in_memory, name, *size))
    rows: list[Row] = []
    for name, uses in found.items():
        row: Row = {"name": name}
        for key in ("cpu", "filter_cpu"):
            row |= spread(key, [each[key] for each in uses])
            pairs = zip(uses, found[SCRAPY], strict=True)
            row |= spread(f"{key}_ratio", [each[key] / theirs[key] for each, theirs in pairs])
        rows.append(row)
    return rows


def fill(folders: dict[str, Path], pending: int) -> None:
    """Make a job of so many requests for each scheduler."""
    for name, folder in folders.items():
        apart(make, name, folder)
        if name == OURS:
            fill_ours(folder / "requests.sqlite", pending)
        else:
            [file] = folder.glob("requests.queue/*/0")
            (fill_sqlite if name == SQLITE else fill_pickles)(file, pending)


def take_over(theirs: Path) -> Row:
    """Open a copy of a job of Scrapy's with ours."""
    with TemporaryDirectory() as folder:
        ours = Path(folder, "job")
        shutil.copytree(theirs, ours)
        first = apart(use, OURS, ours, 0, 0, 0)
    return {
        "pending": first["pending"],
        "open": first["open"],
        "each": first["open"] / first["pending"],
        "memory": first["memory"],
    }


def make(name: str, folder: Path) -> None:
    """Leave one request in a new job."""
    drive(in_folder(name, folder), put_one)


def fill_ours(file: Path, pending: int) -> None:
    """Fill our file that has one request."""
    from scrapy_bloom.frontier.requests import frame
    from scrapy_bloom.frontier.store import row_checksum

    database = sqlite3.connect(file)
    [(first, body)] = database.execute("DELETE FROM requests RETURNING id, body").fetchall()
    payload = body[len(frame(b"")) :]
    rows = enumerate(map(frame, bodies(payload, pending)), first)
    database.executemany("INSERT INTO requests VALUES (?, ?)", rows)
    [bucket] = database.execute("SELECT id, path, slot FROM buckets").fetchall()
    sizes = (pending, row_checksum(*bucket, pending))
    database.execute("UPDATE buckets SET size = ?, checksum = ?", sizes)
    database.commit()
    database.close()


def fill_pickles(file: Path, pending: int) -> None:
    """Fill a queue of pickles that has one request."""
    from queuelib import LifoDiskQueue

    queue = LifoDiskQueue(file)
    one = queue.pop()
    assert one is not None
    for body in bodies(one, pending):
        queue.push(body)
    queue.close()


def fill_sqlite(file: Path, pending: int) -> None:
    """Fill a queue on SQLite that has one request."""
    database = sqlite3.connect(file)
    [(body,)] = database.execute("DELETE FROM queue RETURNING item").fetchall()
    database.executemany(
        "INSERT INTO queue (item) VALUES (?)", ((body,) for body in bodies(body, pending))
    )
    database.commit()
    database.close()


def bodies(one: bytes, pending: int) -> Iterator[bytes]:
    """Yield as many different requests, as they are stored."""
    number = b"%010d" % 0
    assert number in one
    return (one.replace(number, b"%010d" % place) for place in range(1, pending + 1))


def sum_of_files(folder: Path) -> int:
    """Return the bytes of all files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def use(name: str, folder: Path, repeat: int, blocks: int, block: int) -> Row:
    """Open a job in this process, push and pop so many requests, close it."""
    first = NEW * (repeat + 1)
    work = partial(push_and_pop, first=first, blocks=blocks, block=block)
    return drive(in_folder(name, folder), work)


def use_in_memory(name: str, blocks: int, block: int) -> Row:
    """Push and pop so many requests in this process, without a job directory."""
    return drive(IN_MEMORY[name], partial(push_and_pop, first=NEW, blocks=blocks, block=block))


def in_folder(name: str, folder: Path) -> Settings:
    """Return the settings of a crawl in a job directory."""
    return {**SCHEDULERS[name], "JOBDIR": str(folder)}


def drive(settings: Settings, work: Work) -> Row:
    """Open a queue, work on it within a paused crawl, and close it; return what was measured.

    :param work: takes the slot of the engine and returns what it has measured.
    """
    from scrapy import Spider
    from scrapy.crawler import CrawlerProcess
    from scrapy.utils.misc import load_object

    found: Row = {}

    class Driver(Spider):
        name = "driver"

        async def start(self) -> AsyncIterator[Any]:
            engine: Any = self.crawler.engine
            engine.pause()  # it takes nothing from the queue by itself
            slot = engine._slot  # noqa: SLF001 - the queue is shown nowhere else
            found.update(await work(slot))
            found["memory"] = resident() - found["memory"]
            found["pending"] = len(slot.scheduler)
            found["close"] = perf_counter()
            stopping.append(asyncio.ensure_future(self.crawler.stop_async()))
            return
            yield  # what makes this a generator

    stopping: list[Any] = []
    process = CrawlerProcess({**QUIET, **settings})
    crawler = process.create_crawler(Driver)
    scheduler = load_object(crawler.settings["SCHEDULER"])
    untimed = scheduler.open

    def timed(self: Any, spider: Spider) -> Any:
        found["memory"] = resident()
        start = perf_counter()
        result = untimed(self, spider)
        found["open"] = perf_counter() - start
        return result

    scheduler.open = timed
    process.crawl(crawler)
    process.start()
    found["close"] = perf_counter() - found["close"]
    return found


async def put_one(slot: Any) -> Row:
    """Put one request in the queue."""
    slot.scheduler.enqueue_request(Request(URL.format(0), dont_filter=True))
    return {}


async def push_and_pop(slot: Any, *, first: int, blocks: int, block: int) -> Row:
    """Push and pop, without the filter and with it; return seconds for each request.

    The loop of events has its turn after each page: there are commits in the time that is measured.

    :param first: number of the first request, of those that the job has not had.
    """
    found: Row = {}
    number = first
    # Modules that were loaded meanwhile are not the queue's: to look through all of them once would
    # take as long as thousands of requests.
    gc.collect()
    gc.freeze()
    for key, dont_filter in (("", True), ("filter_", False)):
        cpu = wall = 0.0
        for _ in range(blocks):
            urls = map(URL.format, range(number, number + block))
            requests = iter([Request(url, dont_filter=dont_filter) for url in urls])
            number += block
            begun = process_time(), perf_counter()
            await push_block(slot, requests, block)
            await pop_block(slot, block)
            cpu += process_time() - begun[0]
            wall += perf_counter() - begun[1]
        found[f"{key}cpu"] = cpu / max(blocks * block, 1)
        found[f"{key}wall"] = wall / max(blocks * block, 1)
    return found


async def push_block(slot: Any, requests: Iterator[Request], block: int) -> None:
    """Push the next so many requests."""
    for _ in range(block // PAGE):
        for request in islice(requests, PAGE):
            slot.scheduler.enqueue_request(request)
        await asyncio.sleep(0)


async def pop_block(slot: Any, block: int) -> None:
    """Pop so many requests and be done with them, each a little later."""
    under_way: deque[Request] = deque()
    for place in range(block):
        request = slot.scheduler.next_request()
        slot.inprogress.add(request)
        under_way.append(request)
        if len(under_way) == TOGETHER:
            slot.inprogress.remove(under_way.popleft())
        if place % TOGETHER == 0:
            await asyncio.sleep(0)
    slot.inprogress.clear()


def draw(axes: Any, rows: Rows) -> None:
    """Draw time against pending requests."""
    for name in SCHEDULERS:
        each = [row for row in rows["queue"] if row["name"] == name]
        axes.plot(
            [row["pending"] for row in each],
            [row["cpu"] * 1e6 for row in each],
            marker="o",
            label=name,
            color=colour_of(name),
            linestyle=style_of(name, list(SCHEDULERS)),
        )
    axes.set(
        xscale="log", yscale="log", xlabel="pending requests", ylabel="µs CPU, push + pop + done"
    )


def findings(rows: Rows) -> list[str]:
    """Say how we stand with the most requests."""
    ours = [row for row in rows["queue"] if row["name"] == OURS][-1]
    taken = rows["taken"][-1]
    [memory] = [row for row in rows["memory"] if row["name"] == OURS]
    return [
        (
            f"With {ours['pending']:,} requests waiting, our queue takes {ours['ratio']:.2f} of the"
            f" CPU of Scrapy's, opens in {ours['open'] * 1e3:.0f} ms and the process grows by"
            f" {ours['memory'] / 1e6:.0f} MB."
        ),
        (
            f"Taking over a queue of Scrapy's takes {taken['each'] * 1e6:.0f} µs for each request"
            f" and {taken['memory'] / 1e6:.0f} MB."
        ),
        (
            f"Without a job directory ours takes {memory['cpu_ratio']:.2f} of the CPU of Scrapy's"
            f" own scheduler, {memory['filter_cpu_ratio']:.2f} with the filter: it is that"
            " scheduler then."
        ),
    ]


PART = Part(
    name="frontier-queue",
    title="The queue alone",
    method=f"""\
A job with so many pending requests is opened by a process of its own, in a paused crawl: the
engine, its loop of events and the commits are real, the requests come from the benchmark. {BLOCK:,}
requests are pushed, {PAGE} at a time as from one page, then as many popped, each of which is done
when {TOGETHER - 1} more are under way; that 10 times over. Time is for one request to be pushed,
popped and done. First the requests are not filtered; "with the filter" they are, all of them new.
Memory is what the process has grown by from before the scheduler is opened until after all this.
The SQLite queue waits for the disk at each push and pop, and counts its rows at each pop: it is
given {FEW} requests once, and with more than {MOST_SQLITE:,} pending it is left out.

The jobs are filled without the schedulers: each stores one request, and the others are copies of
it with another number in the URL, in the same file. The second table has what it takes ours to open
a job of Scrapy's that has stopped cleanly.

The last table is about crawls without a job directory, whose requests wait in memory: ours, and
Scrapy's own scheduler with our filter. The ratio is the median of those of neighbours in time.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "queue",
            "Push + pop + done",
            (
                Column("pending", "pending", ","),
                Column("name", "scheduler"),
                Column("cpu", "µs CPU", ".0f", 1e-6, spread=True),
                Column("wall", "µs wall", ".0f", 1e-6),
                Column("ratio", "CPU to Scrapy's", ".2f"),
                Column("filter_cpu", "µs CPU with the filter", ".0f", 1e-6),
                Column("open", "open, ms", ".1f", 1e-3),
                Column("close", "close, ms", ".0f", 1e-3),
                Column("memory", "memory, MB", ".1f", 1e6),
                Column("disk", "on disk, MB", ",.1f", 1e6),
            ),
        ),
        Table(
            "taken",
            "Taking over a job of Scrapy's",
            (
                Column("pending", "pending", ","),
                Column("open", "s", ".2f"),
                Column("each", "µs for each request", ".1f", 1e-6),
                Column("memory", "memory, MB", ".1f", 1e6),
            ),
        ),
        Table(
            "memory",
            "Push + pop + done without a job directory",
            (
                Column("name", "scheduler"),
                Column("cpu", "µs CPU", ".1f", 1e-6, spread=True),
                Column("cpu_ratio", "to Scrapy's", ".3f", spread=True),
                Column("filter_cpu", "µs CPU with the filter", ".1f", 1e-6, spread=True),
                Column("filter_cpu_ratio", "to Scrapy's", ".3f", spread=True),
            ),
        ),
    ),
    plots=(Plot("frontier-queue", "Time of one request against the requests pending", draw),),
    findings=findings,
)
