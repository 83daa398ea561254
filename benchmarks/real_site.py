"""Crawl a site nobody here wrote, with Scrapy's own filter and with ours, and compare.

    python benchmarks/real_site.py --root /usr/share/doc/python3.11/html

Any folder of static HTML will do; this one comes with Debian's package python3.11-doc. It is served
on loopback and crawled three times: with Scrapy's own filter, with ours, and with ours in a job
directory, interrupted three times and resumed. Ends with 1 if the three did not fetch the same URLs
or one of them fetched a URL twice.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from rich.console import Console
from rich.table import Table

INTERRUPTIONS = 3

SPIDER = """
from scrapy import Request, Spider
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor

class Documentation(Spider):
    name = "documentation"
    allowed_domains = ["127.0.0.1"]
    links = LinkExtractor()

    async def start(self):
        yield Request(self.url)

    def parse(self, response):
        if isinstance(response, HtmlResponse):
            for link in self.links.extract_links(response):
                yield Request(link.url)
"""


class Site(ThreadingHTTPServer):
    """A folder, served and counted.

    Attributes:
        hits: how often each path was asked for in this crawl.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Page, directory=str(root)))
        self.hits: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._alarm: tuple[int, Callable[[], None]] = (0, lambda: None)

    @property
    def url(self) -> str:
        """The address of the front page."""
        return f"http://127.0.0.1:{self.server_address[1]}/index.html"

    def call_at(self, hits: int, do: Callable[[], None]) -> None:
        """Call `do` when the crawl has made so many requests."""
        self._alarm = (hits, do)

    def count(self, path: str) -> None:
        """Count one request."""
        with self._lock:
            self.hits[path] += 1
            if self.hits.total() == self._alarm[0]:
                self._alarm[1]()


class Page(SimpleHTTPRequestHandler):
    """One request."""

    server: Site

    def do_GET(self) -> None:
        """Count and serve."""
        self.server.count(self.path)
        super().do_GET()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Crawl:
    """What one way to crawl has come to.

    Attributes:
        name: which way.
        hits: how often each path was asked for.
        runs: how many requests each of its runs made.
    """

    name: str
    hits: Counter[str]
    runs: list[int]

    @property
    def repeats(self) -> int:
        """How many requests were made for a path that had been asked for before."""
        return self.hits.total() - len(self.hits)


def crawl(name: str, site: Site, settings: list[str], stops: list[int]) -> Crawl:
    """Crawl the site, interrupted when it has had as many requests as `stops` say."""
    site.hits = Counter()
    runs = []
    for stop in [*stops, 0]:
        with tempfile.TemporaryDirectory() as folder:
            spider = Path(folder, "documentation.py")
            spider.write_text(SPIDER)
            command = [sys.executable, "-m", "scrapy", "runspider", str(spider)]
            command += ["-a", f"url={site.url}", "-s", "LOG_LEVEL=WARNING"]
            command += ["-s", "TELNETCONSOLE_ENABLED=False", *settings]
            process = subprocess.Popen(command, cwd=folder)
            site.call_at(stop, partial(process.send_signal, signal.SIGINT))
            process.wait()
        runs.append(site.hits.total() - sum(runs))
    return Crawl(name, site.hits, runs)


def crawl_three_ways(site: Site) -> list[Crawl]:
    """Crawl with Scrapy's filter, with ours, and with ours and interruptions."""
    ours = ["-s", "DUPEFILTER_CLASS=scrapy_bloom.BloomDupeFilter"]
    reference = crawl("Scrapy's own", site, [], [])
    plain = crawl("ours", site, ours, [])
    total = reference.hits.total()
    stops = [total * (part + 1) // (INTERRUPTIONS + 1) for part in range(INTERRUPTIONS)]
    with tempfile.TemporaryDirectory() as job:
        kept = ["-s", f"JOBDIR={job}"]
        resumed = crawl(f"ours, {INTERRUPTIONS + 1} runs", site, [*ours, *kept], stops)
    return [reference, plain, resumed]


def show(root: Path, crawls: list[Crawl]) -> bool:
    """Print the table; return whether all fetched the same, each URL once."""
    table = Table(title=f"A crawl of {root}")
    columns = ("", "requests in each run", "URLs", "missing", "extra", "twice")
    for column in columns:
        table.add_column(column, justify="right" if column else "left")
    reference = set(crawls[0].hits)
    equal = True
    for one in crawls:
        urls = set(one.hits)
        missing, extra = len(reference - urls), len(urls - reference)
        equal = equal and not (missing or extra or one.repeats)
        runs = " + ".join(map(str, one.runs))
        table.add_row(one.name, runs, *map(str, (len(urls), missing, extra, one.repeats)))
    Console().print(table)
    return equal


def main() -> int:
    """Crawl, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="a folder with an index.html")
    root = parser.parse_args().root
    if not (root / "index.html").is_file():
        parser.error(f"there is no index.html in {root}")
    site = Site(root)
    threading.Thread(target=site.serve_forever, args=(0.05,)).start()
    try:
        crawls = crawl_three_ways(site)
    finally:
        site.shutdown()
        site.server_close()
    return 0 if show(root, crawls) else 1


if __name__ == "__main__":
    sys.exit(main())
