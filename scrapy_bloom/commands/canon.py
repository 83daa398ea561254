"""``scrapy bloom canon URL [URL …]``: how URLs become canonical, and which are one page."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from itertools import pairwise
from typing import Any

from scrapy import Request

from scrapy_bloom.commands.output import show
from scrapy_bloom.commands.project import Project
from scrapy_bloom.errors import SettingError
from scrapy_bloom.fingerprinter import CanonicalRequestFingerprinter

EXAMPLE = "http://example.com:80/a?b=1 http://example.com/a?b=1"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this verb."""
    parser.add_argument(
        "urls", metavar="URL", nargs="+", help="the first is compared with the others"
    )


def run(args: Namespace, project: Project) -> int:
    """Print how each URL becomes canonical, and whether it is the same page as the first."""
    ways = [way_of(url, project.fingerprinter) for url in args.urls]
    lines = []
    for way in ways:
        lines.append(str(way["url"]))
        for step, url in [*way["steps"], ("fingerprint", way["fingerprint"])]:
            lines.append(f"  {step:<15} {url}")
        if way is not ways[0]:
            same = way["fingerprint"] == ways[0]["fingerprint"]
            lines.append(f"  {'the same page' if same else 'not the same page'} as the first")
    show(args, ways, lines)
    return 0


def way_of(url: str, fingerprinter: CanonicalRequestFingerprinter) -> dict[str, Any]:
    """Follow a URL step by step to its fingerprint.

    A step is a name and the URL that it has left: ``request`` for what Scrapy changes when it makes
    a request, ``scrapy`` for its own canonical form; ``canonical`` is the last one.

    :raises SettingError: if Scrapy cannot make a request for the URL.
    """
    try:
        request = Request(url)
    except ValueError as error:
        raise SettingError(f"{url!r}: {error}") from error
    walked = [("", url), ("request", request.url), *fingerprinter.walk(request.url)]
    steps = [step for before, step in pairwise(walked) if before[1] != step[1]]
    steps.append(("canonical", walked[-1][1]))
    return {"url": url, "steps": steps, "fingerprint": fingerprinter.fingerprint(request).hex()}
