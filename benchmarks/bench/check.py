"""The guard: ratios that must not get worse, measured in two minutes: ``python -m bench.check``.

Never a time, always a ratio to something measured in the same minute that our changes cannot touch.
A bound is what is usual times :data:`SLACK`: noise stays within it, a loss of half as much again
does not. What fails is measured once more, for a machine that was busy; then the exit code is 1.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from rich.console import Console
from rich.table import Table
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

from bench import competitors, redis_filters, redis_server
from bench.harness import Run, Sample, mean_of, take_turns
from bench.parts.resume import open_ours
from bench.scrapy_filters import FILTERS, SCRAPY, opened
from scrapy_bloom import CanonicalFingerprinter, LocalFilter

SLACK = 1.3
"""How much worse than usual a ratio may be."""

REPEATS = 9
ITEMS = 20_000

Parts = Iterator[tuple[Run, int]]


@dataclass(frozen=True)
class Check:
    """One ratio.

    Attributes:
        name: what is compared with what.
        usual: the ratio as it was when it was last looked at, on an idle machine.
        ours: prepares one repeat of ours.
        theirs: prepares one repeat of what it is compared with.
        clock: "cpu", or "wall" where another process does the work.
    """

    name: str
    usual: float
    ours: Callable[[], Parts]
    theirs: Callable[[], Parts]
    clock: Literal["cpu", "wall"] = "cpu"

    @property
    def bound(self) -> float:
        """The highest ratio that passes."""
        return self.usual * SLACK

    def measure(self) -> float:
        """Return the ratio of the fastest repeats, which other programs disturb the least."""
        samples = take_turns({"ours": self.ours, "theirs": self.theirs}, REPEATS)
        clock = Sample._fields.index(self.clock)
        ours, theirs = (
            min(sample[clock] for sample in mean_of(samples[name])) for name in ("ours", "theirs")
        )
        return ours / theirs


def twice(add: Callable[[bytes], object], count: int = ITEMS) -> Parts:
    """Check and add new fingerprints, and then the same again."""
    items = [os.urandom(20) for _ in range(count)]

    def run() -> None:
        for item in items:
            add(item)

    yield run, count
    yield run, count


def textbook() -> Parts:
    """Check and add in the loop of the textbooks, sized for a million."""
    return twice(competitors.textbook(1_000_000, 1e-6).add)


def core(*, digests: bool = True, growths: int = 0) -> Parts:
    """Our filter, sized for a million, or grown so often."""
    seen = LocalFilter(1_000_000 if not growths else 1000, digests=digests)
    for _ in range(1000 * 2**growths if growths else 0):
        seen.add(os.urandom(20))
    return twice(seen.add)


def requests() -> list[Request]:
    """Return fresh requests for links as a shop has them; Scrapy keeps a fingerprint with each."""
    return [
        Request(f"https://www.example.com/books/{i % 97}/title-{i}.html?sort=price&page={i % 7}")
        for i in range(ITEMS)
    ]


def fingerprints(call: Callable[[Request], object]) -> Parts:
    """Call something with fresh requests."""
    fresh = requests()

    def run() -> None:
        for request in fresh:
            call(request)

    yield run, ITEMS


def canonical(level: str) -> Parts:
    """Make our fingerprints at a level."""
    return fingerprints(CanonicalFingerprinter(level).fingerprint)


def request_seen(name: str) -> Parts:
    """Check fresh requests in a dupefilter."""
    with opened(FILTERS[name]) as request_seen:
        yield from fingerprints(request_seen)


def open_and_store() -> Parts:
    """Open a job of 100,000 pages and store it again."""
    with TemporaryDirectory() as folder:

        def run() -> None:
            job = open_ours(Path(folder, "job"), 1_000_000)
            for item in items:
                job.filter.add(item)
            job.close()

        items = [os.urandom(20) for _ in range(100_000)]
        run()
        items.clear()
        yield run, 1


def hash_the_same() -> Parts:
    """Hash as many bytes as such a job takes, once for reading and once for writing."""
    data = os.urandom(4_350_000)

    def run() -> None:
        for _ in range(2):
            hashlib.blake2b(data).digest()

    yield run, 1


def in_redis(name: str) -> Parts:
    """Check and add new fingerprints at a server of our own."""
    items = [os.urandom(20) for _ in range(ITEMS)]
    [candidate] = [one for one in redis_filters.candidates(module=False) if one.name == name]
    with redis_server.local_server() as server, candidate.open(server.url, "check") as check:
        check(items[:100])  # connects, makes the filter, loads the script
        yield lambda: check(items[100:]), ITEMS - 100


CHECKS = (
    Check("check-and-add / the textbook loop", 0.4, core, textbook),
    Check(
        "check-and-add of any bytes / the textbook loop",
        0.58,
        partial(core, digests=False),
        textbook,
    ),
    Check("check-and-add when grown 6 times / not grown", 1.46, partial(core, growths=6), core),
    *(
        Check(
            f"fingerprint, level {level} / Scrapy's",
            usual,
            partial(canonical, level),
            lambda: fingerprints(RequestFingerprinter().fingerprint),
        )
        for level, usual in (("scrapy", 0.172), ("safe", 0.174), ("usual", 0.2))
    ),
    *(
        Check(
            f"request_seen, level {level} / Scrapy's filter",
            usual,
            partial(request_seen, f"scrapy-bloom, {level}"),
            partial(request_seen, SCRAPY),
        )
        for level, usual in (("scrapy", 0.29), ("safe", 0.29), ("usual", 0.32))
    ),
    Check("open and store a job / hash its bytes twice", 1.6, open_and_store, hash_the_same),
    Check(
        "batches in Redis / SADD in pipelines",
        1.4,
        partial(in_redis, redis_filters.OURS_BATCHED),
        partial(in_redis, redis_filters.PIPELINED),
        clock="wall",
    ),
)


def main() -> int:
    """Measure, print, return the exit code."""
    logging.getLogger("scrapy_bloom").setLevel(logging.ERROR)  # filters that grow say so
    table = Table("ratio", "usual", "bound", "measured", "")
    worse = 0
    for check in CHECKS:
        ratio = check.measure()
        if ratio > check.bound:
            ratio = min(ratio, check.measure())
        failed = ratio > check.bound
        worse += failed
        verdict = "[red]worse[/]" if failed else "holds"
        numbers = (f"{number:.3f}" for number in (check.usual, check.bound, ratio))
        table.add_row(check.name, *numbers, verdict)
    Console(width=100).print(table)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
