"""Whether level `scrapy` is Scrapy's own, byte for byte, and what the levels above it merge."""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from scrapy import Request
from scrapy.utils.request import fingerprint

from bench import links
from bench.part import Column, Part, Row, Rows, Scale, Table
from scrapy_bloom import CanonicalFingerprinter
from scrapy_bloom.canonical.rules import LEVELS

ROOT = Path(__file__).parents[3]
LISTING = ROOT / "build" / "merged.json"
"""Every group of links that a level takes for one page and the level below it does not."""


def run(scale: Scale) -> Rows:
    """Compare and merge."""
    crawled = links.acceptable(links.crawled())
    ours = CanonicalFingerprinter("scrapy").fingerprint
    rows = []
    for name, urls in (("links of a real crawl", crawled), ("WHATWG test data", links.whatwg())):
        requests = [Request(url) for url in links.acceptable(urls)]
        rows.append(_row(name, len(requests), sum(ours(r) != fingerprint(r) for r in requests)))
    rows.append(fuzz(scale.of(200_000, 3000)))
    return {"identical": rows, "merged": merge(list(dict.fromkeys(crawled)))}


def _row(name: str, count: int, different: int) -> Row:
    return {"name": name, "requests": count, "different": different}


def fuzz(count: int) -> Row:
    """Compare on random requests, and let them pass through every level."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.spellings import random_request

    chance = random.Random(2026)
    make: list[Callable[[Request], bytes]] = [CanonicalFingerprinter(x).fingerprint for x in LEVELS]
    done = different = 0
    while done < count:
        request = random_request(chance)
        if request is not None:
            done += 1
            at_scrapy, *_ = [fingerprinter(request) for fingerprinter in make]
            different += at_scrapy != fingerprint(request)
    return _row("random requests", done, different)


def merge(urls: list[str]) -> list[Row]:
    """Count the pages of each level, and write what it merges to :data:`LISTING`."""
    below = {url: fingerprint(Request(url)) for url in urls}
    rows: list[Row] = [{"level": "Scrapy", "links": len(urls), "pages": len(set(below.values()))}]
    listing = {}
    for level in list(LEVELS)[1:]:
        fingerprinter = CanonicalFingerprinter(level)
        here = {url: fingerprinter.fingerprint(Request(url)) for url in urls}
        groups: dict[bytes, dict[bytes, str]] = defaultdict(dict)
        for url, made in here.items():
            groups[made].setdefault(below[url], url)
        listing[level] = [list(group.values()) for group in groups.values() if len(group) > 1]
        row = {"level": level, "links": len(urls), "pages": len(groups)}
        rows.append(row | {"merged": len(listing[level])})
        below = here
    LISTING.parent.mkdir(exist_ok=True)
    LISTING.write_text(json.dumps(listing, indent=1, ensure_ascii=False), encoding="utf-8")
    return rows


PART = Part(
    name="identical",
    title="The same fingerprints as Scrapy, and what is merged beyond",
    method="""\
Level `scrapy` promises Scrapy's fingerprints, byte for byte. It is compared with Scrapy itself on
the links of a real crawl, on the test data of the WHATWG URL standard, as far as Scrapy makes
requests of them, and on random requests, which pass through all levels. Then each level's pages are
counted on the links; groups are those of links that the level takes for one page and the one above
it in the table does not.
""",
    packages=("Scrapy", "w3lib"),
    run=run,
    tables=(
        Table(
            "identical",
            "Level scrapy against Scrapy",
            (
                Column("name", "requests"),
                Column("requests", "in all", ","),
                Column("different", "different", ","),
            ),
        ),
        Table(
            "merged",
            "Pages that the links of a real crawl are",
            (
                Column("level", "level"),
                Column("links", "links", ","),
                Column("pages", "pages", ","),
                Column("merged", "groups merged", ","),
            ),
        ),
    ),
    alone=False,
)
