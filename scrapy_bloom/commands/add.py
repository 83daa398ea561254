"""``scrapy bloom add``: mark pages as seen, without a crawl."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.lines import add_pages, on_each
from scrapy_bloom.tools.marking import warning_of

EXAMPLE = "job http://example.com/"
SUMMARY = "mark pages as seen, without a crawl; make the filter where there is none"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    add_pages(parser)


def run(args: Namespace, context: Context) -> int:
    """Mark pages; print how many were new."""
    if warning := warning_of(Path(args.file or "")):
        context.output.note(f"Note: {warning}")
    done = on_each(
        args,
        context,
        "marking",
        lambda adder, batch: adder.add_many(batch.fingerprints),
        make=True,
    )
    if context.output.as_json:
        context.output.json({"new": done.unknown, "seen": done.known, "bad": done.bad})
    context.output.done(f"{done.unknown:,} pages marked, {done.known:,} were marked before")
    return 1 if done.bad else 0
