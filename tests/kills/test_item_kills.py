"""Processes killed at any moment: each item is in each feed once, and no line is broken.

Pages that redirect to themselves are not among these: they may be fetched twice after a kill.
"""

import csv
import json
import os
import re
from collections import Counter

import pytest
from support.kills import CUTTING, ITEMS, KINDS, MOMENTS, ONCE, series
from testbed.localsite import SteadySite

pytestmark = [pytest.mark.server, pytest.mark.long]

KILLS = int(os.environ.get("KILLS", "1"))
"""Kills in each of the series; `make kills` asks for many."""

PAGES = 35 + 45 * KILLS

CHOSEN = ITEMS + CUTTING + MOMENTS + ONCE
FULL = "a full disk"


def feeds_in(folder):
    """Return the setting for two feeds at once, and one in files of five items."""
    return {
        f"{folder}/items.jsonl": {"format": "jsonlines"},
        f"{folder}/items.csv": {"format": "csv"},
        f"{folder}/batches/%(batch_id)d-%(batch_time)s.jsonl": {
            "format": "jsonlines",
            "batch_item_count": 5,
        },
    }


def lines_in(site, path):
    """Yield the items of a file, None for what cannot be read."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file) if path.suffix == ".csv" else file:
            try:
                item = json.loads(row) if isinstance(row, str) else row
                assert item["text"] == 'a "quoted" text,\n' * 8
                yield site.page(item["url"].removeprefix(site.url[:-1])), int(item["number"])
            except (AssertionError, KeyError, TypeError, ValueError):
                yield None


def read(site, folder):
    """Return for each feed how often it has each item; what cannot be read counts as None."""
    files = {"jsonl": [folder / "items.jsonl"], "csv": [folder / "items.csv"]}
    files["batches"] = sorted((folder / "batches").glob("*"))
    return {
        name: Counter(item for path in paths if path.exists() for item in lines_in(site, path))
        for name, paths in files.items()
    }


def faults(found, pages):
    """Return how many items a feed lacks, how many it has twice, and how many lines are broken."""
    broken = found.pop(None, 0)
    return pages * 3 - len(found), found.total() - len(found), broken


SERIES = {
    "plain": {},
    "breadth first": {
        "SCHEDULER_DISK_QUEUE": "scrapy.squeues.MarshalFifoDiskQueue",
        "DEPTH_PRIORITY": 1,
    },
    FULL: {"FEED_STORAGES": json.dumps({"": "support.kill_points.Storage"})},
}


@pytest.mark.parametrize("name", SERIES)
def test_each_item_is_there_once_however_often_a_crawl_is_killed(project, name):
    folder = project.folder
    settings = {"FEEDS": json.dumps(feeds_in(folder)), "spider": "thrice", **SERIES[name]}
    with SteadySite(pages=PAGES, links=6, seed=len(name)) as site:
        kinds = KINDS if name != FULL else {"at any moment": 1, "at a chosen moment": 1}
        options = {"chosen": CHOSEN, "kinds": kinds, **settings}
        tally, stops = series(project, site, 3 * KILLS, len(name), **options)
        assert site.missed == set(), tally
    found = {feed: faults(items, PAGES) for feed, items in read(site, folder).items()}
    print(  # noqa: T201 - `make kills` shows it
        f"{name}: {tally.total()} kills, {stops} stops, {PAGES * 3} items in each feed:"
        f" missing, double, broken {found}, {dict(tally)}"
    )
    assert {*found.values()} == {(0, 0, 0)}, tally


@pytest.mark.parametrize("lambdas", [False, pytest.param(True, marks=pytest.mark.kills)])
def test_each_moment_of_an_item(project, lambdas):
    """A kill at each of them, one after another; of a third of them if not by `make kills`.

    Pages that wait for a request with a lambda callback have their items wait, too.
    """
    folder = project.folder
    settings = {
        "FEEDS": json.dumps(feeds_in(folder)),
        "SCHEDULER": "support.kill_points.Scheduler",
        "spider": "thrice",
        "arguments": {"unstorable": 4} if lambdas else {},
    }
    pages, points, killed = 150, (ITEMS + CUTTING)[:: 1 if KILLS > 1 else 3], []
    with SteadySite(pages=pages, links=6) as site:
        for point in points:
            number = 2 if point in ITEMS else 1
            run = project.crawl(site, environment={"DIE": f"{point}:{number}"}, **settings)
            if run.end() == -9:
                killed.append(point)
        run = project.finish(site, **settings)
        assert site.missed == set()
    assert {faults(items, pages) for items in read(site, folder).values()} == {(0, 0, 0)}, killed
    assert len(killed) >= len(points) - 2, killed


def test_without_the_cut_items_come_twice(project):
    folder = project.folder
    settings = {
        "FEEDS": json.dumps(feeds_in(folder)),
        "SCHEDULER": "support.kill_points.Scheduler",
        "spider": "thrice",
    }
    dies = {"DIE": "scrapy_bloom.crawl.scrapy.feeds:Feeds.flush:after:3"}
    with SteadySite(pages=120, links=6) as site:

        def found():
            return [faults(items, 120) for items in read(site, folder).values()]

        # A flush may have nothing new: then its kill leaves nothing to come twice.
        while project.crawl(site, environment={**dies, "UNCUT": "1"}, **settings).end() == -9:
            if all(double for _, double, _ in found()):
                break
        project.finish(site, environment={"UNCUT": "1"}, **settings)
    for missing, double, _ in found():
        assert missing == 0
        assert double > 0


def test_feeds_that_were_moved_away_or_changed_after_a_kill_are_left_as_they_are(project):
    folder = project.folder
    settings = {
        "FEEDS": json.dumps(feeds_in(folder)),
        "SCHEDULER": "support.kill_points.Scheduler",
        "spider": "thrice",
        "LOG_LEVEL": "INFO",
    }
    dies = {"DIE": "scrapy_bloom.crawl.scrapy.feeds:Feeds.flush:after:3"}
    with SteadySite(pages=60, links=6) as site:
        assert project.crawl(site, environment=dies, **settings).end() == -9
        before = (folder / "items.jsonl").read_bytes()
        (folder / "items.jsonl").rename(folder / "before.jsonl")
        text = (folder / "items.csv").read_text()
        (folder / "items.csv").write_text(changed := text.replace("number", "Number"))
        run = project.finish(site, **settings)
        assert site.missed == set()
    assert (folder / "before.jsonl").read_bytes() == before
    assert (folder / "items.csv").read_text().startswith(changed)
    left = re.findall(r"The feed (\S+) is not as the killed run left it \((.*?)\)", run.log)
    assert left == [
        (str(folder / "items.jsonl"), "there is no file"),
        (str(folder / "items.csv"), "it was changed"),
    ]
    cut = re.findall(r"Cut off ([\d,]+) bytes of (\d+) feeds?, with items", run.log)
    saved = [
        path.stat().st_size for path in project.job.glob("cut/*")
    ]  # a flush may have nothing new
    assert [(f"{sum(saved):,}", str(len(saved)))] * bool(saved) == cut
