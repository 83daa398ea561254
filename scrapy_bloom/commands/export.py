"""``scrapy bloom export``: one portable file for a filter, wherever it lives."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.moved import show
from scrapy_bloom.tools.moving import export

EXAMPLE = "job books.bloom"
SUMMARY = "write a filter to one file, the same bits wherever it lives"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "places", metavar="[TARGET] FILE", nargs="+", help="the filter, and the file to write"
    )
    add_key(parser)


def run(args: Namespace, context: Context) -> int:
    """Write the file and print what is in it."""
    *target, path = args.places
    if len(target) > 1:
        raise ValueError("give one TARGET and one FILE")
    done = export(
        target[0] if target else None,
        Path(path),
        key=args.key,
        project=context.project,
        progress=context.output.progress,
    )
    show(done, context.output)
    return 0
