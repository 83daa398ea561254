"""``scrapy bloom canon URL [URL …]``: how URLs become canonical, and which are one page."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scrapy import Spider
from scrapy.crawler import Crawler
from scrapy.exceptions import UsageError
from scrapy.settings import Settings

from scrapy_bloom.canonical.explain import Explanation, explain, reasons
from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.errors import BloomError
from scrapy_bloom.session.rules import rules_of
from scrapy_bloom.settings import Settings as BloomSettings

ARGUMENTS = "URL [URL ...]"
SUMMARY = "show how URLs become canonical, and which of them are one page"


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this sub-command."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: Sequence[str], options: Namespace, settings: Settings) -> int:
    """Print how each URL becomes canonical, and whether it is the same page as the first one."""
    if not args:
        raise UsageError("canon: give one or more URLs", print_help=False)
    try:
        fingerprinter = _fingerprinter(settings)
        explanations = [explain(url, fingerprinter) for url in args]
    except (BloomError, ValueError) as error:
        raise UsageError(f"canon: {error}", print_help=False) from error
    pairs = [(url, reasons(args[0], url, fingerprinter)) for url in args[1:]]
    if options.json:
        json.dump(_as_json(explanations, pairs, fingerprinter), sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        sys.stdout.write(_as_text(explanations, pairs))
    return 0


def _fingerprinter(settings: Settings) -> CanonicalFingerprinter:
    """Return the fingerprinter that a crawl with these settings would have."""
    crawler = Crawler(Spider, settings, init_reactor=True)
    crawler._apply_settings()  # noqa: SLF001 - add-ons may choose the fingerprinter
    rules = rules_of(BloomSettings(crawler.settings))
    return CanonicalFingerprinter.wrapping(crawler.request_fingerprinter, rules)


def _as_json(
    explanations: Sequence[Explanation],
    pairs: Sequence[tuple[str, tuple[str, ...] | None]],
    fingerprinter: CanonicalFingerprinter,
) -> dict[str, Any]:
    return {
        "rules": fingerprinter.rules.as_json(),
        "fingerprinter": fingerprinter.wrapped,
        "urls": [
            {**asdict(explanation), "steps": [taken._asdict() for taken in explanation.steps]}
            for explanation in explanations
        ],
        "pairs": [
            {
                "urls": [explanations[0].url, url],
                "same": because is not None,
                "because": because if because is None else list(because),
            }
            for url, because in pairs
        ],
    }


def _as_text(
    explanations: Sequence[Explanation], pairs: Sequence[tuple[str, tuple[str, ...] | None]]
) -> str:
    lines = []
    for explanation in explanations:
        lines.append(explanation.url)
        for taken in explanation.steps:
            lines += [f"  {taken.step:<15} {taken.before}", f"  {'':<15} {taken.after}"]
        lines += [f"  {'canonical':<15} {explanation.canonical}"]
        lines += [f"  {'fingerprint':<15} {explanation.fingerprint}", ""]
    lines += [f"{explanations[0].url} and {url}: {_verdict(because)}" for url, because in pairs]
    return "\n".join(lines).rstrip("\n") + "\n"


def _verdict(because: tuple[str, ...] | None) -> str:
    if because is None:
        return "two pages"
    return f"one page, because of {', '.join(because)}" if because else "one page without any step"
