"""Crawls that are killed again and again, and what is left of them at the end."""

import csv
import json
import os
import random
import sqlite3
from collections import Counter
from contextlib import closing, suppress

from support.waiting import until

KILLS = int(os.environ.get("KILLS", "1"))
"""Kills in each of the series; `make kills` asks for many."""

FIFO = {"SCHEDULER_DISK_QUEUE": "scrapy.squeues.MarshalFifoDiskQueue", "DEPTH_PRIORITY": 1}
"""Settings of a crawl that goes breadth first."""

MOMENTS = (
    "scrapy_bloom.local.marks:Marks._sweep:after",
    "scrapy_bloom.local.store:Store._committed:before",
    "scrapy_bloom.local.marks:Marks.begin_pass:after",
    "scrapy_bloom.local.marks:Marks._write_pass:after",
    "scrapy_bloom.local.log:Log.checkpoint:before",
    "scrapy_bloom.local.log:Log.checkpoint:after",
)
"""Chosen moments of a crawl, without the number of the call."""

CHECKPOINTING = (
    "support.vfs:page_written:before",
    "support.vfs:file_synced:before",
)
"""Chosen moments inside a checkpoint."""

ITEMS = (
    "scrapy_bloom.crawl.items:Items.page_ended:after",
    "scrapy_bloom.crawl.scrapy.feeds:FeedExporter.export:after",
    "scrapy_bloom.crawl.items:Items._ask_pipelines:before",
    "scrapy_bloom.local.backend:LocalBackend.store_due:before",
    "scrapy_bloom.local.backend:LocalBackend.store_due:after",
    "scrapy_bloom.crawl.items:Items.committed:before",
    "scrapy_bloom.crawl.scrapy.feeds:_LocalFile.write:before",
    "scrapy_bloom.crawl.scrapy.feeds:_LocalFile.write:after",
    "scrapy_bloom.crawl.items:Items.committed:after",
    "support.kill_points:about_to_append:after",
    "support.kill_points:half_appended:after",
)
"""Chosen moments between an item and the commit by which its page is done, and after that."""

CUTTING = (
    "scrapy_bloom.local.feeds:complete:before",
    "scrapy_bloom.local.feeds:complete:after",
    "scrapy_bloom.local.backend:complete_feeds:after",
)
"""Chosen moments while the feeds of a killed run are completed."""

ONCE = (
    "scrapy_bloom.file:write:before",
    "scrapy_bloom.file:write:after",
    "scrapy_bloom.local.job:Job._check:before",
    "scrapy_bloom.local.job:Job._read_state:after",
    "scrapy_bloom.local.job:Job.begin:after",
)
"""Chosen moments while a run opens."""

CLOSING = (
    "scrapy_bloom.crawl.items:Items._close_pipelines:before",
    "scrapy_bloom.crawl.items:Items.stop_exporting:after",
    "scrapy_bloom.local.job:Job.close:before",
    "scrapy_bloom.local.store:Store.close:before",
    "scrapy_bloom.local.store:_compact:before",
    "scrapy_bloom.local.store:Store.close:after",
    "scrapy_bloom.local.job:Job.close:after",
)
"""Chosen moments while a run that was stopped closes."""

EXPECTED = "a page that the spider cannot bear"
"""What the log of a run with tracebacks says."""

KINDS = {
    "stopped": 6,
    "stopped twice": 3,
    "stopped by count": 3,
    "stopped by time": 3,
    "while closing": 15,
    "at any moment": 25,
    "at a chosen moment": 25,
    "in a checkpoint": 20,
}
"""What becomes of a run, and how often of a hundred."""

POINTS = {
    "while closing": CLOSING,
    "at a chosen moment": MOMENTS + ONCE,
    "in a checkpoint": CHECKPOINTING,
}
"""Where a run of these kinds is killed."""

STEP = 20
"""Pages that a run delivers before that, on average."""


STOPS = {
    "stopped by count": {"CLOSESPIDER_PAGECOUNT": STEP},
    "stopped by time": {"CLOSESPIDER_TIMEOUT": 1},
}
"""Settings by which a run of these kinds stops."""


