"""``scrapy bloom merge``: several copies of one filter into one."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.moved import show
from scrapy_bloom.tools.moving import merge

EXAMPLE = "monday.bloom tuesday.bloom week.bloom"
SUMMARY = "put copies of one filter together, with the pages of each"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument("sources", metavar="SRC", nargs="+", help="filters of one secret")
    parser.add_argument("target", metavar="DST", help="where the result goes; takes part if there")
    add_key(parser)
    parser.add_argument("--to-key", default="", metavar="KEY", help="key of DST, if it differs")


def run(args: Namespace, context: Context) -> int:
    """Merge, and print what came of it."""
    done = merge(
        args.sources,
        args.target,
        key=args.key,
        target_key=args.to_key,
        project=context.project,
        progress=context.output.progress,
    )
    show(done, context.output)
    return 0
