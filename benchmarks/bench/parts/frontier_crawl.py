"""What a crawl in a job directory costs with each scheduler."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from bench.apart import apart
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.schedulers import ABOUT, OURS, PACKAGES, SCHEDULERS, SCRAPY


def run(scale: Scale) -> Rows:
    """Crawl each site with each scheduler, in turn."""
    sites = scale.of(((2000, 3), (1000, 20), (400, 120)), ((40, 3),))
    rounds = scale.of(3, 1)
    rows: list[Row] = []
    for pages, links in sites:
        found = crawls(pages, links, rounds)
        rows += [{"links": links, **row(name, found)} for name in SCHEDULERS]
    return {"crawl": rows}


def crawls(pages: int, links: int, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Crawl a site with each scheduler, in turn."""
    from testbed.localsite import SteadySite

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEDULERS}
    for number in range(rounds):
        for name in in_turn(list(SCHEDULERS), number):
            with SteadySite(pages=pages, links=links) as site, TemporaryDirectory() as folder:
                crawled = apart(crawl, site.url, {**SCHEDULERS[name], "JOBDIR": folder})
                assert not site.missed
            found[name].append(crawled)
    return found


def crawl(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Crawl a site in this process; return the seconds of CPU a page, and how many pages."""
    from example.spiders.site import SiteSpider
    from scrapy.crawler import CrawlerProcess

    process = CrawlerProcess(
        {
            "LOG_LEVEL": "ERROR",
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "TELNETCONSOLE_ENABLED": False,
            **settings,
        }
    )
    crawler = process.create_crawler(SiteSpider)
    start = process_time()
    process.crawl(crawler, url=url)
    process.start()
    cpu = process_time() - start
    assert crawler.stats is not None
    pages = crawler.stats.get_value("item_scraped_count")
    return {"cpu": cpu / pages, "pages": pages}


def row(name: str, found: dict[str, list[dict[str, Any]]]) -> Row:
    """Return the row of one scheduler; ratios are those of neighbours in time."""
    made: Row = {"name": name, "pages": found[name][0]["pages"]}
    made |= spread("cpu", [each["cpu"] for each in found[name]])
    if name == OURS:
        pairs = zip(found[OURS], found[SCRAPY], strict=True)
        made |= spread("to_scrapy", [ours["cpu"] / theirs["cpu"] for ours, theirs in pairs])
    return made


PART = Part(
    name="frontier-crawl",
    title="A crawl in a job directory",
    method=f"""\
Each crawl runs in a process and a job directory of its own, 16 requests at a time, on a local site
served by another process. CPU is the crawler's, with all threads and from its set-up to its end.
Ratios are medians over neighbouring crawls. All crawls fetch the same pages once.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "crawl",
            "Crawls of sites with few and with many links on a page",
            (
                Column("links", "links on a page"),
                Column("name", "scheduler"),
                Column("pages", "pages", ","),
                Column("cpu", "ms CPU a page", ".2f", 1e-3, spread=True),
                Column("to_scrapy", "ours to Scrapy's own", ".2f", spread=True),
            ),
        ),
    ),
)
