"""What canonical fingerprints cost and merge, on real links.

    python benchmarks/canonical.py [identical] [fuzz] [time] [seen] [merges]

Each part prints one JSON object. `fuzz` takes a number of requests, 1,000,000 by default:
`fuzz=20000`. `merges` lists every group of URLs that `safe` or `usual` take for one page and the
level below does not. Times are medians of alternating rounds, each with fresh requests made
beforehand.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import links
from scrapy import Request, Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.request import RequestFingerprinter, fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter, CanonicalFingerprinter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from spellings import random_request

LEVELS = ("scrapy", "safe", "usual")
ROUNDS = 7


class Links(Spider):
    """A spider, for those who ask its name."""

    name = "links"


def identical() -> dict[str, Any]:
    """Compare level `scrapy` with Scrapy on real links and on the WHATWG test data."""
    ours = CanonicalFingerprinter("scrapy").fingerprint
    counts = {}
    for name, urls in (("crawled", links.crawled()), ("whatwg", links.whatwg())):
        requests = [Request(url) for url in links.acceptable(urls)]
        different = [r.url for r in requests if ours(r) != fingerprint(r)]
        counts[name] = {
            "urls": len(urls),
            "requests": len(requests),
            "differences": len(different),
            "different": different[:10],
        }
    return counts


def fuzz(count: int = 1_000_000) -> dict[str, Any]:
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
    return {"requests": done, "differences": len(different), "different": different[:10]}


def measure() -> dict[str, Any]:
    """Time a fingerprint of a fresh request, on the crawled links."""
    discarder = get_crawler(
        Links, {"REQUEST_FINGERPRINTER_CLASS": "duplicate_url_discarder.Fingerprinter"}
    ).request_fingerprinter
    makers: dict[str, Callable[[], Callable[[Request], object]]] = {
        "scrapy's own": lambda: RequestFingerprinter().fingerprint,
        **{
            level: lambda level=level: CanonicalFingerprinter(level).fingerprint for level in LEVELS
        },
        "duplicate-url-discarder": lambda: discarder.fingerprint,
    }
    return _times(makers, links.acceptable(links.crawled()), "scrapy's own")


def seen() -> dict[str, Any]:
    """Time `request_seen` as a whole for a fresh request, on the crawled links."""

    def opened(filter_class: type[Any], **settings: object) -> Callable[[Request], object]:
        dupefilter = filter_class.from_crawler(get_crawler(Links, settings))
        dupefilter.open()
        return dupefilter.request_seen

    makers: dict[str, Callable[[], Callable[[Request], object]]] = {
        "RFPDupeFilter": lambda: opened(RFPDupeFilter),
        **{
            level: lambda level=level: opened(BloomDupeFilter, BLOOM_CANONICAL=level)
            for level in LEVELS
        },
    }
    return _times(makers, links.acceptable(links.crawled()), "RFPDupeFilter")


def _times(
    makers: dict[str, Callable[[], Callable[[Request], object]]], urls: list[str], base: str
) -> dict[str, Any]:
    rounds = defaultdict(list)
    names = list(makers)
    for number in range(ROUNDS):
        for name in names if number % 2 else reversed(names):
            requests = [Request(url) for url in urls]
            call = makers[name]()
            start = time.process_time()
            for request in requests:
                call(request)
            rounds[name].append((time.process_time() - start) / len(requests) * 1e6)
    medians = {name: statistics.median(rounds[name]) for name in names}
    return {
        name: {"us": round(median, 2), "ratio": round(median / medians[base], 3)}
        for name, median in medians.items()
    }


def merges() -> dict[str, Any]:
    """List what each level takes for one page, beyond the level below it."""
    urls = list(dict.fromkeys(links.acceptable(links.crawled())))
    found: dict[str, Any] = {"urls": len(urls)}
    below = {url: fingerprint(Request(url)) for url in urls}
    found["pages for scrapy"] = len(set(below.values()))
    for level in LEVELS[1:]:
        fingerprinter = CanonicalFingerprinter(level)
        here = {url: fingerprinter.resolve(Request(url)) for url in urls}
        groups = defaultdict(dict)
        steps: dict[str, int] = defaultdict(int)
        for url, (made, change) in here.items():
            groups[made].setdefault(below[url], url)
            for step in change.steps if change else ():
                steps[step] += 1
        merged = [list(group.values()) for group in groups.values() if len(group) > 1]
        found[level] = {
            "pages": len(groups),
            "urls changed, by step": dict(steps),
            "groups": len(merged),
            "pages merged away": sum(len(group) - 1 for group in merged),
            "merged": merged,
        }
        below = {url: made for url, (made, _) in here.items()}
    return found


PARTS = {"identical": identical, "fuzz": fuzz, "time": measure, "seen": seen, "merges": merges}


def main(parts: list[str]) -> None:
    """Run the parts that are named, or all."""
    for part in parts or PARTS:
        name, _, number = part.partition("=")
        outcome = PARTS[name](int(number)) if number else PARTS[name]()
        print(json.dumps({name: outcome}, indent=1, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
