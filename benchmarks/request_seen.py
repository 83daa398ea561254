"""request_seen of a fresh Request, as Scrapy's scheduler calls it: ours and Scrapy's own filter.

Real spellings of links: some have a query, in any order of its parameters, one in four is a repeat.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

from harness import setting, show, take_turns
from scrapy import Request, Spider
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.test import get_crawler

from scrapy_bloom import BloomDupeFilter


class Books(Spider):
    """A spider to belong to."""

    name = "books"


def links(count: int) -> list[str]:
    """Return links as a shop has them."""
    pages = [
        f"https://www.example.com/books/{i % 97}/title-{i}.html" for i in range(count * 3 // 4)
    ]
    pages[::3] = [f"{page}?sort=price&page={i % 7}" for i, page in enumerate(pages[::3])]
    return (pages + [page.replace("sort=price&", "") for page in pages[: count - len(pages)]])[
        :count
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    urls = links(arguments.requests)

    def prepare(cls: Any) -> Iterator[tuple[Callable[[], object], int]]:
        dupefilter = cls.from_crawler(get_crawler(Books, {"BLOOM_CAPACITY": "1M"}))
        dupefilter.open()
        # Fresh ones: Scrapy keeps a request's fingerprint with the request.
        requests = [Request(url) for url in urls]

        def run() -> None:
            for request in requests:
                dupefilter.request_seen(request)

        yield run, len(requests)
        dupefilter.close("finished")

    timings = take_turns(
        {
            "scrapy-bloom": lambda: prepare(BloomDupeFilter),
            "Scrapy's RFPDupeFilter": lambda: prepare(RFPDupeFilter),
        },
        arguments.repeats,
    )
    ours = timings[0].median
    print(setting("Scrapy", "w3lib"))
    show(
        f"request_seen, {len(urls):,} fresh requests, median of {arguments.repeats}",
        ("filter", "µs (fastest to slowest)", "ours / theirs"),
        [(t.name, t.micros(), f"{ours / t.median:.2f}") for t in timings],
    )


if __name__ == "__main__":
    main()
