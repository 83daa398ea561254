"""Crawls that are killed while the site and the project's code fail: every page is parsed."""

import os
import re

import pytest
from support.kills import items_in, series
from testbed.localsite import StormySite

pytestmark = [pytest.mark.server, pytest.mark.long]

KILLS = int(os.environ.get("KILLS", "1"))
PAGES = 60 + 60 * KILLS

# What led to a page that was parsed meanwhile has failed for two more runs, an hour apart.
FAILED = re.compile(r" failed \((?!\d+ . redirected to seen pages\))")


def test_what_fails_while_a_crawl_is_killed_is_parsed_by_the_next_runs(project):
    """A quarter of the pages answer 503 at first, a tenth of the callbacks raise once."""
    feed, been = project.folder / "items.jsonl", project.folder / "been"
    been.mkdir()
    settings = {
        "FEEDS": f'{{"{feed}": {{"format": "jsonlines"}}}}',
        "RETRY_ENABLED": False,
        "SHAKY": been,
        "spider": "shaky",
    }
    with StormySite(pages=PAGES, links=6, seed=7) as site:
        tally, stops = series(project, site, KILLS, 7, **settings)
        runs = 0
        while "0 waiting" not in (said := last_line(project)) or FAILED.search(said):
            runs += 1
            assert runs < 9, said
            settings["SCHEDULER"] = "scrapy_bloom.Scheduler"
            assert project.crawl(site, **settings).end() == 0
        assert site.missed == set(), tally
    # One that was parsed before a kill may be parsed again where a link has another spelling.
    assert {site.page(url.removeprefix(site.url[:-1])) for url in items_in(feed)} == {*range(PAGES)}
    print(f"failing: {tally.total()} kills, {stops} stops, {runs} runs after that")  # noqa: T201


def last_line(project):
    """Return the account of the last run."""
    lines = project.runs[-1].log.splitlines()
    (said,) = (line for line in lines if re.search("Crawl (stopped|finished): ", line))
    return said
