"""``scrapy bloom canon URL [URL …]``: how URLs become canonical, and which are one page."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from scrapy_bloom.canonical.fingerprint import CanonicalFingerprinter
from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.explain import Explanation, explain, reasons
from scrapy_bloom.errors import SettingError

EXAMPLE = "http://example.com:80/a?b=1 http://example.com/a?b=1"
SUMMARY = "show how URLs become canonical, and which of them are one page"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "urls",
        metavar="URL",
        nargs="*",
        help="the first is compared with the others",
    )
    parser.add_argument("--spider", default="", metavar="NAME", help="whose settings count")


def run(args: Namespace, context: Context) -> int:
    """Print how each URL becomes canonical, and whether it is the same page as the first one."""
    urls = [url for one in args.urls for url in (_lines(context) if one == "-" else [one])]
    first, *others = urls = urls or [""]
    if not first:
        raise SettingError("give one or more URLs")
    fingerprinter = context.project.fingerprinter
    explanations = [explain(url, fingerprinter) for url in urls]
    pairs = [(url, reasons(first, url, fingerprinter)) for url in others]
    if context.output.as_json:
        context.output.json(_as_json(explanations, pairs, fingerprinter))
    else:
        context.output.lines(_as_text(explanations, pairs))
    return 0


def _lines(context: Context) -> Iterator[str]:
    with context.stream("-") as stream:
        yield from filter(None, (line.decode(errors="replace").strip() for line in stream))


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
