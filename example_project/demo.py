"""Crawl a local site, kill the crawl and start it again, and ask the site what it saw.

``make demo`` runs this: with ``scrapy_bloom.Scheduler``, and again with what Scrapy has of its own.
The exit status is 0 when ours has lost no page and fetched only those again that were under way
when it was killed, else 1.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals
from tempfile import TemporaryDirectory
from typing import Final

from rich.console import Console
from rich.table import Table
from support.localsite import SteadySite

PROJECT: Final = Path(__file__).resolve().parent
PATIENCE: Final = 300  # seconds for one run, which takes a few
CONSOLE: Final = Console(soft_wrap=True, highlight=False, markup=False)

PAGES: Final = 2000
UNDER_WAY: Final = 16  # requests at a time, as the example's settings say
RUNS: Final[dict[str, Signals | None]] = {
    "first run, SIGKILL": SIGKILL,
    "resumed, SIGKILL": SIGKILL,
    "resumed, stopped by Ctrl-C": SIGINT,
    "resumed, SIGKILL again": SIGKILL,
    "resumed, to the end": None,
}
OURS: Final = ()  # the example's settings
SCRAPY: Final = ("-s", "SCHEDULER=scrapy.core.scheduler.Scheduler", "-s", "ADDONS={}")


class DemoError(Exception):
    """Something went otherwise than it should."""


@dataclass
class Crawled:
    """What a crawl has come to.

    Attributes:
        runs: pages that were fetched in each of its runs.
        again: pages that were fetched before.
        lost: pages that nobody has fetched.
    """

    runs: list[int] = field(default_factory=list)
    again: int = 0
    lost: int = 0


def crawl(settings: tuple[str, ...]) -> Crawled:
    """Crawl a new site in a new job directory, run by run.

    A run that ends before it is stopped is the last one: there is nothing left to do.

    :raises DemoError: if a run ends otherwise than it should.
    """
    crawled = Crawled()
    with TemporaryDirectory() as temporary, SteadySite(pages=PAGES) as site:
        for name, stop in RUNS.items():
            before = sum(site.hits.values())
            status = run(site, Path(temporary), settings, stop)
            crawled.runs.append(sum(site.hits.values()) - before)
            CONSOLE.print(f"  {name}: {crawled.runs[-1]:,} pages")
            if stop is SIGKILL and status == 0:
                CONSOLE.print("  It ended before it was killed.")
                break
        crawled.again = sum(count - 1 for count in site.repeated.values())
        crawled.lost = len(site.missed)
    return crawled


def run(
    site: SteadySite, folder: Path, settings: tuple[str, ...], stop: Signals | None
) -> int | None:
    """Run ``scrapy crawl site`` once on the job directory in `folder`; return the exit status.

    :param stop: the signal that is sent when a fifth of the site has been delivered; None: never.
    :raises DemoError: if the run failed, or ended for another reason than it should.
    """
    log = folder / "log.txt"
    log.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"url={site.url}"]
    command += ["-s", f"JOBDIR={folder / 'job'}", *settings]
    command += ["--logfile", str(log), "--loglevel", "INFO"]
    # Scrapy reads the settings module from the environment before it looks at scrapy.cfg.
    environment = os.environ | {"SCRAPY_SETTINGS_MODULE": "example.settings"}
    # It also notes each crawl below the user's home, and logs an error where it cannot.
    environment["XDG_STATE_HOME"] = str(folder)
    with subprocess.Popen(command, cwd=PROJECT, env=environment) as process:
        if stop is not None:
            due = sum(site.hits.values()) + PAGES // 5
            site.when(due, lambda: process.send_signal(stop))
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()  # does nothing to a process that has ended
    text = log.read_text() if log.exists() else ""
    for line in text.splitlines():
        if "[scrapy_bloom.scheduler" in line:
            CONSOLE.print("  " + line)
    if status not in {0, -SIGKILL} or "] ERROR: " in text:
        raise DemoError(f"A run ended with status {status}. The end of its log:\n{text[-3000:]}")
    return status


def show(ours: Crawled, scrapy: Crawled) -> None:
    """Print what the sites counted."""
    table = Table("", "scrapy_bloom.Scheduler", "Scrapy's own scheduler and filter")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("pages in the site", f"{PAGES:,}", f"{PAGES:,}", end_section=True)
    for number, name in enumerate(RUNS):
        fetched = [
            f"{each.runs[number]:,}" if number < len(each.runs) else "" for each in (ours, scrapy)
        ]
        table.add_row(name, *fetched, end_section=number == len(RUNS) - 1)
    table.add_row("fetched again", f"{ours.again:,}", f"{scrapy.again:,}")
    table.add_row("lost", f"{ours.lost:,}", f"{scrapy.lost:,}")
    CONSOLE.print(table)


def main() -> int:
    """Run the demo; return the exit status."""
    CONSOLE.print(f"A site of {PAGES:,} pages, crawled with scrapy_bloom.Scheduler")
    try:
        ours = crawl(OURS)
        CONSOLE.print("The same with Scrapy's own scheduler and filter")
        scrapy = crawl(SCRAPY)
    except (DemoError, subprocess.TimeoutExpired) as error:
        CONSOLE.print(f"FAILED: {error}")
        return 1
    show(ours, scrapy)
    kills = sum(stop is SIGKILL for stop in RUNS.values())
    if ours.lost or len(ours.runs) < len(RUNS) or ours.again > 2 * UNDER_WAY * kills:
        CONSOLE.print("FAILED: ours should lose nothing, and fetch little again.")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
