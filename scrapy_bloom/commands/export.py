"""``scrapy bloom export``: one portable file for a filter, wherever it lives."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.commands.moved import show
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.tools.moving import export

EXAMPLE = "job books.bloom"
SUMMARY = "write a filter to one file, the same bits wherever it lives"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "places",
        metavar="[TARGET] FILE",
        nargs="+",
        help="the filter, and the file, or -",
    )
    add_key(parser)


def run(args: Namespace, context: Context) -> int:
    """Write the file and print what is in it."""
    *target, path = args.places
    if len(target) > 1:
        raise ValueError("give one TARGET and one FILE")
    if path == "-" and sys.stdout.isatty():
        raise SettingError("a filter is no text: give a FILE, or let a program read this")
    try:
        done = export(
            target[0] if target else None,
            sys.stdout.buffer if path == "-" else path,
            key=args.key,
            project=context.project,
            progress=context.output.progress,
        )
    except BrokenPipeError:
        raise StateError("standard output: nobody has read it to its end") from None
    show(done, context.output, beside=path == "-")
    return 0
