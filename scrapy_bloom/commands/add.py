"""``scrapy bloom add``: mark pages as seen, without a crawl."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.lines import add_pages, on_each
from scrapy_bloom.local.job import SEEN
from scrapy_bloom.local.scrapys import why_unclean

EXAMPLE = "job http://example.com/"
SUMMARY = "mark pages as seen, without a crawl; make the filter where there is none"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, context: Context) -> int:
    """Mark pages; print how many were new."""
    path = Path(args.file or "")
    if path.name == SEEN and (why := why_unclean(path.parent)):
        context.output.note(
            f"Note: The crawl of {path} was killed ({why}): some of its marks are those of requests"
            f" that are lost, and their pages are not fetched."
        )
    done = on_each(args, context, "marking", lambda marks, some: marks.add_many(some), make=True)
    if context.output.as_json:
        context.output.json({"new": done.unknown, "seen": done.known, "bad": done.bad})
    context.output.done(f"{done.unknown:,} pages marked, {done.known:,} were marked before")
    return 1 if done.bad else 0
