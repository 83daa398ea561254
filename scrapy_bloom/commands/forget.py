"""``scrapy bloom forget``: let pages through once more."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.lines import add_pages, on_each

EXAMPLE = "job http://example.com/news"
SUMMARY = "let pages through once more: the next request for each is new"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, context: Context) -> int:
    """Let pages through; print how many. Return 1 if the filter has not had one of them."""
    done = on_each(args, context, "forgetting", lambda marks, some: marks.forget_many(some))
    if context.output.as_json:
        context.output.json({"let_through": done.known, "unknown": done.unknown, "bad": done.bad})
    context.output.done(f"{done.known:,} pages are new once more, {done.unknown:,} were new anyway")
    return 1 if done.unknown or done.bad else 0
