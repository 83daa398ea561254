"""Whole crawls of a local site, with few links on a page and with many."""

from __future__ import annotations

from time import perf_counter, process_time
from typing import Any

from bench.apart import apart
from bench.harness import in_turn, spread
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.scrapy_filters import ABOUT, FILTERS, PACKAGES, SCRAPY, stay_offline


def run(scale: Scale) -> Rows:
    """Crawl each site with each filter, in turn."""
    from support.localsite import LocalSite

    sites = scale.of(((1000, 3), (400, 120)), ((40, 3), (20, 120)))
    rows: list[Row] = []
    for pages, links in sites:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in FILTERS}
        for number in range(scale.of(2, 1)):
            for name in in_turn(list(FILTERS), number):
                with LocalSite(pages=pages, links=links) as site:
                    crawled = apart(crawl, site.url, dict(FILTERS[name]))
                    found[name].append(crawled | {"missed": len(site.missed)})
        base = spread("cpu", [each["cpu"] for each in found[SCRAPY]])["cpu"]
        for name, crawls in found.items():
            row = {"links": links, "name": name}
            for key in ("pages", "missed", "checks"):
                row[key] = crawls[0][key]
            for key in ("cpu", "wall"):
                row |= spread(key, [each[key] for each in crawls])
            rows.append(row | {"ratio": row["cpu"] / base})
    return {"crawl": rows}


def crawl(url: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Crawl a site in this process; return seconds for each page and what was counted."""
    from example.spiders.site import SiteSpider
    from scrapy.crawler import CrawlerProcess

    stay_offline()
    process = CrawlerProcess(
        {
            "LOG_LEVEL": "ERROR",
            "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
            "TELNETCONSOLE_ENABLED": False,
            **settings,
        }
    )
    crawler = process.create_crawler(SiteSpider)
    cpu, wall = process_time(), perf_counter()
    process.crawl(crawler, url=url)
    process.start()
    cpu, wall = process_time() - cpu, perf_counter() - wall
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    pages = stats["item_scraped_count"]
    checks = stats["scheduler/enqueued"] + stats.get("dupefilter/filtered", 0)
    return {"cpu": cpu / pages, "wall": wall / pages, "pages": pages, "checks": checks / pages}


PART = Part(
    name="crawl",
    title="Whole crawls",
    method=f"""\
A site on loopback, served by another process, is crawled by Scrapy with 16 requests at a time; each
crawl is a process of its own. CPU is the crawler's from before the crawl is set up until it ends,
for each page parsed; the rest of it, downloading, parsing and queueing, is the same for all. Some
pages of the site redirect to themselves: Scrapy's own filter drops these, and they are missed.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "crawl",
            "Crawls of a site with few and with many links on a page",
            (
                Column("links", "links on a page"),
                Column("name", "filter"),
                Column("pages", "pages parsed", ","),
                Column("missed", "missed", ","),
                Column("checks", "checks a page", ".0f"),
                Column("cpu", "ms CPU a page", ".2f", 1e-3, spread=True),
                Column("wall", "ms wall a page", ".2f", 1e-3),
                Column("ratio", "CPU to Scrapy's", ".2f"),
            ),
        ),
    ),
)
