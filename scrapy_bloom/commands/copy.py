"""``scrapy bloom copy``: a filter to a place where there is none."""

from __future__ import annotations

import shutil
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.errors import SettingError, StateError
from scrapy_bloom.options import write_size
from scrapy_bloom.tools.moving import copy

EXAMPLE = "job redis://localhost --key books:bloom"
SUMMARY = "copy a filter between any two places, bit by bit"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "source",
        metavar="SRC",
        help="the filter, or - for standard input; or the queue of scrapy-redis",
    )
    parser.add_argument(
        "target",
        metavar="DST",
        help="where to put it: nothing may be there; - for standard output. A filter of the"
        " layout sets cannot go into a job directory",
    )
    add_key(parser)
    parser.add_argument("--to-key", default="", metavar="KEY", help="key of DST, if it differs")


def run(args: Namespace, context: Context) -> int:
    """Copy, and print what was copied."""
    output, piped = context.output, args.target == "-"
    if piped and sys.stdout.isatty():
        raise SettingError("a filter is no text: give a file, or let a program read this")
    with TemporaryDirectory(prefix="scrapy-bloom-") as folder:
        # A filter is read more than once, and replaced whole: what goes through a pipe is a file.
        read, written = Path(folder) / "in.bloom", Path(folder) / "out.bloom"
        if args.source == "-":
            with read.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        done = copy(
            read if args.source == "-" else args.source,
            written if piped else args.target,
            key=args.key,
            target_key=args.to_key,
            project=context.project,
            progress=output.progress,
        )
        if piped:
            done = replace(done, target="standard output")
            try:
                with written.open("rb") as file:
                    shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.flush()
            except BrokenPipeError:
                raise StateError("standard output: nobody has read it to its end") from None
    for warning in done.warnings:
        output.note(f"Note: {warning}")
    text = (
        f"{done.target}: {done.items:,} items in {write_size(done.bytes)}, {done.slices} slices,"
        f" error rate now {done.error_rate_now:.2g} (set: {done.error_rate:g})"
    )
    if done.requests:
        text = f"{done.requests:,} requests were copied. {text}"
    if piped:
        output.note(text)
        return 0
    if output.as_json:
        output.json(done)
    output.done(text)
    return 0
