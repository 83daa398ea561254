"""Crawl a local site, stop half way, resume, and ask the site what it saw.

``make demo`` runs this. The exit status is 0 when every page was fetched exactly once, else 1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from scrapy import Request
from scrapy.utils.request import fingerprint
from support.extensions import EXTENSIONS
from support.localsite import LocalSite

PROJECT: Final = Path(__file__).resolve().parent
PATIENCE: Final = 300  # seconds for one run, which takes about ten
CONSOLE: Final = Console(soft_wrap=True, highlight=False, markup=False)


class DemoError(Exception):
    """Something went otherwise than a clean crawl should."""


def crawl(site: LocalSite, folder: Path, *, stop_at: int | None = None) -> dict[str, Any]:
    """Run ``scrapy crawl site`` once on the job directory in ``folder``.

    :param site: the site to crawl.
    :param folder: where the job directory, the log and the stats go.
    :param stop_at: send SIGINT (Ctrl-C) when the site has delivered so many pages; None: never.
    :returns: Scrapy's closing stats.
    :raises DemoError: if the run failed, logged an error, or ended for another reason than it
        should.
    """
    log = folder / "log.txt"
    stats_file = folder / "stats.json"
    for leftover in (log, stats_file):
        leftover.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scrapy", "crawl", "site", "-a", f"url={site.url}"]
    command += ["-s", f"JOBDIR={folder / 'job'}"]
    command += ["-s", f"EXTENSIONS={EXTENSIONS}", "-s", f"STATS_FILE={stats_file}"]
    command += ["--logfile", str(log), "--loglevel", "INFO"]
    # Scrapy reads the settings module from the environment before it looks at scrapy.cfg.
    environment = os.environ | {"SCRAPY_SETTINGS_MODULE": "example.settings"}
    # It also notes each crawl below the user's home, and logs an error where it cannot.
    environment["XDG_STATE_HOME"] = str(folder)
    with subprocess.Popen(command, cwd=PROJECT, env=environment) as process:
        if stop_at is not None:
            site.when(stop_at, lambda: process.send_signal(signal.SIGINT))
        try:
            status = process.wait(PATIENCE)
        finally:
            process.kill()  # does nothing to a process that has ended
    text = log.read_text() if log.exists() else ""
    stats: dict[str, Any] = json.loads(stats_file.read_text()) if stats_file.exists() else {}
    for line in text.splitlines():
        if " [scrapy_bloom." in line:
            CONSOLE.print("  " + line)
    expected = "finished" if stop_at is None else "shutdown"
    reason = stats.get("finish_reason")
    if status or reason != expected or stats.get("log_count/ERROR"):
        raise DemoError(
            f"The crawl ended with status {status} and reason {reason!r}, expected 0 and "
            f"{expected!r} without errors. The end of its log:\n{text[-3000:]}"
        )
    return stats


def memory_of_set(urls: Iterable[str]) -> tuple[int, int]:
    """Build the set that Scrapy's own filter would hold; return its length and its bytes."""
    fingerprints = {fingerprint(Request(url)).hex() for url in urls}
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    seen = {bytes.fromhex(text) for text in fingerprints}
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return len(seen), after - before


def demonstrate(site: LocalSite, folder: Path) -> None:
    """Crawl in two runs and print what the site counted.

    :raises DemoError: if a page was missed or fetched twice, or a run failed.
    """
    CONSOLE.print(
        f"Serving a site of {site.pages:,} pages with {site.links} links each: {site.url}"
    )
    half = site.pages // 2
    CONSOLE.print(f"Run 1: crawling; Ctrl-C at page {half:,}")
    crawl(site, folder, stop_at=half)
    first = sum(site.hits.values())
    CONSOLE.print("Run 2: the same command resumes the crawl")
    stats = crawl(site, folder)
    second = sum(site.hits.values()) - first
    urls, set_bytes = memory_of_set(site.urls)
    filter_bytes = stats["bloom/bytes"]

    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("pages in the site", f"{site.pages:,}")
    table.add_row("fetched in run 1", f"{first:,}")
    table.add_row("fetched in run 2", f"{second:,}")
    table.add_row("fetched twice", f"{len(site.repeated):,}")
    table.add_row("missed", f"{len(site.missed):,}", end_section=True)
    table.add_row("URLs, redirects among them", f"{urls:,}")
    table.add_row("memory of the filter", decimal(filter_bytes))
    table.add_row("memory of Scrapy's own set", decimal(set_bytes))
    CONSOLE.print(table)

    for fault, pages in (("fetched twice", site.repeated), ("missed", site.missed)):
        if pages:
            raise DemoError(f"{fault}: {', '.join(site.address(page) for page in sorted(pages))}")


def main() -> int:
    """Run the demo in a temporary folder; return the exit status."""
    with TemporaryDirectory(prefix="scrapy-bloom-demo-") as folder, LocalSite() as site:
        try:
            demonstrate(site, Path(folder))
        except (DemoError, subprocess.TimeoutExpired) as error:
            CONSOLE.print(f"FAILED: {error}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
