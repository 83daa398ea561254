"""Processes killed at any moment, first runs and resumed ones: no page is lost, and no item."""

import json
from importlib import import_module
from itertools import chain
from operator import attrgetter

import pytest
from scrapy.settings import default_settings
from support.kills import (
    CUTTING,
    FIFO,
    ITEMS,
    KILLS,
    KINDS,
    MOMENTS,
    ONCE,
    POINTS,
    faults_in,
    feeds_in,
    items_in,
    series,
    until_delivered,
)
from testbed.localsite import LocalSite, SteadySite, StormySite

pytestmark = [pytest.mark.server, pytest.mark.long]

PAGES = 35 + 45 * KILLS

AGAIN = 45
"""Pages that a kill or a stop has fetched again, at most, where requests are held in memory."""

# Older versions of Scrapy need a reactor.
NO_REACTOR = (
    {"TWISTED_REACTOR_ENABLED": False}
    if hasattr(default_settings, "TWISTED_REACTOR_ENABLED")
    else {}
)
ONE_QUEUE = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
SERIES = {
    "plain": {"spider": "items"},
    "breadth first, window": {"spider": "items", **FIFO, **ONE_QUEUE, "BLOOM_WINDOW": "30d"},
    "lambdas": {"spider": "items", "arguments": {"unstorable": 2}},
    "errors": {"spider": "errors", "BLOOM_COMMIT_SYNC": "machine"},
    "crawl spider, no reactor": {"spider": "ruled", **NO_REACTOR},
}


@pytest.fixture
def feed(project):
    return project.folder / "items.jsonl"


@pytest.mark.parametrize("name", SERIES)
def test_nothing_is_lost_however_often_a_crawl_is_killed(project, feed, name):
    settings = {"FEEDS": json.dumps({str(feed): {"format": "jsonlines"}}), **SERIES[name]}
    kind = StormySite if name == "errors" else LocalSite
    with kind(pages=PAGES, links=6, seed=len(name)) as site:
        tally, stops = series(project, site, KILLS, len(name), **settings)
        assert site.missed == set(), tally
    items = items_in(feed)
    if name != "errors":  # half of its pages give none
        assert len(items) >= PAGES
    kills = tally.total()
    again = sum(hits - 1 for page, hits in site.hits.items() if page)
    if name == "lambdas":  # a held request keeps the page that has yielded it, and no other
        assert again <= AGAIN * (kills + stops), tally
    print(  # noqa: T201 - `make kills` shows it
        f"{name}: {kills} kills, {stops} stops, {again} pages again,"
        f" {items.total() - len(items)} items again, {dict(tally)}"
    )


# Each item is in each feed once, and no line is broken. Pages that redirect to themselves are not
# among these: they may be fetched twice after a kill.

CHOSEN = ITEMS + CUTTING + MOMENTS + ONCE
BEFORE_APPENDING = {"DIE": "support.kill_points:about_to_append:after:5"}
FULL = "a full disk"


def settings_of(project):
    """Return the settings of a crawl with two feeds at once, and one in files of five items."""
    batches = f"{project.folder}/batches/%(batch_id)d.jsonl"
    feeds = feeds_in(project.folder)
    feeds[batches] = {"format": "jsonlines", "batch_item_count": 5}
    ours = {"SCHEDULER": "support.kill_points.Scheduler", "LOG_LEVEL": "INFO"}
    return {"FEEDS": json.dumps(feeds), "spider": "thrice", **ours}


def faults(project, site):
    """Return what is wrong in each feed: see `faults_in`."""
    whole = [[project.folder / "items.jsonl"], [project.folder / "items.csv"]]
    batches = [*(project.folder / "batches").glob("*")]
    assert all(1 <= len(path.read_text().splitlines()) <= 5 for path in batches)
    return [faults_in(site, *files) for files in (*whole, batches)]


ITEM_SERIES = {
    "plain": {},
    "breadth first": FIFO,
    FULL: {"SCHEDULER": "support.kill_points.OnFullDisk"},
}


@pytest.mark.parametrize("name", ITEM_SERIES)
def test_each_item_is_there_once_however_often_a_crawl_is_killed(project, name):
    settings = settings_of(project) | ITEM_SERIES[name]
    with SteadySite(pages=PAGES, links=6, seed=len(name)) as site:
        kinds = KINDS if name != FULL else {"at any moment": 1, "at a chosen moment": 1}
        options = {"chosen": CHOSEN, "kinds": kinds, **settings}
        tally, stops = series(project, site, 3 * KILLS, len(name), **options)
        assert site.missed == set(), tally
    found = faults(project, site)
    print(  # noqa: T201 - `make kills` shows it
        f"{name}: {tally.total()} kills, {stops} stops, {site.pages * 3} items in each feed:"
        f" missing, double, broken {found}, {dict(tally)}"
    )
    assert found == [(0, 0, 0)] * 3, tally


def test_each_moment_of_an_item(project):
    """A kill at each of them, one after another; of a third of them if not by `make kills`.

    Pages that wait for a request with a lambda callback have their items wait, too.
    """
    settings = settings_of(project) | {"arguments": {"unstorable": 4}}
    points, killed = (ITEMS + CUTTING)[:: 1 if KILLS > 1 else 3], []
    with SteadySite(pages=150, links=6) as site:
        for point in points:
            number = 2 if point in ITEMS else 1
            run = project.crawl(site, environment={"DIE": f"{point}:{number}"}, **settings)
            if run.end() == -9:
                killed.append(point)
        project.finish(site, **settings)
        assert site.missed == set()
    assert faults(project, site) == [(0, 0, 0)] * 3, killed
    assert len(killed) >= len(points) - 2, killed


def test_without_what_the_commit_has_items_are_lost(project):
    settings, uncut = settings_of(project), {"UNCUT": "1"}
    with SteadySite(pages=120, links=6) as site:
        assert project.crawl(site, environment=BEFORE_APPENDING, **settings).end() == -9
        project.finish(site, environment=uncut, **settings)
    found = faults(project, site)
    assert any(missing for missing, _, _ in found)
    assert not any(double for _, double, _ in found)


def test_what_others_append_to_a_feed_stays(project):
    """As the same spider does with other arguments, a job of its own and `-o items.jsonl`."""
    settings, path, foreign = settings_of(project), project.folder / "items.jsonl", b'{"of": 2}\n'
    appended = 0
    with SteadySite(pages=150, links=6) as site:
        for environment in BEFORE_APPENDING, BEFORE_APPENDING, {}:
            run = project.crawl(site, environment=environment, **settings)
            while not run.ended:
                until_delivered(site, 1, [run])
                with path.open("ab") as file:  # while it runs, and once it was killed
                    file.write(foreign)
                appended += 1
            assert run.end() == (-9 if environment else 0), run.log
    assert path.read_bytes().count(foreign) == appended
    path.write_bytes(path.read_bytes().replace(foreign, b""))
    assert faults(project, site) == [(0, 0, 0)] * 3


@pytest.mark.parametrize("moment", [*chain(*POINTS.values(), ITEMS, CUTTING)])
def test_each_kill_point_names_a_function_of_the_code(moment):
    module, name, when = moment.split(":")
    assert callable(attrgetter(name)(import_module(module)))
    assert when in {"before", "after"}
