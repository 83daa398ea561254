"""``scrapy bloom forget``: let pages through once more."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.lines import add_pages, kind_of, opened, split, tell_bad
from scrapy_bloom.tools.lines import Lines
from scrapy_bloom.tools.marking import adding

EXAMPLE = "job http://example.com/news"
SUMMARY = "let pages through once more: the next request for each is new"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, context: Context) -> int:
    """Let pages through; print how many. Return 1 if the filter has not had one of them."""
    target, pages = split(args)
    known = unknown = 0
    with (
        opened(args, pages, context) as stream,
        adding(target, key=args.key, project=context.project) as (adder, fingerprinter),
    ):
        lines = Lines(fingerprinter, kind_of(args), strict=args.strict)
        for batch in lines.of_stream(stream):
            found = adder.let_through(batch.fingerprints)
            known += sum(found)
            unknown += len(found) - sum(found)
    tell_bad(lines, context.output)
    if context.output.as_json:
        context.output.json({"let_through": known, "unknown": unknown, "bad": lines.bad})
    context.output.done(f"{known:,} pages are new once more, {unknown:,} were new anyway")
    return 1 if unknown or lines.bad else 0
