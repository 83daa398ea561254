"""`request_seen`, the whole check as Scrapy's scheduler calls it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from scrapy import Request

from bench.harness import Prepare, Run, spread, take_turns
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.scrapy_filters import (
    FILTERS,
    PACKAGES,
    SCRAPY,
    Settings,
    opened,
)


def run(scale: Scale) -> Rows:
    """Time every filter."""
    from testbed.localsite import LocalSite

    site = LocalSite(pages=scale.of(2_500, 500))
    urls = [
        f"http://www.example.com{href}" for page in range(site.pages) for href in site.hrefs(page)
    ]
    candidates: dict[str, Prepare] = {
        name: partial(_seen, settings, urls) for name, settings in FILTERS.items()
    }
    samples = take_turns(candidates, 5)
    rows: list[Row] = [{"name": name, **spread("cpu", parts[0])} for name, parts in samples.items()]
    base = next(row["cpu"] for row in rows if row["name"] == SCRAPY)
    return {"seen": [row | {"ratio": row["cpu"] / base} for row in rows]}


def _seen(settings: Settings, urls: list[str]) -> Iterator[tuple[Run, int]]:
    with opened(settings) as request_seen:
        requests = [Request(url) for url in urls]  # fresh: Scrapy keeps a fingerprint with each

        def run_all() -> None:
            for request in requests:
                request_seen(request)

        yield run_all, len(requests)


PART = Part(
    name="request-seen",
    title="request_seen",
    method="""\
Fresh requests for the 50,000 links of 2,500 pages of the local site: half of them are plain, many
have a query with its parameters in any order, a fifth a fragment.""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "seen",
            "request_seen of a fresh request",
            (
                Column("name", "filter"),
                Column("cpu", "µs CPU", ".2f", 1e-6, spread=True),
                Column("ratio", "to Scrapy's", ".3f"),
            ),
        ),
    ),
)
