"""``scrapy bloom canon URL [URL …]``: how URLs become canonical, and which are one page."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from scrapy import Request

from scrapy_bloom.canonical.fingerprint import SCRAPY, CanonicalFingerprinter
from scrapy_bloom.commands.output import Output
from scrapy_bloom.commands.project import Project
from scrapy_bloom.commands.target import add_spider
from scrapy_bloom.errors import SettingError

EXAMPLE = "http://example.com:80/a?b=1 http://example.com/a?b=1"
SUMMARY = "show how URLs become canonical, and which of them are one page"


@dataclass(frozen=True)
class Way:
    """How a fingerprint is made from a URL.

    Attributes:
        url: the URL as it was given.
        steps: what changed it, in order: the name of the step, ``request`` for what Scrapy changes
            when it makes a request, or ``scrapy`` for its own canonical form; before; after.
        canonical: the URL that the fingerprint is made from.
        fingerprint: the fingerprint in hexadecimal.
    """

    url: str
    steps: Sequence[dict[str, str]]
    canonical: str
    fingerprint: str


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "urls", metavar="URL", nargs="*", help="the first is compared with the others"
    )
    add_spider(parser)


def run(args: Namespace, project: Project, output: Output) -> int:
    """Print how each URL becomes canonical, and whether it is the same page as the first one."""
    first, *others = args.urls or [""]
    if not first:
        raise SettingError("give one or more URLs")
    made = project.fingerprinter
    ways = [way_of(url, made) for url in args.urls]
    pairs = [(url, reasons(first, url, made)) for url in others]
    value = {
        "rules": made.rules.as_json(),
        "fingerprinter": made.wrapped,
        "urls": [asdict(way) for way in ways],
        "pairs": [
            {"urls": [first, url], "same": because is not None, "because": because}
            for url, because in pairs
        ],
    }
    lines = []
    for way in ways:
        lines.append(way.url)
        for step in way.steps:
            lines += [f"  {step['step']:<15} {step['before']}", f"  {'':<15} {step['after']}"]
        lines += [f"  {'canonical':<15} {way.canonical}"]
        lines += [f"  {'fingerprint':<15} {way.fingerprint}", ""]
    lines += [f"{first} and {url}: {_verdict(because)}" for url, because in pairs]
    output.show(value, [[line] for line in (lines if pairs else lines[:-1])])
    return 0


def way_of(url: str, made: CanonicalFingerprinter) -> Way:
    """Follow `url` step by step to its fingerprint.

    :raises ValueError: if Scrapy cannot make a request for `url`.
    """
    request = Request(url)
    walked = [("", url), ("request", request.url), *made.walk(request.url)]
    steps = [
        {"step": step, "before": before, "after": after}
        for (_, before), (step, after) in pairwise(walked)
        if before != after
    ]
    return Way(url, steps, walked[-1][1], made.fingerprint(request).hex())


def reasons(one: str, other: str, made: CanonicalFingerprinter) -> list[str] | None:
    """Return the steps that make two URLs one page, or None if they are two pages.

    A step is a reason if the URLs would be two pages without it. If they would be one page without
    any step, there is no reason: the list is empty. If each of two steps would be enough by itself,
    all steps that changed a URL are returned.

    :raises ValueError: if Scrapy cannot make a request for one of the URLs.
    """
    requests = Request(one), Request(other)
    if not _same(requests, made):
        return None
    walked = [step for request in requests for step, _ in made.walk(request.url)]
    applied = dict.fromkeys(step for step in walked if step != SCRAPY)
    needed = [step for step in applied if not _same(requests, made.without(step))]
    untouched = {made.untouched(request) for request in requests}
    return needed if needed or len(untouched) == 1 else [*applied]


def _same(requests: tuple[Request, Request], made: CanonicalFingerprinter) -> bool:
    one, other = requests
    return made.fingerprint(one) == made.fingerprint(other)


def _verdict(because: list[str] | None) -> str:
    if because is None:
        return "two pages"
    return f"one page, because of {', '.join(because)}" if because else "one page without any step"
