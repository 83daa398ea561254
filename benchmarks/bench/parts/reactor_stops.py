"""How long a crawl holds up its loop of events."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any, Final

from scrapy import Request

from bench.apart import apart
from bench.colours import colour_of, style_of
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.parts.frontier_queue import PAGE, URL, drive
from bench.schedulers import ABOUT, OURS, PACKAGES, QUIET, SCHEDULERS, SCRAPY
from bench.scrapy_filters import Settings

EVERY: Final = 0.005
"""Seconds between two calls."""

CAPACITY: Final = 100_000_000
WITH_LARGE: Final[Settings] = {
    "SCHEDULER": "bench.inside.OftenStored",
    "DUPEFILTER_CLASS": "bench.inside.LargeFilter",
    "BLOOM_CAPACITY": CAPACITY,
}
LARGE: Final = f"{OURS}, filter for {CAPACITY:,} URLs"
BETWEEN, STORED, CLOSED = (
    "while it is not stored",
    "while it is stored",
    "while the crawl is closed",
)

SHARES: Final = (0.5, 0.9, 0.99, 0.999, 0.9999, 1.0)


def run(scale: Scale) -> Rows:
    """Crawl with each scheduler, then with a large filter that is stored; then store it alone."""
    pages, fewer = scale.of((100_000, 20_000), (1000, 4000))
    late: dict[str, list[float]] = {}
    rows: list[Row] = []
    for name, settings, count in (
        (OURS, SCHEDULERS[OURS], pages),
        (SCRAPY, SCHEDULERS[SCRAPY], pages),
        (LARGE, WITH_LARGE, fewer),
    ):
        found = in_folder(crawl, settings, count)
        of_crawl, own = found.pop("late"), found.pop("own")
        for kind, shown in ((BETWEEN, name), (STORED, f"{name}, {STORED}")):
            if of_crawl[kind]:
                late[shown] = sorted(of_crawl[kind])
                row = {"name": shown, "pages": count, **found}
                rows.append(row | delays(of_crawl[kind], own[kind]))
    runs = [in_folder(store_often, WITH_LARGE, scale.of(4, 1)) for _ in range(scale.of(3, 1))]
    alone = [
        {
            "name": kind,
            **delays(*(list(chain(*(run[key][kind] for run in runs))) for key in ("late", "own"))),
        }
        for kind in (BETWEEN, STORED, CLOSED)
    ]
    way = [
        {"name": name, "share": share, "delay": quantile(each, share)}
        for name, each in late.items()
        for share in SHARES
    ]
    return {"stops": rows, "alone": alone, "way": way}


def in_folder(function: Callable[[Settings, int], Row], settings: Settings, count: int) -> Row:
    """Call a function in a process of its own, with a job directory that is new."""
    with TemporaryDirectory() as folder:
        return apart(function, {**settings, "JOBDIR": folder}, count)


def delays(late: Sequence[float], own: Sequence[float]) -> Row:
    """Return what a row shows of delays, in seconds."""
    shown: Row = {"calls": len(late)}
    for prefix, ordered in (("", sorted(late)), ("own_", sorted(own))):
        for key, share in (("median", 0.5), ("most", 0.999), ("longest", 1.0)):
            shown[prefix + key] = quantile(ordered, share)
    return shown


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of all is not above."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Watch:
    """Asks the loop of events for a call again and again, and notes how late each one is.

    :param filter_of: returns the filter of the crawl, which may tell whether it is being stored.

    Attributes:
        late: delays in seconds: of calls while the filter was being stored, while the crawl was
            closed, and of all others.
        own: how much of each delay the processor worked for this process, any of its threads.
        closing: whether the crawl is being closed.
    """

    def __init__(self, filter_of: Callable[[], Any]) -> None:
        self.late, self.own = (
            {kind: array("d") for kind in (BETWEEN, STORED, CLOSED)} for _ in range(2)
        )
        self.closing = False
        self._filter_of = filter_of
        self._running = True
        self._task: asyncio.Future[None] | None = None

    def begin(self) -> None:
        """Begin, in the loop that is running."""
        self._task = asyncio.ensure_future(self._call())

    def end(self) -> None:
        """End."""
        self._running = False

    async def _call(self) -> None:
        loop = asyncio.get_running_loop()
        seen = self._filter_of()
        due = loop.time() + EVERY
        storing, begun = False, process_time()
        while self._running:
            await asyncio.sleep(max(0.0, due - loop.time()))
            now, worked = loop.time(), process_time()
            before, storing = storing, getattr(seen, "storing", False)
            kind = CLOSED if self.closing else STORED if before or storing else BETWEEN
            self.late[kind].append(now - due)
            self.own[kind].append(min(now - due, worked - begun))
            due, begun = now + EVERY, worked


def crawl(settings: Settings, pages: int) -> Row:
    """Crawl in this process."""
    from scrapy import signals
    from scrapy.crawler import CrawlerProcess

    from bench import inside

    process = CrawlerProcess({**QUIET, **inside.SETTINGS, **settings})
    crawler: Any = process.create_crawler(inside.Pages)
    watch = Watch(lambda: crawler.engine._slot.scheduler.df)  # noqa: SLF001 - shown nowhere else
    crawler.signals.connect(watch.begin, signal=signals.spider_opened)
    crawler.signals.connect(watch.end, signal=signals.spider_idle)  # there is nothing left to do
    start = perf_counter()
    process.crawl(crawler, pages=pages)
    process.start()
    assert len(crawler.spider.fetched) == pages
    found: Row = {"seconds": perf_counter() - start}
    for key in ("snapshots", "commits", "longest_commit"):
        found[key] = crawler.stats.get_value(f"bloom/frontier/{key}")
    return found | {"late": watch.late, "own": watch.own}


def store_often(settings: Settings, times: int) -> Row:
    """Push requests in a paused crawl of this process, until its filter was stored so often."""
    return drive(settings, partial(push_until_stored, times=times))


async def push_until_stored(slot: Any, times: int) -> Row:
    """Push requests, as if a page came every few milliseconds, until the filter was stored."""
    from scrapy import signals

    seen = slot.scheduler.df
    watch = Watch(lambda: seen)
    watch.begin()
    number = 0
    while seen.stored < times:
        for _ in range(PAGE):
            slot.scheduler.enqueue_request(Request(URL.format(number)))
            number += 1
        await asyncio.sleep(EVERY)
    watch.closing = True
    slot.scheduler.crawler.signals.connect(watch.end, signal=signals.spider_closed)
    return {"late": watch.late, "own": watch.own}  # that of the closing is yet to come


def draw(axes: Any, rows: Rows) -> None:
    """Draw delays against the share of calls that were later."""
    names = list(dict.fromkeys(row["name"] for row in rows["way"]))
    for name in names:
        each = [row for row in rows["way"] if row["name"] == name]
        axes.plot(
            [f"{row['share']:.2%}" for row in each],
            [row["delay"] * 1e3 for row in each],
            marker="o",
            color=colour_of(name),
            linestyle=style_of(name, names),
            label=name,
        )
    axes.set(yscale="log", xlabel="share of the calls", ylabel="ms late at most")


def findings(rows: Rows) -> list[str]:
    """Say how we stand."""
    ours, scrapy = (
        next(row for row in rows["stops"] if row["name"] == name) for name in (OURS, SCRAPY)
    )
    longest = {row["name"]: row["longest"] * 1e3 for row in rows["alone"]}
    return [
        (
            f"In a crawl 99.9 % of the calls are at most {ours['most'] * 1e3:.0f} ms late with ours"
            f" and {scrapy['most'] * 1e3:.0f} ms with Scrapy's own; half of them are"
            f" {ours['median'] * 1e3:.1f} and {scrapy['median'] * 1e3:.1f} ms late: that is what"
            f" Scrapy does with a page. The longest commit took {ours['longest_commit'] * 1e3:.0f}"
            " ms."
        ),
        (
            f"Where nothing but pushes goes on and a filter for {CAPACITY:,} URLs is stored, no"
            f" call is later than {longest[STORED]:.0f} ms meanwhile,"
            f" {longest[CLOSED]:.0f} ms while the crawl is closed, which stores the filter once"
            f" more, and {longest[BETWEEN]:.0f} ms otherwise."
        ),
    ]


DELAYS: Final = (
    Column("median", "ms late, median", ".1f", 1e-3),
    Column("most", "99.9 %", ".1f", 1e-3),
    Column("longest", "longest", ".1f", 1e-3),
    Column("own_most", "of it own work, 99.9 %", ".1f", 1e-3),
    Column("own_longest", "longest", ".1f", 1e-3),
)

PART = Part(
    name="reactor-stops",
    title="How long the loop of events stands still",
    method=f"""\