def series(project, site, kills, seed, *, kinds=KINDS, chosen=MOMENTS + ONCE, **crawl):
    """Kill a crawl of a site so often, stop it cleanly now and then, and let it end.

    Return how often each kind of kill was met, and how often it was stopped.
    """
    dice, tally, stops = random.Random(seed), Counter(), 0
    points = POINTS | {"at a chosen moment": chosen}
    crawl = {"SCHEDULER": "support.kill_points.Scheduler", "LOG_LEVEL": "INFO", **crawl}
    while tally.total() < kills:
        kind = dice.choices([*kinds], [*kinds.values()])[0]
        point = dice.choice(points[kind]) if kind in points else None
        often = MOMENTS + CHECKPOINTING + ITEMS
        most = 60 if point == CHECKPOINTING[0] else 5 if point in often else 1
        dies = {"DIE": f"{point}:{dice.randint(1, most)}"} if point else {}
        run = project.crawl(site, environment=dies, **crawl | STOPS.get(kind, {}))
        if kind in {"at a chosen moment", "in a checkpoint"}:
            site.when(site.delivered + 4 * STEP, run.kill)  # it may never come to that
        elif kind not in STOPS:
            until_delivered(site, dice.randint(1, 2 * STEP), [run])
            (run.kill if kind == "at any moment" else run.interrupt)()
        if kind == "stopped twice":  # the second time it does not close anything
            until(lambda run=run: run.ended or "shutting down gracefully" in run.log)
            run.interrupt()
        code = run.end()
        assert "Traceback" not in run.log or EXPECTED in run.log, run.log
        if code == -9:
            tally[point or kind] += 1
            if dice.random() < 0.3:
                look_into(project.job / "bloom.sqlite")
        elif kind == "while closing" or kind.startswith("stopped"):
            stops += 1
            assert run.reason or kind == "stopped twice", run.log
        else:
            assert run.reason == "finished", run.log
            break  # over too soon
    run = project.crawl(site, **crawl)
    assert run.end() == 0, run.log
    assert run.reason == "finished", run.log
    return tally, stops


def look_into(path):
    """Open and close a file as another program does: it completes a checkpoint, too."""
    if path.exists():
        with closing(sqlite3.connect(path)) as database:
            database.execute("SELECT count(*) FROM counters").fetchone()


def until_delivered(site, pages, runs):
    """Wait until a site has delivered so many more pages, or until all of its crawl has ended."""
    enough = site.delivered + pages
    until(lambda: site.delivered >= enough or all(run.ended for run in runs))


def kill_each(site, start, kills, dice, *, workers, most):
    """Kill a worker so often, and let another one take its place; yield each that was killed.

    :param most: pages that the site delivers before the next one is killed.
    """
    runs = [start() for _ in range(workers)]
    for _ in range(kills):
        until_delivered(site, dice.randint(1, most), runs)
        victim = dice.randrange(workers)
        if runs[victim].ended:
            return  # the crawl is over
        runs[victim].kill()
        runs[victim].end()
        yield runs[victim]
        runs[victim] = start()


def feeds_in(folder):
    """Return the setting for a feed of JSON lines and one of CSV in a folder."""
    return {
        f"{folder}/items.jsonl": {"format": "jsonlines"},
        f"{folder}/items.csv": {"format": "csv"},
    }


def faults_in(site, *paths):
    """Return what is wrong in a feed of the spider `thrice` after a crawl of a whole site: how many
    items it lacks, how many it has twice, and how many lines are broken.

    :param paths: its files.
    """
    found = Counter(item for path in paths for item in _numbers_in(site, path))
    broken = found.pop(None, 0)
    return site.pages * 3 - len(found), found.total() - len(found), broken


def _numbers_in(site, path):
    """Yield page and number of each item in a file, None for what cannot be read."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file) if path.suffix == ".csv" else file:
            try:
                item = json.loads(row) if isinstance(row, str) else row
                assert item["text"] == 'a "quoted" text,\n' * 8
                yield site.page(item["url"].removeprefix(site.url[:-1])), int(item["number"])
            except (AssertionError, KeyError, TypeError, ValueError):
                yield None


def items_in(path):
    """Count the items of a feed of JSON lines by their URL; a kill may have cut its last line."""
    urls = Counter()
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            urls[json.loads(line)["url"]] += 1
    return urls
