"""``scrapy bloom merge``: several copies of one filter into one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.moved import add_destination, move
from scrapy_bloom.tools.moving import merge

EXAMPLE = "monday.bloom tuesday.bloom week.bloom"
SUMMARY = "put copies of one filter together, with the pages of each"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("sources", metavar="SRC", nargs="+", help="filters of one secret")
    add_destination(parser, "where the result goes; takes part if there")


def run(args: Namespace, context: Context) -> int:
    """Merge, and print what came of it."""
    return move(merge, args.sources, args, context)
