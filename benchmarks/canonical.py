"""What canonical fingerprints cost and merge, on 100,017 links of a real crawl.

    python benchmarks/canonical.py [identical] [fuzz[=REQUESTS]] [time] [seen] [merges]

- identical: level `scrapy` against Scrapy, on the links and on the WHATWG URL test data.
- fuzz: the same on random requests, a million by default, which pass through all levels.
- time: one fingerprint of a fresh request, by level, and of others.
- seen: the same for request_seen as a whole.
- merges: every group of links that a level takes for one page and the level below it does not.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import links
from harness import setting, show, take_turns
from scrapy import Request, Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, CanonicalFingerprinter
from scrapy_bloom.canonical.rules import LEVELS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from spellings import random_request

REPEATS = 7
Call = Callable[[Request], object]


class Links(Spider):
    """A spider to belong to."""

    name = "links"


def identical() -> None:
    """Compare level `scrapy` with Scrapy on real links and on the WHATWG test data."""
    ours = CanonicalFingerprinter("scrapy").fingerprint
    rows = []
    for name, urls in (("crawled links", links.crawled()), ("WHATWG test data", links.whatwg())):
        requests = [Request(url) for url in links.acceptable(urls)]
        different = sum(ours(request) != fingerprint(request) for request in requests)
        rows.append((name, f"{len(urls):,}", f"{len(requests):,}", str(different)))
    show(
        "level scrapy against Scrapy's own fingerprints",
        ("URLs", "in all", "that Scrapy takes", "different"),
        rows,
    )


def fuzz(count: int = 1_000_000) -> None:
    """Compare level `scrapy` with Scrapy on random requests, and let all levels run."""
    rng = random.Random(2026)
    ours = [CanonicalFingerprinter(level).fingerprint for level in LEVELS]
    done, different = 0, []
    while done < count:
        request = random_request(rng)
        if request is None:
            continue
        done += 1
        at_scrapy, *_ = [make(request) for make in ours]
        if at_scrapy != fingerprint(request):
            different.append(repr(request))
    print(f"{done:,} random requests, {len(different)} different from Scrapy's own")
    print(*different[:10], sep="\n", end="\n" if different else "")


def measure() -> None:
    """Time a fingerprint of a fresh request."""
    discarder = {"REQUEST_FINGERPRINTER_CLASS": "duplicate_url_discarder.Fingerprinter"}
    _show_times(
        "one fingerprint of a fresh request",
        {
            "Scrapy's own": lambda: RequestFingerprinter().fingerprint,
            **{
                f"level {level}": lambda level=level: CanonicalFingerprinter(level).fingerprint
                for level in LEVELS
            },
            "duplicate-url-discarder": lambda: (
                get_crawler(Links, discarder).request_fingerprinter.fingerprint
            ),
        },
    )


def seen() -> None:
    """Time `request_seen` as a whole for a fresh request."""

    def opened(cls: Any, **settings: object) -> Call:
        dupefilter = cls.from_crawler(get_crawler(Links, settings))
        dupefilter.open()
        return dupefilter.request_seen

    _show_times(
        "request_seen of a fresh request",
        {
            "Scrapy's RFPDupeFilter": lambda: opened(RFPDupeFilter),
            **{
                f"level {level}": lambda level=level: opened(BloomDupeFilter, BLOOM_CANONICAL=level)
                for level in LEVELS
            },
        },
    )


def _show_times(title: str, makers: dict[str, Callable[[], Call]]) -> None:
    urls = links.acceptable(links.crawled())

    def prepare(make: Callable[[], Call]) -> Iterator[tuple[Callable[[], object], int]]:
        call = make()
        # Fresh ones: Scrapy keeps a request's fingerprint with the request.
        requests = [Request(url) for url in urls]

        def run() -> None:
            for request in requests:
                call(request)

        yield run, len(requests)

    timings = take_turns(
        {name: lambda make=make: prepare(make) for name, make in makers.items()}, REPEATS
    )
    base = timings[0].median
    print(setting("Scrapy", "w3lib", "duplicate-url-discarder"))
    show(
        f"{title}, {len(urls):,} links, median of {REPEATS}",
        ("candidate", "µs (fastest to slowest)", "to Scrapy's"),
        [(t.name, t.micros(), f"{t.median / base:.3f}") for t in timings],
    )


def merges() -> None:
    """List what each level takes for one page, beyond the level below it."""
    urls = list(dict.fromkeys(links.acceptable(links.crawled())))
    below = {url: fingerprint(Request(url)) for url in urls}
    print(f"{len(urls):,} different links, {len(set(below.values())):,} pages for Scrapy")
    for level in list(LEVELS)[1:]:
        fingerprinter = CanonicalFingerprinter(level)
        here = {url: fingerprinter.resolve(Request(url)) for url in urls}
        groups: dict[bytes, dict[bytes, str]] = defaultdict(dict)
        for url, (made, _) in here.items():
            groups[made].setdefault(below[url], url)
        changes = Counter(step for _, change in here.values() if change for step in change.steps)
        merged = [list(group.values()) for group in groups.values() if len(group) > 1]
        print(
            f"level {level}: {len(groups):,} pages; links changed by each step: {dict(changes)};"
            f" {len(merged)} groups merged, {sum(map(len, merged)) - len(merged)} pages fewer"
        )
        print(json.dumps(merged, indent=1, ensure_ascii=False))
        below = {url: made for url, (made, _) in here.items()}


PARTS: dict[str, Callable[..., None]] = {
    "identical": identical,
    "fuzz": fuzz,
    "time": measure,
    "seen": seen,
    "merges": merges,
}


def main(parts: list[str]) -> None:
    """Run the parts that are named, or all."""
    for part in parts or PARTS:
        name, _, number = part.partition("=")
        PARTS[name](*map(int, number.split()))


if __name__ == "__main__":
    main(sys.argv[1:])