A crawl in a job directory, while something asks to be called {EVERY * 1e3:.0f} ms after its last
call; shown is how late it is called. The pages have 4 links each and come from within the crawler's
process, 5 ms after they were asked for, 16 at a time: no network. Whatever Scrapy does between two
turns of its loop is in the delays, and the same for all. "Own work" is how much of a delay the
processor worked for the crawl's process, in any of its threads. The rest of it the process waited,
for the disk, or because the system let other programs run.

The third crawl has a filter for {CAPACITY:,} URLs, a quarter of whose bits are set, so that all of
it has to be written. It is stored in mid-run after each 3,000 new marks, more than 300 times as
often as usual; calls meanwhile are shown apart from the others. The second table is of the same
filter in crawls that are paused, 3 of them, and stored 4 times in each: {PAGE} requests are pushed
every {EVERY * 1e3:.0f} ms, filtered and committed, and nothing else goes on.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "stops",
            "Delay of a call in a crawl",
            (
                Column("name", "scheduler"),
                Column("pages", "pages", ","),
                Column("seconds", "s wall", ".0f"),
                Column("calls", "calls", ","),
                *DELAYS,
                Column("commits", "commits", ",.0f"),
                Column("longest_commit", "longest commit, ms", ".1f", 1e-3),
                Column("snapshots", "snapshots", ".0f"),
            ),
        ),
        Table(
            "alone",
            "Delay of a call where a large filter is stored",
            (
                Column("name", "when"),
                Column("calls", "calls", ","),
                *DELAYS,
            ),
        ),
    ),
    plots=(Plot("reactor-stops", "How late a call is, against the share of calls", draw),),
    findings=findings,
)
