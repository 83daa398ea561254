"""A site that is away for some seconds in the middle of a crawl: the pages that come in the end."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Timer
from typing import TYPE_CHECKING, Any, Final

from bench import killing
from bench.harness import in_turn
from bench.look import draw_fetched
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.schedulers import ABOUT, OURS, PACKAGES, SCHEDULERS, SCRAPY
from bench.scrapy_filters import Settings

if TYPE_CHECKING:
    from testbed.localsite import SteadySite

PAGES: Final = 240
BEFORE: Final = 60
"""Pages that the site has delivered when it goes away."""
AWAY: Final = 4.0
"""Seconds that it is away."""
ANSWER: Final = 0.02
"""Seconds that it takes for a page."""


def run(scale: Scale) -> Rows:
    """Crawl through many outages with each scheduler, in turn."""
    names = [OURS, SCRAPY]
    found: dict[str, list[Row]] = {name: [] for name in names}
    for number in range(scale.of(8, 1)):
        for name in in_turn(names, number):
            found[name].append(crawl(SCHEDULERS[name], number))
    return {"outage": [killing.summed(name, crawls) for name, crawls in found.items()]}


def crawl(settings: Settings, seed: int) -> Row:
    """Crawl a site that goes away, and once more when it is back; return what it has delivered."""
    back = Event()
    with TemporaryDirectory() as temporary, leaving(back, seed) as site:
        folder = Path(temporary)
        killing.crawl(site.url, settings, folder, (), site.when)
        first = len(site.hits)
        if not back.wait(killing.PATIENCE):
            raise RuntimeError(f"The site did not go away: it delivered {first} pages.")
        killing.crawl(site.url, settings, folder, (), site.when)
        return {
            "pages": PAGES,
            "first": first,
            "fetched": len(site.hits),
            "lost": len(site.missed),
            "again": sum(count - 1 for page, count in site.hits.items() if page),
        }


def leaving(back: Event, seed: int) -> SteadySite:
    """Return a site that closes each connection without an answer while it is away."""
    from testbed.localsite import Answer, SteadySite

    class Leaving(SteadySite):
        away = False

        def visit(self, target: str) -> Answer:
            time.sleep(ANSWER)
            if self.away:
                raise ConnectionAbortedError
            return super().visit(target)

        def leave(self) -> None:
            self.away = True
            Timer(AWAY, self.come_back).start()

        def come_back(self) -> None:
            self.away = False
            back.set()

    site = Leaving(pages=PAGES, links=10, seed=seed)
    site.when(BEFORE, site.leave)
    return site


def draw(axes: Any, rows: Rows) -> None:
    """Draw the pages that came in the end."""
    draw_fetched(axes, rows["outage"], OURS)


PART = Part(
    name="outage",
    title="Crawls through an outage",
    method=f"""\
A site of {PAGES} pages, each answered after {ANSWER * 1000:g} ms, is crawled in a job directory, 16
requests at a time, with Scrapy's own two retries. When it has delivered {BEFORE} pages it is away
for {AWAY:g} s: it closes each connection without an answer. The crawl ends by itself, and once the
site is back it is run again. The schedulers take turns, with the same sites. The site counts its
answers, and so knows which pages never came. The front page, which each run asks for again, is not
counted as fetched again.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "outage",
            "Crawls of a site that is away for a while",
            (
                Column("name", "scheduler"),
                Column("crawls", "crawls"),
                Column("pages", "pages", ","),
                Column("first", "fetched by the first run", ","),
                Column("fetched", "and by the next one", ","),
                Column("lost", "pages lost", ","),
                Column("again", "fetched again", ","),
            ),
        ),
    ),
    plots=(
        Plot(
            "outage",
            "Pages fetched and lost by crawls of a site that is away for four seconds, after the"
            " next run: ours loses none",
            draw,
        ),
    ),
)
