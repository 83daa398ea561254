"""Fingerprints of each class of URL, and of real lists: how the time compares with Scrapy's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count, cycle, islice
from random import Random
from statistics import median
from typing import Final

from scrapy import Request

from bench import links
from bench.harness import Prepare, Run, Sample, take_turns
from bench.part import Column, Part, Row, Rows, Scale, Table

LEVELS: Final = ("scrapy", "safe", "usual")
SCRAPY: Final = "Scrapy itself"
_E: Final = "https://www.example.com"

CLASSES: Final = {
    "plain": (f"{_E}/{{}}/products/item-1.html", f"{_E}/{{}}/a/b/c", "http://a.example/{}/"),
    "plain, with a query": (f"{_E}/list?page={{}}&sort=price&c=1", f"{_E}/item?id={{}}"),
    "`/` in the query": (f"{_E}/view?path=/a/b&x={{}}",),
    "`,` and `:` in the query": (f"{_E}/map?ll=48.1,11.5&t=12:30&x={{}}",),
    "`;` and `@` in the query": (f"{_E}/map?a=x;y&m=u@example.com&x={{}}",),
    "a field without `=`": (f"{_E}/view?{{}}", f"{_E}/view?id={{}}&print"),
    "`;` in the path": (f"{_E}/{{}}/view;v=1/page;p=2?b=1",),
    "escapes in lower case": (f"{_E}/{{}}/caf%c3%a9/%e4%b8%ad?q=%c3%a9t%c3%a9",),
    "escapes in upper case": (f"{_E}/{{}}/caf%C3%A9/%E4%B8%AD?q=%C3%A9t%C3%A9",),
    "dot segments": (f"{_E}/{{}}/a/./b/../c.html",),
    "default port": ("https://www.example.com:443/{}/a?x=1", "http://a.example:80/{}/a"),
    "other port": ("https://www.example.com:8443/{}/a?x=1",),
    "upper-case host": ("https://WWW.Example.COM/{}/a",),
    "fragment": (f"{_E}/{{}}/a.html#section-2",),
    "tracking parameters": (f"{_E}/{{}}/a?utm_source=x&utm_medium=y&id=1",),
    "user and password": ("https://u:p@www.example.com/{}/a",),
    "dot after the host": ("https://www.example.com./{}/a",),
    "short IPv4 address": ("http://127.1/{}/a",),
    "IPv6 address": ("http://[2001:db8::1]/{}/a",),
}
"""Classes of URLs, each by examples with a place for a number, so that no two URLs are the same."""


def run(scale: Scale) -> Rows:
    """Time each class and each list, with fresh requests."""
    of_each = scale.of(1_500, 300)
    classes = {
        name: [form.format(n) for form, n in islice(zip(cycle(forms), count()), of_each)]
        for name, forms in CLASSES.items()
    }
    crawled = links.crawled()
    Random(1).shuffle(crawled)
    lists = {"a real crawl": links.acceptable(crawled[: scale.of(10_000, 2_000)])}
    repeats = scale.of(5, 3)
    return {"classes": _rows(classes, repeats), "lists": _rows(lists, repeats)}


def _rows(kinds: dict[str, list[str]], repeats: int) -> list[Row]:
    candidates: dict[str, Prepare] = {
        name: partial(_fingerprints, name, kinds) for name in (SCRAPY, *LEVELS)
    }
    samples = take_turns(candidates, repeats)
    return [
        {
            "kind": kind,
            "urls": len(kinds[kind]),
            "cpu": median(sample.cpu for sample in samples[SCRAPY][number]),
            **{name: _ratio(samples[name][number], samples[SCRAPY][number]) for name in LEVELS},
        }
        for number, kind in enumerate(kinds)
    ]


def _ratio(ours: list[Sample], scrapys: list[Sample]) -> float:
    """Return the median of what each round says by itself."""
    return median(one.cpu / other.cpu for one, other in zip(ours, scrapys, strict=True))


def _fingerprints(name: str, kinds: dict[str, list[str]]) -> Iterator[tuple[Run, int]]:
    from scrapy.utils.request import RequestFingerprinter

    from scrapy_bloom import CanonicalRequestFingerprinter

    maker = RequestFingerprinter() if name == SCRAPY else CanonicalRequestFingerprinter(name)
    fingerprint = maker.fingerprint
    for urls in kinds.values():
        requests = [Request(url) for url in urls]  # fresh: Scrapy keeps a fingerprint with each

        def run_all(requests: list[Request] = requests) -> None:
            for request in requests:
                fingerprint(request)

        yield run_all, len(requests)


_COLUMNS = (
    Column("cpu", "Scrapy, µs CPU", ".1f", 1e-6),
    *(Column(name, f"level `{name}`, to Scrapy's", ".2f") for name in LEVELS),
)

PART = Part(
    name="urls",
    title="The fingerprint of each class of URL",
    method="""\
One fingerprint of a fresh request. Scrapy's own fingerprinter and ours at each level take turns in
one process; ratios are medians over the rounds. The classes have made-up URLs, all different.
Users with passwords, short IPv4 addresses and IPv6 addresses are left to w3lib: they are rare.
""",
    packages=("Scrapy", "w3lib"),
    run=run,
    tables=(
        Table("classes", "One fingerprint, by class of URL", (Column("kind", "URLs"), *_COLUMNS)),
        Table(
            "lists",
            "One fingerprint, real URLs",
            (Column("kind", "links of"), Column("urls", "URLs", ","), *_COLUMNS),
        ),
    ),
)
