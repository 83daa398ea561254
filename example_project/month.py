"""Crawl a local news site for 30 days, every six hours, and print what was fetched when.

``make month`` runs this; the days are simulated, and take a minute. Lists have
``bloom_max_age="1h"``, articles none. Of some articles the site shows a login page at first: the
spider forgets them, and a later run finds a link to them.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from scrapy.crawler import CrawlerRunner
from scrapy.utils.project import get_project_settings
from scrapy.utils.reactor import install_reactor
from support.sites import News, Pages

HOUR: Final = 3600
START: Final = 1_800_000_000
EVERY: Final = 6  # hours between two runs
DAYS: Final = 30
WALLED: Final = 10  # every so many articles


class Walled(News):
    """A news site that shows a login page for some articles when they are asked for first.

    Attributes:
        walls: those articles, each as often as its login page was shown.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.walls: Counter[str] = Counter()

    def get(self, path: str) -> Any:
        """Return what serves a page."""
        page = super().get(path)
        if path.startswith("/article") and int(path.rpartition("/")[2]) % WALLED == WALLED - 1:
            return lambda *_: self._first(path, page)
        return page

    def _first(self, path: str, page: Any) -> Any:
        if self.walls[path]:
            return page()
        self.walls[path] += 1
        return ["/login"]


@dataclass(frozen=True)
class Day:
    """What was fetched on one day.

    Attributes:
        runs: of the crawl.
        lists: pages.
        articles: articles that were fetched, or their login page.
        walled: how many of these were a login page.
    """

    runs: int
    lists: int
    articles: int
    walled: int


async def crawl(site: Any, news: Walled, job: str, days: int, now: list[float]) -> list[Day]:
    """Crawl as often as it takes; return what was fetched on each day."""
    quiet = {"JOBDIR": job, "LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False}
    settings = get_project_settings()
    settings.setdict(quiet | {"ROBOTSTXT_OBEY": False}, priority="cmdline")
    found = []
    for day in range(days):
        before, walls = site.hits.copy(), news.walls.total()
        for hour in range(0, 24, EVERY):
            now[0] = float(START + (24 * day + hour) * HOUR)
            crawling = CrawlerRunner(settings).crawl("news", url=site.url)
            await crawling.asFuture(asyncio.get_running_loop())
        new = site.hits - before
        lists = sum(new[path] for path in news.LISTS)
        found.append(
            Day(24 // EVERY, lists, new.total() - lists, news.walls.total() - walls),
        )
    return found


def show(days: Sequence[Day]) -> None:
    """Print the table."""
    table = Table("day", "runs", "lists", "articles", "of these a login page")
    for column in table.columns:
        column.justify = "right"
    for number, day in enumerate(days, 1):
        row = (number, day.runs, day.lists, day.articles, day.walled)
        table.add_row(*map(str, row), end_section=number == len(days))
    sums = [
        sum(getattr(day, name) for day in days) for name in ("runs", "lists", "articles", "walled")
    ]
    table.add_row("all", *map(str, sums))
    Console(width=80).print(table)


async def month(days: int) -> bool:
    """Crawl and print; return whether everything was fetched as often as it should be."""
    now = [float(START)]
    time.time = lambda: now[0]
    news = Walled(time.time)
    with TemporaryDirectory() as job, Pages(news) as site:
        found = await crawl(site, news, job, days, now)
        show(found)
        hits = site.hits
    articles = news.all_articles()
    missed = sum(not hits[article] for article in articles)
    again = sum(max(0, hits[article] - 1 - news.walls[article]) for article in articles)
    walled = sum(hits[article] <= news.walls[article] for article in articles)
    print(
        f"{len(articles)} articles, {len(news.LISTS)} lists. Articles missed: {missed}; fetched"
        f" again for nothing: {again}; left with a login page: {walled}."
    )
    runs = sum(day.runs for day in found)
    rest = [hits[path] for path in news.LISTS]
    return not missed and not again and rest == [runs] * len(rest)


def main() -> int:
    """Run it; return the exit status."""
    os.environ.setdefault("SCRAPY_SETTINGS_MODULE", "example.settings")
    sys.path.insert(0, str(Path(__file__).parent))
    install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
    from twisted.internet import reactor as installed  # noqa: PLC0415 - not before that

    reactor: Any = installed
    tasks: list[asyncio.Task[bool]] = []

    def begin() -> None:
        tasks.append(asyncio.ensure_future(month(int(sys.argv[1]) if sys.argv[1:] else DAYS)))
        tasks[0].add_done_callback(lambda _: reactor.stop())

    reactor.callWhenRunning(begin)
    reactor.run()
    return 0 if tasks[0].result() else 1


if __name__ == "__main__":
    sys.exit(main())
