"""`request_seen`, the whole check as Scrapy's scheduler calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from scrapy import Request

from bench import links
from bench.harness import Prepare, Run, summed, take_turns
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.scrapy_filters import (
    FILTERS,
    PACKAGES,
    SCRAPY,
    Settings,
    opened,
    shop_links,
)

Call = Callable[[Request], object]


def run(scale: Scale) -> Rows:
    """Time both kinds of links."""
    crawled = links.acceptable(links.crawled())
    crawled = crawled[: scale.of(50_000, 10_000)]
    kinds = {"a shop's": shop_links(scale.of(50_000, 10_000)), "of a real crawl": crawled}
    rows: list[Row] = []
    for kind, urls in kinds.items():
        candidates: dict[str, Prepare] = {
            name: partial(_seen, settings, urls) for name, settings in FILTERS.items()
        }
        rows += [{"links": kind} | row for row in _timed(candidates, 5)]
    return {"seen": rows}


def _timed(candidates: dict[str, Prepare], repeats: int) -> list[Row]:
    samples = take_turns(candidates, repeats)
    rows: list[Row] = [{"name": name, **summed(parts[0])} for name, parts in samples.items()]
    base = next(row["cpu"] for row in rows if row["name"] == SCRAPY)
    return [row | {"ratio": row["cpu"] / base} for row in rows]


def _calls(call: Call, urls: list[str]) -> Iterator[tuple[Run, int]]:
    requests = [Request(url) for url in urls]  # fresh: Scrapy keeps a fingerprint with each

    def run_all() -> None:
        for request in requests:
            call(request)

    yield run_all, len(requests)


def _seen(settings: Settings, urls: list[str]) -> Iterator[tuple[Run, int]]:
    with opened(settings) as request_seen:
        yield from _calls(request_seen, urls)


_TIMES = (
    Column("cpu", "µs CPU", ".2f", 1e-6, spread=True),
    Column("ratio", "to Scrapy's", ".3f"),
)

PART = Part(
    name="request-seen",
    title="request_seen",
    method="""\
Fresh requests for 50,000 links of a shop, a third with a query and one in four a repeat, and for
50,000 links of a real crawl.""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "seen",
            "request_seen of a fresh request",
            (
                Column("links", "links"),
                Column("name", "filter"),
                *_TIMES,
            ),
        ),
    ),
)
