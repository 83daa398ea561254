"""``scrapy bloom add``: mark pages as seen, without a crawl."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.lines import add_pages, kind_of, opened, split, tell_bad
from scrapy_bloom.tools.lines import Lines
from scrapy_bloom.tools.marking import adding

EXAMPLE = "job http://example.com/"
SUMMARY = "mark pages as seen, without a crawl"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, context: Context) -> int:
    """Mark pages; print how many were new."""
    target, pages = split(args)
    new = seen = 0
    with (
        opened(args, pages, context) as stream,
        adding(target, key=args.key, project=context.project) as (adder, fingerprinter),
    ):
        lines = Lines(fingerprinter, kind_of(args), strict=args.strict)
        with context.output.progress("marking", None, "pages") as told:
            for batch in lines.of_stream(stream):
                found = adder.add_many(batch.fingerprints)
                seen += sum(found)
                new += len(found) - sum(found)
                told(len(found))
    tell_bad(lines, context.output)
    if context.output.as_json:
        context.output.json({"new": new, "seen": seen, "bad": lines.bad})
    context.output.done(f"{new:,} pages marked, {seen:,} were marked before")
    return 1 if lines.bad else 0
