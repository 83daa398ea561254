"""`request_seen`, the whole check as Scrapy's scheduler calls it, and the fingerprint alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory

from scrapy import Request

from bench import links
from bench.harness import Prepare, Run, summed, take_turns
from bench.part import Column, Part, Row, Rows, Scale, Table
from bench.scrapy_filters import (
    ABOUT,
    FILTERS,
    PACKAGES,
    SCRAPY,
    Settings,
    opened,
    shop_links,
    stay_offline,
)

Call = Callable[[Request], object]


def run(scale: Scale) -> Rows:
    """Time both kinds of links, in memory and in a job directory."""
    crawled = links.acceptable(links.crawled())
    crawled = crawled[: scale.of(50_000, 10_000)]
    kinds = {"a shop's": shop_links(scale.of(50_000, 10_000)), "of a real crawl": crawled}
    rows: list[Row] = []
    for kind, urls in kinds.items():
        for jobs in (False, True) if kind == "a shop's" else (False,):
            candidates: dict[str, Prepare] = {
                name: partial(_seen, settings, urls, jobs=jobs)
                for name, settings in FILTERS.items()
            }
            place = {"links": kind, "job": "yes" if jobs else "no"}
            rows += [place | row for row in _timed(candidates, 3)]
    fingerprinters: dict[str, Prepare] = {
        name: partial(_fingerprint, settings, crawled) for name, settings in FILTERS.items()
    }
    return {"seen": rows, "fingerprint": _timed(fingerprinters, 3)}


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


def _seen(settings: Settings, urls: list[str], *, jobs: bool) -> Iterator[tuple[Run, int]]:
    with TemporaryDirectory() as folder:
        job = {"JOBDIR": folder} if jobs else {}
        with opened({**settings, **job}) as request_seen:
            yield from _calls(request_seen, urls)


def _fingerprint(settings: Settings, urls: list[str]) -> Iterator[tuple[Run, int]]:
    from scrapy.utils.test import get_crawler

    from scrapy_bloom import CanonicalFingerprinter

    stay_offline()
    level = settings.get("BLOOM_CANONICAL")
    if level:
        fingerprint: Call = CanonicalFingerprinter(level).fingerprint
    else:
        crawler = get_crawler(settings_dict=dict(settings))
        assert crawler.request_fingerprinter is not None
        fingerprint = crawler.request_fingerprinter.fingerprint
    yield from _calls(fingerprint, urls)


def findings(rows: Rows) -> list[str]:
    """Say how we stand."""
    ours = [row["ratio"] for row in rows["seen"] if row["name"].startswith("scrapy-bloom")]
    said = (
        f"`request_seen` takes from {min(ours):.2f} to {max(ours):.2f} of the time of Scrapy's own"
        " filter, over all levels, with and without a job directory."
    )
    return [said]


_TIMES = (
    Column("cpu", "µs CPU", ".2f", 1e-6, spread=True),
    Column("wall", "µs wall", ".2f", 1e-6),
    Column("ratio", "to Scrapy's", ".3f"),
)

PART = Part(
    name="request-seen",
    title="request_seen and the fingerprint in it",
    method=f"""\
Fresh requests, as a spider yields them: 50,000 links of a shop, a third with a query and one in
four a repeat, and 50,000 links of a real crawl. With a job directory Scrapy's filter writes
each fingerprint to a file; ours writes its bits when the spider closes.

{ABOUT}""",
    packages=PACKAGES,
    run=run,
    tables=(
        Table(
            "seen",
            "request_seen of a fresh request",
            (
                Column("links", "links"),
                Column("job", "job directory"),
                Column("name", "filter"),
                *_TIMES,
            ),
        ),
        Table(
            "fingerprint",
            "One fingerprint of a fresh request, links of a real crawl",
            (Column("name", "fingerprints of"), *_TIMES),
        ),
    ),
    findings=findings,
)
