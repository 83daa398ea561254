"""``scrapy bloom import``: fill a filter from files."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from scrapy_bloom.commands.context import Context, add_key
from scrapy_bloom.tools.importing import FORMS, import_

EXAMPLE = "job urls.txt --spider books"
SUMMARY = "fill a filter with URLs, fingerprints, requests.seen or another filter"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of this sub-command."""
    parser.add_argument(
        "places",
        metavar="[TARGET] FILE",
        nargs="+",
        help="the filter, made where there is none, and files, or - for standard input, in any"
        " form. For several files give a TARGET",
    )
    add_key(parser)
    parser.add_argument("--form", choices=FORMS, default="auto", help="what the files hold")
    parser.add_argument("--strict", action="store_true", help="stop at the first bad line")


def run(args: Namespace, context: Context) -> int:
    """Import, and print what came of it; return 1 if lines were bad."""
    output = context.output
    target, files = (args.places[0], args.places[1:]) if args.places[1:] else (None, args.places)
    done = import_(
        target,
        [sys.stdin.buffer if name == "-" else name for name in files],
        form=args.form,
        strict=args.strict,
        key=args.key,
        project=context.project,
        progress=output.progress,
    )
    for bad in done.bad_lines:
        output.note(f"line {bad.number:,}: {bad.text!r}: {bad.reason}")
    for warning in done.warnings:
        output.note(f"Note: {warning}")
    if output.as_json:
        output.json(done)
    how = "made" if done.made else "filled"
    bad_lines = f", {done.bad:,} lines were bad and left out" if done.bad else ""
    output.done(f"{done.target}: {how}, {done.read:,} read, {done.new:,} new{bad_lines}")
    return 1 if done.bad else 0
