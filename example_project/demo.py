"""Kill a crawl of a local site and start it again, and ask the site what it delivered.

``make demo`` runs this: with scrapy-bloom, and again with what Scrapy has of its own. The exit
status is 0 if ours lost no page and fetched only those again that were in flight, else 1.
``--record FILE`` also draws what was printed as a picture, for the README.
"""

from __future__ import annotations

import argparse
import html
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGINT, SIGKILL, Signals
from tempfile import TemporaryDirectory
from typing import Final

from testbed.localsite import SteadySite

PROJECT: Final = Path(__file__).resolve().parent
PATIENCE: Final = 300  # seconds for one run, which takes a few

PAGES: Final = 2000
IN_FLIGHT: Final = 16  # requests at a time, as the example's settings say
RUNS: Final[dict[str, Signals | None]] = {
    "first run, kill -9": SIGKILL,
    "resumed, kill -9": SIGKILL,
    "resumed, Ctrl-C": SIGINT,
    "resumed, kill -9 again": SIGKILL,
    "resumed, to the end": None,
}
OURS: Final = ()  # the example's settings
NBSP: Final = "\u00a0"  # browsers make one of several plain spaces
SCRAPY: Final = ("-s", "SCHEDULER=scrapy.core.scheduler.Scheduler", "-s", "ADDONS={}")


class DemoError(Exception):
    """Something went otherwise than it should."""


class Screen:
    """Prints lines and keeps them; on a terminal the last one may be in progress.

    Attributes:
        lines: that were printed.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def print(self, line: str) -> None:
        """Print a line in the place of one in progress."""
        self.lines.append(line)
        clear = "\r\x1b[K" if sys.stdout.isatty() else ""
        print(f"{clear}{line}", flush=True)

    def progress(self, line: str) -> None:
        """Show what is going on until the next line is printed."""
        if sys.stdout.isatty():
            print(f"\r\x1b[K{line}", end="", flush=True)

    def table(self, *rows: tuple[str, ...]) -> None:
        """Print rows of cells: words on the left, numbers on the right."""
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *rest in rows:
            numbers = zip(rest, widths[1:], strict=True)
            cells = [first.ljust(widths[0]), *(n.rjust(w) for n, w in numbers)]
            self.print("  ".join(cells).rstrip())

    def draw(self, path: Path) -> None:
        """Write an SVG picture of a terminal with all lines."""
        height, width = 20 * len(self.lines) + 24, 8.4 * max(map(len, self.lines)) + 32
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}">'
            '<rect width="100%" height="100%" rx="8" fill="#1e1e1e"/>'
            '<g font-family="monospace" font-size="14" fill="#d4d4d4">'
            + "".join(
                f'<text x="16" y="{20 * n + 26}" textLength="{8.4 * len(line):.0f}">'
                f"{html.escape(line).replace(' ', NBSP)}</text>"
                for n, line in enumerate(self.lines)
                if line
            )
            + "</g></svg>\n",
            encoding="utf-8",
        )


SCREEN: Final = Screen()


@dataclass
class Crawled:
    """The result of a crawl.

    Attributes:
        runs: pages that were fetched in each of its runs.
        again: pages that were fetched before.
        lost: pages that were never fetched.
    """

    runs: list[int] = field(default_factory=list)
    again: int = 0
    lost: int = 0

    def run(self, number: int) -> str:
        """Return how many pages a run has fetched, nothing if there was none."""
        return f"{self.runs[number]:,}" if number < len(self.runs) else ""


def crawl(settings: tuple[str, ...]) -> Crawled:
    """Crawl a new site in a new job directory, run by run.

    A run that ends before it is stopped is the last one: there is nothing left to do.

    :raises DemoError: if a run ends otherwise than it should.
    """
    crawled = Crawled()
    with TemporaryDirectory() as temporary, SteadySite(pages=PAGES) as site:
        for name, stop in RUNS.items():
            before = sum(site.hits.values())
            status = run(site, name, Path(temporary), settings, stop)
            crawled.runs.append(sum(site.hits.values()) - before)
            ended = ": nothing left to fetch" if stop is SIGKILL and status == 0 else ""
            SCREEN.print(f"  {name + ':':24}{crawled.runs[-1]:6,} pages{ended}")
            if ended:
                break
        crawled.again = sum(count - 1 for count in site.repeated.values())
        crawled.lost = len(site.missed)
    return crawled


def run(
    site: SteadySite, name: str, folder: Path, settings: tuple[str, ...], stop: Signals | None
) -> int:
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
    before = sum(site.hits.values())
    with subprocess.Popen(command, cwd=PROJECT, env=environment) as process:
        if stop is not None:
            site.when(before + PAGES // 5, lambda: process.send_signal(stop))
        try:
            status = wait(process, site, before, name)
        finally:
            process.kill()  # does nothing to a process that has ended
    text = log.read_text() if log.exists() else ""
    if status not in {0, -SIGKILL} or "] ERROR: " in text:
        raise DemoError(f"A run ended with status {status}. The end of its log:\n{text[-3000:]}")
    return status


def wait(process: subprocess.Popen[bytes], site: SteadySite, before: int, name: str) -> int:
    """Show progress until a run ends; return its exit status.

    :raises DemoError: if it does not end.
    """
    for _ in range(2 * PATIENCE):
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)
        SCREEN.progress(f"  {name + ':':24}{sum(site.hits.values()) - before:6,} pages …")
    raise DemoError("A run does not end.")


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FILE", help="draw the result as SVG")
    arguments = parser.parse_args()
    try:
        SCREEN.print(f"A site of {PAGES:,} pages, crawled with scrapy-bloom:")
        ours = crawl(OURS)
        SCREEN.print("The same with Scrapy's own scheduler and filter:")
        scrapy = crawl(SCRAPY)
    except DemoError as error:
        SCREEN.print(f"FAILED: {error}")
        return 1
    SCREEN.print("")
    SCREEN.table(
        ("", "scrapy-bloom", "Scrapy's own"),
        *((name, ours.run(n), scrapy.run(n)) for n, name in enumerate(RUNS)),
        ("fetched again", f"{ours.again:,}", f"{scrapy.again:,}"),
        (f"lost of {PAGES:,}", f"{ours.lost:,}", f"{scrapy.lost:,}"),
    )
    kills = sum(stop is SIGKILL for stop in RUNS.values())
    if ours.lost or len(ours.runs) < len(RUNS) or ours.again > 2 * IN_FLIGHT * kills:
        SCREEN.print("FAILED: ours should lose nothing, and fetch little again.")
        return 1
    if arguments.record:
        SCREEN.draw(arguments.record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
