"""Processes killed at any moment, first runs and resumed ones: no page is lost, and no item."""

import os

import pytest
from scrapy.settings import default_settings
from support.crawling import Project, Several
from support.kept_sites import ManyHosts, SitemapSite, StormySite
from support.kills import items_in, series, urls_in
from support.localsite import LocalSite

pytestmark = pytest.mark.scrapy

KILLS = int(os.environ.get("KILLS", "1"))
"""Kills in each of the series; `make kills` asks for many."""

PAGES = 150 + 50 * KILLS


FIFO = {
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.MarshalFifoDiskQueue",
    "DEPTH_PRIORITY": 1,
}
SERIES = {
    "plain": {"spider": "items"},
    "breadth first": {"spider": "items", **FIFO},
    "one queue": {
        "spider": "items",
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue",
    },
    "many hosts": {
        "spider": "hosts",
        "SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.DownloaderAwarePriorityQueue",
    },
    "lambdas": {"spider": "some lambdas"},
    "async callbacks": {"spider": "waiting"},
    "inline": {"spider": "inline"},
    "errors": {"spider": "errors"},
    "retries": {"spider": "items"},
    "crawl spider": {"spider": "ruled"},
    "sitemap spider": {"spider": "mapped"},
    "slow pipeline": {
        "spider": "items",
        "ITEM_PIPELINES": '{"support.kept_spiders.GatheringPipeline": 1}',
    },
    "power": {"spider": "items", "BLOOM_COMMIT_SYNC": "machine", "BLOOM_COMMIT_INTERVAL": 0.01},
}
if hasattr(default_settings, "TWISTED_REACTOR_ENABLED"):  # older ones need a reactor
    SERIES["no reactor"] = {"spider": "items", "TWISTED_REACTOR_ENABLED": False}


SITES = {
    "retries": StormySite,
    "errors": StormySite,
    "many hosts": ManyHosts,
    "sitemap spider": SitemapSite,
}


@pytest.fixture
def project(tmp_path):
    project = Project(tmp_path)
    yield project
    for run in project.runs:
        run.clear_away()


@pytest.mark.parametrize("name", SERIES)
def test_nothing_is_lost_however_often_a_crawl_is_killed(project, name):
    crawl = dict(SERIES[name])
    feed, gathered = project.folder / "items.jsonl", project.folder / "gathered.txt"
    settings = {"GATHERED": gathered, "FEEDS": f'{{"{feed}": {{"format": "jsonlines"}}}}'}
    with SITES.get(name, LocalSite)(pages=PAGES, links=6, seed=len(name)) as site:
        tally = series(project, site, KILLS, seed=len(name), **crawl, **settings)
        assert site.missed == set(), tally
    if name != "errors":  # half of its pages give none
        assert len(urls_in(feed)) >= PAGES
    if "ITEM_PIPELINES" in crawl:
        assert len(set(gathered.read_text().split())) >= PAGES
    tell(name, tally, sum(hits - 1 for page, hits in site.hits.items() if page), items_in(feed))


def test_nothing_is_lost_where_several_crawls_share_a_process(tmp_path):
    project = Several(tmp_path)
    try:
        with LocalSite(pages=PAGES, links=6) as site:
            tally = series(project, site, KILLS, seed=7)
            assert site.missed == set(), tally
    finally:
        for run in project.runs:
            run.clear_away()
    for feed in project.feeds:
        assert len(urls_in(feed)) >= PAGES
    tell("several crawls", tally, sum(hits - 2 for page, hits in site.hits.items() if page), {})


def tell(name, tally, again, items):
    """Print what a series has shown: `make kills` shows it."""
    repeated = sum(items.values()) - len(items)
    line = f"{name}: {tally.kills} kills, {tally.stops} stops, {again} pages again"
    print(f"{line}, {repeated} items again, {tally.kinds}")  # noqa: T201
