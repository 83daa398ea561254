"""``scrapy bloom copy``: a filter to a place where there is none."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context
from scrapy_bloom.commands.moved import add_destination, move
from scrapy_bloom.tools.moving import copy

EXAMPLE = "job redis://localhost --key books:bloom"
SUMMARY = "copy a filter between any two places, bit by bit"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("source", metavar="SRC", help="the filter")
    add_destination(parser, "where to put it: nothing may be there")


def run(args: Namespace, context: Context) -> int:
    """Copy, and print what was copied."""
    return move(copy, args.source, args, context)
