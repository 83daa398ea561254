"""``scrapy bloom copy``: a filter to a place where there is none."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.moved import show
from scrapy_bloom.tools.moving import copy

EXAMPLE = "job redis://localhost --key books:bloom"
SUMMARY = "copy a filter between any two places, bit by bit"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("source", metavar="SRC", help="the filter")
    parser.add_argument("target", metavar="DST", help="where to put it: nothing may be there")
    add_key(parser)
    parser.add_argument("--to-key", default="", metavar="KEY", help="key of DST, if it differs")


def run(args: Namespace, context: Context) -> int:
    """Copy, and print what was copied."""
    done = copy(
        args.source,
        args.target,
        key=args.key,
        target_key=args.to_key,
        project=context.project,
        progress=context.output.progress,
    )
    show(done, context.output)
    return 0
