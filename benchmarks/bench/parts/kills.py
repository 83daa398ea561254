"""Crawls that are killed again and again: pages and items lost, pages fetched again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench import killing
from bench.harness import in_turn
from bench.look import draw_fetched
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.schedulers import ABOUT, OURS, PACKAGES, SCHEDULERS
from bench.scrapy_filters import Settings

if TYPE_CHECKING:
    from testbed.localsite import LocalSite

LINKS = 10
KILLS = 5


def run(scale: Scale) -> Rows:
    """Kill many crawls with each scheduler, in turn."""
    pages = scale.of(1200, 60)
    found: dict[str, list[Row]] = {name: [] for name in SCHEDULERS}
    for number in range(scale.of(12, 1)):
        for name in in_turn(list(SCHEDULERS), number):
            found[name].append(crawl(SCHEDULERS[name], pages, number))
    return {"kills": [_summed(name, crawls) for name, crawls in found.items()]}


def crawl(settings: Settings, pages: int, seed: int) -> Row:
    """Crawl a site, killed at random moments; return what it saw."""
    from testbed.localsite import SteadySite

    chance = Random(seed)
    stops = [chance.randint(1, 2 * pages // (KILLS + 1)) for _ in range(KILLS)]
    with (
        TemporaryDirectory() as temporary,
        SteadySite(pages=pages, links=LINKS, seed=seed) as site,
    ):
        folder = Path(temporary)
        kills = killing.crawl(
            site.url,
            settings,
            folder,
            stops,
            lambda number, do: site.when(sum(site.hits.values()) + number, do),
        )
        items = read_items(site, killing.items_file(folder))
        fetched = site.hits
        return {
            "pages": pages,
            "kills": kills,
            "lost": len(site.missed),
            "again": again(fetched),
            "items_lost": len(fetched.keys() - items.keys()),
        }


def again(counted: dict[int, int]) -> int:
    """Return how often a page came again; the front page, which each run begins with, left out."""
    return sum(count - 1 for page, count in counted.items() if page)


def read_items(site: LocalSite, path: Path) -> Counter[int]:
    """Return how often each page is among the items; a torn line is none."""
    items = Counter[int]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            url = urlsplit(json.loads(line)["url"])
        except ValueError:
            continue
        page = site.answer(f"{url.path}?{url.query}" if url.query else url.path).page
        assert page is not None
        items[page] += 1
    return items


def _summed(name: str, crawls: list[Row]) -> Row:
    row = killing.summed(name, crawls)
    row["again_each"] = row["again"] / (row["kills"] or 1)
    return row


def draw(axes: Any, rows: Rows) -> None:
    """Draw which pages came in the end."""
    draw_fetched(axes, rows["kills"], OURS)


PART = Part(
    name="kills",
    title="Crawls that are killed",
    method=f"""\
A site of 1,200 pages with {LINKS} links each is crawled in a job directory by `scrapy runspider`,
16 requests at a time, with items in a file of JSON lines. Up to {KILLS} times it is killed by
SIGKILL, after a random number of answers, and started again. No run may take more than a minute,
and one that ends before its kill ends the crawl. The schedulers take turns, with the same sites and
moments. The site counts its answers, and so knows what was lost.

The front page, which each run asks for again, is not counted as fetched again. An item is lost if
its page was fetched and no whole line has it.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "kills",
            "Killed crawls",
            (
                Column("name", "scheduler"),
                Column("crawls", "crawls"),
                Column("kills", "kills", ","),
                Column("pages", "pages", ","),
                Column("lost", "pages lost", ","),
                Column("again_each", "fetched again a kill", ".1f"),
                Column("items_lost", "items lost", ","),
            ),
        ),
    ),
    plots=(
        Plot(
            "kills",
            "Pages fetched and lost by crawls that are killed: ours loses none",
            draw,
        ),
    ),
)
