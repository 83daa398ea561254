"""Processes killed at any moment, first runs and resumed ones: no page is lost, and no item."""

import os
from importlib import import_module
from itertools import chain
from operator import attrgetter

import pytest
from scrapy.settings import default_settings
from support.kills import CUTTING, ITEMS, POINTS, items_in, series
from testbed.localsite import LocalSite, StormySite

pytestmark = [pytest.mark.server, pytest.mark.long]

KILLS = int(os.environ.get("KILLS", "1"))
"""Kills in each of the series; `make kills` asks for many."""

PAGES = 35 + 45 * KILLS

AGAIN = 45
"""Pages that a kill or a stop has fetched again, at most, where requests are held in memory."""

FIFO = {
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.MarshalFifoDiskQueue",
    "DEPTH_PRIORITY": 1,
}
# Older versions of Scrapy need a reactor.
NO_REACTOR = (
    {"TWISTED_REACTOR_ENABLED": False}
    if hasattr(default_settings, "TWISTED_REACTOR_ENABLED")
    else {}
)
SERIES = {
    "plain": {"spider": "items"},
    "breadth first, window": {"spider": "items", **FIFO, "BLOOM_WINDOW": "30d"},
    "async callbacks, one queue": {
        "spider": "waiting",
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
    },
    "many hosts": {
        "spider": "hosts",
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    },
    "lambdas": {"spider": "items", "arguments": {"unstorable": 2}},
    "errors": {"spider": "errors"},
    "retries, power": {"spider": "items", "BLOOM_COMMIT_SYNC": "machine"},
    "crawl spider, no reactor": {"spider": "ruled", **NO_REACTOR},
}
STORMY = ("retries, power", "errors")
ALSO = "async callbacks, one queue", "many hosts", "retries, power"
"""Those that only `make kills` has."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.kills] * (each in ALSO)) for each in SERIES]
)
def test_nothing_is_lost_however_often_a_crawl_is_killed(project, name):
    feed = project.folder / "items.jsonl"
    settings = {"FEEDS": f'{{"{feed}": {{"format": "jsonlines"}}}}'}
    kind = StormySite if name in STORMY else LocalSite
    with kind(pages=PAGES, links=6, seed=len(name)) as site:
        tally, stops = series(project, site, KILLS, len(name), **SERIES[name], **settings)
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


@pytest.mark.parametrize("moment", [*chain(*POINTS.values(), ITEMS, CUTTING)])
def test_each_kill_point_names_a_function_of_the_code(moment):
    module, name, when = moment.split(":")
    assert callable(attrgetter(name)(import_module(module)))
    assert when in {"before", "after"}
