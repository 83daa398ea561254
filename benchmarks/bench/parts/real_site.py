"""A site that nobody here wrote: whether a crawl killed ten times fetches the same URLs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from signal import SIGINT
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench import killing
from bench.killing import Stop
from bench.part import Column, Part, Plot, Row, Rows, Scale, Table
from bench.schedulers import ABOUT, OURS, PACKAGES, SCHEDULERS, SCRAPY
from bench.scrapy_filters import BLOOM, Settings

ROOT: Final = Path("/usr/share/doc/python3.11/html")
FRONT: Final = "/index.html"
KILLS, INTERRUPTIONS = 10, 3


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
        self._alarm: tuple[int, Callable[[], object]] = (0, lambda: None)

    @property
    def url(self) -> str:
        """The address of the front page."""
        return f"http://127.0.0.1:{self.server_address[1]}{FRONT}"

    def after(self, hits: int, do: Callable[[], object]) -> None:
        """Call `do` when so many more requests have been made."""
        with self._lock:
            self._alarm = (self.hits.total() + hits, do)

    def count(self, path: str) -> None:
        """Count one request."""
        with self._lock:
            self.hits[path] += 1
            due, do = self._alarm
            now = self.hits.total() == due
        if now:
            do()


class Page(SimpleHTTPRequestHandler):
    """One request."""

    server: Site

    def do_GET(self) -> None:
        """Count and serve."""
        self.server.count(self.path)
        super().do_GET()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def served(root: Path) -> Iterator[Site]:
    """Serve a folder."""
    with Site(root) as site:
        thread = threading.Thread(target=site.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()


def run(scale: Scale) -> Rows:
    """Crawl in each way and compare with the first."""
    if not ROOT.is_dir():
        return {"crawls": []}
    with TemporaryDirectory() as temporary, served(small(Path(temporary), scale)) as site:
        reference, first = crawl(site, {}, ())
        whole = reference.total()
        ways: dict[str, tuple[Settings, tuple[Stop, ...]]] = {
            f"{OURS}, undisturbed": (SCHEDULERS[OURS], ()),
            f"{OURS}, its filter only, interrupted": (BLOOM, interruptions(whole)),
            f"{OURS}, killed": (SCHEDULERS[OURS], kills(whole)),
            f"{SCRAPY}, killed": (SCHEDULERS[SCRAPY], kills(whole)),
        }
        rows = [compared(f"{SCRAPY}, undisturbed", reference, reference, first)]
        for name, (settings, stops) in ways.items():
            rows.append(compared(name, reference, *crawl(site, settings, stops)))
    return {"crawls": rows}


def small(folder: Path, scale: Scale) -> Path:
    """Return the folder to be served, in a quick run one with fewer pages."""
    if not scale.quick:
        return ROOT
    (folder / "index.html").symlink_to(ROOT / "index.html")
    for name in ("tutorial", "howto"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def kills(whole: int) -> tuple[Stop, ...]:
    """Return random moments, so close that all of them come before the end of the crawl."""
    return tuple(killing.random_stops(Random(1), KILLS, whole // (KILLS + 1)))


def interruptions(whole: int) -> tuple[Stop, ...]:
    """Return moments at which a crawl is to stop cleanly."""
    return (Stop(whole // (INTERRUPTIONS + 1), 0, SIGINT),) * INTERRUPTIONS


def crawl(
    site: Site, settings: Settings, stops: tuple[Stop, ...]
) -> tuple[Counter[str], killing.Killed]:
    """Crawl in a new job directory; return what was asked for, and what the kills met."""
    site.hits = Counter()
    with TemporaryDirectory() as folder:
        killed = killing.crawl(site.url, settings, Path(folder), stops, alarm=site.after)
    return site.hits, killed


def compared(name: str, reference: Counter[str], hits: Counter[str], killed: killing.Killed) -> Row:
    """Return the row of one crawl. The front page, which each run asks for, may come again."""
    return {
        "name": name,
        "kills": killed.kills,
        "requests": hits.total(),
        "urls": len(hits),
        "missing": len(reference.keys() - hits.keys()),
        "extra": len(hits.keys() - reference.keys()),
        "again": sum(count - 1 for path, count in hits.items() if path != FRONT),
        "under_way": sum(killed.under_way),
    }


def draw(axes: Any, rows: Rows) -> None:
    """Draw for each crawl how many URLs it fetched, missed and fetched again."""
    crawls = rows["crawls"][::-1]
    places = range(len(crawls))
    left = [0] * len(crawls)
    for key, what in (("urls", "fetched"), ("again", "fetched again"), ("missing", "missing")):
        sizes = [row[key] for row in crawls]
        axes.barh(places, sizes, 0.6, left=left, label=what)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    axes.set_yticks(places, [row["name"].replace(", ", ",\n", 1) for row in crawls])
    axes.set(xlabel="URLs")


def findings(rows: Rows) -> list[str]:
    """Say whether the crawl that was killed has fetched the same."""
    if not rows["crawls"]:
        return [f"There is no {ROOT} on this machine: install python3.11-doc."]
    [ours] = [row for row in rows["crawls"] if row["name"] == f"{OURS}, killed"]
    same = "the same" if not ours["missing"] + ours["extra"] else "not the same"
    return [
        (
            f"Killed {ours['kills']} times, our crawl fetches {same} {ours['urls']:,} URLs as one"
            f" that was left alone, {ours['again']} of them again;"
            f" {ours['under_way']} were under way."
        )
    ]


PART = Part(
    name="real-site",
    title="A site that nobody here wrote",
    method=f"""\
The documentation of Python 3.11 as HTML, from Debian's package python3.11-doc, is served on
loopback and crawled as in part `kills`: undisturbed; interrupted {INTERRUPTIONS} times, as by
Ctrl-C; and killed {KILLS} times. Compared are the URLs that the server was asked for.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "crawls",
            "Crawls of the documentation of Python",
            (
                Column("name", "crawl"),
                Column("kills", "kills"),
                Column("requests", "requests", ","),
                Column("urls", "URLs", ","),
                Column("missing", "missing", ","),
                Column("extra", "extra", ","),
                Column("again", "fetched again", ","),
                Column("under_way", "under way at the kills"),
            ),
        ),
    ),
    plots=(
        Plot(
            "real-site",
            "URLs that crawls of the documentation of Python fetched, fetched again and missed",
            draw,
        ),
    ),
    findings=findings,
    alone=False,
)
