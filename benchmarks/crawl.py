"""Processor time of a link-heavy crawl, for each page: our filter and Scrapy's own.

The local site is served by another process; only the crawler's time is counted, from before Scrapy
starts the crawl until it ends. Each crawl is a process of its own, and the filters take turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import process_time

from harness import setting, show

EXAMPLE = Path(__file__).parents[1] / "example_project"
sys.path.insert(0, str(EXAMPLE))

ADDONS = {"scrapy_bloom.Addon": 500}
CANDIDATES: dict[str, dict[str, object]] = {
    "Scrapy's RFPDupeFilter": {},
    "scrapy-bloom, level scrapy": {"ADDONS": ADDONS, "BLOOM_CANONICAL": "scrapy"},
    "scrapy-bloom, level safe": {"ADDONS": ADDONS, "BLOOM_CANONICAL": "safe"},
    "scrapy-bloom, level usual": {"ADDONS": ADDONS, "BLOOM_CANONICAL": "usual"},
}


def crawl(url: str, settings: dict[str, object]) -> None:
    """Crawl a site and print what it took."""
    from example.spiders.site import SiteSpider  # noqa: PLC0415 - in the crawling process only
    from scrapy.crawler import CrawlerProcess  # noqa: PLC0415

    process = CrawlerProcess(
        {"LOG_LEVEL": "ERROR", "CONCURRENT_REQUESTS_PER_DOMAIN": 16, **settings}
    )
    crawler = process.create_crawler(SiteSpider)
    start = process_time()
    process.crawl(crawler, url=url)
    process.start()
    took = process_time() - start
    assert crawler.stats is not None
    stats = crawler.stats.get_stats()
    links = stats["scheduler/enqueued"] + stats.get("dupefilter/filtered", 0)
    print(json.dumps({"seconds": took, "pages": stats["item_scraped_count"], "links": links}))


def run(url: str, settings: dict[str, object]) -> dict[str, float]:
    """Crawl in a process of its own."""
    command = [sys.executable, __file__, "--crawl", url, json.dumps(settings)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compare(pages: int, links: int, repeats: int) -> None:
    """Measure and print."""
    from example.localsite import LocalSite  # noqa: PLC0415

    found: dict[str, list[dict[str, float]]] = {name: [] for name in CANDIDATES}
    for _ in range(repeats):
        for name, settings in CANDIDATES.items():
            with LocalSite(pages=pages, links=links) as site:
                found[name].append(run(site.url, settings))
    rows = []
    times = {
        name: median(one["seconds"] / one["pages"] for one in crawls)
        for name, crawls in found.items()
    }
    base = times["Scrapy's RFPDupeFilter"]
    for name, crawls in found.items():
        checks = crawls[0]["links"] / crawls[0]["pages"]
        rows.append(
            (
                name,
                f"{crawls[0]['pages']:,}",
                f"{checks:.0f}",
                f"{times[name] * 1e3:.2f}",
                f"{times[name] / base:.3f}",
            )
        )
    print(setting("Scrapy", "w3lib"))
    show(
        f"crawl of a local site with {links} links on each of {pages:,} pages, median of {repeats}",
        ("filter", "pages", "links checked a page", "CPU ms a page", "to Scrapy's"),
        rows,
    )


def main() -> None:
    """Measure and print, or crawl for that."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--links", type=int, default=120)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--crawl", nargs=2, metavar=("URL", "SETTINGS"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.crawl:
        crawl(arguments.crawl[0], json.loads(arguments.crawl[1]))
    else:
        compare(arguments.pages, arguments.links, arguments.repeats)


if __name__ == "__main__":
    main()
